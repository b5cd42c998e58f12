"""Executor of a SLURM cluster, by submitit: one job a cell, submitted as arrays. All machines share the results.

A job trains into the results folder as `local` would, and holds the cell's lock there. Messages and answers are in
OUT/cells/.slurm-*/, which only its owner may read: submitit keeps pickles there.
"""

import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm.execution.executor import Handle, Outcome
from lm.execution.remote import RemoteExecutor, RemoteJob
from lm.execution.slurm_job import ANSWERS, ORDER, TOLD, FileMailbox, SlurmTask, send, write_order
from lm.execution.slurm_queue import STATES, Queue
from lm.store.locks import LogLine, to_stderr
from lm.store.store import Store
from lm.training.cell import Cell
from lm.training.train import Execution

LOOK_SECONDS = 0.5
"""Time between two reads of the messages of jobs."""

STATE_SECONDS = 20.0
"""Time between two queries of the state of jobs."""

LATE_SECONDS = 30.0
"""Time in which a network file system shows the files of a job that has ended."""

GRACE_SECONDS = 60.0
"""Time in which a cancelled job ends before it is killed."""

CLOSE_SECONDS = 10.0
"""Time that `close` waits for jobs to end."""


@dataclass(eq=False)
class OnSlurm(RemoteJob):
    """A submitted cell of this executor.

    Args:
        job: submitit's, None until it is submitted.
        mail: messages of the job.
        over: when the job ended without reporting an outcome, by the monotonic clock.
        state: last state of the job, as SLURM calls it.
    """

    job: Any = None
    mail: FileMailbox | None = None
    over: float | None = None
    state: str = "PENDING"


class Slurm(RemoteExecutor[OnSlurm]):
    """Executor of jobs of a SLURM cluster.

    Args:
        store: where the cells are trained into, on a disk that all machines see.
        capacity: cells at a time, in the queue or at work.
        say: called with a line when the submission of a cell is delayed.
        options: see `lm.execution.executor_spec`.
        threads: of a cell.
    """

    def __init__(
        self,
        store: Store,
        capacity: int,
        say: LogLine = to_stderr,
        options: Mapping[str, str] | None = None,
        threads: int = 1,
    ) -> None:
        super().__init__(store, capacity, say)
        store.cells.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix=".slurm-", dir=store.cells.resolve()))  # for its owner alone
        self.last_query = 0.0
        self.late = 0.0 if (options or {}).get("executor") == "local" else LATE_SECONDS
        self.every = 0.5 if not self.late else STATE_SECONDS
        try:
            self.queue = Queue(options or {}, self.folder / "submitit", capacity, threads)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        self.failed = False

    def close(self) -> None:
        jobs = [job.job for job in self.jobs.values() if job.job is not None]
        self.jobs.clear()
        self.queue.cancel(jobs)
        self.queue.wait_until_gone(jobs, CLOSE_SECONDS)
        if not self.failed:  # the output of the jobs tells why
            shutil.rmtree(self.folder, ignore_errors=True)

    def _job(self, handle: Handle, cell: Cell, execution: Execution) -> OnSlurm:
        return OnSlurm(handle, cell, execution)

    def _listen(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._submit_jobs()
        while True:
            self._states()
            for job in list(self.jobs.values()):
                self._hear(job)
                self._check(job)
            if self.events or not self.jobs or time.monotonic() >= deadline:
                return
            time.sleep(min(LOOK_SECONDS, max(0.0, deadline - time.monotonic())))

    def _submit_jobs(self) -> None:
        """Submit the cells that have come since the last call, as one array."""
        waiting = []
        for job in [job for job in self.jobs.values() if job.job is None]:
            if job.cancelled is not None:
                self._ended(job, Outcome.INTERRUPTED)
                continue
            waiting.append(job)
            for suffix in (TOLD, ANSWERS):
                (self.folder / (job.cell.id + suffix)).unlink(missing_ok=True)
            self._order(job)
            job.mail, job.over, job.state = FileMailbox(self.folder / (job.cell.id + TOLD)), None, "PENDING"
        if waiting:
            submitted = self.queue.submit([self._task(job) for job in waiting])
            for job, slurm_job in zip(waiting, submitted, strict=True):
                job.job = slurm_job

    def _order(self, job: OnSlurm) -> None:
        """Write the order of a cell."""
        write_order(self.folder, job.cell, job.execution, self.store.out, job.handle.name)

    def _task(self, job: OnSlurm) -> SlurmTask:
        """Return the task of a cell."""
        return SlurmTask(str(self.folder), job.cell.id)

    def _states(self) -> None:
        """Query the states of the jobs periodically."""
        if time.monotonic() - self.last_query < self.every:
            return
        self.last_query = time.monotonic()
        states = self.queue.states([job.job for job in self.jobs.values()])
        for job in self.jobs.values() if states is not None else ():
            state = (states or {})[job.job.job_id]
            if state in STATES:
                job.over = None
            elif job.over is None:
                job.over = time.monotonic()
            if state != job.state and state == "PENDING":
                self._tell(job, f"SLURM job {job.job.job_id} waits in the queue again")
            job.state = state

    def _hear(self, job: OnSlurm) -> None:
        """Handle the new messages of a job."""
        assert job.mail is not None
        for message in job.mail.new():
            job.state = "RUNNING" if job.state == "PENDING" else job.state  # SLURM is queried less often
            if message[0] == "ended":
                self._on_ended(job, Outcome(message[1]), message[2], message[3])
                return
            self._heard(job, message)

    def _on_ended(self, job: OnSlurm, outcome: Outcome, step: int, broken: tuple[int, str, str] | None) -> None:
        """Handle the outcome of a cell."""
        job.step = max(job.step, step)
        record = None
        if outcome in (Outcome.RECORDED, Outcome.LOST):
            deadline = time.monotonic() + self.late
            while not self.store.finished(job.cell.id) and time.monotonic() < deadline:
                time.sleep(LOOK_SECONDS)
            record = self.store.record(job.cell.id)
        self._ended(job, outcome, record, OSError(*broken) if broken else None)

    def _check(self, job: OnSlurm) -> None:
        """Handle a job that has ended without an outcome, or that was cancelled."""
        if job.handle not in self.jobs:
            return
        if job.cancelled is not None and (job.state == "PENDING" or time.monotonic() - job.cancelled > GRACE_SECONDS):
            self.queue.cancel([job.job])
            self._ended(job, Outcome.INTERRUPTED)
        elif job.over is not None and time.monotonic() - job.over >= self.late:
            self._hear(job)  # its last messages
            if job.handle in self.jobs and self.held(job.cell.id) is None:  # the training process may outlive the job
                self._on_job_lost(job)

    def _on_job_lost(self, job: OnSlurm) -> None:
        """Handle the loss of a job: submit the cell again, or end it."""
        self.failed = True
        if job.state == "PREEMPTED":  # no fault of the cell
            job.losses -= 1
        cause = f"SLURM job {job.job.job_id} ended as {job.state}; what it printed: {job.job.paths.stdout}"
        if self._on_worker_lost(job, cause):
            job.job = None
            self._submit_jobs()

    def _stop(self, job: OnSlurm) -> None:
        send(self.folder / (job.cell.id + ANSWERS), "cancel")

    def _send_answer(self, job: OnSlurm, goes_on: bool) -> None:
        send(self.folder / (job.cell.id + ANSWERS), goes_on)

    def _release(self, job: OnSlurm, outcome: Outcome) -> None:
        for name in (ORDER, TOLD, ANSWERS):
            (self.folder / (job.cell.id + name)).unlink(missing_ok=True)
