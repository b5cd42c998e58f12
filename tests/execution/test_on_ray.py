"""Tasks of Ray: a cell whose task is lost, without a cluster, and the cores that tasks take."""

from types import SimpleNamespace
from typing import Any

import pytest
import stand_in
from helpers import Patch
from stand_in import StandIn
from stand_in_task import CellTrainer

from lm.execution.executor import Executor, Job
from lm.execution.factory import make_executor
from lm.store.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.extra]


class Losing:
    """An executor whose every task is lost."""

    def __init__(self, store: Store, monkeypatch: Patch) -> None:
        pytest.importorskip("ray", reason="needs ray: pip install 'lm-ablations[ray]'")
        from lm.execution import on_ray

        self.executor = on_ray.Ray.__new__(on_ray.Ray)
        Executor.__init__(self.executor, store, 1)
        monkeypatch.setattr("lm.training.train.fail", lambda *_: {})
        monkeypatch.setattr(self.executor, "_start_actor", self.start)
        self.starts = 0
        cell: Any = SimpleNamespace(id="a" * 16)
        execution: Any = SimpleNamespace(retrain=False)
        self.job = on_ray.OnRay(cell, execution, "arm")
        self.executor.jobs.append(self.job)
        self.most = on_ray.STARTS

    def start(self, job: Any) -> None:
        self.starts += 1

    def lose(self, has_started: bool) -> None:
        self.job.has_started = has_started
        self.executor._on_actor_lost(self.job, "lost")

    def outcomes(self) -> list[str]:
        return [message[1] for _, message in self.executor.messages if message[0] == "ended"]


def test_a_task_lost_before_it_begins_is_not_counted(store: Store, monkeypatch: Patch) -> None:
    losing = Losing(store, monkeypatch)
    losing.lose(True)
    losing.lose(False)  # on a node that had gone too, which was not known
    assert (losing.starts, losing.outcomes()) == (2, [])
    losing.lose(True)
    assert losing.outcomes() == ["recorded"]


def test_a_cell_whose_tasks_never_begin_is_lost(store: Store, monkeypatch: Patch) -> None:
    losing = Losing(store, monkeypatch)
    while not losing.outcomes():
        losing.lose(False)
    assert losing.outcomes() == ["recorded"]
    assert losing.starts == losing.most


def test_no_more_tasks_run_than_the_cluster_has_cores(
    light: None, small_ray: None, store: Store, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("lm.execution.on_ray.CellTrainer", CellTrainer)
    running: set[Job] = set()
    most, ended = 0, 0
    with make_executor("ray", store, 4) as executor:
        for letter in "abcd":
            cell: Any = StandIn(letter * 16)
            executor.submit(cell, stand_in.execution(), f"cell {letter}")
        while ended < 4:
            for job, message in executor.poll(1.0):
                if message[0] == "started":
                    running.add(job)
                elif message[0] == "ended":
                    running.discard(job)
                    ended += 1
                most = max(most, len(running))
    assert most <= 2
