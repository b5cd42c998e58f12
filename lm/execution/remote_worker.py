"""An executor's place on another machine: it trains a cell there as `local` would, and tells of it in plain values."""

import time
from collections.abc import Sequence
from typing import Any

from lm.execution import local
from lm.execution.executor import Ended, Event, Handle, Progress, Started, Validation
from lm.store.store import Store
from lm.training.cell import Cell
from lm.training.train import Execution

Message = Sequence[Any]
"""`started`; `progress` with step, steps and loss; `validation` with step and what was measured; `waiting` with a line;
`ended` with how, the last step and the error of a disk as number, words and file, or None. All of it fits into JSON."""

URGENT = ("validation", "ended")
"""Of which one hears at once."""


class RemoteWorker:
    """The executor of the machine that this process is on, with room for one cell.

    Args:
        store: where the cell is trained into.
    """

    def __init__(self, store: Store) -> None:
        self.said: list[Message] = []
        self.name = ""
        self.executor = local.Local(store, 1, self._say)
        self.handle: Handle | None = None
        self.asked: Validation | None = None

    def _say(self, line: str) -> None:
        self.said.append(("waiting", line.removeprefix(f"{self.name}: ")))  # which is said with every event

    def submit(self, cell: Cell, execution: Execution, name: str) -> None:
        """Begins with a cell, once the one before has ended."""
        self.name = name
        self.handle, self.asked = self.executor.submit(cell, execution, name), None

    def poll(self, seconds: float) -> list[Message]:
        """What has happened, after so many seconds or as soon as somebody is to answer or the cell has ended."""
        deadline, found = time.monotonic() + seconds, []
        while True:
            found += [self._plain(event) for event in self.executor.poll(max(0.0, deadline - time.monotonic()))]
            said, self.said = self.said, []
            found += said
            if self.handle is None or time.monotonic() >= deadline or any(one[0] in URGENT for one in found):
                return found

    def answer(self, goes_on: bool) -> None:
        """Says whether the cell goes on after the validation that it asked about last."""
        if self.asked is not None:
            self.asked.answer(goes_on)
            self.asked = None

    def cancel(self) -> None:
        """Asks for the cell to end."""
        if self.handle is not None:
            self.executor.cancel(self.handle)

    def close(self) -> None:
        """Ends what trains, within seconds."""
        self.executor.close()

    def _plain(self, event: Event) -> Message:
        match event:
            case Started():
                return ("started",)
            case Progress():
                return ("progress", event.step, event.steps, event.loss)
            case Validation():
                self.asked = event
                return ("validation", event.step, dict(event.measured))
            case Ended():
                self.executor.result(event.handle)
                self.handle, broken = None, event.broken
                found = None if broken is None else (broken.errno, broken.strerror, broken.filename)
                return ("ended", event.outcome.value, event.step, found)
        return ("waiting", event.line)
