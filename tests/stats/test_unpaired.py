"""Two groups that no seed pairs: against scipy, and against the test's own promises."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from lm.stats.tests import ALPHA
from lm.stats.unpaired import (
    confirm_unpaired,
    detectable_unpaired,
    effect_size_unpaired,
    measure_unpaired,
    permutation_interval,
    permutation_p,
    permutation_weights,
    pooled_sd,
    runs_needed,
    smallest_unpaired_p,
    unpaired_interval,
    unpaired_p,
    welch_interval,
    welch_p,
)

SIZES = [(4, 4), (6, 6), (3, 9), (8, 5)]


@pytest.fixture(autouse=True)
def _quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is detectable is simulated at full size by the test of it alone."""
    if "detectable" not in request.node.name:
        monkeypatch.setattr("lm.stats.unpaired.detectable_unpaired", lambda n, m, sd, alpha: math.inf)


def groups(n: int, m: int, shift: float = 0.5, seed: int = 1) -> tuple[list[float], list[float]]:
    rng = np.random.default_rng(seed)
    return rng.normal(shift, 1, n).tolist(), rng.normal(0, 1, m).tolist()


def welch_t(x: Any, y: Any, axis: int) -> Any:
    return stats.ttest_ind(x, y, axis=axis, equal_var=False).statistic


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_p_matches_scipy_permutations_of_welch_t(n: int, m: int) -> None:
    mine, base = groups(n, m)
    size_of_t = lambda x, y, axis: np.abs(welch_t(x, y, axis))  # noqa: E731
    expected = stats.permutation_test(
        (mine, base), size_of_t, vectorized=True, n_resamples=10**9, alternative="greater"
    )
    assert permutation_p(mine, base) == pytest.approx(expected.pvalue, rel=1e-12)
    assert welch_p(mine, base) == pytest.approx(stats.ttest_ind(mine, base, equal_var=False).pvalue, rel=1e-12)
    assert unpaired_p(mine, base) == max(permutation_p(mine, base), welch_p(mine, base))


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_the_interval_is_what_the_tests_do_not_reject(n: int, m: int) -> None:
    mine, base = groups(n, m)
    for interval, p in ((permutation_interval, permutation_p), (unpaired_interval, unpaired_p)):
        low, high = interval(mine, base)
        for end, outwards in ((low, -1e-6), (high, 1e-6)):
            assert p([value - end - outwards for value in mine], base) <= ALPHA
            assert p([value - end + outwards for value in mine], base) > ALPHA


@pytest.mark.parametrize(("n", "m", "most"), [(4, 8, 0.08), (8, 4, 0.07), (6, 6, 0.07)])
def test_unequal_spreads_keep_the_error_rate(n: int, m: int, most: float) -> None:
    """Permuting the plain difference of means calls 14 of 100 different where 4 wide runs meet 8 narrow ones."""
    random = np.random.default_rng(n)
    samples = [(3 * random.normal(size=n), random.normal(size=m)) for _ in range(300)]
    assert np.mean([unpaired_p(arm.tolist(), base.tolist()) <= ALPHA for arm, base in samples]) < most


def test_values_that_are_shifted_and_scaled_say_the_same() -> None:
    mine, base = groups(6, 5)
    low, high = permutation_interval(mine, base)
    far = [[1e6 + 3 * one for one in side] for side in (mine, base)]
    assert permutation_p(far[0], far[1]) == permutation_p(mine, base)
    assert permutation_interval(far[0], far[1]) == pytest.approx((3 * low, 3 * high), abs=1e-5)
    assert permutation_p(base, mine) == permutation_p(mine, base)
    assert permutation_interval(base, mine) == pytest.approx((-high, -low), abs=1e-6)


def test_ties_count_as_equally_extreme() -> None:
    assert permutation_p([0.1, 0.1, 0.1], [0.1, 0.1, 0.1]) == 1.0
    assert permutation_p([1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]) == pytest.approx(2 / 70)


