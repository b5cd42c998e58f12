"""What is seen of cells while they train, and who is told of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from lm.execution.cell_queue import Planned
from lm.store.record import Ending


@dataclass
class Running:
    """A cell being trained.

    Args:
        planned: the cell.
        place: its place among those being trained, which it keeps: the lowest that was free.
        step: the last optimiser step that was heard of, of `steps`.
        loss: in training, at that step, in nats a token.
        now: seconds that have gone by, since any moment.
    """

    planned: Planned
    place: int
    started: float = field(default_factory=time.monotonic)
    step: int = 0
    steps: int = 0
    loss: float = float("nan")
    first: tuple[int, float] | None = None
    now: Callable[[], float] = field(default=lambda: time.monotonic(), repr=False)

    def begin(self) -> None:
        """The cell has been started, maybe again."""
        self.started, self.first = self.now(), None
        self.step, self.steps, self.loss = 0, 0, float("nan")

    def heard(self, step: int, steps: int, loss: float) -> None:
        """Takes in how far the cell is."""
        self.step, self.steps, self.loss = step, steps, loss
        if self.first is None:  # a cell taken up from a checkpoint does not begin at step 0
            self.first = step, self.now()

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return self.now() - self.started

    @property
    def pace(self) -> float | None:
        """Seconds a step, None before there are two reports to compare."""
        if self.first is None or self.step <= self.first[0]:
            return None
        return (self.now() - self.first[1]) / (self.step - self.first[0])


class Watcher:
    """Told what happens; the base class says nothing."""

    def progress(self, running: list[Running], left: int) -> None:
        """Called about once a second and whenever a cell reports."""

    def finished(self, planned: Planned, record: Ending | None, seconds: float) -> None:
        """A cell ended; `record` is None where it was interrupted."""

    def settled(self, name: str, outcome: str, cells: int) -> None:
        """Cells need no training."""

    def waiting(self, line: str) -> None:
        """What is waited for, or was; a line for a person. May be called from another thread."""
