"""The executor of a SLURM cluster, by submitit: a job a cell, handed in as arrays. All machines share the results.

A job trains into the results folder as `local` would, and holds the cell's lock there. What it tells and what it is
told lies in OUT/cells/.slurm-*/, which only its owner may read: submitit keeps pickles there.
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
from lm.store.locks import Say, to_stderr
from lm.store.store import Store
from lm.training.cell import Cell
from lm.training.train import Execution

LOOK_SECONDS = 0.5
"""From one look at what jobs tell to the next."""

STATE_SECONDS = 20.0
"""From one question to SLURM about the state of jobs to the next."""

LATE_SECONDS = 30.0
"""In which a network file system shows what a job has written that has ended."""

GRACE_SECONDS = 60.0
"""In which a job that was asked to end has ended."""

CLOSE_SECONDS = 10.0
"""That `close` waits for jobs to be gone."""


@dataclass(eq=False)
class OnSlurm(RemoteJob):
    """A cell of this executor.

    Args:
        job: submitit's; None until it is handed in.
        mail: what it tells.
        over: since when its job is, by the monotonic clock, without a word of how the cell ended.
        state: of the job, as SLURM called it last.
    """

    job: Any = None
    mail: FileMailbox | None = None
    over: float | None = None
    state: str = "PENDING"


class Slurm(RemoteExecutor[OnSlurm]):
    """Jobs of a SLURM cluster.

    Args:
        store: where the cells are trained into, on a disk that all machines see.
        capacity: cells at a time, in the queue or at work.
        say: told what keeps a cell from being handed over.
        options: see `lm.execution.executor_spec`.
        threads: of a cell.
    """

    def __init__(
        self,
        store: Store,
        capacity: int,
        say: Say = to_stderr,
        options: Mapping[str, str] | None = None,
        threads: int = 1,
    ) -> None:
        super().__init__(store, capacity, say)
        store.cells.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix=".slurm-", dir=store.cells.resolve()))  # for its owner alone
        self.asked = 0.0
        self.late = 0.0 if (options or {}).get("executor") == "local" else LATE_SECONDS
        self.every = 0.5 if not self.late else STATE_SECONDS
        try:
            self.queue = Queue(options or {}, self.folder / "submitit", capacity, threads)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        self.failed = False

    def close(self) -> None:
        jobs = [one.job for one in self.jobs.values() if one.job is not None]
        self.jobs.clear()
        self.queue.cancel(jobs)
        self.queue.gone(jobs, CLOSE_SECONDS)
        if not self.failed:  # what jobs have printed says why
            shutil.rmtree(self.folder, ignore_errors=True)

    def _job(self, handle: Handle, cell: Cell, execution: Execution) -> OnSlurm:
        return OnSlurm(handle, cell, execution)

    def _listen(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._hand_in()
        while True:
            self._states()
            for one in list(self.jobs.values()):
                self._hear(one)
                self._look(one)
            if self.events or not self.jobs or time.monotonic() >= deadline:
                return
            time.sleep(min(LOOK_SECONDS, max(0.0, deadline - time.monotonic())))

    def _hand_in(self) -> None:
        """Hands in the cells that have come since the last time, as one array."""
        waiting = []
        for one in [one for one in self.jobs.values() if one.job is None]:
            if one.cancelled is not None:
                self._ended(one, Outcome.INTERRUPTED)
                continue
            waiting.append(one)
            for end in (TOLD, ANSWERS):
                (self.folder / (one.cell.id + end)).unlink(missing_ok=True)
            self._order(one)
            one.mail, one.over, one.state = FileMailbox(self.folder / (one.cell.id + TOLD)), None, "PENDING"
        if waiting:
            jobs = self.queue.hand_in([self._errand(one) for one in waiting])
            for one, job in zip(waiting, jobs, strict=True):
                one.job = job

    def _order(self, one: OnSlurm) -> None:
        write_order(self.folder, one.cell, one.execution, self.store.out, one.handle.name)

    def _errand(self, one: OnSlurm) -> SlurmTask:
        return SlurmTask(str(self.folder), one.cell.id)

    def _states(self) -> None:
        """Asks now and then what has become of the jobs."""
        if time.monotonic() - self.asked < self.every:
            return
        self.asked = time.monotonic()
        states = self.queue.states([one.job for one in self.jobs.values()])
        for one in self.jobs.values() if states is not None else ():
            state = (states or {})[one.job.job_id]
            if state in STATES:
                one.over = None
            elif one.over is None:
                one.over = time.monotonic()
            if state != one.state and state == "PENDING":
                self._tell(one, f"SLURM job {one.job.job_id} waits in the queue again")
            one.state = state

    def _hear(self, one: OnSlurm) -> None:
        assert one.mail is not None
        for message in one.mail.new():
            one.state = "RUNNING" if one.state == "PENDING" else one.state  # SLURM is asked less often
            if message[0] == "ended":
                self._came_to_its_end(one, Outcome(message[1]), message[2], message[3])
                return
            self._heard(one, message)

    def _came_to_its_end(self, one: OnSlurm, outcome: Outcome, step: int, broken: tuple[int, str, str] | None) -> None:
        one.step = max(one.step, step)
        record = None
        if outcome in (Outcome.RECORDED, Outcome.LOST):
            deadline = time.monotonic() + self.late
            while not self.store.finished(one.cell.id) and time.monotonic() < deadline:
                time.sleep(LOOK_SECONDS)
            record = self.store.record(one.cell.id)
        self._ended(one, outcome, record, OSError(*broken) if broken else None)

    def _look(self, one: OnSlurm) -> None:
        """Deals with a job that has ended without a word, and with one that does not heed."""
        if one.handle not in self.jobs:
            return
        if one.cancelled is not None and (one.state == "PENDING" or time.monotonic() - one.cancelled > GRACE_SECONDS):
            self.queue.cancel([one.job])
            self._ended(one, Outcome.INTERRUPTED)
        elif one.over is not None and time.monotonic() - one.over >= self.late:
            self._hear(one)  # its last words
            if one.handle in self.jobs and self.held(one.cell.id) is None:  # what trained it may outlive the job
                self._gone(one)

    def _gone(self, one: OnSlurm) -> None:
        self.failed = True
        if one.state == "PREEMPTED":  # which says nothing of the cell
            one.lost -= 1
        cause = f"SLURM job {one.job.job_id} ended as {one.state}; what it printed: {one.job.paths.stdout}"
        if self._on_worker_lost(one, cause):
            one.job = None
            self._hand_in()

    def _stop(self, job: OnSlurm) -> None:
        send(self.folder / (job.cell.id + ANSWERS), "cancel")

    def _send_answer(self, job: OnSlurm, goes_on: bool) -> None:
        send(self.folder / (job.cell.id + ANSWERS), goes_on)

    def _release(self, job: OnSlurm, outcome: Outcome) -> None:
        for name in (ORDER, TOLD, ANSWERS):
            (self.folder / (job.cell.id + name)).unlink(missing_ok=True)