def test_many_runs_use_reproducible_random_permutations() -> None:
    assert math.comb(24, 12) > 200_000
    mine, base = groups(12, 12, shift=1.2)
    assert permutation_p(mine, base) == permutation_p(mine, base)
    assert permutation_p(mine, base) == pytest.approx(stats.ttest_ind(mine, base).pvalue, abs=0.01)
    assert (permutation_weights(12, 12).sum(axis=0) == 12).all()
    assert permutation_weights(12, 12)[:, 0].tolist() == [1.0] * 12 + [0.0] * 12


def test_how_few_runs_can_show_nothing_is_known() -> None:
    assert (smallest_unpaired_p(3, 3), smallest_unpaired_p(3, 4), smallest_unpaired_p(1, 60)) == (0.1, 1 / 35, 1.0)
    assert permutation_interval([1.0, 2.0, 3.0], [7.0, 8.0, 9.0]) == (-math.inf, math.inf)
    assert [runs_needed(count) for count in (1, 2, 3, 6, 7)] == [4, 5, 5, 5, 6]
    (one,) = family = [measure_unpaired([1.0, 2.0, 3.0], [7.0, 8.0, 9.0], "lower")]
    confirm_unpaired(family)
    assert (one.verdict.kind, one.verdict.pairs, one.verdict.against, one.verdict.needed) == ("too few", 3, 3, 4)
    assert one.detectable == math.inf
    assert math.isnan(permutation_p([], [1.0]))
    assert math.isnan(unpaired_p([1.0], [1.0, 2.0]))
    assert all(map(math.isnan, unpaired_interval([1.0], [1.0, 2.0])))


def test_welch_matches_scipy_and_is_a_point_for_constants() -> None:
    mine, base = groups(7, 4)
    found = stats.ttest_ind(mine, base, equal_var=False).confidence_interval(0.95)
    assert welch_interval(mine, base) == pytest.approx((found.low, found.high))
    assert welch_interval([0.6, 0.6], [0.5, 0.5]) == pytest.approx((0.1, 0.1))
    assert all(map(math.isnan, welch_interval([1.0], [1.0, 2.0])))


def test_the_effect_is_in_pooled_standard_deviations() -> None:
    mine, base = [1.0, 2.0, 3.0, 4.0], [3.0, 4.0, 5.0, 6.0]
    found = effect_size_unpaired(mine, base)
    assert found.cohen == pytest.approx(-2 / math.sqrt(5 / 3))
    assert found.hedges == pytest.approx(found.cohen * (1 - 3 / (4 * 6 - 1)), rel=0.01)  # Hedges' approximation
    assert found.low < found.cohen < found.high < 0.2
    assert effect_size_unpaired([1.0, 1.0], [2.0, 2.0]).hedges == -math.inf


def test_verdicts_match_joint_intervals_excluding_zero() -> None:
    for seed in range(2):
        base = groups(5, 6, 0.0, seed)[1]
        family = [measure_unpaired(groups(5, 6, shift, seed)[0], base, "lower") for shift in (0.0, 1.2, -2.5)]
        confirm_unpaired(family)
        for one in family:
            assert (one.low > 0 or one.high < 0) == one.significant == (one.verdict.kind in ("better", "worse"))
            assert one.p_adjusted == min(1.0, 3 * one.p)
            assert one.interval == "joint"


@pytest.mark.extra
def test_detectable_unpaired_effects_have_80_percent_power() -> None:
    n, m, random = 6, 5, np.random.default_rng(5)
    spread_is_one = detectable_unpaired(n, m, 1.0)
    found = []
    for _ in range(1_500):
        first, second = (2.0 * random.normal(size=n + m) for _ in range(2))
        effect = spread_is_one * pooled_sd(first[:n].tolist(), first[n:].tolist())
        found.append(unpaired_p((second[:n] + effect).tolist(), second[n:].tolist()) <= ALPHA)
    assert np.mean(found) == pytest.approx(0.8, abs=0.04)
