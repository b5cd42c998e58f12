"""Executor of this machine: worker processes, and the recovery of cells whose process was killed."""

import contextlib
import itertools
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait

from lm.execution.attempt import UNKNOWN, Attempt, Worker, describe_hang
from lm.execution.executor import Ended, Event, Executor, Handle, Outcome, Progress, Started, Validation, Waiting
from lm.execution.foreign_cells import ForeignCells
from lm.execution.process import train_one
from lm.execution.worker_pool import MAX_FORKSERVER_RESTARTS, WorkerPool, shape_of
from lm.store.lease_holder import Holder
from lm.store.locks import LogLine, to_stderr
from lm.store.record import Record
from lm.store.store import STACK, Store
from lm.training.cell import Cell
from lm.training.run import SINGLE_PROCESS
from lm.training.train import Execution, fail

PRELOAD = ["lm.execution.forkserver_preload"]
"""Modules that the fork server imports once."""

ATTEMPTS = 2
"""Attempts at a cell whose process is killed from outside, each from the last checkpoint, until it counts as failed."""

STACK_SECONDS = 2.0
"""Time for a hanging process to write its stack."""

GRACE_SECONDS = 5.0
"""Time between the signal that asks a process to exit and the one that kills it."""


@dataclass
class Job:
    """A submitted cell.

    Args:
        slot: index among the running cells, which chooses the accelerator.
        single_process: the cell is trained by one process on one device.
        tries: processes started for the cell, except those whose fork server ended.
        servers: fork servers that ended under the cell.
        cancelled: time of the cancellation, by the monotonic clock.
    """

    handle: Handle
    cell: Cell
    execution: Execution
    slot: int
    single_process: bool
    attempt: Attempt = field(init=False)
    tries: int = 0
    servers: int = 0
    cancelled: float | None = None


