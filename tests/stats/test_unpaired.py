"""Two groups that no seed pairs: against scipy, and against the test's own promises."""

import math

import numpy as np
import pytest
from scipy import stats

from lm.stats.tests import ALPHA
from lm.stats.unpaired import (
    confirm_apart,
    dealt,
    detectable_apart,
    effect_of_two,
    measure_apart,
    permutation_interval,
    permutation_p,
    runs_needed,
    smallest_dealt_p,
    welch_interval,
)

SIZES = [(4, 4), (6, 6), (3, 9), (8, 5)]


def groups(n: int, m: int, shift: float = 0.5, seed: int = 1) -> tuple[list[float], list[float]]:
    rng = np.random.default_rng(seed)
    return rng.normal(shift, 1, n).tolist(), rng.normal(0, 1, m).tolist()


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_p_is_that_of_scipy_over_all_ways_to_deal_the_values_out(n: int, m: int) -> None:
    mine, base = groups(n, m)
    found = stats.permutation_test(
        (mine, base),
        lambda x, y, axis: np.mean(x, axis=axis) - np.mean(y, axis=axis),
        vectorized=True,
        n_resamples=10**9,
    )
    assert permutation_p(mine, base) == pytest.approx(found.pvalue, rel=1e-12)


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_the_interval_is_what_the_test_does_not_reject(n: int, m: int) -> None:
    mine, base = groups(n, m)
    low, high = permutation_interval(mine, base)
    for end, outwards in ((low, -1e-6), (high, 1e-6)):
        assert permutation_p([one - end - outwards for one in mine], base) <= ALPHA
        assert permutation_p([one - end + outwards for one in mine], base) > ALPHA


def test_values_that_are_shifted_and_scaled_say_the_same() -> None:
    mine, base = groups(6, 5)
    low, high = permutation_interval(mine, base)
    far = [[1e6 + 3 * one for one in side] for side in (mine, base)]
    assert permutation_p(far[0], far[1]) == permutation_p(mine, base)
    assert permutation_interval(far[0], far[1]) == pytest.approx((3 * low, 3 * high), rel=1e-6)
    assert permutation_p(base, mine) == permutation_p(mine, base)
    assert permutation_interval(base, mine) == pytest.approx((-high, -low))


def test_values_that_tie_count_as_far_from_zero_as_the_ones_seen() -> None:
    assert permutation_p([0.1, 0.1, 0.1], [0.1, 0.1, 0.1]) == 1.0
    assert permutation_p([1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]) == pytest.approx(2 / 70)


def test_many_runs_are_dealt_out_at_random_the_same_on_every_call() -> None:
    assert math.comb(24, 12) > 200_000
    mine, base = groups(12, 12, shift=1.2)
    assert permutation_p(mine, base) == permutation_p(mine, base)
    assert permutation_p(mine, base) == pytest.approx(stats.ttest_ind(mine, base).pvalue, abs=0.01)
    assert np.allclose(dealt(12, 12).sum(axis=0), 0)


def test_how_few_runs_can_show_nothing_is_known() -> None:
    assert smallest_dealt_p(3, 3) == 0.1
    assert permutation_interval([1.0, 2.0, 3.0], [7.0, 8.0, 9.0]) == (-math.inf, math.inf)
    assert [runs_needed(count) for count in (1, 2, 3, 6, 7)] == [4, 5, 5, 5, 6]
    (one,) = family = [measure_apart([1.0, 2.0, 3.0], [7.0, 8.0, 9.0], "lower")]
    confirm_apart(family)
    assert (one.verdict.kind, one.verdict.pairs, one.verdict.against, one.verdict.needed) == ("too few", 3, 3, 4)
    assert one.detectable == math.inf
    assert math.isnan(permutation_p([], [1.0]))


def test_welch_is_that_of_scipy_and_of_equal_values_a_point() -> None:
    mine, base = groups(7, 4)
    found = stats.ttest_ind(mine, base, equal_var=False).confidence_interval(0.95)
    assert welch_interval(mine, base) == pytest.approx((found.low, found.high))
    assert welch_interval([0.6, 0.6], [0.5, 0.5]) == pytest.approx((0.1, 0.1))
    assert all(map(math.isnan, welch_interval([1.0], [1.0, 2.0])))


def test_the_effect_is_in_pooled_standard_deviations() -> None:
    mine, base = [1.0, 2.0, 3.0, 4.0], [3.0, 4.0, 5.0, 6.0]
    found = effect_of_two(mine, base)
    assert found.cohen == pytest.approx(-2 / math.sqrt(5 / 3))
    assert found.hedges == pytest.approx(found.cohen * (1 - 3 / (4 * 6 - 1)), rel=0.01)  # Hedges' approximation
    assert found.low < found.cohen < found.high < 0.2
    assert effect_of_two([1.0, 1.0], [2.0, 2.0]).hedges == -math.inf


def test_a_verdict_is_there_exactly_where_the_joint_interval_leaves_out_zero() -> None:
    for seed in range(4):
        base = groups(5, 6, 0.0, seed)[1]
        family = [measure_apart(groups(5, 6, shift, seed)[0], base, "lower") for shift in (0.0, 1.2, -2.5)]
        confirm_apart(family)
        for one in family:
            assert (one.low > 0 or one.high < 0) == one.significant == (one.verdict.kind in ("better", "worse"))
            assert one.p_adjusted == min(1.0, 3 * one.p)
            assert one.interval == "joint"


def test_what_it_could_have_found_it_finds_four_times_in_five() -> None:
    n, m = 6, 5
    effect, ways = detectable_apart(n, m, 2.0), dealt(n, m)
    values = np.random.default_rng(5).normal(size=(3000, n + m)) * 2.0
    values[:, :n] += effect
    products = values @ ways
    p = 2 * (1 + np.minimum((products <= 0).sum(axis=1), (products >= 0).sum(axis=1))) / (1 + ways.shape[1])
    assert np.mean(p <= ALPHA) == pytest.approx(0.8, abs=0.03)
