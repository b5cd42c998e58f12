"""The group-sequential test against enumeration by other means, and against chance."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from lm.stats import sequential as module
from lm.stats.sequential import Look, plan_looks, repeated_interval, sequential, spent
from lm.stats.tests import ALPHA, sign_flip_p, smallest_p, t_interval

LOOKS = (8, 10, 12)
"""Looks of a plan for up to 12 pairs; the first can find something."""


def draw(n: int, shift: float = 0.0, seed: int = 0) -> list[float]:
    return np.random.default_rng([seed, n]).normal(shift, 1.0, n).tolist()


def reached(differences: list[float], planned: tuple[int, ...], maximum: int, alpha: float = ALPHA) -> Look:
    found = sequential(differences, planned, maximum, alpha)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("fraction", "expected"),
    [(0.0, 0.0), (0.25, 8.8575e-5), (0.5, 5.5746e-3), (0.75, 0.023625), (1.0, 0.05), (2.0, 0.05)],
)
def test_little_is_spent_early_and_everything_at_the_end(fraction: float, expected: float) -> None:
    assert spent(0.05, fraction) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ((6, 24, 4, 0.05), (10, 15, 19, 24)),
        ((6, 12, 3, 0.05), (8, 10, 12)),
        ((6, 24, 4, 0.05 / 3), (12, 16, 20, 24)),
        ((6, 24, 1, 0.05), (24,)),
        ((16, 24, 3, 0.05), (16, 20, 24)),
        ((6, 7, 5, 0.05), (6, 7)),
        ((2, 5, 3, 0.05), (5,)),
    ],
)
def test_looks_are_spread_from_the_first_that_can_find_anything(
    plan: tuple[int, int, int, float], expected: tuple[int, ...]
) -> None:
    assert plan_looks(*plan) == expected


@pytest.mark.parametrize("maximum", [8, 12, 16, 20, 24])
@pytest.mark.parametrize("comparisons", [1, 3, 10])
def test_the_first_look_is_the_earliest_that_can_reject(maximum: int, comparisons: int) -> None:
    alpha = ALPHA / comparisons
    planned = plan_looks(2, maximum, 4, alpha)
    first = planned[0]
    assert planned[-1] == maximum
    if smallest_p(maximum) <= alpha:
        assert reached([-1.0 - i / 7 for i in range(first)], planned, maximum, alpha).rejected_at == first
        assert smallest_p(first - 1) > spent(alpha, (first - 1) / maximum)


def crossing(magnitudes: list[float], planned: tuple[int, ...], maximum: int, alpha: float) -> float:
    """The share of all sequences of signs for which the test finds a difference at some look."""
    found = [
        reached([s * x for s, x in zip(signs, magnitudes, strict=True)], planned, maximum, alpha).rejected
        for signs in itertools.product((1, -1), repeat=len(magnitudes))
    ]
    return sum(found) / len(found)


@pytest.mark.parametrize(
    ("planned", "alpha"),
    [
        ((5, 7), 0.2),
        ((3, 4, 5), 0.5),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (((4, 6, 8), 0.3), ((6, 8), 0.05))),
    ],
)
def test_error_over_all_sign_sequences_stays_within_alpha(planned: tuple[int, ...], alpha: float) -> None:
    maximum = planned[-1]
    for magnitudes in (draw(maximum), [1.0] * maximum, [1.0, 2.0] * (maximum // 2) + [3.0] * (maximum % 2)):
        for stage in range(1, len(planned) + 1):
            n = planned[:stage][-1]
            share = crossing(magnitudes[:n], planned, maximum, alpha)
            assert share <= spent(alpha, n / maximum) + 1e-12


@pytest.mark.parametrize(("planned", "alpha"), [((5, 7), 0.2), ((4, 6, 8), 0.3), ((6, 8), 0.05)])
def test_without_ties_nearly_all_of_alpha_is_spent(planned: tuple[int, ...], alpha: float) -> None:
    maximum = planned[-1]
    share = crossing(draw(maximum), planned, maximum, alpha)
    assert share > alpha - 2 / 2**maximum


@pytest.mark.parametrize("n", [6, 9, 12])
@pytest.mark.parametrize("shift", [0.0, 0.7, 2.0])
def test_with_one_look_it_is_the_sign_flip_test(n: int, shift: float) -> None:
    for seed in range(10):
        sample = draw(n, shift, seed)
        found = reached(sample, (n,), n)
        assert found.p == sign_flip_p(sample)
        assert found.rejected == (sign_flip_p(sample) <= ALPHA)
        assert found.rejected == (found.p <= found.level)


def test_no_later_difference_changes_an_earlier_decision() -> None:
    for seed in range(30):
        sample = draw(12, 0.8, seed)
        decisions = [reached(sample[:n], LOOKS, 12).rejected_at for n in LOOKS]
        for earlier, later in itertools.pairwise(decisions):
            assert earlier in (None, later)
        assert reached([*sample[:8], 1e3, 1e3, -1e3, 5.0], LOOKS, 12).rejected_at in (decisions[0], 10, 12)


def test_differences_between_looks_wait_for_the_next() -> None:
    sample = draw(12, 1.0)
    assert sequential(sample[:7], LOOKS, 12) is None
    assert sequential(sample[:9], LOOKS, 12) == sequential(sample[:8], LOOKS, 12)


def test_neither_unit_nor_direction_changes_the_decision() -> None:
    for seed in range(10):
        sample = draw(12, 0.8, seed)
        found = sequential(sample, LOOKS, 12)
        assert found == sequential([-x for x in sample], LOOKS, 12)
        assert found == sequential([1e-5 * x for x in sample], LOOKS, 12)


def test_no_difference_at_all_is_no_finding() -> None:
    found = reached([0.0] * 12, LOOKS, 12)
    assert (found.rejected, found.p, found.level) == (False, 1.0, 0.0)


def test_large_effects_are_found_at_the_first_look() -> None:
    found = reached(draw(12, 5.0), LOOKS, 12)
    assert (found.pairs, found.rejected_at) == (12, 8)


def test_random_sequences_decide_as_all_of_them_do(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = plan_looks(6, 16, 3)
    samples = [draw(16, 0.6, seed) for seed in range(8)]
    exact = [reached(sample, planned, 16) for sample in samples]
    monkeypatch.setattr(module, "EXACT_PAIRS", 0)
    for sample, one in zip(samples, exact, strict=True):
        found = reached(sample, planned, 16)
        for quantity in ("p", "level"):
            share = getattr(one, quantity)
            assert getattr(found, quantity) == pytest.approx(share, abs=5 * math.sqrt(share / module.SEQUENCES))


def test_with_24_pairs_no_later_difference_changes_an_earlier_decision() -> None:
    planned, sample = plan_looks(6, 24, 4), draw(24, 0.6)
    decisions = [reached(sample[:n], planned, 24).rejected_at for n in planned]
    assert decisions == [None if last is None or n < last else last for n in planned for last in [decisions[-1]]]
    assert decisions[-1] is not None


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["normal", "heavy-tailed", "skewed"])
def test_under_the_null_rejections_match_alpha(noise: str) -> None:
    random, shape = np.random.default_rng(5), (1_000, 12)
    drawn: dict[str, Callable[..., Any]] = {
        "normal": random.normal,
        "heavy-tailed": lambda size: random.standard_t(2, size),
        "skewed": random.lognormal,
    }
    cells = [drawn[noise](size=shape) for _ in range(2)]
    found = sum(reached(row, LOOKS, 12).rejected for row in (cells[0] - cells[1]).tolist())
    assert stats.binom.ppf(1e-4, 1_000, 0.04) <= found <= stats.binom.isf(1e-4, 1_000, ALPHA)


def test_looking_thrice_costs_little_power_and_many_pairs_are_saved() -> None:
    rows = np.random.default_rng(6).normal(1.3, 1.0, (400, 12)).tolist()
    stages = [reached(row, LOOKS, 12).rejected_at for row in rows]
    once = sum(sign_flip_p(row) <= ALPHA for row in rows)
    assert sum(stage is not None for stage in stages) >= 0.95 * once
    assert np.mean([stage or 12 for stage in stages]) < 10


def test_with_one_look_the_interval_is_students() -> None:
    sample = draw(12, 0.5)
    assert repeated_interval(sample, (12,), 12) == pytest.approx(t_interval(sample), rel=1e-9)


def test_repeated_intervals_are_wider_and_spend_alpha() -> None:
    sample = draw(12, 0.5)
    total = 0.0
    for n in LOOKS:
        low, high = repeated_interval(sample[:n], LOOKS, 12)
        half, sem = (high - low) / 2, stats.sem(sample[:n])
        assert (low, high) != t_interval(sample[:n])
        assert half > np.diff(t_interval(sample[:n]))[0] / 2
        total += 2 * stats.t.sf(half / sem, n - 1)
    assert total == pytest.approx(ALPHA, rel=1e-9)


def test_before_the_first_look_there_is_no_interval() -> None:
    assert all(map(math.isnan, repeated_interval(draw(7), LOOKS, 12)))


@pytest.mark.slow
def test_the_intervals_of_all_looks_cover_the_truth_together() -> None:
    rows = np.random.default_rng(7).normal(0.3, 1.0, (600, 12)).tolist()
    covered = 0
    for row in rows:
        intervals = [repeated_interval(row[:n], LOOKS, 12) for n in LOOKS]
        covered += all(low <= 0.3 <= high for low, high in intervals)
    assert covered >= stats.binom.ppf(1e-4, 600, 0.95)