class Local(Executor):
    """Executor of worker processes on this machine, each with one cell and one accelerator, if any, at a time.

    They are forked from a server that has imported everything, and exit when this process does. A worker that has ended
    a cell waits for the next, unless the cell may have left state behind: it raised an exception, was cancelled, or had
    several processes or devices.

    Args:
        store: where the cells are trained into.
        capacity: processes at a time.
        say: called with a line when the fork server delays a cell.
    """

    def __init__(self, store: Store, capacity: int, say: LogLine = to_stderr) -> None:
        self.store, self.capacity = store, capacity
        self.pool = WorkerPool(store, capacity, train_one, PRELOAD, say)
        self.foreign = ForeignCells(store)
        self.numbers = itertools.count()
        self.jobs: dict[Handle, Job] = {}
        self.records: dict[Handle, Record | None] = {}
        self.events: list[Event] = []
        self.broken = False

    def submit(self, cell: Cell, execution: Execution, name: str) -> Handle:
        if len(self.jobs) >= self.capacity:
            raise RuntimeError(f"{name}: {self.capacity} cells are being trained, as many as may be")
        single_process = all(cell.config["trainer"].get(name, value) == value for name, value in SINGLE_PROCESS.items())
        slot, worker = self.pool.assign(cell, single_process, {job.slot for job in self.jobs.values()})
        job = Job(Handle(next(self.numbers), cell.id, name), cell, execution, slot, single_process)
        self._start(job, worker)
        self.jobs[job.handle] = job
        return job.handle

    def poll(self, timeout: float) -> Sequence[Event]:
        self._listen(0.0 if self.events else timeout)
        ended = [job for job in self.jobs.values() if job.attempt.over or job.attempt.worker.exited]
        for job in [job for job in ended if self._finish_attempt(job)]:
            if self.broken:  # the next process would fail there too
                self._ended(job, Outcome.INTERRUPTED, None)
            else:
                self._start(job)
        for job in self.jobs.values():
            if job.cancelled is not None and time.monotonic() - job.cancelled > GRACE_SECONDS:
                job.attempt.worker.send_signal(signal.SIGKILL)
            self._end_if_hung(job)
            if (line := job.attempt.silence.check()) is not None:
                self.events.append(Waiting(job.handle, line))
        events, self.events = self.events, []
        return events

    def cancel(self, handle: Handle) -> None:
        if (job := self.jobs.get(handle)) is not None and job.cancelled is None:
            job.cancelled = time.monotonic()
            job.attempt.worker.send_signal(signal.SIGTERM)

    def held(self, cell: str) -> Holder | str | None:
        return self.foreign.held(cell)

    def result(self, handle: Handle) -> Record | None:
        return self.records.pop(handle)

    def close(self) -> None:
        workers = [*(job.attempt.worker for job in self.jobs.values()), *self.pool.without_cell()]
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while not all(worker.has_exited() for worker in workers) and time.monotonic() < deadline:
            time.sleep(0.02)
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
        self.jobs.clear()
        self.pool.clear()

    def _start(self, job: Job, worker: Worker | None = None) -> None:
        """Send a cell to the idle worker, or to a new one if there is none or it has exited."""
        cell = job.cell
        before = self.store.record(cell.id) if self.store.finished(cell.id) else None
        message = cell, job.execution, job.slot if cell.config["trainer"]["devices"] == 1 else None
        if worker is None or not self.pool.send_cell(worker, message):
            worker = self.pool.spawn(cell, job.handle.name, job.slot)
            with contextlib.suppress(OSError):  # it has exited already, which the next poll handles
                worker.pipe.send(message)
        worker.shape = shape_of(cell)
        job.tries += 1
        job.attempt = Attempt(worker, before)
        self.events.append(Started(job.handle))

    def _listen(self, timeout: float) -> None:
        """Wait for a message or the end of a process, and handle one message of each that sent any."""
        jobs = {job.attempt.pipe: job for job in self.jobs.values() if not job.attempt.pipe.closed}
        ends = [job.attempt.process.sentinel for job in self.jobs.values() if not job.attempt.worker.is_orphaned]
        if not jobs and not ends:
            return
        for pipe in wait([*jobs, *ends], timeout):
            if isinstance(pipe, Connection):
                self._hear(jobs[pipe])

    def _hear(self, job: Job) -> None:
        """Handle one message, or the end of the pipe."""
        handle, attempt = job.handle, job.attempt
        try:
            kind, *message = attempt.pipe.recv()
        except (EOFError, OSError):
            attempt.pipe.close()
            return
        attempt.silence.record_activity()
        if kind == "alive":
            return
        if kind == "progress":
            attempt.step = message[0]
            self.events.append(Progress(handle, *message))
        elif kind == "waiting":
            self.events.append(Waiting(handle, message[0]))
        elif kind == "disk":
            attempt.broken = OSError(*message)
        elif kind == "held":
            attempt.held = True
        elif kind == "over":
            attempt.over = True
        else:
            attempt.step, attempt.awaits_answer = max(attempt.step, message[0]), True
            self.events.append(Validation(handle, message[0], message[1], attempt.answer))

    def _finish_attempt(self, job: Job) -> bool:
        """Handle a process that has exited or ended its cell; return True if the cell must start again."""
        attempt = job.attempt
        while not attempt.over and not attempt.pipe.closed and attempt.pipe.poll():
            self._hear(job)
        if not attempt.over:
            attempt.process.join()
            attempt.pipe.close()
        self.broken = self.broken or attempt.broken is not None
        end, record = self._outcome(job)
        if attempt.over:
            self.pool.mark_idle(attempt.worker)
            failed = record is not None and record["status"] == "failed"
            if failed or job.cancelled is not None or not job.single_process or attempt.worker.is_orphaned:
                self.pool.shutdown_worker(attempt.worker)
        if end is not None:
            self._ended(job, end, record)
        return end is None

    def _ended(self, job: Job, outcome: Outcome, record: Record | None) -> None:
        """Record the outcome of a cell."""
        del self.jobs[job.handle]
        self.records[job.handle] = record
        self.events.append(Ended(job.handle, outcome, job.attempt.step, job.attempt.broken))

    def _end_if_hung(self, job: Job) -> None:
        """Kill a process without a message for too long, after asking it for its stack."""
        attempt, limit = job.attempt, job.execution.hang_seconds
        if attempt.hung is not None:
            if time.monotonic() - attempt.hung > STACK_SECONDS:
                attempt.worker.send_signal(signal.SIGKILL)
        elif attempt.silence.seconds_silent() > limit > 0 and not attempt.awaits_answer:
            attempt.hung = time.monotonic()
            attempt.worker.send_signal(signal.SIGUSR1)
            what_next = "started once more" if job.tries < ATTEMPTS else "given up"
            self.events.append(
                Waiting(
                    job.handle,
                    f"no word for {limit / 60:z.3g} minutes: process {attempt.process.pid} is ended, {what_next}",
                )
            )

    def _outcome(self, job: Job) -> tuple[Outcome | None, Record | None]:
        """Return the outcome of the cell and its new record, if any; no outcome if it must start again."""
        cell, attempt, again = job.cell, job.attempt, job.execution.retrain
        code = 0 if attempt.over else attempt.process.exitcode
        stored = self.store.record(cell.id) if self.store.finished(cell.id) else None
        if stored is not None and (stored != attempt.before or not self.store.pending(cell.id, again)):
            return Outcome.RECORDED, stored
        if attempt.held:
            return (Outcome.INTERRUPTED if job.cancelled is not None else Outcome.LOCKED_ELSEWHERE), None
        if attempt.stopped and code in (0, UNKNOWN) and not self.store.work(cell.id).is_dir():
            return Outcome.PRUNED, None
        if attempt.broken is not None or job.cancelled is not None or code in (0, -signal.SIGINT, -signal.SIGTERM):
            return Outcome.INTERRUPTED, None
        if code == UNKNOWN:
            job.tries -= 1
            job.servers += 1
            return (None if job.servers < MAX_FORKSERVER_RESTARTS else Outcome.INTERRUPTED), None
        if code < 0 and job.tries < ATTEMPTS:
            return None, None
        cause, trace = _cause(code), None
        if attempt.hung is not None:
            cause, trace = describe_hang(self.store.work(cell.id) / STACK, job.execution.hang_seconds)
        record = fail(cell, self.store, cause, time.monotonic() - attempt.started, again, trace)
        if record is None:
            left = f"{cause}; the cell is left to {self.store.holder(cell.id)}"
            self.events.append(Waiting(job.handle, left))
            return Outcome.INTERRUPTED, None
        return Outcome.LOST, record


def _cause(code: int) -> str:
    """Describe the exit of a process."""
    if code > 0:
        return f"process ended with exit code {code}"
    hint = "; the machine may have run out of memory" if code == -signal.SIGKILL else ""
    return f"process killed by {signal.Signals(-code).name}{hint}"
