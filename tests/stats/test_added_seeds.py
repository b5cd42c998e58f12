"""Seeds added after looks: what all looks together find where nothing is to be found, by counting every pattern."""

import itertools
import math
from collections.abc import Callable
from math import comb

import numpy as np
import pytest

from lm.analysis.answers import DECIDED, decide
from lm.analysis.claims import Claim
from lm.stats.sequential import _held, anytime_interval, anytime_p, anytime_sign_p, left_after
from lm.stats.tests import ALPHA, sign_flip_p
from lm.stats.verdicts import DIRECTIONS, Comparison, confirm, explore

Judge = Callable[[list[list[float]], int], bool]
"""Whether something is found in differences, arms x seeds, after a first look at so many of them."""


def claims(judge: Judge, arms: int, looks: tuple[int, ...], count_looks: bool = True) -> float:
    """The share of all patterns of signs for which some look finds something; further arms have random signs."""
    magnitudes_s = 1 + np.random.default_rng(3).random(looks[-1])
    random, found, total = np.random.default_rng(4), 0, 0
    for signs in itertools.product((-1.0, 1.0), repeat=looks[-1]):
        rows = [magnitudes_s * signs] + [magnitudes_s * random.choice([-1.0, 1.0], looks[-1]) for _ in range(arms - 1)]
        found += any(
            judge([row[:n].tolist() for row in rows], looks[0] if count_looks and n > looks[0] else 0) for n in looks
        )
        total += 1
    return found / total


def family(rows: list[list[float]]) -> list[Comparison]:
    return [Comparison(row, p=sign_flip_p(row)) for row in rows]


def confirmed(rows: list[list[float]], look: int) -> bool:
    judged = family(rows)
    confirm(judged, look)
    return any(one.verdict.kind in DIRECTIONS for one in judged)


def explored(rows: list[list[float]], look: int) -> bool:
    judged = family(rows)
    explore(judged, look)
    return any(one.verdict.kind in DIRECTIONS for one in judged)


def equivalent(rows: list[list[float]], look: int) -> bool:
    """Medians that lie at the margin itself are called equivalent."""
    judged = [Comparison([value + 5.0 for value in row], margin=5.0) for row in rows]
    confirm(judged, look)
    return any(one.verdict.kind == "equivalent" for one in judged)


def less(rows: list[list[float]], look: int) -> bool:
    claim = Claim("x", "nll", "less", {"arm": 1.0})
    return decide(claim, rows[0], None, look).verdict in DECIDED


def within(rows: list[list[float]], look: int) -> bool:
    claim = Claim("x", "nll", "range", {"arm": 1.0}, high=0.0)
    return decide(claim, rows[0], None, look).verdict == "reproduced"


@pytest.mark.slow
@pytest.mark.parametrize(
    "judge",
    [confirmed, *(pytest.param(judge, marks=pytest.mark.extra) for judge in (explored, equivalent, less, within))],
)
@pytest.mark.parametrize(
    ("arms", "looks"),
    [(1, (4, 6, 7, 8)), *(pytest.param(*of, marks=pytest.mark.extra) for of in ((1, (6, 8)), (2, (6, 7))))],
)
def test_all_looks_together_err_with_at_most_alpha(judge: Judge, arms: int, looks: tuple[int, ...]) -> None:
    """Whoever looks after every pair may stop at any."""
    assert claims(judge, arms, looks) <= ALPHA + (0.01 if arms > 1 else 0)  # signs of the second arm are random ones


@pytest.mark.parametrize("judge", [confirmed, less])
def test_looks_that_are_not_counted_err_more_often(judge: Judge) -> None:
    assert claims(judge, 1, (4, 6, 7, 8), count_looks=False) > 1.2 * ALPHA


def test_bets_hold_on_average_what_was_held() -> None:
    """Of all patterns of signs, after every pair."""
    sizes_n = 1 + np.random.default_rng(0).random(10)
    for n in range(1, 11):
        signs_nm = np.array([*itertools.product((-1.0, 1.0), repeat=n)]).T
        assert _held(sizes_n[:n, None] * signs_nm).mean() == pytest.approx(1, abs=1e-12)


