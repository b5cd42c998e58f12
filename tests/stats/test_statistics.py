"""The statistics against scipy, statsmodels, enumeration and worked examples."""

import itertools
import math
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from messages import CheckMessage, Refused
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from lm.analysis.verdict_text import format_verdict
from lm.stats.tests import (
    ALPHA,
    EXACT_PAIRS,
    Side,
    benjamini_hochberg,
    bonferroni,
    bootstrap_interval,
    effect_size,
    equivalence_p,
    holm,
    median_interval,
    rate_interval,
    seeds_needed,
    sign_flip_interval,
    sign_flip_p,
    sign_test_p,
    smallest_p,
    standardised,
    t_interval,
    values_needed,
)
from lm.stats.verdicts import Better, Comparison, verdict


def normal(n: int, shift: float = 0.0, seed: int = 0) -> list[float]:
    return np.random.default_rng([seed, n]).normal(shift, 1.0, n).tolist()


@pytest.mark.parametrize("n", [2, 3, 6, 20])
def test_the_interval_is_scipys(n: int) -> None:
    sample = np.random.default_rng(n).normal(0.3, 1.0, n).tolist()
    expected = stats.ttest_1samp(sample, 0).confidence_interval(0.95)
    assert t_interval(sample) == pytest.approx((expected.low, expected.high), rel=1e-12)
    wide = stats.ttest_1samp(sample, 0).confidence_interval(0.99)
    assert t_interval(sample, 0.99) == pytest.approx((wide.low, wide.high), rel=1e-12)
    assert t_interval([0.5, 0.5, 0.5]) == (0.5, 0.5)
    assert all(map(math.isnan, (*t_interval([0.5]), *t_interval([]))))


@pytest.mark.parametrize("n", [3, 6, 20])
def test_the_bootstrap_interval_is_scipys_and_the_same_every_time(n: int) -> None:
    sample = np.random.default_rng(n).lognormal(size=n).tolist()
    done = stats.bootstrap((sample,), np.mean, method="BCa", rng=0, n_resamples=9999, confidence_level=0.9)
    assert bootstrap_interval(sample, 0.9) == (done.confidence_interval.low, done.confidence_interval.high)
    low, high = bootstrap_interval(sample)
    assert min(sample) <= low < np.mean(sample) < high <= max(sample)


@pytest.mark.parametrize("sample", [[0.5, 0.5, 0.5], [0.1] * 6])
def test_the_bootstrap_interval_of_equal_values_is_a_point(sample: list[float]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bootstrap_interval(sample) == (sample[0], sample[0])
        assert all(map(math.isnan, bootstrap_interval(sample[:1])))
        assert all(map(math.isnan, bootstrap_interval([])))


@pytest.mark.parametrize(("events", "trials"), [(0, 6), (1, 6), (6, 6), (3, 40)])
def test_the_interval_of_a_rate_is_statsmodels(events: int, trials: int) -> None:
    found = rate_interval(events, trials)
    assert found == pytest.approx(proportion_confint(events, trials, 0.05, "beta"), rel=1e-9, abs=1e-15)
    assert found[0] <= events / trials <= found[1]
    assert all(map(math.isnan, rate_interval(0, 0)))


def flips(n: int) -> Iterator[tuple[int, ...]]:
    return itertools.product((1, -1), repeat=n)


def enumerated_p(sample: list[float]) -> float:
    """The share of all sign patterns whose mean is at least as far from zero as the one seen."""
    sums = [abs(math.fsum(sign * x for sign, x in zip(signs, sample, strict=True))) for signs in flips(len(sample))]
    return sum(total >= abs(math.fsum(sample)) * (1 - 1e-12) for total in sums) / len(sums)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 11])
def test_the_sign_flip_p_is_the_share_of_all_patterns(n: int) -> None:
    random = np.random.default_rng(n)
    for shift in (0.0, 0.5, 2.0):
        sample = random.normal(shift, 1.0, n).tolist()
        assert sign_flip_p(sample) == pytest.approx(enumerated_p(sample), rel=1e-12)


@pytest.mark.parametrize("sample", [[1.0, 2.0, 3.0], [1.0, 1.0, -1.0, 2.0], [0.1] * 6, [0.0, 0.0, 1.0], [-1e-9, -3e-9]])
def test_ties_count_as_at_least_as_far(sample: list[float]) -> None:
    assert sign_flip_p(sample) == pytest.approx(enumerated_p(sample), rel=1e-12)


def test_no_pairs_have_no_p_and_zeros_p_one() -> None:
    assert math.isnan(sign_flip_p([]))
    assert sign_flip_p([0.0, 0.0, 0.0]) == 1.0


