"""The executor of this machine: a process a cell, what becomes of it, and of the cell when it is killed."""

import itertools
import multiprocessing
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait

from lm.config.tree import InputError
from lm.execution.attempt import UNKNOWN, Attempt
from lm.execution.executor import End, Ended, Event, Executor, Handle, Progress, Started, Validation, Waiting
from lm.execution.process import train_one
from lm.execution.vigil import Late
from lm.store.locks import Say, to_stderr
from lm.store.record import Record
from lm.store.store import Store
from lm.training.cell import Cell
from lm.training.train import Execution, fail

PRELOAD = ["lm.execution.preloaded"]
"""What the fork server imports, once for all."""

ATTEMPTS = 2
"""A process killed from outside is started again, from its checkpoint, before the cell counts as failed."""

SERVERS = 5
"""Fork servers that may end under a cell's process, or before one starts, until it is left for another time."""

GRACE_SECONDS = 5.0
"""Between the signal that asks a process to end and the one that ends it."""


@dataclass
class Job:
    """A cell in hand.

    Args:
        slot: its place among those that run, which chooses its accelerator.
        tries: processes that were started for it and ended by themselves, or run.
        servers: fork servers that ended under it.
        cancelled: when it was.
    """

    handle: Handle
    cell: Cell
    execution: Execution
    slot: int
    attempt: Attempt = field(init=False)
    tries: int = 0
    servers: int = 0
    cancelled: float | None = None


