"""The posts of an executor of a Ray cluster: which one a cell is given to, how they start, and how they are let go."""

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from lm import __version__
from lm.execution.cell_transfer import code_of
from lm.execution.ray_worker import RayWorker
from lm.training.cell import Cell

GONE = RayError, ConnectionError
"""What is raised where a post has gone, or the whole cluster that was reached from outside."""


@dataclass(eq=False)
class RayActorHandle:
    """A post.

    Args:
        actor: what Ray reaches it by.
        code: of a user's own that it has imported or is about to.
        needs: cores and devices that it takes up, while it waits for a cell too.
        up: whether a node has it.
    """

    actor: Any
    code: str
    needs: Mapping[str, float]
    up: bool = False


class RayActorPool:
    """RayActorPool without a cell, and how to come by more of them. A waiting one keeps its cores from all others."""

    def __init__(self) -> None:
        self.idle: list[RayActorHandle] = []
        self.leaving: list[tuple[RayActorHandle, Any]] = []

    def found(self, code: str, needs: Mapping[str, float]) -> RayActorHandle:
        """A post for a cell: one that waits and has its code, or else a fresh one in the place of one that waits."""
        for post in self.idle:
            if post.code == code and post.needs == needs:
                self.idle.remove(post)
                return post
        if self.idle:
            self.dismiss(self.idle.pop(0))
        cpus, gpus = int(needs["CPU"]), needs.get("GPU", 0)
        actor = ray.remote(RayWorker).options(num_cpus=cpus, num_gpus=gpus).remote(cpus, __version__, ray.get)
        return RayActorHandle(actor, code, needs)

    def dismiss(self, post: RayActorHandle) -> None:
        """Lets go of a post, which ends what it has begun and leaves nothing behind."""
        with contextlib.suppress(*GONE):
            if post.up:
                self.leaving.append((post, post.actor.close.remote()))
                post.actor.__ray_terminate__.remote()
            else:
                ray.kill(post.actor)

    def close(self, at_work: Sequence[RayActorHandle], seconds: float) -> None:
        """Lets go of all, and ends by force those that have not gone after so long."""
        for post in [*at_work, *self.idle]:
            self.dismiss(post)
        try:
            if replies := [reply for _, reply in self.leaving]:
                with contextlib.suppress(*GONE):
                    ray.wait(replies, num_returns=len(replies), timeout=seconds)
        finally:
            for post, _ in self.leaving:
                with contextlib.suppress(*GONE):
                    ray.kill(post.actor)
            self.idle.clear()
            self.leaving.clear()


def digest(cell: Cell) -> str:
    """What the code of a user's own is known by that a cell takes."""
    return hashlib.sha256(repr(list(code_of(cell))).encode()).hexdigest()
