"""What is said of ladders is put to the test, and a method that promises too much is caught."""

import math
from typing import Any

import numpy as np
import pytest

from lm.stats import compute_gain as of_ladders
from lm.stats.compute_gain import LadderDraws, fit_scaling
from lm.stats.scaling import quantiles
from statistics_audit import ladder as module
from statistics_audit.ladder import COMPUTE, FAMILIES, LAW, Family, audit_ladders


def test_simulated_rungs_have_their_declared_law_and_noise() -> None:
    family = Family("t", gain=1.3, rise=0.1)
    rungs = family.draw(np.random.default_rng(0), (4000,) * 4)
    ladder = LadderDraws(rungs, 2)
    assert ladder.base_k == pytest.approx(LAW.loss(COMPUTE), rel=0.001)
    assert np.sqrt(ladder.relative_k) == pytest.approx(np.full(4, module.SPREAD), rel=0.05)
    found = fit_scaling(rungs, False, (math.nan, math.nan), draws=2)
    assert found.gains is not None
    assert [one.log.value for one in found.gains] == pytest.approx(family.log_gain().tolist(), abs=0.02)
    skewed = FAMILIES[2].draw(np.random.default_rng(0), (20_000,) * 4)[0].base
    assert ((skewed - skewed.mean()) ** 3).mean() > 0
    assert skewed.std() / skewed.mean() == pytest.approx(module.SPREAD, rel=0.05)


def test_every_row_is_reproducible_and_distinct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FAMILIES", FAMILIES[:1])
    monkeypatch.setattr(module, "SEEDS", module.SEEDS[:1])
    left, right = (list(audit_ladders(np.random.default_rng(3), 1, draws=10)) for _ in range(2))
    assert left == right
    assert len({one.name for one in left}) == len(left)
    assert all(0 <= one.events <= one.trials for one in left)


@pytest.mark.extra
def test_intervals_cover_trends_err_and_forecasts_hold_as_they_promise() -> None:
    found = list(audit_ladders(np.random.default_rng(1), 120, draws=200))
    assert [one.name for one in found if one.binding and not one.ok] == []


@pytest.mark.extra
def test_percentiles_alone_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(value: float, draws: np.ndarray, *_: Any) -> tuple[float, float]:
        return quantiles(draws)

    monkeypatch.setattr(of_ladders, "interval", plain)
    monkeypatch.setattr(module, "FAMILIES", FAMILIES[:1])
    monkeypatch.setattr(module, "SEEDS", ((3, 3, 3, 3),))
    found = list(audit_ladders(np.random.default_rng(1), 300, draws=200))
    assert [one.name for one in found if one.name.startswith("intervals of gains") and not one.ok]


@pytest.mark.extra
def test_one_fixed_rate_shows_spurious_trends() -> None:
    found = list(module._left_behind(np.random.default_rng(0), 60, 200))
    assert [one.verdict for one in found] == ["falls short"] * 2
    assert found[0].found < 0.5 < found[1].found
