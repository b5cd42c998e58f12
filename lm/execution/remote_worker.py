"""An executor's worker on another machine: it trains a cell there as `local` would, and reports in plain values."""

import time
from collections.abc import Sequence
from typing import Any

from lm.execution import local
from lm.execution.executor import Ended, Event, Handle, Progress, Started, Validation
from lm.store.store import Store
from lm.training.cell import Cell
from lm.training.train import Execution

Message = Sequence[Any]
"""Message as JSON values: `started`; `progress` with step, steps and loss; `validation` with step and measured values;
`waiting` with a line; `ended` with outcome, last step and disk error (number, text and file, or None)."""

URGENT = ("validation", "ended")
"""Message kinds that end a poll immediately."""


class RemoteWorker:
    """Local executor of one cell, whose events are messages.

    Args:
        store: where the cell is trained into.
    """

    def __init__(self, store: Store) -> None:
        self.lines: list[Message] = []
        self.name = ""
        self.executor = local.Local(store, 1, self._say)
        self.handle: Handle | None = None
        self.validation: Validation | None = None

    def _say(self, line: str) -> None:
        """Queue a line about a delay."""
        self.lines.append(("waiting", line.removeprefix(f"{self.name}: ")))  # every event has the name already

    def submit(self, cell: Cell, execution: Execution, name: str) -> None:
        """Start a cell, once the one before has ended."""
        self.name = name
        self.handle, self.validation = self.executor.submit(cell, execution, name), None

    def poll(self, seconds: float) -> list[Message]:
        """Return the messages of the next seconds, at once if one is urgent."""
        deadline, messages = time.monotonic() + seconds, []
        while True:
            messages += [self._plain(event) for event in self.executor.poll(max(0.0, deadline - time.monotonic()))]
            lines, self.lines = self.lines, []
            messages += lines
            if self.handle is None or time.monotonic() >= deadline or any(message[0] in URGENT for message in messages):
                return messages

    def answer(self, goes_on: bool) -> None:
        """Answer the last validation: whether the cell goes on."""
        if self.validation is not None:
            self.validation.answer(goes_on)
            self.validation = None

    def cancel(self) -> None:
        """Ask for the cell to end."""
        if self.handle is not None:
            self.executor.cancel(self.handle)

    def close(self) -> None:
        """End training within seconds."""
        self.executor.close()

    def _plain(self, event: Event) -> Message:
        """Convert an event to a message."""
        match event:
            case Started():
                return ("started",)
            case Progress():
                return ("progress", event.step, event.steps, event.loss)
            case Validation():
                self.validation = event
                return ("validation", event.step, dict(event.measured))
            case Ended():
                self.executor.result(event.handle)
                self.handle, broken = None, event.broken
                error = None if broken is None else (broken.errno, broken.strerror, broken.filename)
                return ("ended", event.outcome.value, event.step, error)
        return ("waiting", event.line)