@pytest.mark.parametrize("n", range(1, 12))
def test_the_smallest_p_belongs_to_differences_of_one_sign(n: int) -> None:
    assert smallest_p(n) == pytest.approx(enumerated_p([1.0 + i for i in range(n)]), rel=1e-12)


@pytest.mark.parametrize("n", [1, 2, 6, 11])
@pytest.mark.parametrize("side", ["less", "greater"])
def test_one_sided_p_counts_patterns_on_that_side(n: int, side: Side) -> None:
    sample = normal(n, 0.3)
    sign = 1 if side == "greater" else -1
    sums = [math.fsum(s * x for s, x in zip(signs, sample, strict=True)) for signs in flips(n)]
    expected = sum(sign * total >= sign * math.fsum(sample) - 1e-12 for total in sums) / 2**n
    assert sign_flip_p(sample, side) == expected


def test_the_p_does_not_depend_on_scale_direction_or_order() -> None:
    sample = normal(12, 0.5)
    p = sign_flip_p(sample)
    assert (
        p == sign_flip_p([1e-6 * x for x in sample]) == sign_flip_p([-x for x in sample]) == sign_flip_p(sample[::-1])
    )


def test_forty_pairs_of_one_size_follow_the_binomial() -> None:
    sample = [1.0] * 27 + [-1.0] * (EXACT_PAIRS - 27)
    assert sign_flip_p(sample) == pytest.approx(stats.binomtest(27, EXACT_PAIRS).pvalue, rel=1e-12)


@pytest.mark.slow
def test_sampled_p_is_close_to_exact_and_never_zero() -> None:
    sample = [1.0] * 33 + [-1.0] * 19
    exact = stats.binomtest(33, 52).pvalue
    assert sign_flip_p(sample) == pytest.approx(exact, abs=5 * math.sqrt(exact / 99_999))
    assert sign_flip_p(sample) == sign_flip_p(sample)
    assert sign_flip_p([1.0 + i / 100 for i in range(52)]) == pytest.approx(2 / 100_000, rel=1e-9)


@pytest.mark.parametrize("n", [6, 7, 9, 12])
@pytest.mark.parametrize("level", [0.05, 0.05 / 3])
def test_the_interval_inverts_the_sign_flip_test(n: int, level: float) -> None:
    sample = normal(n, 0.4)
    low, high = sign_flip_interval(sample, level)
    if math.isinf(low):
        assert smallest_p(n) > level
        return
    for mean, inside in ((low, True), (high, True), (low - 1e-6, False), (high + 1e-6, False)):
        assert (sign_flip_p([x - mean for x in sample]) > level) == inside


def test_six_seeds_have_their_range_and_five_no_bounds() -> None:
    assert sign_flip_interval(normal(6)) == pytest.approx((min(normal(6)), max(normal(6))), rel=1e-12)
    assert sign_flip_interval(normal(5)) == (-math.inf, math.inf)
    assert all(map(math.isnan, sign_flip_interval([])))


def test_sampled_intervals_are_close_to_the_test() -> None:
    sample = normal(20, 0.3)
    low, high = sign_flip_interval(sample)
    assert [sign_flip_p([x - end for x in sample]) for end in (low, high)] == pytest.approx([0.05] * 2, abs=0.004)
    wide = sign_flip_interval(sample, 0.01)
    assert wide[0] < low < np.mean(sample) < high < wide[1]


@pytest.mark.parametrize("n", [1, 5, 8, 12])
def test_the_sign_test_is_the_binomial_test(n: int) -> None:
    sample = normal(n, 0.4)
    above = sum(x > 0.1 for x in sample)
    assert sign_test_p(sample, 0.1, "greater") == pytest.approx(
        stats.binomtest(above, n, alternative="greater").pvalue, rel=1e-9
    )
    assert sign_test_p(sample, 0.1, "less") == sign_test_p([-x for x in sample], -0.1, "greater")


def test_a_value_at_the_bound_shows_nothing() -> None:
    assert sign_test_p([0.0] * 9, 0.0, "greater") == sign_test_p([0.0] * 9, 0.0, "less") == 1.0
    assert math.isnan(sign_test_p([], 0.0, "less"))


@pytest.mark.parametrize("n", [5, 8, 12])
@pytest.mark.parametrize("noise", ["normal", "heavy-tailed", "skewed", "skewed downwards"])
def test_the_sign_test_holds_its_level_under_any_noise(n: int, noise: str) -> None:
    random = np.random.default_rng([n, 5])
    drawn = {
        "normal": random.normal(size=(4_000, n)),
        "heavy-tailed": random.standard_t(3, (4_000, n)),
        "skewed": random.lognormal(size=(4_000, n)) - 1,
        "skewed downwards": 1 - random.lognormal(size=(4_000, n)),
    }[noise]
    by_count = np.array([sign_test_p([1.0] * above + [-1.0] * (n - above), 0.0, "greater") for above in range(n + 1)])
    wrong = int((by_count[(drawn > 0).sum(axis=1)] <= ALPHA).sum())
    assert wrong <= stats.binom.isf(1e-6, 4_000, ALPHA)
    assert by_count.min() == pytest.approx(2.0**-n, rel=1e-9)


