"""Progress of running cells, and the interface that receives it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from lm.execution.cell_queue import Planned
from lm.store.record import Ending


@dataclass
class Running:
    """A running cell.

    Args:
        planned: the cell.
        slot: index among the running cells, the lowest that was free.
        step: last optimiser step reported, of `steps`.
        loss: training loss at that step in nats a token.
        now: returns seconds since any moment.
    """

    planned: Planned
    slot: int
    started: float = field(default_factory=time.monotonic)
    step: int = 0
    steps: int = 0
    loss: float = float("nan")
    first: tuple[int, float] | None = None
    now: Callable[[], float] = field(default=lambda: time.monotonic(), repr=False)

    def restart(self) -> None:
        """Reset the progress of a cell that starts, maybe again."""
        self.started, self.first = self.now(), None
        self.step, self.steps, self.loss = 0, 0, float("nan")

    def update(self, step: int, steps: int, loss: float) -> None:
        """Record the progress of the cell."""
        self.step, self.steps, self.loss = step, steps, loss
        if self.first is None:  # a cell taken up from a checkpoint does not begin at step 0
            self.first = step, self.now()

    @property
    def seconds(self) -> float:
        """Seconds since the cell was started."""
        return self.now() - self.started

    @property
    def pace(self) -> float | None:
        """Seconds per step, None before there are two reports."""
        if self.first is None or self.step <= self.first[0]:
            return None
        return (self.now() - self.first[1]) / (self.step - self.first[0])


class Watcher:
    """Receiver of progress and outcomes; the base class ignores them."""

    def on_progress(self, running: list[Running], left: int) -> None:
        """Show progress; called about once a second and whenever a cell reports."""

    def on_finished(self, planned: Planned, record: Ending | None, seconds: float) -> None:
        """Show the outcome of a cell; `record` is None if it was interrupted."""

    def on_settled(self, name: str, outcome: str, cells: int) -> None:
        """Show the outcome of cells that need no training."""

    def on_waiting(self, line: str) -> None:
        """Show a line about a delay. May be called from another thread."""
