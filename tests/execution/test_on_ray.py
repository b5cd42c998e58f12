"""What becomes of a cell whose worker goes away, without a cluster."""

from types import SimpleNamespace
from typing import Any

import pytest

from lm.execution.executor import Handle, Outcome
from lm.execution.remote import RemoteExecutor
from lm.store.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.extra]


class Lost:
    """An executor whose every worker goes away."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        on_ray = pytest.importorskip("lm.execution.on_ray", reason="needs ray: pip install 'lm-ablations[ray]'")
        self.executor = on_ray.Ray.__new__(on_ray.Ray)
        RemoteExecutor.__init__(self.executor, store, 1, print)
        self.executor.pool = SimpleNamespace(dismiss=lambda worker: None, acquire=lambda code, needs: worker(False))
        monkeypatch.setattr(on_ray, "digest", lambda cell: "")
        monkeypatch.setattr("lm.execution.remote.fail", lambda *_: {})
        monkeypatch.setattr(self.executor, "_needs", lambda job: {})
        monkeypatch.setattr(self.executor, "_start", self.started)
        monkeypatch.setattr(self.executor, "_release", lambda job, end: None)
        self.tries = 0
        self.job = on_ray.OnRay(
            Handle(0, "a" * 16, "arm"), SimpleNamespace(id="a" * 16), SimpleNamespace(retrain=False)
        )
        self.executor.jobs[self.job.handle] = self.job
        self.most = on_ray.STARTS

    def started(self, job: Any, worker: Any) -> None:
        self.tries += 1
        job.worker = worker

    def lose(self, up: bool) -> None:
        self.job.worker = worker(up)
        self.executor._on_actor_lost(self.job, "lost")

    def ends(self) -> list[Outcome]:
        return [event.outcome for event in self.executor.events if hasattr(event, "outcome")]


def worker(up: bool) -> Any:
    return SimpleNamespace(up=up)


def test_a_worker_lost_before_it_is_up_is_no_loss_of_the_cell(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Lost(store, monkeypatch)
    lost.lose(True)
    lost.lose(False)  # on a node that had gone too, which was not known
    assert (lost.tries, lost.ends()) == (2, [])
    lost.lose(True)
    assert lost.ends() == [Outcome.LOST]


def test_workers_that_never_come_up_end_in_giving_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Lost(store, monkeypatch)
    while not lost.ends():
        lost.lose(False)
    assert lost.ends() == [Outcome.LOST]
    assert lost.tries == lost.most
