"""What is said of size and length is put to the test, and intervals that are too short are caught."""

import math

import numpy as np
import pytest
from scipy import optimize

from lm.stats.scaling import interval
from lm.stats.size_length import SizeLengthDraws
from statistics_audit.ladder import SPREAD
from statistics_audit.lengths import DATA_GAIN, DESIGNS, LAW, audit_lengths, draw_ladder, true_gains


@pytest.mark.parametrize("name", DESIGNS)
def test_simulated_ladders_have_their_law_noise_and_gains(name: str) -> None:
    sizes, _ = DESIGNS[name]
    points = draw_ladder(np.random.default_rng(0), sizes, 4000)
    for (n, d), point in zip(sizes, points, strict=True):
        loss = 1.0 + 0.35 * (n / 1.5e5) ** -0.4 + 0.35 * (d / 1.5e6) ** -0.35
        assert point.base.mean() == pytest.approx(loss, rel=0.001)
        assert point.base.std() == pytest.approx(SPREAD * loss, rel=0.05)
    middle = len(sizes) // 2
    law = SizeLengthDraws(points, sizes, sizes, 20).fit("base")
    assert not isinstance(law, str)
    gains = SizeLengthDraws(points, sizes, sizes, 20).gains(law, middle)
    for axis, true in true_gains(*sizes[middle]).items():
        assert getattr(gains, axis).log.value == pytest.approx(true, abs=0.03), axis


def test_true_gains_reach_the_loss_of_more_tokens() -> None:
    n, d = 2e5, 4e6
    gains, loss = true_gains(n, d), float(LAW.loss(n, DATA_GAIN * d))
    found = optimize.brentq(lambda log: float(LAW.loss(n * math.exp(log), d * math.exp(log))) - loss, 0, 5)
    assert gains["compute"] == pytest.approx(2 * found, rel=1e-6)
    assert float(LAW.loss(n * math.exp(gains["parameters"]), d)) == pytest.approx(loss, rel=1e-9)


@pytest.mark.extra
def test_intervals_keep_their_promise_and_shorter_ones_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(audit_lengths(np.random.default_rng(1), 60, 200))
    assert [one.name for one in found if not one.ok] == []

    def shorter(value: float, *of: object) -> tuple[float, float]:
        return tuple(value + (end - value) / 2 for end in interval(value, *of))  # type: ignore[arg-type, return-value]

    monkeypatch.setattr("lm.stats.size_length.interval", shorter)
    assert "NOT OK" in {one.verdict for one in audit_lengths(np.random.default_rng(1), 60, 200)}
