"""Cells on other machines, from both ends: the base of their executors, and the worker that trains a cell there."""

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lm.execution import local
from lm.execution.executor import Ended, Event, Handle, JobExecutor, Outcome, Progress, Started, Validation, Waiting
from lm.store.record import Record
from lm.store.store import Store
from lm.training.cell import Cell
from lm.training.process import Execution
from lm.training.train import fail

ATTEMPTS = 2
"""Attempts at a cell whose machine is lost, until the cell counts as lost."""

Message = Sequence[Any]
"""Message as JSON values: `started`; `progress` with step, steps and loss; `validation` with step and measured values;
`waiting` with a line; `ended` with outcome, last step and disk error (number, text and file, or None)."""

URGENT = ("validation", "ended")
"""Message kinds that end a poll immediately."""

CANCEL = "cancel"
"""Answer that asks the worker to end the cell; others are those to a validation, whether the cell goes on."""


# at the machine of the command ---------------------------------------------------------------------------------------


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


class RemoteExecutor(JobExecutor[Job]):
    """An executor whose cells are trained by a `RemoteWorker` each; a subclass implements how a worker is reached."""

    @abstractmethod
    def _listen(self, seconds: float) -> None:
        """Wait for events, at most so long, and handle them."""

    @abstractmethod
    def _send(self, job: Job, answer: bool | str) -> None:
        """Send the answer to a validation to the worker, or CANCEL."""

    @abstractmethod
    def _release(self, job: Job) -> None:
        """Release what is held for a cell that has ended."""

    def poll(self, timeout: float) -> Sequence[Event]:
        """Return the events of the jobs, after `timeout` seconds at the latest."""
        if self.jobs:
            self._listen(0.0 if self.events else timeout)
        return self._take_events()

    def cancel(self, handle: Handle) -> None:
        """Ask the worker of a cell to stop, once."""
        if (job := self.jobs.get(handle)) is not None and job.cancelled is None:
            job.cancelled = time.monotonic()
            self._send(job, CANCEL)

    def _report_delay(self, job: Job, line: str) -> None:
        """Report a line about a delay."""
        self.events.append(Waiting(job.handle, line))

    def _on_message(self, job: Job, message: Message) -> None:
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
            self._report_delay(job, values[0])

    def _answer(self, job: Job, goes_on: bool) -> None:
        """Send the answer to a validation, once."""
        if job.awaits_answer and job.handle in self.jobs:
            job.awaits_answer = False
            self._send(job, goes_on)

    def _on_ended(
        self, job: Job, outcome: Outcome, record: Record | None = None, broken: OSError | None = None
    ) -> None:
        """Record the outcome of a cell."""
        self._release(job)
        self._end(Ended(job.handle, outcome, job.step, broken), record)

    def _on_worker_lost(self, job: Job, cause: str) -> bool:
        """Handle the loss of a worker; return True if the cell must start again."""
        job.losses += 1
        job.awaits_answer = False
        if job.cancelled is not None:
            self._on_ended(job, Outcome.INTERRUPTED)
            return False
        if job.losses < ATTEMPTS:
            self._report_delay(job, f"{cause}; tried again from its last checkpoint")
            return True
        self._release(job)
        record = fail(job.cell, self.store, cause, time.monotonic() - job.submitted, job.execution.retrain)
        if record is None:
            self._report_delay(job, f"{cause}; the cell is left to {self.store.holder(job.cell.id)}")
        self._on_ended(job, Outcome.INTERRUPTED if record is None else Outcome.LOST, record)
        return False


# at the machine of the worker ----------------------------------------------------------------------------------------


class RemoteWorker:
    """Trainer of one cell as `Local` trains it, whose events are messages.

    Args:
        store: where the cell is trained into.
    """

    def __init__(self, store: Store) -> None:
        self.lines: list[Message] = []
        self.name = ""
        self.executor = local.Local(store, 1, self._queue_line)
        self.handle: Handle | None = None
        self.validation: Validation | None = None

    def _queue_line(self, line: str) -> None:
        """Queue a line about a delay."""
        self.lines.append(("waiting", line.removeprefix(f"{self.name}: ")))  # every event has the name already

    def submit(self, cell: Cell, execution: Execution, name: str) -> None:
        """Start the cell."""
        self.name = name
        self.handle = self.executor.submit(cell, execution, name)

    def poll(self, seconds: float) -> list[Message]:
        """Return the messages of the next seconds, at once if one is urgent."""
        deadline, messages = time.monotonic() + seconds, []
        while True:
            messages += [self._message(event) for event in self.executor.poll(max(0.0, deadline - time.monotonic()))]
            lines, self.lines = self.lines, []
            messages += lines
            if self.handle is None or time.monotonic() >= deadline or any(message[0] in URGENT for message in messages):
                return messages

    def answer(self, answer: bool | str) -> None:
        """Answer the last validation, or cancel the cell."""
        if answer == CANCEL and self.handle is not None:
            self.executor.cancel(self.handle)
        elif self.validation is not None:
            self.validation.answer(bool(answer))
            self.validation = None

    def close(self) -> None:
        """End training within seconds."""
        self.executor.close()

    def _message(self, event: Event) -> Message:
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
