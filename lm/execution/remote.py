"""Cells on other machines, from both ends: the base of their executors, and the worker that trains a cell there."""

import time
from typing import Any

from lm.execution.executor import ATTEMPTS, CANCEL, Executor, Message, Outcome
from lm.execution.local import Local, LocalJob
from lm.store.record import Record
from lm.store.store import Store

URGENT = ("validation", "ended")
"""Message kinds that end a poll immediately."""


class RemoteExecutor(Executor):
    """An executor whose cells are trained by a `RemoteWorker` each; a subclass implements how a worker is reached."""

    def _on_worker_lost(self, job: Any, cause: str) -> bool:
        """Handle the loss of a worker; return True if the cell must start again."""
        job.losses += 1
        job.awaits_answer = False
        if job.cancelled is not None:
            self._end(job, Outcome.INTERRUPTED)
        elif job.losses < ATTEMPTS:
            self._on_message(job, ("waiting", f"{cause}; tried again from its last checkpoint"))
            return True
        else:
            self._give_up(job, cause, job.submitted)
        return False


class RemoteWorker(Local):
    """Trainer of one cell on the machine of a worker, as `Local` trains it, whose events are messages too.

    Args:
        store: where the cell is trained into.
        name: of the cell in lines for the user, which every event has already.
    """

    def __init__(self, store: Store, name: str) -> None:
        super().__init__(store, 1, lambda line: self.messages.append(("waiting", line.removeprefix(f"{name}: "))))
        self.messages: list[Message] = []

    @property
    def awaits_answer(self) -> bool:
        """True if the cell waits for the answer to a validation."""
        return any(job.awaits_answer for job in self.jobs.values())

    def take_messages(self, seconds: float) -> list[Message]:
        """Return the messages of the next seconds, at once if one is urgent."""
        deadline = time.monotonic() + seconds
        while True:
            self.poll(max(0.0, deadline - time.monotonic()))
            if not self.jobs or time.monotonic() >= deadline or any(kind in URGENT for kind, *_ in self.messages):
                messages, self.messages = self.messages, []
                return messages

    def answer(self, answer: bool | str) -> None:
        """Answer the last validation, or cancel the cell."""
        for job in self.jobs.values():
            if answer == CANCEL:
                self.cancel(job.handle)
            elif job.awaits_answer:
                job.awaits_answer = False
                self._send(job, bool(answer))

    def _on_message(self, job: LocalJob, message: Message) -> None:
        super()._on_message(job, message)
        self.messages.append(tuple(message))

    def _end(
        self, job: LocalJob, outcome: Outcome, record: Record | None = None, broken: OSError | None = None
    ) -> None:
        super()._end(job, outcome, record, broken)
        error = None if broken is None else (broken.errno, broken.strerror, broken.filename)
        self.messages.append(("ended", outcome.value, job.step, error))
