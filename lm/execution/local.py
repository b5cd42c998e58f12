"""Executor of this machine: a process a cell, and the recovery of cells whose process was killed."""

import contextlib
import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from lm.execution.executor import ATTEMPTS, Executor, Job, Message, Outcome, disk_message
from lm.execution.fork_server import MAX_FORKSERVER_RESTARTS, start_fork_server, start_process
from lm.execution.machine import accelerators
from lm.store import locks
from lm.store.files import disk_error
from lm.store.leases import HeldError, LostError
from lm.store.locks import BackoffReporter
from lm.store.record import Record
from lm.store.store import LOG, STACK, Store
from lm.training.identified import Cell
from lm.training.process import Execution, leave_slurm_job, on_heartbeat

STACK_SECONDS = 2.0  # time for a hanging process to write its stack
GRACE_SECONDS = 5.0  # time between the signal that asks a process to exit and the one that kills it
INNERMOST = 3  # calls that the error of a hung process names
URGENT = ("validation", "ended")  # kinds of messages that a worker on another machine sends immediately
UNKNOWN_CODE = 255  # exit code of a process whose fork server has ended: it may have exited, or run on


MAX_CHECK_INTERVAL = 10.0  # seconds that the time between two checks of a silent process counts at most


class SilenceMonitor:
    """Monitor of a process: call `record_activity` on every message, and the others periodically."""

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.pid, self.clock, self.last_check = pid, clock, clock()
        self.reporter = BackoffReporter(locks.FIRST_SECONDS, clock)
        self.record_activity()

    def record_activity(self) -> None:
        """Record that the process has sent a message."""
        self.reporter.restart()
        self.silent = 0.0

    def seconds_silent(self) -> float:
        """Return the seconds since the last message; this process may have been stopped for a part of them."""
        now = self.clock()
        self.silent += min(now - self.last_check, MAX_CHECK_INTERVAL)
        self.last_check = now
        return self.silent

    def check(self) -> str | None:
        """Return a line about a process that is stopped, None if none is due."""
        if self.reporter.left > 0 or locks.process_status(self.pid) not in locks.STOPPED:
            return None
        self.reporter.should_report()
        lasted = f"no word for {self.reporter.lasted:z.0f} s"
        return f"{lasted}: process {self.pid} is stopped, SIGCONT lets it go on"


@dataclass(eq=False)
class Attempt:
    """A process and its attempt at a cell."""

    process: Any
    pipe: Connection  # to the process; closed once the process has closed its end, which it does by exiting
    before: Record | None  # the record that the cell had already
    started: float = field(default_factory=time.monotonic)
    stopped: bool = False  # the answer to a validation was to stop
    broken: Message | None = None  # error of the disk that stopped the cell
    held: bool = False  # another process has the lock of the cell
    hung: float | None = None  # when the process was found to hang, by the monotonic clock

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

    def receive(self) -> list[Any] | None:
        """Return one message, None after closing the pipe if the process has closed its end."""
        try:
            return list(self.pipe.recv())
        except (EOFError, OSError):
            self.pipe.close()
            return None


@dataclass(eq=False)
class LocalJob(Job):
    """A submitted cell, with its slot, which chooses the accelerator, and the fork servers that ended under it."""

    slot: int = 0
    attempt: Attempt = field(init=False)
    servers: int = 0


