"""Executors and cells that stand in for others."""

import os
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest
import stand_in
from helpers import Patch
from in_threads import InThreads
from stand_in_task import CellTrainer, finish

from lm.execution import fork_server, local
from lm.execution.executor import Executor
from lm.execution.factory import EXECUTORS, make_executor
from lm.store import locks
from lm.store.store import Store

Make = Callable[..., Executor]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture
def light(monkeypatch: Patch) -> Iterator[None]:
    """Cells that train nothing, in processes from a server that imports nothing, and a word of who waits soon.

    The server ends with the test: cells of other tests, which train, would each import torch for themselves.
    """
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    monkeypatch.setattr(fork_server, "PRELOAD", [])
    monkeypatch.setattr(local, "train_one", stand_in.train_one)
    monkeypatch.setattr(locks, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr("lm.training.train.finish", finish)
    yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def small_ray() -> Iterator[None]:
    """A Ray cluster of one node with two cores, which executors of this process find and leave alone."""
    ray = pytest.importorskip("ray", reason="needs ray: pip install 'lm-ablations[ray]'")
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="lm-ray-") as folder:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]))
        small = {"num_cpus": 2, "object_store_memory": 80 * 2**20, "include_dashboard": False}
        ray.init("local", **small, log_to_driver=False, logging_level="ERROR", _temp_dir=folder)
        yield
        ray.shutdown()


ENGINES = [
    "threads",
    pytest.param("local", marks=pytest.mark.slow),
    pytest.param("ray", marks=[pytest.mark.slow, pytest.mark.extra]),
]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, light: None, store: Store, monkeypatch: Patch) -> Iterator[Make]:
    """Makes executors of one kind on one store, which are closed in the end."""
    made: list[Executor] = []
    if request.param == "ray":
        request.getfixturevalue("small_ray")
        monkeypatch.setattr("lm.execution.on_ray.CellTrainer", CellTrainer)

    def one(capacity: int = 2) -> Executor:
        found = (
            make_executor(request.param, store, capacity) if request.param in EXECUTORS else InThreads(store, capacity)
        )
        made.append(found)
        return found

    yield one
    for executor in made:
        executor.close()
