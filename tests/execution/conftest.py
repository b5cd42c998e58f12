"""Executors and cells that stand in for others."""

from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import stand_in
from in_threads import InThreads
from records import blank

from lm.execution import local
from lm.execution.engines import EXECUTORS, make
from lm.execution.executor import Executor
from lm.store import locks
from lm.store.store import Store

Make = Callable[..., Executor]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Cells that train nothing, in processes from a server that imports nothing, and a word of who waits soon.

    The server ends with the test: cells of other tests, which train, would each import torch for themselves.
    """
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    monkeypatch.setattr(local, "PRELOAD", [])
    monkeypatch.setattr(local, "train_one", stand_in.train_one)
    monkeypatch.setattr(locks, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr("lm.training.train.finish", finish)
    yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


def finish(cell: Any, store: Store, outcome: Any, times: Any) -> Any:
    """What is recorded of a cell that was given up, whose facts and configuration nobody knows."""
    record: Any = {**blank(cell.id), **outcome}
    return store.finish(cell.id, record)


@pytest.fixture(params=["threads", *(pytest.param(name, marks=pytest.mark.slow) for name in EXECUTORS)])
def engine(request: pytest.FixtureRequest, light: None, store: Store) -> Iterator[Make]:
    """Makes executors of one kind on one store, which are closed in the end."""
    made: list[Executor] = []

    def one(capacity: int = 2) -> Executor:
        found = make(request.param, store, capacity) if request.param in EXECUTORS else InThreads(store, capacity)
        made.append(found)
        return found

    yield one
    for executor in made:
        executor.close()
