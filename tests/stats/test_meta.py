"""One difference over several experiments."""

import math

import numpy as np
import pytest
from scipy import stats

from lm.stats.meta import over_experiments


def test_experiments_of_one_precision_have_a_closed_form() -> None:
    d, error = np.array([0.1, 0.5, -0.2, 0.4]), 0.1
    found = over_experiments(d.tolist(), [error] * 4)
    assert found.mean == pytest.approx(d.mean())
    assert found.tau == pytest.approx(math.sqrt(d.var(ddof=1) - error**2))
    half = stats.t.ppf(0.975, 3) * d.std(ddof=1) / 2
    assert [found.low, found.high] == pytest.approx([d.mean() - half, d.mean() + half])
    bound = 3 * d.var(ddof=1) / stats.chi2.ppf(0.2, 3)  # of the variance of a difference, of true value and noise
    spread = stats.t.ppf(0.975, 2) * math.sqrt(bound - error**2 + bound / 4)
    assert [found.next_low, found.next_high] == pytest.approx([d.mean() - spread, d.mean() + spread])
    assert found.i2 == pytest.approx(1 - error**2 / d.var(ddof=1))


def test_weights_and_tau_fulfil_their_equations() -> None:
    d, errors = np.array([0.3, 0.05, 0.9, 0.4, -0.1]), np.array([0.1, 0.05, 0.3, 0.2, 0.15])
    found = over_experiments(d.tolist(), errors.tolist())
    weights = 1 / (errors**2 + found.tau**2)
    assert found.mean == pytest.approx(weights @ d / weights.sum(), rel=1e-6)
    assert weights @ (d - found.mean) ** 2 == pytest.approx(len(d) - 1, rel=1e-4)  # Paule and Mandel 1982


def test_experiments_that_agree_have_no_short_interval() -> None:
    found = over_experiments([0.1, 0.1, 0.1], [0.2, 0.2, 0.2])
    assert (found.tau, found.i2) == (0.0, 0.0)
    assert found.high - found.mean == pytest.approx(stats.t.ppf(0.975, 2) * 0.2 / math.sqrt(3))


def test_two_experiments_say_nothing_of_a_third() -> None:
    found = over_experiments([0.1, 0.2], [0.1, 0.1])
    assert math.isnan(found.next_low)
    assert found.low < 0.15 < found.high


@pytest.mark.slow
@pytest.mark.parametrize("tau", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("number", [2, 3, 6])
def test_intervals_cover_the_mean_and_the_next(number: int, tau: float) -> None:
    random, trials, covered, next_covered = np.random.default_rng(0), 300, 0, 0
    for _ in range(trials):
        errors = random.uniform(0.05, 0.2, number)
        differences = random.normal(0.5, tau, number) + random.normal(0, errors)
        found = over_experiments(differences.tolist(), errors.tolist())
        covered += found.low <= 0.5 <= found.high
        next_covered += found.next_low <= random.normal(0.5, tau) <= found.next_high
    assert covered / trials >= 0.94
    assert number < 3 or next_covered / trials >= 0.94
