"""Executor of this machine: a process a cell, and the recovery of cells whose process was killed."""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from lm.execution.executor import Ended, Event, Handle, JobExecutor, Outcome, Progress, Started, Validation, Waiting
from lm.execution.fork_server import MAX_FORKSERVER_RESTARTS, start_process
from lm.execution.heartbeat import SilenceMonitor
from lm.execution.process import train_one
from lm.store.record import Record
from lm.store.store import STACK
from lm.training.cell import Cell
from lm.training.process import Execution
from lm.training.train import fail

ATTEMPTS = 2
"""Attempts at a cell whose process is killed from outside, each from the last checkpoint, until it counts as failed."""

STACK_SECONDS = 2.0
"""Time for a hanging process to write its stack."""

GRACE_SECONDS = 5.0
"""Time between the signal that asks a process to exit and the one that kills it."""

INNERMOST = 3
"""Calls that the error of a hung process names."""

UNKNOWN_CODE = 255
"""Exit code of a process whose fork server has ended: it may have exited, or run on."""


@dataclass(eq=False)
class Attempt:
    """A process and its attempt at a cell.

    Args:
        process: handle of the process.
        pipe: to the process; closed once the process has closed its end, which it does by exiting.
        before: the record that the cell had already.
        step: the last one reported.
        awaits_answer: the cell waits for the answer to a validation.
        stopped: the answer to a validation was to stop.
        broken: error of the disk that stopped the cell.
        held: another process has the lock of the cell.
        hung: when the process was found to hang, by the monotonic clock.
    """

    process: Any
    pipe: Connection
    before: Record | None
    started: float = field(default_factory=time.monotonic)
    step: int = 0
    awaits_answer: bool = False
    stopped: bool = False
    broken: OSError | None = None
    held: bool = False
    hung: float | None = None

    def __post_init__(self) -> None:
        self.silence = SilenceMonitor(self.process.pid)

    @property
    def is_orphaned(self) -> bool:
        """True if the fork server has ended, so that nobody reports how the process ends."""
        return bool(self.process.exitcode == UNKNOWN_CODE)

    @property
    def has_exited(self) -> bool:
        """True if the process has exited; an orphan counts as running until its end of the pipe closes."""
        return self.pipe.closed if self.is_orphaned else not self.process.is_alive()

    def send_signal(self, number: int) -> None:
        """Send a signal to the process unless it has exited."""
        if not self.has_exited:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def drain(self) -> None:
        """Discard the messages of the process, and close the pipe if the process has closed its end."""
        with contextlib.suppress(EOFError, OSError):
            while not self.pipe.closed and self.pipe.poll():
                self.pipe.recv()
            return
        self.pipe.close()

    def answer(self, goes_on: bool) -> None:
        """Answer the last validation, once: whether the cell goes on."""
        if not self.awaits_answer:
            return
        self.awaits_answer, self.stopped = False, not goes_on
        with contextlib.suppress(OSError):  # it has exited since
            self.pipe.send(goes_on)


@dataclass
class Job:
    """A submitted cell.

    Args:
        slot: index among the running cells, which chooses the accelerator.
        tries: processes started for the cell, except those whose fork server ended.
        servers: fork servers that ended under the cell.
        cancelled: time of the cancellation, by the monotonic clock.
    """

    handle: Handle
    cell: Cell
    execution: Execution
    slot: int
    attempt: Attempt = field(init=False)
    tries: int = 0
    servers: int = 0
    cancelled: float | None = None


