"""A post on a Ray node whose cells stand in for others; it is sent to the node by its name."""

from typing import Any

import stand_in
from records import blank

from lm.execution import local
from lm.execution.ray_worker import RayWorker
from lm.store import locks
from lm.store.store import Store
from lm.training import train


class StandInRayWorker(RayWorker):
    """Trains nothing: what trains it is replaced, in the processes of the post."""

    def __init__(self, *arguments: Any) -> None:
        local.PRELOAD, local.train_one = [], stand_in.train_one  # type: ignore[attr-defined, assignment]
        locks.FIRST_SECONDS = 0.05
        train.finish = finish
        super().__init__(*arguments)


def finish(cell: Any, store: Store, outcome: Any, times: Any) -> Any:
    """What is recorded of a cell that was given up, whose facts and configuration nobody knows."""
    record: Any = {**blank(cell.id), **outcome}
    return store.finish(cell.id, record)
