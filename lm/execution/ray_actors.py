"""Pool of the Ray workers of an executor: assignment of cells, start and shutdown."""

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
"""Errors that a lost worker or a lost cluster raises."""


@dataclass(eq=False)
class RayActorHandle:
    """A Ray worker.

    Args:
        actor: Ray's handle.
        code: digest of the user code that it has imported, or is about to.
        needs: cores and devices that it occupies, also while idle.
        up: it runs on a node.
    """

    actor: Any
    code: str
    needs: Mapping[str, float]
    up: bool = False


class RayActorPool:
    """Idle Ray workers, and the means to start more; an idle one keeps its cores."""

    def __init__(self) -> None:
        self.idle: list[RayActorHandle] = []
        self.leaving: list[tuple[RayActorHandle, Any]] = []

    def acquire(self, code: str, needs: Mapping[str, float]) -> RayActorHandle:
        """Return an idle worker with the same code, or else start one in the place of an idle one."""
        for worker in self.idle:
            if worker.code == code and worker.needs == needs:
                self.idle.remove(worker)
                return worker
        if self.idle:
            self.dismiss(self.idle.pop(0))
        cpus, gpus = int(needs["CPU"]), needs.get("GPU", 0)
        actor = ray.remote(RayWorker).options(num_cpus=cpus, num_gpus=gpus).remote(cpus, __version__, ray.get)
        return RayActorHandle(actor, code, needs)

    def dismiss(self, worker: RayActorHandle) -> None:
        """Shut a worker down, which ends its cell and deletes its folder."""
        with contextlib.suppress(*GONE):
            if worker.up:
                self.leaving.append((worker, worker.actor.close.remote()))
                worker.actor.__ray_terminate__.remote()
            else:
                ray.kill(worker.actor)

    def close(self, at_work: Sequence[RayActorHandle], seconds: float) -> None:
        """Shut all workers down, and kill those that still run after so many seconds."""
        for worker in [*at_work, *self.idle]:
            self.dismiss(worker)
        try:
            if replies := [reply for _, reply in self.leaving]:
                with contextlib.suppress(*GONE):
                    ray.wait(replies, num_returns=len(replies), timeout=seconds)
        finally:
            for worker, _ in self.leaving:
                with contextlib.suppress(*GONE):
                    ray.kill(worker.actor)
            self.idle.clear()
            self.leaving.clear()


def digest(cell: Cell) -> str:
    """Return a digest of the user code of a cell."""
    return hashlib.sha256(repr(list(code_of(cell))).encode()).hexdigest()