class Local(JobExecutor[Job]):
    """Executor of processes on this machine, each with one cell and one accelerator, if any.

    They are forked from a server that has imported everything, and exit when this process does.
    """

    broken = False

    def poll(self, timeout: float) -> Sequence[Event]:
        """Return the events of the processes, after `timeout` seconds at the latest."""
        self._listen(0.0 if self.events else timeout)
        for job in [job for job in self.jobs.values() if job.attempt.has_exited]:
            if self._finish_attempt(job):
                self._start_attempt(job)
        for job in self.jobs.values():
            if job.cancelled is not None and time.monotonic() - job.cancelled > GRACE_SECONDS:
                job.attempt.send_signal(signal.SIGKILL)
            self._end_if_hung(job)
            if (line := job.attempt.silence.check()) is not None:
                self.events.append(Waiting(job.handle, line))
        return self._take_events()

    def cancel(self, handle: Handle) -> None:
        """Send the process of a cell SIGTERM, once."""
        if (job := self.jobs.get(handle)) is not None and job.cancelled is None:
            job.cancelled = time.monotonic()
            job.attempt.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """End all processes, by force after a time of grace."""
        attempts = [job.attempt for job in self.jobs.values()]
        for attempt in attempts:
            attempt.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline:
            for attempt in attempts:
                attempt.drain()  # a process whose messages nobody reads may wait for ever
            if all(attempt.has_exited for attempt in attempts):
                break
            time.sleep(0.02)
        for attempt in attempts:
            attempt.send_signal(signal.SIGKILL)
        self.jobs.clear()

    def _start(self, handle: Handle, cell: Cell, execution: Execution) -> Job:
        busy_slots = {job.slot for job in self.jobs.values()}
        job = Job(handle, cell, execution, next(slot for slot in range(self.capacity) if slot not in busy_slots))
        self._start_attempt(job)
        return job

    def _start_attempt(self, job: Job) -> None:
        """Start a process for a cell."""
        cell = job.cell
        before = self.store.record(cell.id) if self.store.finished(cell.id) else None
        slot = job.slot if cell.config["trainer"]["devices"] == 1 else None
        process, pipe = start_process(train_one, (cell, self.store, job.execution, slot), job.handle.name, self.say)
        job.tries += 1
        job.attempt = Attempt(process, pipe, before)
        self.events.append(Started(job.handle))

    def _listen(self, timeout: float) -> None:
        """Wait for a message or the end of a process, and handle one message of each that sent any."""
        jobs = {job.attempt.pipe: job for job in self.jobs.values() if not job.attempt.pipe.closed}
        ends = [job.attempt.process.sentinel for job in self.jobs.values() if not job.attempt.is_orphaned]
        if not jobs and not ends:
            return
        for pipe in wait([*jobs, *ends], timeout):
            if isinstance(pipe, Connection):
                self._receive(jobs[pipe])

    def _receive(self, job: Job) -> None:
        """Handle one message, or the end of the pipe."""
        handle, attempt = job.handle, job.attempt
        try:
            kind, *message = attempt.pipe.recv()
        except (EOFError, OSError):
            attempt.pipe.close()
            return
        attempt.silence.record_activity()
        if kind == "progress":
            attempt.step = message[0]
            self.events.append(Progress(handle, *message))
        elif kind == "waiting":
            self.events.append(Waiting(handle, message[0]))
        elif kind == "disk":
            attempt.broken = OSError(*message)
        elif kind == "held":
            attempt.held = True
        elif kind == "validation":
            attempt.step, attempt.awaits_answer = max(attempt.step, message[0]), True
            self.events.append(Validation(handle, message[0], message[1], attempt.answer))

    def _finish_attempt(self, job: Job) -> bool:
        """Handle a process that has exited; return True if the cell must start again."""
        attempt = job.attempt
        while not attempt.pipe.closed and attempt.pipe.poll():
            self._receive(job)
        attempt.process.join()
        attempt.pipe.close()
        self.broken = self.broken or attempt.broken is not None
        outcome, record = self._outcome(job)
        if outcome is None and not self.broken:
            return True
        self._end(Ended(job.handle, outcome or Outcome.INTERRUPTED, attempt.step, attempt.broken), record)
        return False

    def _end_if_hung(self, job: Job) -> None:
        """Kill a process without a message for too long, after asking it for its stack."""
        attempt, limit = job.attempt, job.execution.hang_seconds
        if attempt.hung is not None:
            if time.monotonic() - attempt.hung > STACK_SECONDS:
                attempt.send_signal(signal.SIGKILL)
        elif attempt.silence.seconds_silent() > limit > 0 and not attempt.awaits_answer:
            attempt.hung = time.monotonic()
            attempt.send_signal(signal.SIGUSR1)
            what_next = "started once more" if job.tries < ATTEMPTS else "given up"
            line = f"no word for {limit / 60:z.3g} minutes: process {attempt.process.pid} is ended, {what_next}"
            self.events.append(Waiting(job.handle, line))

    def _outcome(self, job: Job) -> tuple[Outcome | None, Record | None]:
        """Return the outcome of the cell and its new record, if any; no outcome if it must start again."""
        cell, attempt, again = job.cell, job.attempt, job.execution.retrain
        code = attempt.process.exitcode
        stored = self.store.record(cell.id) if self.store.finished(cell.id) else None
        if stored is not None and (stored != attempt.before or not self.store.pending(cell.id, again)):
            return Outcome.RECORDED, stored
        if attempt.held:
            return (Outcome.INTERRUPTED if job.cancelled is not None else Outcome.LOCKED_ELSEWHERE), None
        if attempt.stopped and code in (0, UNKNOWN_CODE) and not self.store.work(cell.id).is_dir():
            return Outcome.PRUNED, None
        if attempt.broken is not None or job.cancelled is not None or code in (0, -signal.SIGINT, -signal.SIGTERM):
            return Outcome.INTERRUPTED, None
        if code == UNKNOWN_CODE:
            job.tries -= 1
            job.servers += 1
            return (None if job.servers < MAX_FORKSERVER_RESTARTS else Outcome.INTERRUPTED), None
        if code < 0 and job.tries < ATTEMPTS:
            return None, None
        cause, trace = describe_exit(code), None
        if attempt.hung is not None:
            cause, trace = describe_hang(self.store.work(cell.id) / STACK, job.execution.hang_seconds)
        record = fail(cell, self.store, cause, time.monotonic() - attempt.started, again, trace)
        if record is None:
            left = f"{cause}; the cell is left to {self.store.holder(cell.id)}"
            self.events.append(Waiting(job.handle, left))
            return Outcome.INTERRUPTED, None
        return Outcome.LOST, record


def describe_exit(code: int) -> str:
    """Describe the exit of a process from its code."""
    if code > 0:
        return f"process ended with exit code {code}"
    hint = "; the machine may have run out of memory" if code == -signal.SIGKILL else ""
    return f"process killed by {signal.Signals(-code).name}{hint}"


def describe_hang(path: Path, seconds: float) -> tuple[str, str | None]:
    """Describe a process that hung: return its error in a line and the stack that it wrote."""
    message = f"reported nothing for {seconds / 60:z.3g} minutes and was ended"
    try:
        stack = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        stack = ""
    main_thread = stack.rpartition("most recent call first):")[2]  # the first thread is the last in the file
    calls = [line.strip() for line in main_thread.splitlines() if line.strip()][:INNERMOST]
    return f"{message}; it was in {', called from '.join(calls)}" if calls else message, stack or None