@pytest.mark.parametrize("n", [5, 7, 8, 11, 20])
def test_the_medians_interval_holds_what_no_sign_test_rejects(n: int) -> None:
    sample = normal(n)
    low, high = median_interval(sample)
    assert low in sample
    assert high in sample
    assert sign_test_p(sample, low - 1e-9, "greater") <= ALPHA < sign_test_p(sample, low, "greater")
    assert sign_test_p(sample, high + 1e-9, "less") <= ALPHA < sign_test_p(sample, high, "less")


def test_four_values_have_no_interval_for_the_median() -> None:
    assert values_needed() == 5
    assert median_interval(normal(4)) == (-math.inf, math.inf)
    assert median_interval(normal(5)) == (min(normal(5)), max(normal(5)))
    assert all(map(math.isnan, median_interval([])))
    assert [values_needed(level) for level in (0.5, 0.025, 0.0625)] == [1, 6, 4]


def test_corrections_count_what_was_declared() -> None:
    assert bonferroni([0.01, math.nan, 0.04, 0.6])[::2] == pytest.approx([0.04, 0.16], rel=1e-12)
    assert holm([0.01, math.nan, 0.04], 3)[::2] == pytest.approx([0.03, 0.08], rel=1e-12)
    assert bonferroni([0.6, 0.9]) == [1.0, 1.0]
    assert bonferroni([0.01, 0.02]) == pytest.approx(multipletests([0.01, 0.02], method="bonferroni")[1].tolist())


@pytest.mark.parametrize("adjust", [holm, benjamini_hochberg])
def test_corrections_leave_out_what_was_not_tested(adjust: Callable[[list[float]], list[float]]) -> None:
    adjusted = adjust([0.01, math.nan, 0.04])
    assert adjusted[::2] == adjust([0.01, 0.04])
    assert math.isnan(adjusted[1])
    assert math.isnan(adjust([math.nan])[0])
    assert adjust([]) == []


@pytest.mark.parametrize(("comparisons", "seeds"), [(1, 6), (2, 7), (3, 7), (4, 8), (10, 9)])
def test_seeds_needed_are_the_fewest_that_can_reach_significance(comparisons: int, seeds: int) -> None:
    assert seeds_needed(comparisons) == seeds
    assert smallest_p(seeds) * comparisons <= ALPHA < smallest_p(seeds - 1) * comparisons


@pytest.mark.parametrize("n", [1, 2, 9])
def test_corrections_are_statsmodels(n: int) -> None:
    p = np.random.default_rng(n).uniform(0, 0.2, n).tolist()
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1].tolist(), rel=1e-12)
    assert benjamini_hochberg(p) == pytest.approx(multipletests(p, method="fdr_bh")[1].tolist(), rel=1e-12)


@pytest.mark.parametrize("shift", [-0.4, 0.0, 0.3, 2.0])
@pytest.mark.parametrize("margin", [0.1, 0.5, 1.5])
def test_equivalence_p_is_the_larger_of_two_binomials(shift: float, margin: float) -> None:
    sample = normal(8, shift)
    sides = (sum(x > -margin for x in sample), sum(x < margin for x in sample))
    expected = max(stats.binomtest(count, 8, alternative="greater").pvalue for count in sides)
    assert equivalence_p(sample, margin) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("n", [5, 9])
def test_equivalence_matches_the_interval_of_the_median(n: int) -> None:
    sample = normal(n, 0.2)
    edge = max(map(abs, median_interval(sample)))
    assert equivalence_p(sample, edge + 1e-9) <= ALPHA < equivalence_p(sample, edge)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_so_few_pairs_are_never_equivalent(n: int) -> None:
    assert equivalence_p([0.0] * n, 0.1) == pytest.approx(2.0**-n, rel=1e-9)
    assert math.isnan(equivalence_p([], 1.0))


@pytest.mark.parametrize("n", [6, 12])
@pytest.mark.parametrize("upwards", [True, False])
def test_skewed_noise_makes_nothing_equivalent_that_is_not(n: int, upwards: bool) -> None:
    noise = np.random.default_rng([n, 3]).lognormal(size=(2_000, n)) - 1
    sample = 2.0 + (noise if upwards else -noise)
    wrong = sum(equivalence_p(row, 2.0) <= ALPHA for row in sample.tolist())
    assert wrong <= stats.binom.isf(1e-6, 2_000, ALPHA)


