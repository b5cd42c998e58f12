"""The power of the sign-flip test against counting: by hand, by brute force, by simulation."""

import math

import numpy as np
import pytest
from scipy import stats
from statistics_audit.audit import sign_flip_ps
from statsmodels.stats.power import TTestPower

from lm.stats.power import MOST_PAIRS, detectable, pairs_needed, power, spread_ratios
from lm.stats.tests import ALPHA


def found(n: int, effect: float, alpha: float, experiments: int) -> float:
    """The share of simulated experiments in which the test itself finds the effect."""
    sample = np.random.default_rng([n, 99]).normal(effect, 1.0, (experiments, n))
    return float(np.mean(sign_flip_ps(sample) <= alpha))


@pytest.mark.parametrize(("n", "arms"), [(6, 1), (8, 3)])
def test_detectable_effects_have_80_percent_power(n: int, arms: int) -> None:
    experiments, random = 4_000, np.random.default_rng([n, arms])
    shown_spread = random.normal(size=(experiments, n)).std(axis=1, ddof=1)
    effects = shown_spread * detectable(n, 1.0, ALPHA / arms)
    samples = random.normal(size=(experiments, n)) + effects[:, None]
    assert np.mean(sign_flip_ps(samples) <= ALPHA / arms) == pytest.approx(0.8, abs=0.025)


@pytest.mark.parametrize("n", [6, 8])
def test_power_at_a_known_spread_matches_the_test(n: int) -> None:
    for effect in (0.5, 1.0, 1.5):
        assert power(n, effect, 1.0) == pytest.approx(found(n, effect, ALPHA, 8_000), abs=0.02)


def test_spread_ratios_match_simulated_samples() -> None:
    simulated = np.random.default_rng(0).normal(size=(50_000, 6)).std(axis=1, ddof=1)
    shares = (np.arange(101) + 0.5) / 101
    assert np.allclose(spread_ratios(5), np.quantile(simulated, shares), atol=0.03)


def test_six_seeds_find_what_gives_all_of_them_one_sign() -> None:
    for effect in (0.5, 1.0, 2.0):
        one_sign = stats.norm.cdf(effect) ** 6 + stats.norm.cdf(-effect) ** 6
        assert power(6, effect, 1.0) == pytest.approx(one_sign, abs=0.01)


@pytest.mark.parametrize("n", [16, 40])
def test_with_many_seeds_it_is_students(n: int) -> None:
    for effect in (0.3, 0.6):
        assert power(n, effect, 1.0) == pytest.approx(TTestPower().power(effect, n, ALPHA), abs=0.02)


@pytest.mark.parametrize("n", [6, 9, 15])
def test_as_many_pairs_are_needed_as_detect_the_effect(n: int) -> None:
    effect = detectable(n, 0.02)
    assert pairs_needed(1.001 * effect, 0.02, n) == n
    assert pairs_needed(-1.001 * effect, 0.02, n) == n
    assert pairs_needed(0.999 * effect, 0.02, n) == n + 1


@pytest.mark.parametrize(("effect", "alpha"), [(0.5, ALPHA), (0.8, ALPHA), (0.8, ALPHA / 3)])
def test_pairs_needed_at_a_known_spread_are_students(effect: float, alpha: float) -> None:
    expected = math.ceil(TTestPower().solve_power(effect, power=0.8, alpha=alpha))
    assert pairs_needed(effect, 1.0, 10_000, alpha) == pytest.approx(expected, abs=1)


def test_pairs_needed_are_none_without_a_spread_and_infinite_beyond_the_most() -> None:
    assert math.isnan(pairs_needed(0.1, math.nan, 6))
    assert math.isnan(pairs_needed(0.1, 1.0, 1))
    assert pairs_needed(0.0, 1.0, 6) == math.inf
    assert pairs_needed(2 / math.sqrt(MOST_PAIRS), 1.0, 6) == math.inf
    assert pairs_needed(100.0, 1.0, 6) == 6


def test_power_without_effect_is_the_attained_level() -> None:
    assert power(6, 0.0, 1.0) == pytest.approx(2 / 64, abs=0.003)
    assert power(8, 0.0, 1.0) == pytest.approx(12 / 256, abs=0.003)


def test_it_follows_the_unit_and_the_sign_does_not_matter() -> None:
    assert detectable(7, 0.02) == pytest.approx(0.02 * detectable(7, 1.0), rel=1e-9)
    assert power(7, -1.0, 0.7) == power(7, 1.0, 0.7)
    assert power(7, 0.5, 1.0) < power(7, 1.0, 1.0) < power(8, 1.0, 1.0)


def test_where_no_level_is_attainable_nothing_is_detectable() -> None:
    assert detectable(5, 0.7) == math.inf
    assert power(5, 100.0, 0.7) == 0.0
    assert detectable(6, 0.7, ALPHA / 2) == math.inf
    assert math.isnan(detectable(1, 0.7))
    assert math.isnan(detectable(6, math.nan))
    assert math.isnan(power(1, 1.0, 1.0))
    assert (detectable(6, 0.0), power(6, 0.1, 0.0), power(6, 0.0, 0.0)) == (0.0, 1.0, 0.0)