class Local(Executor):
    """Executor of processes on this machine, each with one cell, forked from a server that has imported everything."""

    broken = False

    @classmethod
    def prepare(cls) -> None:
        """Start the fork server, whose imports take seconds in which this process may go on."""
        start_fork_server()

    def close(self) -> None:
        """End all processes, by force after a time of grace."""
        attempts = [job.attempt for job in self.jobs]
        for attempt in attempts:
            attempt.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline and not all(attempt.has_exited for attempt in attempts):
            for attempt in attempts:
                while not attempt.pipe.closed and attempt.pipe.poll():
                    attempt.receive()  # a process whose messages nobody reads may wait for ever
            time.sleep(0.02)
        for attempt in attempts:
            attempt.send_signal(signal.SIGKILL)
        self.jobs.clear()

    def _start(self, cell: Cell, execution: Execution, name: str) -> LocalJob:
        busy_slots = {job.slot for job in self.jobs}
        free_slot = next(slot for slot in range(self.capacity) if slot not in busy_slots)
        job = LocalJob(cell, execution, name, slot=free_slot)
        self._start_attempt(job)
        return job

    def _start_attempt(self, job: LocalJob) -> None:
        cell = job.cell
        before = self.store.record(cell.id) if self.store.finished(cell.id) else None
        slot = job.slot if cell.config["trainer"]["devices"] == 1 else None
        process, pipe = start_process(train_one, (cell, self.store, job.execution, slot, accelerators()), job.name)
        job.attempt, job.step, job.awaits_answer = Attempt(process, pipe, before), 0, False
        self._on_message(job, ("started",))

    def _listen(self, seconds: float) -> None:
        """Handle one message of each process that sent any, the ends of processes, and silent processes."""
        jobs = {job.attempt.pipe: job for job in self.jobs if not job.attempt.pipe.closed}
        ends = [job.attempt.process.sentinel for job in self.jobs if not job.attempt.is_orphaned]
        for pipe in wait([*jobs, *ends], seconds) if jobs or ends else ():
            if isinstance(pipe, Connection):
                self._receive(jobs[pipe])
        for job in [job for job in self.jobs if job.attempt.has_exited]:
            self._finish_attempt(job)
        for job in self.jobs:
            attempt, limit = job.attempt, job.execution.hang_seconds
            if attempt.hung is not None:
                if time.monotonic() - attempt.hung > STACK_SECONDS:
                    attempt.send_signal(signal.SIGKILL)
            elif attempt.silence.seconds_silent() > limit > 0 and not job.awaits_answer:
                attempt.hung = time.monotonic()
                attempt.send_signal(signal.SIGUSR1)  # asks it for its stack
                what_next = "started once more" if job.kills + 1 < ATTEMPTS else "given up"
                line = f"no word for {limit / 60:z.3g} minutes: process {attempt.process.pid} is ended, {what_next}"
                self._on_message(job, ("waiting", line))
            if (warning := attempt.silence.check()) is not None:
                self._on_message(job, ("waiting", warning))

    def _send(self, job: LocalJob, goes_on: bool) -> None:
        job.attempt.stopped = not goes_on
        with contextlib.suppress(OSError):  # it has exited since
            job.attempt.pipe.send(goes_on)

    def _receive(self, job: LocalJob) -> None:
        attempt = job.attempt
        if (message := attempt.receive()) is None:
            return
        attempt.silence.record_activity()
        if message[0] == "disk":
            attempt.broken = message[1:]
        elif message[0] == "held":
            attempt.held = True
        elif message[0] != "alive":
            self._on_message(job, message)

    def _finish_attempt(self, job: LocalJob) -> None:
        """Handle a process that has exited: end the cell with its new record, if any, or start it again."""
        cell, attempt, again = job.cell, job.attempt, job.execution.retrain
        while not attempt.pipe.closed and attempt.pipe.poll():
            self._receive(job)
        attempt.process.join()
        attempt.pipe.close()
        self.broken = self.broken or attempt.broken is not None
        code = attempt.process.exitcode
        stored = self.store.record(cell.id) if self.store.finished(cell.id) else None
        outcome = None
        if stored is not None and (stored != attempt.before or not self.store.pending(cell.id, again)):
            self._end(job, Outcome.RECORDED, stored, attempt.broken)
            return
        if attempt.held:
            outcome = Outcome.LOCKED_ELSEWHERE
        elif attempt.stopped and code in (0, UNKNOWN_CODE) and not self.store.work(cell.id).is_dir():
            outcome = Outcome.PRUNED
        elif attempt.broken is not None or code in (0, -signal.SIGINT, -signal.SIGTERM):
            outcome = Outcome.INTERRUPTED
        elif code == UNKNOWN_CODE:
            job.servers += 1
            outcome = None if job.servers < MAX_FORKSERVER_RESTARTS else Outcome.INTERRUPTED
        else:
            job.kills += 1
            hint = "; the machine may have run out of memory" if code == -signal.SIGKILL else ""
            killed_by = "" if code > 0 else f"process killed by {signal.Signals(-code).name}{hint}"
            cause, trace = killed_by or f"process ended with exit code {code}", None
            if attempt.hung is not None:
                cause, trace = describe_hang(self.store.work(cell.id) / STACK, job.execution.hang_seconds)
            if code > 0 or job.kills >= ATTEMPTS:
                self._give_up(job, cause, attempt.started, trace)
                return
            if attempt.hung is None:  # else it was said when the process was ended
                self._on_message(job, ("waiting", f"{cause}; tried again from its last checkpoint"))
        if outcome is None and not self.broken:
            self._start_attempt(job)
        else:
            self._end(job, outcome or Outcome.INTERRUPTED, None, attempt.broken)


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


