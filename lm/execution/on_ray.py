"""Executor of a Ray cluster without a shared disk: files of cells go through Ray's object store.

This process alone writes into the store of cells and holds the locks of the cells. Ray sends objects between its
processes as pickles: a cluster is trusted as far as the user's own account.
"""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from lm.config.tree import InputError
from lm.execution.cell_transfer import OWN, CellPackage, Files, code_of, delete_other_files, files_below, write_files
from lm.execution.executor import Handle, Outcome
from lm.execution.machine import cores
from lm.execution.ray_actors import RayActorHandle, RayActorPool, digest
from lm.execution.ray_cluster import connect, disconnect
from lm.execution.ray_worker import Answer
from lm.execution.remote import RemoteExecutor, RemoteJob
from lm.execution.remote_worker import Message
from lm.store.files import disk_error
from lm.store.leases import LostError
from lm.store.locks import FIRST_SECONDS, BackoffReporter, LogLine, to_stderr
from lm.store.store import Store
from lm.training.cell import Cell
from lm.training.train import Execution

POLL_SECONDS, ANSWER_SECONDS = 0.5, 0.05
"""Time limit of a poll of a worker, and of one while an answer is due."""

GRACE_SECONDS = 15.0
"""Time in which cancelled cells and dismissed workers end before they are killed."""

STARTS = 5
"""Ray workers of a cell that may be lost before they are up, as on a node that has gone without the cluster knowing."""


@dataclass(eq=False)
class OnRay(RemoteJob):
    """A submitted cell of this executor.

    Args:
        held: the cell's lock, None until it is held.
        worker: that trains the cell.
        reply: Ray's reference to the awaited reply.
        early: workers lost before they were up.
    """

    held: ExitStack | None = None
    worker: RayActorHandle | None = None
    reply: Any = None
    early: int = 0
    waits: BackoffReporter = field(default_factory=lambda: BackoffReporter(FIRST_SECONDS))
    sent_files: list[Files] = field(default_factory=list)
    """References to pieces that the worker may still fetch."""


