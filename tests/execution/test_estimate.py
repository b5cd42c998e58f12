"""Seconds of cells that a plan estimates."""

from collections.abc import Callable
from typing import Any

import pytest
from helpers import RUN, Patch

from lm.config.tree import override
from lm.execution import estimate
from lm.training.cell import check
from lm.training.identified import Cell

pytestmark = pytest.mark.slow

OTHER_TEXT = {"class_path": "StdlibText", "init_args": {"size": 90000, "longest": 3000}}


@pytest.fixture
def timed(monkeypatch: Patch, tmp_path: Any) -> list[Cell]:
    """The cells that were timed, each a second a batch of training and half of one of evaluation."""
    cells: list[Cell] = []
    monkeypatch.setenv("LM_CACHE", str(tmp_path))
    monkeypatch.setattr("lm.store.user_cache.running_version", lambda: "1")
    monkeypatch.setattr("lm.store.user_cache.code_version", lambda: "1")

    def step_seconds(cell: Cell, _: int) -> tuple[float, float, int]:
        cells.append(cell)
        return 1.0, 0.5, 99

    monkeypatch.setattr(estimate, "step_seconds", step_seconds)
    return cells


@pytest.fixture
def seconds(timed: list[Cell]) -> Callable[..., float]:
    return lambda **changes: estimate.measured_seconds(
        check(override(RUN, {name.replace("__", "."): value for name, value in changes.items()})), 1
    )


def test_cells_of_one_shape_are_timed_once(timed: list[Cell], seconds: Callable[..., float]) -> None:
    assert seconds() == pytest.approx(12 + 0.5 * 3 * 2 + 0.5 * batches())
    alike: list[dict[str, Any]] = [{"seed": 1}, {"optim__lr": 0.1}, {"trainer__max_steps": 24}]
    for changes in [*alike, {"optim__schedule": "Constant"}, {"data__corpus": OTHER_TEXT}]:
        seconds(**changes)
    assert len(timed) == 1
    assert seconds(trainer__max_steps=24) == pytest.approx(24 + 0.5 * 6 * 2 + 0.5 * batches())


def batches() -> int:
    return len(check(RUN).open().data.evaluation_batches("validation"))


@pytest.mark.parametrize(
    "changes",
    [
        {"model__width": 32},
        {"model__mlp": "SwiGLU"},
        {"data__batch_size": 4},
        {"data__context": 8},
        {"trainer__precision": "32-true"},
        {"optim__optimizer": "SGD"},
        {"data__tokenizer": {"class_path": "BPE", "init_args": {"size": 600}}},
    ],
)
def test_another_shape_is_timed(timed: list[Cell], seconds: Callable[..., float], changes: dict[str, Any]) -> None:
    seconds()
    seconds(**changes)
    assert len(timed) == 2