class RemoteWorker(Local):
    """Trainer of one cell on another machine, as `Local` trains it."""

    @property
    def awaits_answer(self) -> bool:
        """True if the cell waits for the answer to a validation."""
        return any(job.awaits_answer for job in self.jobs)

    def take_messages(self, seconds: float) -> list[Message]:
        """Return the messages of the next seconds, without a record, at once if one is urgent."""
        deadline = time.monotonic() + seconds
        messages: list[Message] = []
        while True:
            messages += [message[:4] for _, message in self.poll(max(0.0, deadline - time.monotonic()))]
            if not self.jobs or time.monotonic() >= deadline or any(kind in URGENT for kind, *_ in messages):
                return messages

    def answer_last(self, goes_on: bool) -> None:
        """Answer the last validation."""
        for job in self.jobs:
            self.answer(job, goes_on)


# in the process of a cell ---------------------------------------------------------------------------------------------


def train_one(
    pipe: Connection, cell: Cell, store: Store, execution: Execution, slot: int | None, devices: int = 0
) -> None:
    """Train a cell in this process, with messages through the pipe; `slot` chooses one of `devices`, None all."""
    from lm.training.train import ChangedCodeError, train  # takes seconds, which the fork server has spent

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    sys.modules["__main__"].__spec__ = None
    leave_slurm_job()
    named = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(devices))))
    if slot is not None and (names := [name for name in named.split(",") if name.strip()]):
        os.environ["CUDA_VISIBLE_DEVICES"] = names[slot % len(names)]
    # Lightning starts the other processes of a multi-device cell with this process's command line.
    work = store.work(cell.id)
    script = str(Path(__file__).with_name("nonzero_rank.py"))
    sys.argv = [script, str(work), json.dumps(asdict(execution)), json.dumps(sys.path)]

    def tell(*message: Any) -> None:
        with contextlib.suppress(OSError):
            pipe.send(message)

    def judge(step: int, measured: Mapping[str, float]) -> bool:
        if not execution.prunable:
            return True
        try:
            pipe.send(("validation", step, measured))
            return bool(pipe.recv())
        except (EOFError, OSError):  # the parent is gone
            os._exit(1)

    def redirect_output(work: Path) -> None:
        """Redirect output to the log of the cell, and the stack on SIGUSR1 to a file beside it."""
        log = os.open(work / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        faulthandler.register(signal.SIGUSR1, os.open(work / STACK, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666))

    report = lambda *progress: tell("progress", *progress)  # noqa: E731
    say = lambda line: tell("waiting", line)  # noqa: E731
    try:
        with on_heartbeat(lambda: tell("alive")):
            train(cell, store, report, execution, judge, say, redirect_output, wait=False)
    except HeldError:
        tell("held")
    except ChangedCodeError as error:
        tell("waiting", str(error))
    except LostError as error:
        tell("waiting", str(error))
        tell("held")
        os._exit(0)  # nothing may be written any more, not even what a buffer holds
    except OSError as error:
        if (error_of_disk := disk_error(error)) is None:
            raise
        tell("disk", *disk_message(error_of_disk))
        os._exit(0)  # nothing may be written any more, not even what a buffer holds
