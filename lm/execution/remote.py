"""Common part of the executors that train cells on other machines."""

import itertools
import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lm.execution.executor import Ended, Event, Executor, Handle, Outcome, Progress, Started, Validation, Waiting
from lm.execution.foreign_cells import ForeignCells
from lm.execution.remote_worker import Message
from lm.store.lease_holder import Holder
from lm.store.locks import LogLine, to_stderr
from lm.store.record import Record
from lm.store.store import Store
from lm.training.cell import Cell
from lm.training.train import Execution, fail

ATTEMPTS = 2
"""Attempts at a cell whose machine is lost, until the cell counts as lost."""


@dataclass(eq=False)
class RemoteJob:
    """A submitted cell.

    Args:
        submitted: time of submission, by the monotonic clock.
        step: the last one reported.
        awaits_answer: the cell waits for the answer to a validation.
        losses: workers lost so far.
        cancelled: time of the cancellation, by the monotonic clock.
    """

    handle: Handle
    cell: Cell
    execution: Execution
    submitted: float = field(default_factory=time.monotonic)
    step: int = 0
    awaits_answer: bool = False
    losses: int = 0
    cancelled: float | None = None


Job = TypeVar("Job", bound=RemoteJob)


class RemoteExecutor(Executor, Generic[Job]):
    """An executor whose cells are trained by a `RemoteWorker` each.

    A subclass implements how a worker is reached.

    Args:
        store: of the cells.
        capacity: cells at a time.
        say: called with a line when the submission of a cell is delayed.
    """

    def __init__(self, store: Store, capacity: int, say: LogLine = to_stderr) -> None:
        self.store, self.capacity, self.say = store, capacity, say
        self.foreign = ForeignCells(store)
        self.numbers = itertools.count()
        self.jobs: dict[Handle, Job] = {}
        self.records: dict[Handle, Record | None] = {}
        self.events: list[Event] = []

    @abstractmethod
    def _job(self, handle: Handle, cell: Cell, execution: Execution) -> Job:
        """Return the job of a cell."""

    @abstractmethod
    def _listen(self, seconds: float) -> None:
        """Wait for events, at most so long, and handle them."""

    @abstractmethod
    def _stop(self, job: Job) -> None:
        """Ask the worker to end the cell."""

    @abstractmethod
    def _send_answer(self, job: Job, goes_on: bool) -> None:
        """Send the answer to a validation to the worker."""

    @abstractmethod
    def _release(self, job: Job, outcome: Outcome) -> None:
        """Release what is held for a cell that has ended."""

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
        """Report a line about a delay."""
        self.events.append(Waiting(job.handle, line))

    def _heard(self, job: Job, message: Message) -> None:
        """Turn a message, except the last one, into an event."""
        kind, *values = message
        if kind == "started":
            self.events.append(Started(job.handle))
        elif kind == "progress":
            job.step = values[0]
            self.events.append(Progress(job.handle, *values))
        elif kind == "validation":
            job.step, job.awaits_answer = max(job.step, values[0]), True
            self.events.append(Validation(job.handle, values[0], values[1], lambda goes_on: self._answer(job, goes_on)))
        else:
            self._tell(job, values[0])

    def _answer(self, job: Job, goes_on: bool) -> None:
        """Send the answer to a validation, once."""
        if job.awaits_answer and job.handle in self.jobs:
            job.awaits_answer = False
            self._send_answer(job, goes_on)

    def _ended(self, job: Job, outcome: Outcome, record: Record | None = None, broken: OSError | None = None) -> None:
        """Record the outcome of a cell."""
        self._release(job, outcome)
        del self.jobs[job.handle]
        self.records[job.handle] = record
        self.events.append(Ended(job.handle, outcome, job.step, broken))

    def _on_worker_lost(self, job: Job, cause: str) -> bool:
        """Handle the loss of a worker; return True if the cell must start again."""
        job.losses += 1
        job.awaits_answer = False
        if job.cancelled is not None:
            self._ended(job, Outcome.INTERRUPTED)
            return False
        if job.losses < ATTEMPTS:
            self._tell(job, f"{cause}; tried again from its last checkpoint")
            return True
        self._release(job, Outcome.LOST)
        record = fail(job.cell, self.store, cause, time.monotonic() - job.submitted, job.execution.retrain)
        if record is None:
            self._tell(job, f"{cause}; the cell is left to {self.store.holder(job.cell.id)}")
        self._ended(job, Outcome.INTERRUPTED if record is None else Outcome.LOST, record)
        return False
