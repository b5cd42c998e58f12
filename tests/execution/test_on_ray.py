"""Tasks of Ray: a cell whose task is lost, without a cluster, and the cores that tasks take."""

from types import SimpleNamespace
from typing import Any

import pytest
import stand_in
from helpers import Patch
from stand_in import StandIn
from stand_in_task import CellTrainer

from lm.execution.executor import Ended, Executor, Handle, Outcome, Started
from lm.execution.factory import make_executor
from lm.store.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.extra]


class Losing:
    """An executor whose every task is lost."""

    def __init__(self, store: Store, monkeypatch: Patch) -> None:
        pytest.importorskip("ray", reason="needs ray: pip install 'lm-ablations[ray]'")
        from lm.execution import on_ray

        self.executor = on_ray.Ray.__new__(on_ray.Ray)
        Executor.__init__(self.executor, store, 1, print)
        monkeypatch.setattr("lm.training.train.fail", lambda *_: {})
        monkeypatch.setattr(self.executor, "_start_actor", self.start)
        self.starts = 0
        cell: Any = SimpleNamespace(id="a" * 16)
        execution: Any = SimpleNamespace(retrain=False)
        self.job = on_ray.OnRay(Handle(0, "a" * 16, "arm"), cell, execution)
        self.executor.jobs[self.job.handle] = self.job
        self.most = on_ray.STARTS

    def start(self, job: Any) -> None:
        self.starts += 1

    def lose(self, has_started: bool) -> None:
        self.job.has_started = has_started
        self.executor._on_actor_lost(self.job, "lost")

    def outcomes(self) -> list[Outcome]:
        return [event.outcome for event in self.executor.events if hasattr(event, "outcome")]


def test_a_task_lost_before_it_begins_is_not_counted(store: Store, monkeypatch: Patch) -> None:
    losing = Losing(store, monkeypatch)
    losing.lose(True)
    losing.lose(False)  # on a node that had gone too, which was not known
    assert (losing.starts, losing.outcomes()) == (2, [])
    losing.lose(True)
    assert losing.outcomes() == [Outcome.LOST]


def test_a_cell_whose_tasks_never_begin_is_lost(store: Store, monkeypatch: Patch) -> None:
    losing = Losing(store, monkeypatch)
    while not losing.outcomes():
        losing.lose(False)
    assert losing.outcomes() == [Outcome.LOST]
    assert losing.starts == losing.most


def test_no_more_tasks_run_than_the_cluster_has_cores(
    light: None, small_ray: None, store: Store, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("lm.execution.on_ray.CellTrainer", CellTrainer)
    running: set[Handle] = set()
    most, ended = 0, 0
    with make_executor("ray", store, 4) as executor:
        for letter in "abcd":
            cell: Any = StandIn(letter * 16)
            executor.submit(cell, stand_in.execution(), f"cell {letter}")
        while ended < 4:
            for event in executor.poll(1.0):
                if isinstance(event, Started):
                    running.add(event.handle)
                elif isinstance(event, Ended):
                    running.discard(event.handle)
                    ended += 1
                most = max(most, len(running))
    assert most <= 2
