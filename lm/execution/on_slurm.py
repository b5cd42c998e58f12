"""Executor of a SLURM cluster, by submitit: one job a cell, submitted as arrays. All machines share the results.

A job trains into the results folder as `local` would, and holds the cell's lock there. Messages and answers are in
OUT/cells/.slurm-*/, which only its owner may read: submitit keeps pickles there.
"""

import contextlib
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lm.config.plain import shown
from lm.config.tree import InputError
from lm.execution.executor import Executor, Handle, Job, Outcome, require_whole
from lm.execution.machine import env_threads
from lm.execution.slurm_job import ANSWERS, MESSAGES, ORDER, FileMailbox, SlurmTask, send, write_order
from lm.store.locks import LogLine, to_stderr
from lm.store.store import Store
from lm.training.cell import Cell
from lm.training.process import Execution

with contextlib.suppress(ImportError):  # `parse_executor` names the package that is missing
    import submitit

READ_SECONDS = 0.5
"""Time between two reads of the messages of jobs."""

STATE_SECONDS = 20.0
"""Time between two queries of the state of jobs."""

LATE_SECONDS = 30.0
"""Time in which a network file system shows the files of a job that has ended."""

GRACE_SECONDS = 60.0
"""Time in which a cancelled job ends before it is killed."""

CLOSE_SECONDS = 10.0
"""Time that `close` waits for jobs to end."""

MOST_JOBS = 1000
"""Jobs in one array, by SLURM's default."""

MINUTES = 60
"""Default time limit of a job. A cell that takes longer goes on in the next job."""

TIMEOUTS = 10_000
"""Number of times that a job may go on after its time limit."""

STATES = {
    *("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED"),
    *("RESIZING", "SIGNALING", "STOPPED", "STAGE_OUT", "RESV_DEL_HOLD", "SPECIAL_EXIT"),
}
"""States of a job that goes on or will."""

COMMAND_SECONDS = 60.0
"""Time limit of a command of SLURM."""

TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)
SBATCH = "as sbatch takes it"


@dataclass(eq=False)
class OnSlurm(Job):
    """A submitted cell of this executor.

    Args:
        job: submitit's, None until it is submitted.
        over: when the job ended without reporting an outcome, by the monotonic clock.
        state: last state of the job, as SLURM calls it.
    """

    job: Any = None
    mail: FileMailbox | None = None
    over: float | None = None
    state: str = "PENDING"


