"""How many cells are trained at a time: measured once where there is much to train, and found again."""

import time
from pathlib import Path

import pytest
import torch
from helpers import RUN, Patch

from lm.config.tree import InputError
from lm.execution import sharing
from lm.execution.estimate import step_seconds
from lm.execution.scheduler import Planned
from lm.execution.sharing import choose_num_workers, rates
from lm.store.side_files import WAYS_FILE, read_cached, write_cached
from lm.training.cell import check, seeded


@pytest.fixture
def measured(monkeypatch: Patch) -> dict[int, float]:
    """Steps a second by the number of workers, as they would be found; every cell is long."""
    found = {1: 2.0, 2: 3.0, 4: 3.5}
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sharing, "cores", lambda: 4)
    monkeypatch.setattr(sharing, "default_workers", lambda cells: min(cells, 4))
    monkeypatch.setattr(sharing, "rates", lambda cell: dict(found))
    monkeypatch.setattr(sharing, "judged_seconds", lambda cells, threads: dict.fromkeys(cells, 3600.0))
    return found


def cells(count: int = 6) -> list[Planned]:
    return [Planned("a", seed, cell) for seed, cell in enumerate(seeded(check(RUN), range(count)))]


def test_what_trains_most_is_chosen_and_found_again(tmp_path: Path, measured: dict[int, float]) -> None:
    assert choose_num_workers(cells(), tmp_path) == 4
    measured[1] = 100.0
    assert choose_num_workers(cells(), tmp_path) == 4, "it was measured before"
    assert choose_num_workers(cells(), tmp_path / "other") == 1
    assert choose_num_workers(cells(3), tmp_path) == 3, "no more than there are cells"


def test_a_plan_does_not_measure_and_takes_what_was_measured(tmp_path: Path, measured: dict[int, float]) -> None:
    measured[1] = 100.0
    assert choose_num_workers(cells(), tmp_path, measure=False) == 4
    assert not any(tmp_path.iterdir())
    choose_num_workers(cells(), tmp_path)
    assert choose_num_workers(cells(), tmp_path, measure=False) == 1


def test_short_work_is_not_measured(tmp_path: Path, measured: dict[int, float], monkeypatch: Patch) -> None:
    measured[1] = 100.0
    monkeypatch.setattr(sharing, "judged_seconds", lambda cells, threads: dict.fromkeys(cells, 1.0))
    assert choose_num_workers(cells(), tmp_path) == 4
    assert choose_num_workers(cells(1), tmp_path) == 1
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("found", [3, {}, {"x": 1.0}, {"1": 1.0, "2": None}])
def test_a_damaged_measurement_is_a_line(tmp_path: Path, measured: dict[int, float], found: object) -> None:
    choose_num_workers(cells(), tmp_path)
    (question,) = read_cached(tmp_path / WAYS_FILE, "workers")
    write_cached(tmp_path / WAYS_FILE, "workers", {question: found})
    with pytest.raises(InputError, match=rf"workers\.{question[:12]}: is damaged; delete it"):
        choose_num_workers(cells(), tmp_path)


@pytest.mark.slow
def test_timing_a_step_leaves_the_threads_as_they_were() -> None:
    threads = torch.get_num_threads()
    step_seconds(check(RUN), threads + 1)
    assert torch.get_num_threads() == threads


def test_threads_that_are_given_decide(tmp_path: Path, measured: dict[int, float], monkeypatch: Patch) -> None:
    measured[1] = 100.0
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert choose_num_workers(cells(), tmp_path) == 4


@pytest.mark.slow
def test_each_way_is_really_measured_with_all_cores_in_use(monkeypatch: Patch) -> None:
    monkeypatch.setattr(sharing, "cores", lambda: 2)
    monkeypatch.setattr(sharing, "ROUND_SECONDS", 0.2)
    monkeypatch.setattr(sharing, "ROUNDS", 1)
    found = rates(check(RUN))
    assert list(found) == [1, 2]
    assert min(found.values()) > 0


def _fails(*_: object) -> None:
    raise SystemExit(3)


@pytest.mark.slow
def test_a_process_that_fails_to_measure_is_not_waited_for(monkeypatch: Patch) -> None:
    monkeypatch.setattr(sharing, "_measure", _fails)
    monkeypatch.setattr(sharing, "cores", lambda: 2)
    monkeypatch.setattr(sharing, "PATIENCE", 60.0)
    begun = time.monotonic()
    assert set(rates(check(RUN)).values()) == {0.0}
    assert time.monotonic() - begun < 60.0
