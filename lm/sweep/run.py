"""What cells are to be trained, the process that trains one of them, and who is told of it."""

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from lm.record import Ending
from lm.sweep.plan import Planned
from lm.sweep.vigil import Vigil

UNKNOWN = 255
"""The exit code of a process whose fork server is gone: it may have ended somehow, or go on without it."""


@dataclass
class Running:
    """A cell being trained.

    Args:
        planned: the cell.
        process: that trains it.
        pipe: to it; closed once the process has closed its end, which it does by ending.
        slot: its place among the workers.
        before: the record that the cell had already.
    """

    planned: Planned
    process: Any
    pipe: Connection
    slot: int
    before: Ending | None = None
    started: float = field(default_factory=time.monotonic)
    step: int = 0
    steps: int = 0
    loss: float = float("nan")
    first: tuple[int, float] | None = None
    stopped: bool = False
    broken: OSError | None = None

    def __post_init__(self) -> None:
        self.vigil = Vigil(self.process.pid)

    @property
    def name(self) -> str:
        return f"{self.planned.arm} seed {self.planned.seed}"

    @property
    def orphan(self) -> bool:
        """Whether nobody will say how the process ends."""
        return bool(self.process.exitcode == UNKNOWN)

    @property
    def ended(self) -> bool:
        """Whether the process has ended; one whose fork server is gone goes on until its end of the pipe closes."""
        return self.pipe.closed if self.orphan else not self.process.is_alive()

    def end(self, number: int) -> None:
        """Sends a signal that ends the process."""
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def heard(self, step: int, steps: int, loss: float) -> None:
        """Takes in a report of the cell's process."""
        self.step, self.steps, self.loss = step, steps, loss
        if self.first is None:  # a cell taken up from a checkpoint does not begin at step 0
            self.first = step, time.monotonic()

    @property
    def pace(self) -> float | None:
        """Seconds a step, None before there are two reports to compare."""
        if self.first is None or self.step <= self.first[0]:
            return None
        return (time.monotonic() - self.first[1]) / (self.step - self.first[0])


class Watcher:
    """Told what happens; the base class says nothing."""

    def progress(self, running: list[Running], left: int) -> None:
        """Called about once a second and whenever a cell reports."""

    def finished(self, planned: Planned, record: Ending | None, seconds: float) -> None:
        """A cell ended; `record` is None where it was interrupted."""

    def settled(self, name: str, outcome: str, cells: int) -> None:
        """Cells need no training."""

    def waiting(self, line: str) -> None:
        """What is waited for, or was; a line for a person."""


class Source:
    """Where cells to train come from, one at a time."""

    def take(self) -> Planned | None:
        """A cell to train; None while there is none before another ends, and for good once none is running."""
        raise NotImplementedError

    def left(self) -> int:
        """How many cells are still to come, as far as is known."""
        raise NotImplementedError

    def judge(self, planned: Planned, step: int, measured: Mapping[str, float]) -> bool:
        """Told what a validation in training measured; says whether the cell goes on."""
        return True

    def ended(self, planned: Planned, record: Ending | None) -> None:
        """Told of a cell's record; `status: pruned` where it was stopped, None where it was interrupted."""


class Listed(Source):
    """Cells that are known beforehand, in their order."""

    def __init__(self, cells: list[Planned]) -> None:
        self.cells = list(cells)

    def take(self) -> Planned | None:
        return self.cells.pop(0) if self.cells else None

    def left(self) -> int:
        return len(self.cells)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def accelerators() -> int:
    """CUDA devices on this machine."""
    import torch

    return torch.cuda.device_count()


def default_workers(cells: int) -> int:
    """One worker per accelerator, or per core where there is none, and no more than there are cells."""
    return max(1, min(cells, accelerators() or cores()))


def threads_each(workers: int) -> int:
    """Threads that each of `workers` may use: what the environment says, up to all cores, or else its share of them.

    Its variables count in the order in which torch heeds them, and of a list the first number.
    """
    for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        first = os.environ.get(name, "").partition(",")[0].strip()
        if first.isdecimal() and int(first[:9]):
            return min(int(first[:9]), cores())
    return max(1, cores() // workers)