class Slurm(Executor):
    """Executor of jobs of a SLURM cluster.

    Args:
        store: where the cells are trained into, on a disk that all machines see.
        capacity: cells at a time, in the queue or at work.
        say: called with a line when the submission of a cell is delayed.
        options: values of `options` by name.
    """

    package = "submitit"
    options: ClassVar[Mapping[str, str]] = {
        "partition": SBATCH,
        "account": SBATCH,
        "qos": SBATCH,
        "constraint": SBATCH,
        "exclude": SBATCH,
        "time": "minutes, H:M:S or D-H:M:S for a job; one that needs longer goes on from its checkpoint",
        "mem": "memory of a job, such as 8GB",
        "cpus": "cores of a job, each a thread",
        "gpus": "devices of a job",
        "executor": "slurm, or local: jobs without SLURM, on this machine",
    }

    def __init__(
        self, store: Store, capacity: int, say: LogLine = to_stderr, options: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(store, capacity, say, options)
        store.cells.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix=".slurm-", dir=store.cells.resolve()))  # for its owner alone
        self.last_query = 0.0
        self.late = 0.0 if self.settings.get("executor") == "local" else LATE_SECONDS
        self.every = 0.5 if not self.late else STATE_SECONDS
        try:
            threads = self.threads_each(self.settings, capacity)
            self.queue = Queue(self.settings, self.folder / "submitit", capacity, threads)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        self.failed = False

    def close(self) -> None:
        """Cancel all jobs and remove their folder, unless one failed."""
        jobs = [job.job for job in self.jobs.values() if job.job is not None]
        self.jobs.clear()
        self.queue.cancel(jobs)
        self.queue.wait_until_gone(jobs, CLOSE_SECONDS)
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
            raise InputError(
                "--executor slurm: a search needs --workers N, its cells in the queue or at work at a time"
            )
        return min(cells, MOST_JOBS)

    # from one event to the next

    def _start(self, handle: Handle, cell: Cell, execution: Execution) -> OnSlurm:
        return OnSlurm(handle, cell, execution)

    def _listen(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._submit_jobs()
        while True:
            self._query_states()
            for job in list(self.jobs.values()):
                self._read_messages(job)
                self._check(job)
            if self.events or not self.jobs or time.monotonic() >= deadline:
                return
            time.sleep(min(READ_SECONDS, max(0.0, deadline - time.monotonic())))

    def _submit_jobs(self) -> None:
        """Submit the cells that have come since the last call, as one array."""
        waiting = []
        for job in [job for job in self.jobs.values() if job.job is None]:
            if job.cancelled is not None:
                self._end(job, Outcome.INTERRUPTED)
                continue
            waiting.append(job)
            for suffix in (MESSAGES, ANSWERS):
                (self.folder / (job.cell.id + suffix)).unlink(missing_ok=True)
            write_order(self.folder, job.cell, job.execution, self.store.out, job.handle.name)
            job.mail, job.over, job.state = FileMailbox(self.folder / (job.cell.id + MESSAGES)), None, "PENDING"
        if waiting:
            submitted = self.queue.submit([SlurmTask(str(self.folder), job.cell.id) for job in waiting])
            for job, slurm_job in zip(waiting, submitted, strict=True):
                job.job = slurm_job

    def _query_states(self) -> None:
        """Query the states of the jobs periodically."""
        if time.monotonic() - self.last_query < self.every:
            return
        self.last_query = time.monotonic()
        if (states := self.queue.states([job.job for job in self.jobs.values()])) is None:
            return
        for job in self.jobs.values():
            state = states[job.job.job_id]
            if state in STATES:
                job.over = None
            elif job.over is None:
                job.over = time.monotonic()
            if state != job.state and state == "PENDING":
                self._on_message(job, ("waiting", f"SLURM job {job.job.job_id} waits in the queue again"))
            job.state = state

    def _read_messages(self, job: OnSlurm) -> None:
        """Handle the new messages of a job, and the outcome of its cell."""
        assert job.mail is not None
        for kind, *values in job.mail.new():
            job.state = "RUNNING" if job.state == "PENDING" else job.state  # SLURM is queried less often
            if kind != "ended":
                self._on_message(job, (kind, *values))
                continue
            outcome, step, broken = Outcome(values[0]), values[1], values[2]
            job.step, record = max(job.step, step), None
            if outcome in (Outcome.RECORDED, Outcome.LOST):
                deadline = time.monotonic() + self.late
                while not self.store.finished(job.cell.id) and time.monotonic() < deadline:
                    time.sleep(READ_SECONDS)
                record = self.store.record(job.cell.id)
            self._end(job, outcome, record, OSError(*broken) if broken else None)
            return

    def _check(self, job: OnSlurm) -> None:
        """Handle a job that has ended without an outcome, or that was cancelled."""
        if job.handle not in self.jobs:
            return
        if job.cancelled is not None and (job.state == "PENDING" or time.monotonic() - job.cancelled > GRACE_SECONDS):
            self.queue.cancel([job.job])
            self._end(job, Outcome.INTERRUPTED)
        elif job.over is not None and time.monotonic() - job.over >= self.late:
            self._read_messages(job)  # its last messages
            if job.handle not in self.jobs or self.held(job.cell.id) is not None:
                return  # the training process may outlive the job
            self.failed = True
            if job.state == "PREEMPTED":  # no fault of the cell
                job.losses -= 1
            cause = f"SLURM job {job.job.job_id} ended as {job.state}; what it printed: {job.job.paths.stdout}"
            if self._on_worker_lost(job, cause):
                job.job = None
                self._submit_jobs()

    def _send(self, job: OnSlurm, answer: bool | str) -> None:
        send(self.folder / (job.cell.id + ANSWERS), answer)

    def _release(self, job: OnSlurm) -> None:
        for name in (ORDER, MESSAGES, ANSWERS):
            (self.folder / (job.cell.id + name)).unlink(missing_ok=True)


# jobs of submitit: those of SLURM, or processes of this machine in their place -------------------------------------


class Queue:
    """Queue of jobs that are submitted together as one array.

    Args:
        options: of the executor.
        folder: of submitit's files.
        at_a_time: jobs that run at a time.
        threads: of a job.

    Raises:
        InputError: if SLURM is not available.
    """

    def __init__(self, options: Mapping[str, str], folder: Path, at_a_time: int, threads: int) -> None:
        self.real = options.get("executor", "slurm") == "slurm"
        try:
            kind: Any = submitit.SlurmExecutor if self.real else submitit.LocalExecutor
            self.executor = kind(folder, max_num_timeout=TIMEOUTS)
        except RuntimeError as error:
            raise InputError(f"--executor slurm: {error}") from None
        time_each = minutes(options["time"]) if "time" in options else MINUTES
        more: dict[str, Any] = {"gpus_per_node": int(options["gpus"])} if "gpus" in options else {}
        if self.real:
            plain = ("partition", "account", "qos", "constraint", "exclude", "mem")
            more |= {name: options[name] for name in plain if name in options}
            more |= {"job_name": "lm", "nodes": 1, "ntasks_per_node": 1, "cpus_per_task": threads}
            more |= {"time": time_each, "array_parallelism": at_a_time}
        else:
            more["timeout_min"] = time_each
        self.executor.update_parameters(stderr_to_stdout=True, **more)

    def submit(self, tasks: Sequence[Any]) -> list[Any]:
        """Submit tasks and return their jobs. Raises InputError if SLURM refuses them."""
        try:
            if len(tasks) == 1:
                return [self.executor.submit(tasks[0])]
            with self.executor.batch():
                jobs = [self.executor.submit(task) for task in tasks]
            return jobs
        except (OSError, subprocess.SubprocessError, submitit.core.utils.FailedJobError) as error:
            message = " ".join(str(error).split())[:300]
            raise InputError(f"--executor slurm: the jobs were refused: {message}") from None

    def states(self, jobs: Sequence[Any]) -> dict[str, str] | None:
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

    def cancel(self, jobs: Sequence[Any]) -> None:
        """Cancel jobs, pending and running ones."""
        if self.real and jobs:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                command = ["scancel", *(job.job_id for job in jobs)]
                subprocess.run(command, capture_output=True, timeout=COMMAND_SECONDS, check=False)
        elif jobs:
            for job in jobs:
                job.cancel(check=False)

    def wait_until_gone(self, jobs: Sequence[Any], seconds: float) -> None:
        """Wait until jobs have ended, at most so many seconds."""
        deadline = time.monotonic() + seconds
        while jobs and time.monotonic() < deadline:
            states = self.states(jobs)
            jobs = [job for job in jobs if states is None or states[job.job_id] in STATES]
            time.sleep(0.1 if not self.real else 1.0)


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
