"""What executors have in common whose cells are trained on other machines."""

import itertools
import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lm.execution.executor import Ended, Event, Executor, Handle, Outcome, Progress, Started, Validation, Waiting
from lm.execution.foreign_cells import ForeignCells
from lm.execution.remote_worker import Message
from lm.store.holders import Holder
from lm.store.locks import Say, to_stderr
from lm.store.record import Record
from lm.store.store import Store
from lm.training.cell import Cell
from lm.training.train import Execution, fail

ATTEMPTS = 2
"""Machines that may be lost under a cell before it has been given up."""


@dataclass(eq=False)
class RemoteJob:
    """A cell in hand.

    Args:
        step: the last one that was heard of.
        asked: whether it waits for the answer to a validation.
        lost: how often what trained it went away.
        cancelled: when it was, by the monotonic clock.
    """

    handle: Handle
    cell: Cell
    execution: Execution
    begun: float = field(default_factory=time.monotonic)
    step: int = 0
    asked: bool = False
    lost: int = 0
    cancelled: float | None = None


Job = TypeVar("Job", bound=RemoteJob)


class RemoteExecutor(Executor, Generic[Job]):
    """An executor whose cells are trained by a `RemoteWorker` each. What is left to a subclass: how one is reached.

    Args:
        store: where the cells come to lie.
        capacity: cells at a time.
        say: told what keeps a cell from being handed over.
    """

    def __init__(self, store: Store, capacity: int, say: Say = to_stderr) -> None:
        self.store, self.capacity, self.say = store, capacity, say
        self.foreign = ForeignCells(store)
        self.numbers = itertools.count()
        self.jobs: dict[Handle, Job] = {}
        self.records: dict[Handle, Record | None] = {}
        self.events: list[Event] = []

    @abstractmethod
    def _job(self, handle: Handle, cell: Cell, execution: Execution) -> Job:
        """A cell, as this executor knows it."""

    @abstractmethod
    def _listen(self, seconds: float) -> None:
        """Waits for something to happen, so long at most, and takes it in."""

    @abstractmethod
    def _stop(self, job: Job) -> None:
        """Asks for a cell to end."""

    @abstractmethod
    def _send_answer(self, job: Job, goes_on: bool) -> None:
        """Passes on the answer to a validation."""

    @abstractmethod
    def _release(self, job: Job, outcome: Outcome) -> None:
        """The cell has ended; nothing is held for it any more from now on."""

    def submit(self, cell: Cell, execution: Execution, name: str) -> Handle:
        if len(self.jobs) >= self.capacity:
            raise RuntimeError(f"{name}: {self.capacity} cells are being trained, as many as may be")
        job = self._job(Handle(next(self.numbers), cell.id, name), cell, execution)
        self.jobs[job.handle] = job
        return job.handle

    def poll(self, timeout: float) -> Sequence[Event]:
        if self.jobs:
            self._listen(0.0 if self.events else timeout)
        events, self.events = self.events, []
        return events

    def cancel(self, handle: Handle) -> None:
        if (job := self.jobs.get(handle)) is not None and job.cancelled is None:
            job.cancelled = time.monotonic()
            self._stop(job)

    def held(self, cell: str) -> Holder | str | None:
        return self.foreign.held(cell)

    def result(self, handle: Handle) -> Record | None:
        return self.records.pop(handle)

    def _tell(self, job: Job, line: str) -> None:
        self.events.append(Waiting(job.handle, line))

    def _heard(self, job: Job, message: Message) -> None:
        """Turns a message, other than that the cell has ended, into an event."""
        kind, *told = message
        if kind == "started":
            self.events.append(Started(job.handle))
        elif kind == "progress":
            job.step = told[0]
            self.events.append(Progress(job.handle, *told))
        elif kind == "validation":
            job.step, job.asked = max(job.step, told[0]), True
            self.events.append(Validation(job.handle, told[0], told[1], lambda goes_on: self._answer(job, goes_on)))
        else:
            self._tell(job, told[0])

    def _answer(self, job: Job, goes_on: bool) -> None:
        if job.asked and job.handle in self.jobs:
            job.asked = False
            self._send_answer(job, goes_on)

    def _ended(self, job: Job, outcome: Outcome, record: Record | None = None, broken: OSError | None = None) -> None:
        self._release(job, outcome)
        del self.jobs[job.handle]
        self.records[job.handle] = record
        self.events.append(Ended(job.handle, outcome, job.step, broken))

    def _on_worker_lost(self, job: Job, cause: str) -> bool:
        """What trained a cell has gone: whether it is to be tried again. If not, says how it ended."""
        job.lost += 1
        job.asked = False
        if job.cancelled is not None:
            self._ended(job, Outcome.INTERRUPTED)
            return False
        if job.lost < ATTEMPTS:
            self._tell(job, f"{cause}; tried again from its last checkpoint")
            return True
        self._release(job, Outcome.LOST)
        record = fail(job.cell, self.store, cause, time.monotonic() - job.begun, job.execution.again)
        if record is None:
            self._tell(job, f"{cause}; the cell is left to {self.store.holder(job.cell.id)}")
        self._ended(job, Outcome.INTERRUPTED if record is None else Outcome.LOST, record)
        return False