@pytest.mark.parametrize("margin", [0.0, -0.1, math.nan])
def test_a_margin_is_above_zero(margin: float, refused: Refused) -> None:
    with refused(ValueError):
        equivalence_p([0.1, 0.2], margin)


@pytest.mark.parametrize("n", [3, 6, 12])
def test_effect_size_is_the_standardised_mean_with_hedges_correction(n: int) -> None:
    sample = normal(n, 1.0)
    found = effect_size(sample)
    assert found.cohen == pytest.approx(stats.ttest_1samp(sample, 0).statistic / math.sqrt(n), rel=1e-12)
    freedom = n - 1
    factor = math.gamma(freedom / 2) / (math.sqrt(freedom / 2) * math.gamma((freedom - 1) / 2))
    assert found.hedges == pytest.approx(factor * found.cohen, rel=1e-12)
    assert abs(found.hedges) < abs(found.cohen)


@pytest.mark.parametrize("shift", [-30.0, -1.0, 0.0, 0.5, 30.0])
def test_effect_intervals_invert_the_noncentral_t(shift: float) -> None:
    sample = normal(6, shift)
    found, t = effect_size(sample, 0.9), effect_size(sample).cohen * math.sqrt(6)
    assert found.low < found.cohen < found.high
    assert stats.nct.cdf(t, 5, found.low * math.sqrt(6)) == pytest.approx(0.95, rel=1e-6)
    assert stats.nct.cdf(t, 5, found.high * math.sqrt(6)) == pytest.approx(0.05, rel=1e-6)


def test_the_effect_of_equal_or_too_few_differences() -> None:
    assert effect_size([0.1] * 6).cohen == math.inf
    assert effect_size([-0.1] * 6).hedges == -math.inf
    assert effect_size([0.0] * 6).cohen == 0.0
    assert math.isnan(effect_size([0.1, 0.2]).cohen)


def test_huge_effects_keep_the_relative_width_of_large_ones() -> None:
    large, huge = (standardised(size, 1.0, 5, math.sqrt(6)) for size in (1e3, 1e9))
    assert (huge.low / 1e9, huge.high / 1e9) == pytest.approx((large.low / 1e3, large.high / 1e3), rel=1e-4)


@pytest.mark.parametrize("better", ["lower", "higher", None])
@pytest.mark.parametrize("pairs", [1, 5])
def test_no_verdict_claims_what_so_few_seeds_cannot_show(
    pairs: int, better: Better, check_message: CheckMessage
) -> None:
    family = [Comparison([difference] * pairs, better, p_adjusted=0.0) for difference in (-10.0, 0.0, 10.0)]
    (said,) = {format_verdict(verdict(comparison, 1)) for comparison in family}
    check_message(said)


@pytest.mark.parametrize(
    ("difference", "p", "better", "said"),
    [
        (-0.1, 0.03, "lower", "better"),
        (0.1, 0.03, "lower", "worse"),
        (0.1, 0.03, "higher", "better"),
        (-0.1, 0.03, "higher", "worse"),
        (0.1, 0.03, None, "higher"),
        (-0.1, 0.05, None, "lower"),
        (-0.1, 0.051, "lower", "inconclusive"),
        (-0.1, math.nan, "lower", "inconclusive"),
        (math.nan, math.nan, "lower", "no pair to compare"),
    ],
)
def test_verdicts_name_the_direction_of_significant_differences(
    difference: float, p: float, better: Better, said: str
) -> None:
    assert format_verdict(verdict(Comparison([difference] * 8, better, p_adjusted=p), 1)) == said


@pytest.mark.parametrize(
    ("p", "p_equivalent", "pairs", "said"),
    [
        (0.03, 0.2, 8, "better"),
        (0.03, 0.04, 8, "better, but within 0.02"),
        (0.2, 0.04, 8, "equivalent within 0.02"),
        (0.2, 0.06, 8, "inconclusive"),
        (0.2, math.nan, 8, "inconclusive"),
        (0.2, 0.0, 2, "2 seeds cannot reach significance (6 could)"),
        (0.2, 0.04, 3, "3 seeds cannot reach significance (6 could)"),
        (0.2, 0.04, 5, "equivalent within 0.02"),
        (0.25, 0.2, 3, "3 seeds cannot reach significance (6 could)"),
        (math.nan, 0.01, 0, "no pair to compare"),
    ],
)
def test_a_difference_within_the_margin_is_said_to_be(p: float, p_equivalent: float, pairs: int, said: str) -> None:
    comparison = Comparison([-0.01] * pairs, "lower", 0.02, p_adjusted=p, p_equivalent=p_equivalent)
    assert format_verdict(verdict(comparison, 1)) == said