def test_bets_on_signs_beyond_bounds_keep_their_average() -> None:
    for n in (1, 5, 12):
        expected = sum(comb(n, k) / 2**n / anytime_sign_p(k, n) for k in range(n + 1) if anytime_sign_p(k, n) < 1)
        assert expected <= 1
        assert anytime_sign_p(n, n) == pytest.approx(3 / (1.3**n + 1.6**n + 1.9**n)) or n == 1
    assert anytime_sign_p(0, 9) == 1


def test_the_confidence_sequence_holds_what_is_not_rejected() -> None:
    sample = np.random.default_rng(2).normal(1.0, 1.0, 12)
    low, high = anytime_interval(sample.tolist(), 0.05)
    assert low < sample.mean() < high
    for end, outwards in ((low, -1e-4), (high, 1e-4)):
        assert anytime_p((sample - end).tolist()) == pytest.approx(0.05, rel=1e-6)
        assert anytime_p((sample - end - outwards).tolist()) < 0.05 < anytime_p((sample - end + outwards).tolist())


@pytest.mark.parametrize("sample", [[1.0, 2.0, 1.5], [3.0, 3.0]])
def test_few_pairs_reject_no_mean(sample: list[float]) -> None:
    assert anytime_interval(sample) == (-math.inf, math.inf)


def test_borders_of_the_anytime_test() -> None:
    assert math.isnan(anytime_p([]))
    assert np.isnan(anytime_interval([])).all()
    assert anytime_interval([2.0] * 12) == (2.0, 2.0)
    assert anytime_p([0.0] * 8) == 1
    assert anytime_p([1e-30] * 12) == anytime_p([1e30] * 12) == anytime_p([-1.0] * 12) < 0.01
    assert 0 < anytime_p([1.0] * 3000) < 1e-300


def test_the_first_look_uses_what_its_test_can_reach() -> None:
    assert left_after(0) == left_after(4) == left_after(5) == ALPHA
    assert left_after(6) == pytest.approx(ALPHA - 2 / 64)
    assert left_after(8) == pytest.approx(ALPHA - 12 / 256)
    assert left_after(8, comparisons=7) == ALPHA  # no p of a seventh of alpha is possible
    assert left_after(8, comparisons=7, stepwise=True) == pytest.approx(ALPHA - 12 / 256)  # all seven at once
    assert left_after(5, sides=1) == pytest.approx(ALPHA - 1 / 32)
    assert 0 < left_after(60) < 1e-8


def test_a_look_is_paid_for_by_the_comparisons_of_then() -> None:
    """One arm at 8 seeds used 4.7 %, which ten arms later do not undo."""
    family_of_ten = [Comparison([1.0 + n / 100 for n in range(12)]) for _ in range(10)]
    confirm(family_of_ten, 8, 1)
    assert family_of_ten[0].p_adjusted == pytest.approx(min(1, 10 * family_of_ten[0].p * ALPHA / (ALPHA - 12 / 256)))


def test_p_and_interval_agree_after_a_look() -> None:
    for shift in (0.0, 0.6, 1.2, 2.5):
        one = Comparison((np.random.default_rng(5).normal(size=10) + shift).tolist())
        confirm([one], 6)
        assert (one.p_adjusted <= ALPHA) == one.significant == (not one.low <= 0 <= one.high)
        assert one.p_adjusted == pytest.approx(min(1.0, one.p * ALPHA / (ALPHA - 2 / 64)))
        assert one.interval == "repeated"


def test_too_few_seeds_after_a_look_name_how_many_could() -> None:
    one = Comparison([1.0] * 9)
    confirm([one], 8)
    assert anytime_p([1.0] * 11) <= ALPHA - 12 / 256 < anytime_p([1.0] * 10)
    assert (one.verdict.kind, one.verdict.needed) == ("too few", 11)