class Local(Executor):
    """Processes of this machine, each with one cell and, where there are any, one accelerator.

    They are forked from a server that has imported everything. Each ends when this process does.

    Args:
        store: where the cells are trained into.
        capacity: processes at a time.
        say: told where the fork server keeps a cell from starting.
    """

    def __init__(self, store: Store, capacity: int, say: Say = to_stderr) -> None:
        self.store, self.capacity, self.say = store, capacity, say
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOAD)
        self.numbers = itertools.count()
        self.jobs: dict[Handle, Job] = {}
        self.records: dict[Handle, Record | None] = {}
        self.events: list[Event] = []
        self.broken = False

    def submit(self, cell: Cell, execution: Execution, name: str) -> Handle:
        taken = {job.slot for job in self.jobs.values()}
        slot = next((slot for slot in range(self.capacity) if slot not in taken), None)
        if slot is None:
            raise RuntimeError(f"{name}: {self.capacity} cells are being trained, as many as may be")
        job = Job(Handle(next(self.numbers), cell.id, name), cell, execution, slot)
        self._start(job)
        self.jobs[job.handle] = job
        return job.handle

    def poll(self, timeout: float) -> Sequence[Event]:
        self._listen(0.0 if self.events else timeout)
        ended = [job for job in self.jobs.values() if job.attempt.ended]
        for job in [job for job in ended if self._take_leave(job)]:
            if self.broken:  # the next process would end there too
                self._ended(job, End.INTERRUPTED, None)
            else:
                self._start(job)
        for job in self.jobs.values():
            if job.cancelled is not None and time.monotonic() - job.cancelled > GRACE_SECONDS:
                job.attempt.end(signal.SIGKILL)
            if (line := job.attempt.vigil.look()) is not None:
                self.events.append(Waiting(job.handle, line))
        events, self.events = self.events, []
        return events

    def cancel(self, handle: Handle) -> None:
        if (job := self.jobs.get(handle)) is not None and job.cancelled is None:
            job.cancelled = time.monotonic()
            job.attempt.end(signal.SIGTERM)

    def harvest(self, handle: Handle) -> Record | None:
        return self.records.pop(handle)

    def close(self) -> None:
        attempts = [job.attempt for job in self.jobs.values()]
        for attempt in attempts:
            attempt.end(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while not all(attempt.gone() for attempt in attempts) and time.monotonic() < deadline:
            time.sleep(0.02)
        for attempt in attempts:
            attempt.end(signal.SIGKILL)
        self.jobs.clear()

    def _start(self, job: Job) -> None:
        """Starts a cell's process, by another fork server where the one there was is gone."""
        cell, name = job.cell, job.handle.name
        before = self.store.record(cell.id) if self.store.finished(cell.id) else None
        alone = cell.config["trainer"]["devices"] == 1
        late = f"{name}: waiting for the fork server, which is still importing, or stopped"
        for left in reversed(range(SERVERS)):
            ours, theirs = self.context.Pipe()
            arguments = (cell, self.store, job.execution, theirs, job.slot if alone else None)
            process = self.context.Process(target=train_one, args=arguments, name=name)
            try:
                with Late(late, self.say):
                    process.start()
                break
            except (EOFError, ConnectionError):
                ours.close()
                if not left:
                    raise InputError(
                        f"multiprocessing's fork server, which starts the processes, ended {SERVERS} times before it "
                        "had started one; its last words are above"
                    ) from None
            finally:
                theirs.close()
        job.tries += 1
        job.attempt = Attempt(process, ours, before)
        self.events.append(Started(job.handle))

    def _listen(self, timeout: float) -> None:
        """Waits for a process to say something or to end, and takes in a message of each that spoke."""
        jobs = {job.attempt.pipe: job for job in self.jobs.values() if not job.attempt.pipe.closed}
        ends = [job.attempt.process.sentinel for job in self.jobs.values() if not job.attempt.orphan]
        if not jobs and not ends:
            return
        for pipe in wait([*jobs, *ends], timeout):
            if isinstance(pipe, Connection):
                self._hear(jobs[pipe])

    def _hear(self, job: Job) -> None:
        """Takes in one message, or that there will be no more."""
        handle, attempt = job.handle, job.attempt
        try:
            kind, *message = attempt.pipe.recv()
        except (EOFError, OSError):
            attempt.pipe.close()
            return
        attempt.vigil.word()
        if kind == "progress":
            attempt.step = message[0]
            self.events.append(Progress(handle, *message))
        elif kind == "waiting":
            self.events.append(Waiting(handle, message[0]))
        elif kind == "disk":
            attempt.broken = OSError(*message)
        else:
            attempt.step = max(attempt.step, message[0])
            self.events.append(Validation(handle, message[0], message[1], attempt.answer))

    def _take_leave(self, job: Job) -> bool:
        """Deals with a process that has ended: says how its cell ended, or returns that it is to be started again."""
        attempt = job.attempt
        while not attempt.pipe.closed and attempt.pipe.poll():
            self._hear(job)
        attempt.process.join()
        attempt.pipe.close()
        self.broken = self.broken or attempt.broken is not None
        end, record = self._outcome(job)
        if end is not None:
            self._ended(job, end, record)
        return end is None

    def _ended(self, job: Job, end: End, record: Record | None) -> None:
        del self.jobs[job.handle]
        self.records[job.handle] = record
        self.events.append(Ended(job.handle, end, job.attempt.step, job.attempt.broken))

    def _outcome(self, job: Job) -> tuple[End | None, Record | None]:
        """How the cell ended and its new record, if any; no end where it is to be started again."""
        cell, attempt, again = job.cell, job.attempt, job.execution.again
        code = attempt.process.exitcode
        found = self.store.record(cell.id) if self.store.finished(cell.id) else None
        if found is not None and (found != attempt.before or not self.store.pending(cell.id, again)):
            return End.RECORDED, found
        if attempt.stopped and code in (0, UNKNOWN) and not self.store.work(cell.id).is_dir():
            return End.PRUNED, None
        if attempt.broken is not None or job.cancelled is not None or code in (0, -signal.SIGINT, -signal.SIGTERM):
            return End.INTERRUPTED, None
        if code == UNKNOWN:
            job.tries -= 1
            job.servers += 1
            return (None if job.servers < SERVERS else End.INTERRUPTED), None
        if code < 0 and job.tries < ATTEMPTS:
            return None, None
        record = fail(cell, self.store, _cause(code), time.monotonic() - attempt.started, again)
        if record is None:
            left = f"{_cause(code)}; the cell is left to {self.store.holder(cell.id)}"
            self.events.append(Waiting(job.handle, left))
            return End.INTERRUPTED, None
        return End.GIVEN_UP, record


def _cause(code: int) -> str:
    if code > 0:
        return f"process ended with exit code {code}"
    hint = "; the machine may have run out of memory" if code == -signal.SIGKILL else ""
    return f"process killed by {signal.Signals(-code).name}{hint}"
