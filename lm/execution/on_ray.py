"""The executor of a Ray cluster, whose nodes share no disk with this machine: what a cell needs and leaves goes through
Ray's object store. This process alone writes into the store of cells, and holds the cells' locks.

Ray sends objects between its processes as pickles: a cluster is trusted as far as the user's own account.
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
from lm.execution.cell_transfer import OWN, CellPackage, Files, code_of, files_below, forget_others, write_files
from lm.execution.executor import Handle, Outcome
from lm.execution.machine import cores
from lm.execution.ray_actors import RayActorHandle, RayActorPool, digest
from lm.execution.ray_cluster import connect, disconnect
from lm.execution.ray_worker import Answer
from lm.execution.remote import RemoteExecutor, RemoteJob
from lm.execution.remote_worker import Message
from lm.store.disk import trouble
from lm.store.leases import LostError
from lm.store.locks import FIRST_SECONDS, Patience, Say, to_stderr
from lm.store.store import Store
from lm.training.cell import Cell
from lm.training.train import Execution

POLL_SECONDS, ANSWER_SECONDS = 0.5, 0.05
"""In which a post says what has happened, and how soon it listens for an answer."""

GRACE_SECONDS = 15.0
"""In which a cell that was cancelled has ended, and posts have gone, before they are ended by force."""

STARTS = 5
"""Ray workers of a cell that may be lost before they are up, as on a node that has gone without the cluster knowing."""


@dataclass(eq=False)
class OnRay(RemoteJob):
    """A cell of this executor.

    Args:
        held: the cell's lock; None until it is held.
        post: that trains it.
        reply: what is awaited of the post.
        early: posts that went before they were up.
    """

    held: ExitStack | None = None
    post: RayActorHandle | None = None
    reply: Any = None
    early: int = 0
    waits: Patience = field(default_factory=lambda: Patience(FIRST_SECONDS))
    kept: list[Files] = field(default_factory=list)
    """Pieces that the post may still ask for."""


class Ray(RemoteExecutor[OnRay]):
    """RayActorPool on the nodes of a cluster, each with one cell at a time.

    Args:
        store: where the cells come to lie.
        capacity: cells at a time.
        say: told what keeps a cell from being handed over.
        options: the cluster's address, or the memory of one to be started.
        threads: of a cell, for as many of which a cluster to be started has cores.
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
        self.posts = RayActorPool()
        self.texts: dict[str, Files] = {}
        connect(options or {}, max(cores(), capacity * threads))
        self.open = True
        self.gpus = ray.cluster_resources().get("GPU", 0) > 0

    def close(self) -> None:
        if not self.open:
            return
        self.open = False
        at_work = [job.post for job in self.jobs.values() if job.post]
        try:
            for job in self.jobs.values():
                if job.held:
                    job.held.close()
            self.jobs.clear()
            self.posts.close(at_work, GRACE_SECONDS)
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
            ready += ray.wait([one for one in replies if one not in ready], timeout=0)[0] if len(replies) > 1 else []
            for reply in ready:
                self._hear(replies[reply], reply)
        for job in list(self.jobs.values()):
            self._look(job)

    def _claim(self, job: OnRay) -> None:
        """Takes the cell's lock, unless somebody has it, and hands the cell over, unless it is recorded."""
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
        if not self.store.pending(cell, job.execution.again):
            self.store.drop(cell)
            self._ended(job, Outcome.RECORDED, self.store.record(cell))
            return
        self._station(job, self.posts.found(digest(job.cell), self._needs(job)))

    def _hear(self, job: OnRay, reply: Any) -> None:
        """Takes in what a post has answered, or that it has gone."""
        if job.reply != reply or job.post is None:  # let go meanwhile; from outside a reply is another object each time
            return
        answer: Answer | str = ""
        try:
            answer = ray.get(reply)
        except RayTaskError as error:
            if isinstance(error.cause, InputError):
                raise InputError(str(error.cause)) from None
            if (broken := trouble(error.cause)) is not None:
                self._ended(job, Outcome.INTERRUPTED, broken=broken)
                return
            self._gone(job, f"{type(error.cause).__name__}: {error.cause}")
            return
        except RayError as error:
            if not job.post.up and "creation task" in str(error):
                raise InputError(f"a node of the Ray cluster cannot train cells: {last_line(error)}") from None
            self._gone(job, f"its Ray worker was lost ({type(error).__name__})")
            return
        if isinstance(answer, str):  # the host; it has begun
            job.post.up = True
            self._ask(job)
            return
        self._take_in(job, *answer)

    def _take_in(self, job: OnRay, messages: list[Message], files: dict[str, bytes], names: list[str] | None) -> None:
        work = self.store.work(job.cell.id)
        try:
            if names is not None and work.is_dir():
                forget_others(work, names)
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
            if (broken := trouble(error)) is None:
                raise
            self._ended(job, Outcome.INTERRUPTED, broken=broken)
            return
        self._ask(job)

    def _came_back(self, job: OnRay, outcome: Outcome, step: int, broken: tuple[int, str, str] | None) -> None:
        """A cell has ended at its post, and its files are here."""
        cell = job.cell.id
        job.step = max(job.step, step)
        if outcome in (Outcome.RECORDED, Outcome.LOST):
            self.store.complete(cell)
            self._ended(job, outcome, self.store.record(cell))
        elif outcome is Outcome.PRUNED:
            self.store.drop(cell)
            self._ended(job, outcome)
        elif outcome is Outcome.LOCKED_ELSEWHERE or (broken is None and job.cancelled is None):
            self._gone(job, "what trained it was ended from outside")
        else:
            self._ended(job, outcome, broken=OSError(*broken) if broken else None)

    def _look(self, job: OnRay) -> None:
        """Says what a cell waits for, and ends by force what does not heed."""
        if job.post is None:
            return
        if not job.post.up and job.waits.spent():
            asked = ", ".join(f"{count:zg} {name}" for name, count in job.post.needs.items())
            self._tell(job, f"waiting for a node of the Ray cluster with {asked} free, and a worker there")
        if job.cancelled is not None and (not job.post.up or time.monotonic() - job.cancelled > GRACE_SECONDS):
            self._ended(job, Outcome.INTERRUPTED)

    def _gone(self, job: OnRay, cause: str) -> None:
        """A post has gone: the cell is tried again, or has ended. Before the post was up, nothing was lost with it."""
        early = job.post is not None and not job.post.up and job.cancelled is None
        if job.post is not None:
            self.posts.dismiss(job.post)
        job.post = job.reply = None
        job.early += early
        if (early and job.early < STARTS) or self._on_worker_lost(job, cause):
            job.waits.restart()
            self._station(job, self.posts.found(digest(job.cell), self._needs(job)))

    # what is asked of posts

    def _ask(self, job: OnRay) -> None:
        assert job.post is not None
        job.reply = job.post.actor.poll.remote(ANSWER_SECONDS if job.asked else POLL_SECONDS)

    def _stop(self, job: OnRay) -> None:
        if job.post is not None:
            job.post.actor.cancel.remote()

    def _send_answer(self, job: OnRay, goes_on: bool) -> None:
        if job.post is not None:
            job.post.actor.answer.remote(goes_on)

    def _release(self, job: OnRay, outcome: Outcome) -> None:
        """Gives the cell's lock back, and its post to a cell that waits for one."""
        post, job.post, job.reply = job.post, None, None
        if job.held is not None:
            job.held.close()
            job.held = None
        job.kept.clear()
        if post is None:
            return
        failed = outcome is Outcome.RECORDED and self.store.record(job.cell.id)["status"] == "failed"
        waiting = [other for other in self.jobs.values() if other.post and not other.post.up and other is not job]
        fit = [other for other in waiting if other.post and other.post.code == post.code]
        if failed or outcome not in (Outcome.RECORDED, Outcome.PRUNED) or (waiting and not fit) or not post.up:
            self.posts.dismiss(post)
        elif not waiting:
            self.posts.idle.append(post)
        elif fit[0].post is not None:
            self.posts.dismiss(fit[0].post)
            self._station(fit[0], post)

    def _station(self, job: OnRay, post: RayActorHandle) -> None:
        """Sends a cell to a post."""
        facts, work = job.cell.facts, self.store.work(job.cell.id)
        if facts is not None and facts.folder not in self.texts:
            self.texts[facts.folder] = files_below(Path(facts.folder), ray.put, ("sums.json",))
        parcel = CellPackage(
            job.cell,
            job.execution,
            job.handle.name,
            [] if facts is None else self.texts[facts.folder],
            files_below(work, ray.put, OWN),
            list(code_of(job.cell)),
        )
        job.post, job.kept = post, [parcel.work]
        job.reply = post.actor.begin.remote(parcel)

    def _needs(self, job: OnRay) -> Mapping[str, float]:
        """Cores, one a thread, and a GPU a device where the cluster has any."""
        trainer = job.cell.config["trainer"]
        needs: dict[str, float] = {"CPU": getattr(job.execution, "threads", None) or 1}
        if self.gpus and trainer.get("accelerator") != "cpu":
            devices = trainer["devices"]
            needs["GPU"] = devices if isinstance(devices, int) and devices > 0 else 1
        return needs


def last_line(error: Exception) -> str:
    """What an error of Ray ends with, which is what went wrong on the node."""
    return next(line.strip() for line in reversed([type(error).__name__, *str(error).splitlines()]) if line.strip())