class Ray(RemoteExecutor[OnRay]):
    """Executor of workers on the nodes of a Ray cluster, each with one cell at a time.

    Args:
        store: of the cells.
        capacity: cells at a time.
        say: called with a line when the submission of a cell is delayed.
        options: address of the cluster, or memory of one to be started.
        threads: of a cell; a cluster to be started has as many cores for each.
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
        self.pool = RayActorPool()
        self.texts: dict[str, Files] = {}
        connect(options or {}, max(cores(), capacity * threads))
        self.open = True
        self.gpus = ray.cluster_resources().get("GPU", 0) > 0

    def close(self) -> None:
        if not self.open:
            return
        self.open = False
        at_work = [job.worker for job in self.jobs.values() if job.worker]
        try:
            for job in self.jobs.values():
                if job.held:
                    job.held.close()
            self.jobs.clear()
            self.pool.close(at_work, GRACE_SECONDS)
        finally:
            self.texts.clear()
            disconnect()

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        if isinstance(error := raised[1], ConnectionError):  # from outside; Ray ends a process on a node that is lost
            raise InputError(f"--executor ray: the cluster was lost: {last_line(error)}") from None

    def _job(self, handle: Handle, cell: Cell, execution: Execution) -> OnRay:
        return OnRay(handle, cell, execution)

    # from one event to the next

    def _listen(self, seconds: float) -> None:
        for job in [job for job in self.jobs.values() if job.held is None]:
            self._claim(job)
        replies = {job.reply: job for job in self.jobs.values() if job.reply is not None}
        waits = 0.0 if self.events else seconds
        if replies and (ready := ray.wait(list(replies), num_returns=1, timeout=waits)[0]):
            if len(replies) > 1:
                ready += ray.wait([reply for reply in replies if reply not in ready], timeout=0)[0]
            for reply in ready:
                self._hear(replies[reply], reply)
        for job in list(self.jobs.values()):
            self._check(job)

    def _claim(self, job: OnRay) -> None:
        """Acquire the lock of the cell, unless another process has it, and start the cell unless it is recorded."""
        held, cell = ExitStack(), job.cell.id
        if job.cancelled is not None:
            self._ended(job, Outcome.INTERRUPTED)
            return
        if not held.enter_context(self.store.claim(cell)):
            held.close()
            self._ended(job, Outcome.LOCKED_ELSEWHERE)
            return
        job.held = held
        self.store.complete(cell)
        if not self.store.pending(cell, job.execution.retrain):
            self.store.drop(cell)
            self._ended(job, Outcome.RECORDED, self.store.record(cell))
            return
        self._start(job, self.pool.acquire(digest(job.cell), self._needs(job)))

    def _hear(self, job: OnRay, reply: Any) -> None:
        """Handle the reply of a worker, or its loss."""
        if job.reply != reply or job.worker is None:  # released; in Ray Client a reply is another object each time
            return
        answer: Answer | str = ""
        try:
            answer = ray.get(reply)
        except RayTaskError as error:
            if isinstance(error.cause, InputError):
                raise InputError(str(error.cause)) from None
            if (broken := disk_error(error.cause)) is not None:
                self._ended(job, Outcome.INTERRUPTED, broken=broken)
                return
            self._on_actor_lost(job, f"{type(error.cause).__name__}: {error.cause}")
            return
        except RayError as error:
            if not job.worker.up and "creation task" in str(error):
                raise InputError(f"a node of the Ray cluster cannot train cells: {last_line(error)}") from None
            self._on_actor_lost(job, f"its Ray worker was lost ({type(error).__name__})")
            return
        if isinstance(answer, str):  # the host; it has begun
            job.worker.up = True
            self._ask(job)
            return
        self._take_in(job, *answer)

    def _take_in(self, job: OnRay, messages: list[Message], files: dict[str, bytes], names: list[str] | None) -> None:
        work = self.store.work(job.cell.id)
        try:
            if names is not None and work.is_dir():
                delete_other_files(work, names)
            write_files(files, work)
            for message in messages:
                if message[0] == "ended":
                    self._came_back(job, Outcome(message[1]), message[2], message[3])
                    return
                self._heard(job, message)
        except LostError as error:  # this process was stopped for long, and another has the cell
            self._tell(job, str(error))
            self._ended(job, Outcome.LOCKED_ELSEWHERE)
            return
        except OSError as error:
            if (broken := disk_error(error)) is None:
                raise
            self._ended(job, Outcome.INTERRUPTED, broken=broken)
            return
        self._ask(job)

    def _came_back(self, job: OnRay, outcome: Outcome, step: int, broken: tuple[int, str, str] | None) -> None:
        """Handle the end of a cell, whose files are here."""
        cell = job.cell.id
        job.step = max(job.step, step)
        if outcome in (Outcome.RECORDED, Outcome.LOST):
            self.store.complete(cell)
            self._ended(job, outcome, self.store.record(cell))
        elif outcome is Outcome.PRUNED:
            self.store.drop(cell)
            self._ended(job, outcome)
        elif outcome is Outcome.LOCKED_ELSEWHERE or (broken is None and job.cancelled is None):
            self._on_actor_lost(job, "what trained it was ended from outside")
        else:
            self._ended(job, outcome, broken=OSError(*broken) if broken else None)

    def _check(self, job: OnRay) -> None:
        """Report what a cell waits for, and end a cancelled one that does not react."""
        if job.worker is None:
            return
        if not job.worker.up and job.waits.should_report():
            needs = ", ".join(f"{count:zg} {name}" for name, count in job.worker.needs.items())
            self._tell(job, f"waiting for a node of the Ray cluster with {needs} free, and a worker there")
        if job.cancelled is not None and (not job.worker.up or time.monotonic() - job.cancelled > GRACE_SECONDS):
            self._ended(job, Outcome.INTERRUPTED)

    def _on_actor_lost(self, job: OnRay, cause: str) -> None:
        """Handle the loss of a worker: start the cell again, or end it.

        A worker that was not up yet has lost nothing.
        """
        early = job.worker is not None and not job.worker.up and job.cancelled is None
        if job.worker is not None:
            self.pool.dismiss(job.worker)
        job.worker = job.reply = None
        job.early += early
        if (early and job.early < STARTS) or self._on_worker_lost(job, cause):
            job.waits.restart()
            self._start(job, self.pool.acquire(digest(job.cell), self._needs(job)))

    # requests to workers

    def _ask(self, job: OnRay) -> None:
        assert job.worker is not None
        job.reply = job.worker.actor.poll.remote(ANSWER_SECONDS if job.awaits_answer else POLL_SECONDS)

    def _stop(self, job: OnRay) -> None:
        if job.worker is not None:
            job.worker.actor.cancel.remote()

    def _send_answer(self, job: OnRay, goes_on: bool) -> None:
        if job.worker is not None:
            job.worker.actor.answer.remote(goes_on)

    def _release(self, job: OnRay, outcome: Outcome) -> None:
        """Release the lock of the cell, and pass its worker on to a cell that waits for one."""
        worker, job.worker, job.reply = job.worker, None, None
        if job.held is not None:
            job.held.close()
            job.held = None
        job.sent_files.clear()
        if worker is None:
            return
        failed = outcome is Outcome.RECORDED and self.store.record(job.cell.id)["status"] == "failed"
        waiting = [other for other in self.jobs.values() if other.worker and not other.worker.up and other is not job]
        fit = [other for other in waiting if other.worker and other.worker.code == worker.code]
        if failed or outcome not in (Outcome.RECORDED, Outcome.PRUNED) or (waiting and not fit) or not worker.up:
            self.pool.dismiss(worker)
        elif not waiting:
            self.pool.idle.append(worker)
        elif fit[0].worker is not None:
            self.pool.dismiss(fit[0].worker)
            self._start(fit[0], worker)

    def _start(self, job: OnRay, worker: RayActorHandle) -> None:
        """Send a cell to a worker."""
        facts, work = job.cell.facts, self.store.work(job.cell.id)
        if facts is not None and facts.folder not in self.texts:
            self.texts[facts.folder] = files_below(Path(facts.folder), ray.put, ("sums.json",))
        package = CellPackage(
            job.cell,
            job.execution,
            job.handle.name,
            [] if facts is None else self.texts[facts.folder],
            files_below(work, ray.put, OWN),
            list(code_of(job.cell)),
        )
        job.worker, job.sent_files = worker, [package.work]
        job.reply = worker.actor.begin.remote(package)

    def _needs(self, job: OnRay) -> Mapping[str, float]:
        """Return the cores, one a thread, and the GPUs, one a device, that the cell needs."""
        trainer = job.cell.config["trainer"]
        needs: dict[str, float] = {"CPU": getattr(job.execution, "threads", None) or 1}
        if self.gpus and trainer.get("accelerator") != "cpu":
            devices = trainer["devices"]
            needs["GPU"] = devices if isinstance(devices, int) and devices > 0 else 1
        return needs


def last_line(error: Exception) -> str:
    """Return the last line of an error of Ray, which names the cause on the node."""
    return next(line.strip() for line in reversed([type(error).__name__, *str(error).splitlines()]) if line.strip())
