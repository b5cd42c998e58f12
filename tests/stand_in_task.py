"""An actor on a Ray node whose cells stand in for others; it is sent to the node by its name."""

from typing import Any

import stand_in
from records import blank

from lm.execution import fork_server, local, on_ray
from lm.store import locks
from lm.store.store import Store
from lm.training import train


class CellTrainer(on_ray.CellTrainer):
    """Trains nothing: what trains is replaced, in the processes of the node."""

    def start(self, *arguments: Any) -> on_ray.Letter:
        fork_server.PRELOAD, local.train_one = [], stand_in.train_one  # type: ignore[assignment]
        locks.FIRST_SECONDS = 0.05
        train.finish = finish
        return super().start(*arguments)


def finish(cell: Any, store: Store, outcome: Any, times: Any) -> Any:
    """Records a cell that was given up, whose facts and configuration nobody knows."""
    record: Any = {**blank(cell.id), **outcome}
    return store.finish(cell.id, record)
