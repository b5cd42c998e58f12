"""What becomes of a cell whose task is lost, without a cluster."""

from types import SimpleNamespace
from typing import Any

import pytest

from lm.execution.executor import Handle, Outcome
from lm.execution.remote import RemoteExecutor
from lm.store.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.extra]


class Losing:
    """An executor whose every task is lost."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("ray", reason="needs ray: pip install 'lm-ablations[ray]'")
        from lm.execution import on_ray

        self.executor = on_ray.Ray.__new__(on_ray.Ray)
        RemoteExecutor.__init__(self.executor, store, 1, print)
        monkeypatch.setattr("lm.execution.remote.fail", lambda *_: {})
        monkeypatch.setattr(self.executor, "_start_task", self.start)
        self.starts = 0
        cell: Any = SimpleNamespace(id="a" * 16)
        execution: Any = SimpleNamespace(again=False)
        self.job = on_ray.OnRay(Handle(0, "a" * 16, "arm"), cell, execution)
        self.executor.jobs[self.job.handle] = self.job
        self.most = on_ray.STARTS

    def start(self, job: Any) -> None:
        self.starts += 1

    def lose(self, begun: bool) -> None:
        self.job.begun = begun
        self.executor._on_task_lost(self.job, "lost")

    def outcomes(self) -> list[Outcome]:
        return [event.outcome for event in self.executor.events if hasattr(event, "outcome")]


def test_a_task_lost_before_it_begins_is_no_loss_of_the_cell(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    losing = Losing(store, monkeypatch)
    losing.lose(True)
    losing.lose(False)  # on a node that had gone too, which was not known
    assert (losing.starts, losing.outcomes()) == (2, [])
    losing.lose(True)
    assert losing.outcomes() == [Outcome.LOST]


def test_a_cell_whose_tasks_never_begin_is_lost(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    losing = Losing(store, monkeypatch)
    while not losing.outcomes():
        losing.lose(False)
    assert losing.outcomes() == [Outcome.LOST]
    assert losing.starts == losing.most
