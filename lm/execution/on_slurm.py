"""Executor of a SLURM cluster, by submitit: one job a cell, submitted as arrays. All machines share the results.

A job trains into the results folder as `local` would, and holds the cell's lock there. submitit pickles a `SlurmTask`,
which is two strings. All else is JSON beside it: the order, the messages of the job, one a line, and the answers to
them, in OUT/cells/.slurm-*/, which only its owner may read.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from lm.config.plain import shown
from lm.config.tree import InputError
from lm.data.tokens import TextStats
from lm.execution.executor import Executor, Job, Outcome, require_whole
from lm.execution.local import RemoteWorker
from lm.execution.machine import env_threads
from lm.store.files import read_json, to_json, write_atomic
from lm.store.formats import CELL
from lm.store.store import Store
from lm.training.identified import Cell
from lm.training.process import Execution

with contextlib.suppress(ImportError):  # `parse_executor` names the package that is missing
    import submitit

READ_SECONDS = 0.5  # time between two reads of the messages of jobs
STATE_SECONDS = 20.0  # time between two queries of the state of jobs
LATE_SECONDS = 30.0  # time in which a network file system shows the files of a job that has ended
CLOSE_SECONDS = 10.0  # time that `close` waits for jobs to end
MOST_JOBS = 1000  # jobs in one array, by SLURM's default
MINUTES = 60  # default time limit of a job. A cell that takes longer goes on in the next job.
TIMEOUTS = 10_000  # number of times that a job may go on after its time limit

# states of a job that goes on or will
STATES = {
    *("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED"),
    *("RESIZING", "SIGNALING", "STOPPED", "STAGE_OUT", "RESV_DEL_HOLD", "SPECIAL_EXIT"),
}

COMMAND_SECONDS = 60.0  # time limit of a command of SLURM
LISTEN_SECONDS = 1.0  # time between two reads of the answers
PATIENCE = 100.0  # seconds that a job waits for the signal after its training: at a preemption, SIGTERM comes first

ORDER, MESSAGES, ANSWERS = ".json", ".told", ".answers"  # suffixes of the files of a cell in the folder of its executor
BEAT = "beat"  # file in the folder of an executor that its command touches while it lives
SILENT_SECONDS = 600.0  # time without a beat after which a job that awaits an answer ends

TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)


class FileMailbox:
    """Reader of the JSON lines that another process appends to a file; an incomplete line is left for later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read = 0

    def new(self) -> list[Any]:
        """Return the messages since the last call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.read)
                text = file.read()
        except FileNotFoundError:
            return []
        complete = text[: text.rfind(b"\n") + 1]
        self.read += len(complete)
        return [json.loads(line) for line in complete.splitlines()]


def send(path: Path, message: Any) -> None:
    """Append a line of JSON and sync it to disk, as another machine reads it."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(message) + "\n")
        file.flush()
        os.fsync(file.fileno())


@dataclass(eq=False)
class OnSlurm(Job):
    """A submitted cell, submitit's job, and when that was `over` without an outcome, by the monotonic clock."""

    job: Any = None
    mail: FileMailbox | None = None
    over: float | None = None
    state: str = ""


