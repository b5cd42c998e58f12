"""Statistics of paired differences: intervals, exact tests, corrections, equivalence. Numbers only, no records.

Differences are arm minus baseline, one for each seed. Where an arm changes nothing, the sign of each is a fair coin,
whatever the noise looks like: the sign-flip test of the mean asks for no more. The sign test of the median, which is
the difference of a typical seed, asks for nothing at all. Student's interval asks for normal differences.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy
from numpy.typing import NDArray

ALPHA = 0.05
LARGE_T = 1e4  # t beyond which its own noise is that of the spread alone, for no digits are left for the rest
EXACT_PAIRS = 40  # pairs up to which every pattern of signs is counted
# Subsets whose means are counted for an interval: all of them for up to 16 pairs, the empty one with them.
SUBSETS = 2**16
TIE = 1e-12  # sums of differences closer than this, relative to the sum of magnitudes, count as equal

Side = Literal["two-sided", "less", "greater"]


def t_interval(sample: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return Student's interval for the mean; NaN for fewer than two values."""
    if len(sample) < 2:
        return math.nan, math.nan
    mean, sem = float(np.mean(sample)), float(np.std(sample, ddof=1) / len(sample) ** 0.5)
    if sem == 0:
        return mean, mean
    low, high = scipy.special.stdtrit(len(sample) - 1, ((1 - confidence) / 2, (1 + confidence) / 2)).tolist()
    return low * sem + mean, high * sem + mean