class Slurm(Executor):
    """Executor of jobs of a SLURM cluster, all of whose machines see the store; `capacity` includes queued jobs."""

    package = "submitit"
    options: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("partition", "account", "qos", "constraint", "exclude"), "as sbatch takes it"),
        "time": "minutes, H:M:S or D-H:M:S for a job; one that needs longer goes on from its checkpoint",
        "mem": "memory of a job, such as 8GB",
        "cpus": "cores of a job, each a thread",
        "gpus": "devices of a job",
        "executor": "slurm, or local: jobs without SLURM, on this machine",
    }

    def __init__(self, store: Store, capacity: int, options: Mapping[str, str] | None = None) -> None:
        super().__init__(store, capacity, options)
        store.cells.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix=".slurm-", dir=store.cells.resolve()))  # for its owner alone
        self.failed, self.last_query, self.real = False, 0.0, self.settings.get("executor", "slurm") == "slurm"
        self.late, self.every = (LATE_SECONDS, STATE_SECONDS) if self.real else (0.0, 0.5)
        chosen = self.settings
        time_each = minutes(chosen["time"]) if "time" in chosen else MINUTES
        more: dict[str, Any] = {"gpus_per_node": int(chosen["gpus"])} if "gpus" in chosen else {}
        if self.real:
            plain = ("partition", "account", "qos", "constraint", "exclude", "mem")
            more |= {name: chosen[name] for name in plain if name in chosen}
            more |= {"job_name": "lm", "nodes": 1, "ntasks_per_node": 1}
            more |= {"time": time_each, "cpus_per_task": self.threads_each(chosen, capacity)}
        else:
            more["timeout_min"] = time_each
        try:
            kind: Any = submitit.SlurmExecutor if self.real else submitit.LocalExecutor
            self.queue = kind(self.folder / "submitit", max_num_timeout=TIMEOUTS)
            self.queue.update_parameters(stderr_to_stdout=True, **more)
        except BaseException as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            if isinstance(error, RuntimeError):  # SLURM is not available
                raise InputError(f"--executor slurm: {error}") from None
            raise

    def close(self) -> None:
        """Cancel all jobs and remove their folder, unless one failed."""
        jobs = [job.job for job in self.jobs if job.job is not None]
        self.jobs.clear()
        if self.real and jobs:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                command = ["scancel", *(job.job_id for job in jobs)]
                subprocess.run(command, capture_output=True, timeout=COMMAND_SECONDS, check=False)
        for job in () if self.real else jobs:
            job.cancel(check=False)
        deadline = time.monotonic() + CLOSE_SECONDS
        while jobs and time.monotonic() < deadline:
            states = self._states(jobs)
            jobs = [job for job in jobs if states is None or states[job.job_id] in STATES]
            time.sleep(0.1 if not self.real else 1.0)
        if not self.failed:  # the output of the jobs tells why
            shutil.rmtree(self.folder, ignore_errors=True)

    # what a command line asks for

    @classmethod
    def check_options(cls, options: Mapping[str, str], where: str) -> None:
        """Raise InputError for options that SLURM would refuse."""
        require_whole(options, ("cpus", "gpus"), where)
        if options.get("executor", "slurm") not in ("slurm", "local"):
            raise InputError(f"{where}: executor: expected slurm or local, found {shown(options['executor'])}")
        if "time" in options:
            minutes(options["time"], where)
        mem = options.get("mem", "1M")
        if not re.fullmatch(r"[0-9]+\s*[KMGT]B?", mem, re.IGNORECASE):
            raise InputError(f"{where}: mem: expected a number with its unit, such as 8GB, found {shown(mem)}")
        if options.get("executor") != "local" and shutil.which("sbatch") is None:
            raise InputError(f"{where}: no sbatch on this machine; give the command where SLURM's commands are")

    @classmethod
    def threads_each(cls, options: Mapping[str, str], workers: int) -> int:
        """Return the number of threads of each cell."""
        return int(options.get("cpus", env_threads() or 1))

    @classmethod
    def default_capacity(cls, options: Mapping[str, str], cells: int, search: bool) -> int | None:
        """Return the number of jobs at a time where none was requested."""
        if search:
            hint = "a search needs --workers N, its cells in the queue or at work at a time"
            raise InputError(f"--executor slurm: {hint}")
        return min(cells, MOST_JOBS)

    # from one event to the next

    def _start(self, cell: Cell, execution: Execution, name: str) -> OnSlurm:
        return OnSlurm(cell, execution, name)

    def _listen(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._submit_jobs()
        while True:
            self._query_states()
            for job in list(self.jobs):
                self._read_messages(job)
                self._check(job)
            if self.messages or not self.jobs or time.monotonic() >= deadline:
                return
            time.sleep(min(READ_SECONDS, max(0.0, deadline - time.monotonic())))

    def _submit_jobs(self) -> None:
        """Submit the cells that have come since the last call, as one array. Raises InputError if they are refused."""
        waiting = [job for job in self.jobs if job.job is None]
        for job in waiting:
            for suffix in (MESSAGES, ANSWERS):
                (self.folder / (job.cell.id + suffix)).unlink(missing_ok=True)
            order: dict[str, Any] = {"cell": CELL.stamped(asdict(job.cell)), "execution": asdict(job.execution)}
            order["name"] = job.name
            order |= {"out": str(self.store.out.resolve()), "path": [os.path.abspath(folder) for folder in sys.path]}
            write_atomic(self.folder / (job.cell.id + ORDER), to_json(order))
            job.mail, job.over = FileMailbox(self.folder / (job.cell.id + MESSAGES)), None
        try:
            with self.queue.batch() if len(waiting) > 1 else contextlib.nullcontext():
                submitted = [self.queue.submit(SlurmTask(str(self.folder), job.cell.id)) for job in waiting]
        except (OSError, subprocess.SubprocessError, submitit.core.utils.FailedJobError) as error:
            message = " ".join(str(error).split())[:300]
            raise InputError(f"--executor slurm: the jobs were refused: {message}") from None
        for job, slurm_job in zip(waiting, submitted, strict=True):
            job.job = slurm_job

    def _query_states(self) -> None:
        if time.monotonic() - self.last_query < self.every:
            return
        self.last_query = time.monotonic()
        (self.folder / BEAT).touch()
        if (states := self._states([job.job for job in self.jobs])) is None:
            return
        for job in self.jobs:
            job.state = states[job.job.job_id]
            job.over = None if job.state in STATES else job.over or time.monotonic()

    def _read_messages(self, job: OnSlurm) -> None:
        """Handle the new messages of a job, and the outcome of its cell."""
        assert job.mail is not None
        for kind, *values in job.mail.new():
            if kind != "ended":
                self._on_message(job, (kind, *values))
                continue
            outcome, step, broken = Outcome(values[0]), values[1], values[2]
            job.step, record = max(job.step, step), None
            if outcome is Outcome.RECORDED:
                deadline = time.monotonic() + self.late
                while not self.store.finished(job.cell.id) and time.monotonic() < deadline:
                    time.sleep(READ_SECONDS)
                record = self.store.record(job.cell.id)
            self._end(job, outcome, record, broken)
            return

    def _check(self, job: OnSlurm) -> None:
        """Handle a job that has ended without an outcome."""
        if job in self.jobs and job.over is not None and time.monotonic() - job.over >= self.late:
            self._read_messages(job)  # its last messages
            if job not in self.jobs or self.held(job.cell.id) is not None:
                return  # the training process may outlive the job
            self.failed = True
            if job.state == "PREEMPTED":  # no fault of the cell
                job.kills -= 1
            cause = f"SLURM job {job.job.job_id} ended as {job.state}; what it printed: {job.job.paths.stdout}"
            if self._on_worker_lost(job, cause):
                job.job = None
                self._submit_jobs()

    def _send(self, job: OnSlurm, goes_on: bool) -> None:
        send(self.folder / (job.cell.id + ANSWERS), goes_on)

    def _release(self, job: OnSlurm) -> None:
        for name in (ORDER, MESSAGES, ANSWERS):
            (self.folder / (job.cell.id + name)).unlink(missing_ok=True)

    # jobs of submitit: those of SLURM, or processes of this machine in their place

    def _states(self, jobs: Sequence[Any]) -> dict[str, str] | None:
        """Return the state of each job by its id, `GONE` for an unknown one; None if SLURM does not answer."""
        if not self.real:
            processes = {job.job_id: job._process for job in jobs}
            running = {job_id for job_id, process in processes.items() if process and process.poll() is None}
            return {job_id: "RUNNING" if job_id in running else "COMPLETED" for job_id in processes}
        command = ["squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%T"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        states = dict(line.strip().split("|", 1) for line in done.stdout.splitlines() if "|" in line)
        return {job.job_id: states.get(job.job_id, "GONE") for job in jobs}


def minutes(text: str, where: str = "--executor slurm") -> int:
    """Convert a time as sbatch takes it (M, M:S, H:M:S or D-H[:M[:S]]) to whole minutes. Raises InputError."""
    match = TIME.fullmatch(text)
    if match is None or len(text) > 20:
        raise InputError(f"{where}: time: expected minutes, H:M:S or D-H:M:S, found {shown(text)}")
    days, *fields = (int(part) for part in match.groups(default="0"))
    if match[1] is None and match[4] is None:  # without hours
        fields = [0, *fields[:2]]
    seconds = ((days * 24 + fields[0]) * 60 + fields[1]) * 60 + fields[2]
    if seconds <= 0:
        raise InputError(f"{where}: time: expected more than nothing, found {shown(text)}")
    return -(-seconds // 60)


# in the job -----------------------------------------------------------------------------------------------------------


class SlurmTask:
    """Task that submitit pickles, an executor's folder and a cell's id; a preempted job is submitted again."""

    def __init__(self, folder: str, cell: str) -> None:
        self.folder, self.cell = folder, cell

    def __call__(self) -> str:
        """Train the cell on the machine of the job, and return how it ended."""
        return run_order(Path(self.folder), self.cell)

    def checkpoint(self) -> Any:
        """Return the task that SLURM queues again after a preemption."""
        return submitit.helpers.DelayedSubmission(self)


def run_order(folder: Path, cell_id: str) -> str:
    """Train the cell of an order, and return how it ended. Raises RuntimeError if something outside has ended it."""
    path = folder / (cell_id + ORDER)
    order = read_json(path)
    sys.path += [entry for entry in order["path"] if entry not in sys.path]
    described = CELL.read(order["cell"], path)
    cell = Cell(described["config"], TextStats(**described["facts"]), described["id"])
    execution = Execution(**order["execution"])
    messages_path, answers = folder / (cell_id + MESSAGES), FileMailbox(folder / (cell_id + ANSWERS))
    answers.new()  # of an earlier attempt
    last_beat, since = _beat(folder), time.monotonic()
    if execution.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(execution.threads)
    with RemoteWorker(Store(Path(order["out"])), 1) as worker:
        try:
            with sigusr2_blocked():
                worker.submit(cell, execution, order["name"])
            while True:
                for message in worker.take_messages(0.0 if worker.awaits_answer else LISTEN_SECONDS):
                    end = message[1] if message[0] == "ended" else None
                    if end == Outcome.INTERRUPTED.value and message[3] is None:
                        time.sleep(PATIENCE)
                        raise RuntimeError("what trained the cell was ended from outside")
                    send(messages_path, message)
                    if end is not None:
                        return str(end)
                for answer in answers.new():
                    worker.answer_last(answer)
                beat = _beat(folder)
                if not worker.awaits_answer or beat != last_beat:
                    last_beat, since = beat, time.monotonic()
                elif time.monotonic() - since > SILENT_SECONDS:
                    raise RuntimeError("the command that submitted this job has ended; run it again, and it resumes")
                if worker.awaits_answer:
                    time.sleep(0.1)
        except InputError as error:
            send(messages_path, ("waiting", str(error)))
            raise


def _beat(folder: Path) -> float | None:
    """Return when the command last touched its beat, by the clock of the disk; None if it is gone."""
    with contextlib.suppress(OSError):
        return (folder / BEAT).stat().st_mtime
    return None


@contextlib.contextmanager
def sigusr2_blocked() -> Iterator[None]:
    """Block the signal that is meant for the job in processes that are started in the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