def bootstrap_interval(sample: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the BCa bootstrap interval for the mean (Efron 1987); NaN for fewer than two values.

    9,999 seeded resamples. Too narrow for few values, as `make audit` shows: a check on Student's, not a replacement.
    """
    if len(sample) < 2:
        return math.nan, math.nan
    if min(sample) == max(sample):
        return float(sample[0]), float(sample[0])
    interval = scipy.stats.bootstrap((sample,), np.mean, confidence_level=confidence, rng=0).confidence_interval
    return float(interval.low), float(interval.high)


@functools.cache
def rate_interval(events: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return Clopper-Pearson's exact interval for a rate; NaN for no trial."""
    if trials == 0:
        return math.nan, math.nan
    tail = (1 - confidence) / 2
    if events == 0:
        return 0.0, scipy.optimize.brentq(lambda share: float(scipy.special.betaincc(1, trials, share)) - tail, 0, 1)
    interval = scipy.stats.binomtest(events, trials).proportion_ci(confidence, method="exact")
    return float(interval.low), float(interval.high)


def smallest_p(n: int) -> float:
    """Return the smallest two-sided p of an exact sign-flip test of n pairs: 2 / 2^n."""
    return min(1.0, 2.0 ** (1 - n))


def seeds_needed(comparisons: int, alpha: float = ALPHA) -> int:
    """Return the pairs with which a sign-flip test can reach `alpha` after Holm's correction over `comparisons`."""
    return next(n for n in range(2, 128) if smallest_p(n) <= alpha / max(1, comparisons))


def sign_flip_p(differences: Sequence[float], side: Side = "two-sided") -> float:
    """Return the exact p of the mean difference under all sign flips; NaN for no pairs.

    `less` asks whether the mean is below zero. Up to 40 pairs every pattern is counted: each sum is one of the first
    half's plus one of the second half's, so sorting one half counts all pairs of them. Beyond, 99,999 random flips.
    """
    if not differences:
        return math.nan
    sample = np.asarray(differences, dtype=float)
    if len(sample) > EXACT_PAIRS:
        test = scipy.stats.permutation_test(
            (sample,), np.mean, permutation_type="samples", n_resamples=99_999, batch=10_000, alternative=side, rng=0
        )
        return float(test.pvalue)
    total = float(sample.sum())
    observed = {"greater": total, "less": -total, "two-sided": abs(total)}[side] - TIE * float(np.abs(sample).sum())
    left, right = signed_sums(sample[: len(sample) // 2]), np.sort(signed_sums(sample[len(sample) // 2 :]))
    as_far = int((len(right) - np.searchsorted(right, observed - left)).sum())
    return min(1.0, (2 if side == "two-sided" else 1) * as_far / 2 ** len(sample))


def item_flip_p(differences_d: NDArray[np.float64]) -> float:
    """Return the two-sided p of the sum of differences under flips of the sign of each item, over all seeds at once.

    Scores of one seed that are right or wrong make it McNemar's exact test. It is exact for whole differences, and for
    up to 40 others; beyond, it is the normal limit. NaN without items.
    """
    if not len(differences_d):
        return math.nan
    sizes_d, total = np.abs(differences_d[differences_d != 0]), abs(float(differences_d.sum()))
    if not np.array_equal(sizes_d, np.rint(sizes_d)):
        if len(sizes_d) <= EXACT_PAIRS:
            return sign_flip_p(differences_d[differences_d != 0].tolist())
        return 2 * float(scipy.special.ndtr(-total / math.sqrt(float((sizes_d**2).sum()))))
    chances = np.ones(1)  # of each sum, from the lowest in steps of one
    for size, count in zip(*np.unique(sizes_d.astype(int), return_counts=True), strict=True):
        of_size = np.zeros(2 * size * count + 1)
        of_size[:: 2 * size] = scipy.stats.binom.pmf(np.arange(count + 1), count, 0.5)
        chances = scipy.signal.fftconvolve(chances, of_size) if len(chances) > 1 else of_size
    sums = np.arange(len(chances)) - len(chances) // 2
    return min(1.0, max(0.0, float(chances[np.abs(sums) >= round(total)].sum())))


def signed_sums(sample: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum a sample under all 2^n patterns of signs; patterns with the same first signs are adjacent."""
    sums = np.zeros(1)
    for value in sample:
        sums = np.stack([sums - value, sums + value], axis=1).ravel()
    return sums


def sign_flip_interval(differences: Sequence[float], level: float = ALPHA) -> tuple[float, float]:
    """Return the means that a two-sided exact sign-flip test at `level` does not reject; NaN for no pairs.

    The ends are two of the means of subsets of the differences (Hartigan 1969), beyond 16 pairs of 65,535 random
    subsets. Infinite where so few pairs reject nothing.
    """
    if not differences:
        return math.nan, math.nan
    weights = subsets(len(differences), SUBSETS)
    place = math.floor(level / 2 * (weights.shape[1] + 1) + 1e-9)
    if not place:
        return -math.inf, math.inf
    means = np.sort(np.asarray(differences, dtype=float) @ weights)
    return float(means[place - 1]), float(means[-place])


@functools.lru_cache(maxsize=4)
def subsets(n: int, most: int) -> NDArray[np.float64]:
    """Return a column for each non-empty subset of n, or `most` random ones: one over its size for a member, else 0."""
    if 2**n <= most:
        members = np.arange(1, 2**n) >> np.arange(n)[:, None] & 1
    else:
        members = np.random.default_rng(0).integers(0, 2, (n, most - 1))
    return members / np.maximum(1, members.sum(axis=0))


def _heads(least: int, coins: int) -> float:
    """Return the chance of at least so many heads of so many fair coins."""
    return sum(math.comb(coins, heads) for heads in range(least, coins + 1)) / 2**coins


SignTest = Callable[[int, int], float]
"""Returns p of a one-sided sign test from the number of values beyond the bound and of all."""


def sign_test_p(
    sample: Sequence[float], bound: float, side: Literal["less", "greater"], test: SignTest = _heads
) -> float:
    """Return p of the exact sign test that the median lies below or above the bound; NaN for no values."""
    if not len(sample):
        return math.nan
    beyond = sum(value < bound if side == "less" else value > bound for value in sample)
    return test(beyond, len(sample))


def median_interval(sample: Sequence[float], level: float = ALPHA, test: SignTest = _heads) -> tuple[float, float]:
    """Return the medians that no one-sided sign test at `level` rejects: two of the sorted values.

    Each end holds at 1 - `level`, both together at 1 - 2 `level`. Infinite where so few values reject nothing.
    """
    if not len(sample):
        return math.nan, math.nan
    ordered, n = sorted(sample), len(sample)
    place = sum(test(n - k, n) <= level for k in range(n))
    return (float(ordered[place - 1]), float(ordered[-place])) if place else (-math.inf, math.inf)


def values_needed(level: float = ALPHA) -> int:
    """Return the number of values with which a one-sided sign test can reach `level`."""
    return math.ceil(-math.log2(level) - 1e-9)


def bonferroni(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values by Bonferroni; NaN stays NaN, and counts: what was declared shares alpha, whatever came of it."""
    return [min(len(p_values) * p, 1.0) for p in p_values]


def holm(p_values: Sequence[float], declared: int = 0) -> list[float]:
    """Adjust p-values by Holm (1979), in the given order, as the smallest of those `declared`; NaN stays NaN."""
    order = sorted((p, index) for index, p in enumerate(p_values) if not math.isnan(p))
    adjusted, largest = [math.nan] * len(p_values), 0.0
    for place, (p, index) in enumerate(order):
        largest = max(largest, min(1.0, (max(declared, len(order)) - place) * p))
        adjusted[index] = largest
    return adjusted


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values to bound the false discovery rate; NaN stays NaN and counts for nothing."""
    p = np.asarray(p_values, dtype=float)
    tested = ~np.isnan(p)
    adjusted = np.full(len(p), math.nan)
    if tested.any():
        adjusted[tested] = scipy.stats.false_discovery_control(p[tested])
    return [float(p_adjusted) for p_adjusted in adjusted]


def equivalence_p(differences: Sequence[float], margin: float, test: SignTest = _heads) -> float:
    """Return p of two one-sided sign tests that the median lies within +-margin; NaN for no differences.

    Student's (Schuirmann 1987) errs in 16 to 20 of 100 under lognormal noise. Raises ValueError for a margin up to 0.
    """
    if not margin > 0:
        raise ValueError(f"margin={margin} must be above zero")
    return max(sign_test_p(differences, -margin, "greater", test), sign_test_p(differences, margin, "less", test))


@dataclass(frozen=True)
class Effect:
    """A mean difference in standard deviations: Cohen's d_z, Hedges' unbiased g, and the 95 % interval of the truth."""

    cohen: float
    hedges: float
    low: float
    high: float


def effect_size(differences: Sequence[float], confidence: float = 0.95) -> Effect:
    """Return the standardised mean of paired differences and its interval; NaN for fewer than three values."""
    n = len(differences)
    if n < 3:
        return Effect(math.nan, math.nan, math.nan, math.nan)
    spread = 0.0 if min(differences) == max(differences) else float(np.std(differences, ddof=1))
    return standardised(float(np.mean(differences)), spread, n - 1, math.sqrt(n), confidence)


def standardised(mean: float, spread: float, freedom: int, root: float, confidence: float = 0.95) -> Effect:
    """Return a mean in standard deviations; `root` is a standard deviation over the standard error of the mean."""
    if spread == 0:
        size = math.copysign(math.inf, mean) if mean else 0.0
        return Effect(size, size, size, size)
    cohen = mean / spread
    low, high = noncentral_interval(cohen * root, freedom, confidence)
    unbiased = math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom - 1) / 2)) / math.sqrt(freedom / 2)
    return Effect(cohen, unbiased * cohen, low / root, high / root)  # unbiased as Hedges 1981 has it


def noncentral_interval(t: float, freedom: float, confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of the noncentrality that a t value implies."""
    tail, reach = (1 - confidence) / 2, 10 + 10 * abs(t)
    if abs(t) > LARGE_T:
        low, high = sorted(
            t * math.sqrt(2 * scipy.special.gammaincinv(freedom / 2, p) / freedom) for p in (tail, 1 - tail)
        )
        return low, high

    def excess(centre: float, share: float) -> float:
        below = float(scipy.special.nctdtr(freedom, centre, t))  # as stats.nct.cdf, a hundred times quicker
        return (below if math.isfinite(below) else float(t > centre)) - share  # NaN for shares too small to matter

    low, high = (scipy.optimize.brentq(excess, -reach, reach, args=(share,), xtol=1e-12) for share in (1 - tail, tail))
    return low, high
