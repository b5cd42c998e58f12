"""Compare two groups of runs that no seed pairs: permutation test, Welch's test, intervals, verdicts of a family.

Two tests have to agree, and p is the larger of both. The first permutes Welch's t, and is exact where an arm changes
nothing, whatever the noise looks like. The second is Welch's own, which holds, about, where an arm changes the spread
of normal noise alone. For skewed noise of unequal spreads neither holds: docs/verdicts.md has the rates.

Legend: n runs of the arm, m of the baseline, w ways to divide them, the one seen first; e simulated experiments.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from lm.stats.power import CHANCE, spread_ratios
from lm.stats.tests import ALPHA, Effect, standardised
from lm.stats.verdicts import Better, Comparison, Kind, Verdict, direction, set_joint

EXACT_DIVISIONS = 200_000  # ways up to which all are counted, among them those of 10 runs against 10
RANDOM_DIVISIONS = 2**16  # random ones that stand for all beyond, fewer of very many runs
MAX_TABLE_SIZE = 2**24  # numbers of a table of ways
SIMULATION_SIZE = 2**20  # statistics that are simulated at a time to know what a test could have found
TIE = 1e-9  # statistics closer than this, relative to the one seen, count as equal

Floats = NDArray[np.float64]


@dataclass
class Unpaired(Comparison):
    """Comparison of an arm's values with the baseline's where no seed pairs them; `differences` are empty."""

    arm_values: Sequence[float] = ()
    base_values: Sequence[float] = ()

    @property
    def mean(self) -> float:
        """Difference of the means; NaN where a group is empty."""
        if not self.arm_values or not self.base_values:
            return math.nan
        return float(np.mean(self.arm_values) - np.mean(self.base_values))

    @property
    def identical(self) -> bool:
        """True if all values are equal."""
        return bool(self.arm_values and self.base_values) and len({*self.arm_values, *self.base_values}) == 1


def smallest_unpaired_p(n: int, m: int) -> float:
    """Return the smallest p of a permutation test of n runs and m; groups of one size can change places."""
    if min(n, m) < 2:
        return 1.0
    return (2.0 if n == m else 1.0) / math.comb(n + m, n)


def runs_needed(comparisons: int, alpha: float = ALPHA) -> int:
    """Return the runs of each group with which the test can reach `alpha`, shared by so many comparisons."""
    return next(n for n in range(2, 64) if smallest_unpaired_p(n, n) <= alpha / max(1, comparisons))


@functools.lru_cache(maxsize=2)
def permutation_weights(n: int, m: int, most: int = EXACT_DIVISIONS) -> Floats:
    """Return ways to divide n + m values, that seen first, (n + m, w): 1 for a member of the first group, else 0."""
    size = n + m
    if math.comb(size, n) <= most:
        ways = itertools.chain.from_iterable(itertools.combinations(range(size), n))
        members = np.fromiter(ways, dtype=np.intp).reshape(-1, n)
    else:
        draws = min(RANDOM_DIVISIONS, most, MAX_TABLE_SIZE // size)
        members = np.random.default_rng(0).random((draws, size)).argsort(axis=1)[:, :n]
        members[0] = np.arange(n)
    inside = np.zeros((len(members), size))
    np.put_along_axis(inside, members, 1.0, axis=1)
    return np.ascontiguousarray(inside.T)


def _share_as_large(values: Floats, n: int, ways: Floats) -> Floats:
    """Return the share of divisions of values (..., n + m) whose Welch's t is that of the first, or larger."""
    values, m = values - values.mean(axis=-1, keepdims=True), values.shape[-1] - n
    first, squares = values @ ways, values**2 @ ways
    all_squares = (values**2).sum(axis=-1, keepdims=True)
    second, squares_of_second = values.sum(axis=-1, keepdims=True) - first, all_squares - squares
    variance = (squares - first**2 / n) / (n - 1) / n + (squares_of_second - second**2 / m) / (m - 1) / m
    difference, rounding = np.abs(first / n - second / m), 1e-13 * all_squares
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.where(variance > rounding, difference / np.sqrt(variance), np.inf)
    size = np.where(difference**2 > rounding, size, 0.0)
    return np.asarray((size >= size[..., :1] * (1 - TIE)).mean(axis=-1))


def permutation_p(arm: Sequence[float], base: Sequence[float]) -> float:
    """Return the share of all ways to divide the values whose Welch's t is as large; NaN for under two runs of a group.

    Exact where the arm changes nothing. For unequal spreads it holds as runs become many (Janssen 1997,
    https://doi.org/10.1016/S0167-7152(97)00043-6; Chung and Romano 2013, https://doi.org/10.1214/13-AOS1090).
    """
    if min(len(arm), len(base)) < 2:
        return math.nan
    n, m = len(arm), len(base)
    return float(_share_as_large(np.array([*arm, *base], dtype=float), n, permutation_weights(n, m)))


def permutation_interval(arm: Sequence[float], base: Sequence[float], level: float = ALPHA) -> tuple[float, float]:
    """Return the smallest interval of all shifts that the permutation test does not reject; NaN for under two runs."""
    n, m = len(arm), len(base)
    if min(n, m) < 2:
        return math.nan, math.nan
    if level < smallest_unpaired_p(n, m):
        return -math.inf, math.inf
    middle, scale = float(np.mean(arm) - np.mean(base)), float(max(np.ptp(arm), np.ptp(base)))
    if scale == 0:
        return middle, middle
    rejects = lambda shift: permutation_p([value - shift for value in arm], base) <= level  # noqa: E731
    return _end(rejects, middle, -scale), _end(rejects, middle, scale)


def _end(rejects: Callable[[float], bool], inside: float, step: float) -> float:
    """Return the farthest shift from `inside` in the direction of `step` that the test does not reject."""
    while not rejects(inside + step):
        step *= 2
    accepted, rejected = inside, inside + step
    while abs(rejected - accepted) > 1e-8 * abs(step):
        middle = (accepted + rejected) / 2
        accepted, rejected = (accepted, middle) if rejects(middle) else (middle, rejected)
    return accepted


def _welch(arm: Sequence[float], base: Sequence[float]) -> tuple[float, float, float]:
    """Return the difference of the means of two groups, its standard error, and Welch's degrees of freedom."""
    parts = [0.0 if np.ptp(group) == 0 else float(np.var(group, ddof=1)) / len(group) for group in (arm, base)]
    weights = sum(part**2 / (len(group) - 1) for part, group in zip(parts, (arm, base), strict=True))
    freedom = sum(parts) ** 2 / weights if weights else math.inf
    return float(np.mean(arm) - np.mean(base)), math.sqrt(sum(parts)), freedom


def welch_p(arm: Sequence[float], base: Sequence[float]) -> float:
    """Return the two-sided p of Welch's t-test; NaN for under two runs of a group."""
    if min(len(arm), len(base)) < 2:
        return math.nan
    difference, error, freedom = _welch(arm, base)
    return 2 * float(scipy.special.stdtr(freedom, -abs(difference) / error)) if error else float(difference == 0)


def unpaired_p(arm: Sequence[float], base: Sequence[float]) -> float:
    """Return the larger p of the permutation test and of Welch's; NaN for under two runs of a group."""
    return float(max(permutation_p(arm, base), welch_p(arm, base)))


def unpaired_interval(arm: Sequence[float], base: Sequence[float], level: float = ALPHA) -> tuple[float, float]:
    """Return the smallest interval that holds those of both tests at `level`; NaN for under two runs of a group."""
    of_permutations, of_welch = permutation_interval(arm, base, level), welch_interval(arm, base, 1 - level)
    return min(of_permutations[0], of_welch[0]), max(of_permutations[1], of_welch[1])


def welch_interval(arm: Sequence[float], base: Sequence[float], confidence: float = 1 - ALPHA) -> tuple[float, float]:
    """Return Welch's interval for a difference of means; NaN where a group has fewer than two values."""
    if min(len(arm), len(base)) < 2:
        return math.nan, math.nan
    difference, error, freedom = _welch(arm, base)
    reach = float(scipy.special.stdtrit(freedom, (1 + confidence) / 2)) * error if error else 0.0
    return difference - reach, difference + reach


def bootstrap_unpaired(arm: Sequence[float], base: Sequence[float]) -> tuple[float, float]:
    """Return the BCa bootstrap interval for a difference of means; NaN where a group has under two values."""
    if min(len(arm), len(base)) < 2:
        return math.nan, math.nan
    if np.ptp(arm) == 0 and np.ptp(base) == 0:
        return welch_interval(arm, base)
    difference = lambda x, y, axis: np.mean(x, axis=axis) - np.mean(y, axis=axis)  # noqa: E731
    interval = scipy.stats.bootstrap((arm, base), difference, rng=0).confidence_interval
    return float(interval.low), float(interval.high)


def pooled_sd(arm: Sequence[float], base: Sequence[float]) -> float:
    """Return the spread of both groups around their own means; NaN for under three values."""
    freedom = len(arm) + len(base) - 2
    if not arm or not base or freedom < 1:
        return math.nan
    squares = sum(0.0 if np.ptp(group) == 0 else float(np.var(group)) * len(group) for group in (arm, base))
    return math.sqrt(squares / freedom)


def effect_size_unpaired(arm: Sequence[float], base: Sequence[float]) -> Effect:
    """Return the difference in pooled standard deviations with its 95 % interval; NaN for under four values."""
    n, m = len(arm), len(base)
    if not n or not m or n + m < 4:
        return Effect(math.nan, math.nan, math.nan, math.nan)
    difference = float(np.mean(arm) - np.mean(base))
    return standardised(difference, pooled_sd(arm, base), n + m - 2, math.sqrt(n * m / (n + m)))


def detectable_unpaired(n: int, m: int, sd: float, alpha: float = ALPHA) -> float:
    """Return the smallest difference that n and m other runs of spread `sd` show both tests with a power of 80 %."""
    if min(n, m) < 2 or math.isnan(sd):
        return math.nan
    return math.inf if alpha < smallest_unpaired_p(n, m) else sd * _detectable(n, m, alpha)


@functools.cache
def _detectable(n: int, m: int, alpha: float) -> float:
    """Return the same in standard deviations that were seen, from simulated experiments with a spread of one."""
    ways = permutation_weights(n, m, 2**13)
    random, count = np.random.default_rng(n), max(100, min(2_000, SIMULATION_SIZE // ways.shape[1]))
    noise = random.normal(size=(count, n + m))
    arm, base = (part - part.mean(axis=1, keepdims=True) for part in (noise[:, :n], noise[:, n:]))
    values, in_arm = np.concatenate([arm, base], axis=1), np.arange(n + m) < n
    parts = [part.var(axis=1, ddof=1) / part.shape[1] for part in (arm, base)]
    freedom_e = (parts[0] + parts[1]) ** 2 / (parts[0] ** 2 / (n - 1) + parts[1] ** 2 / (m - 1))
    of_welch = scipy.special.stdtrit(freedom_e, 1 - alpha / 2) * np.sqrt(parts[0] + parts[1])
    low, high = np.zeros(count), np.full(count, 1000.0)
    for _ in range(24):  # a shift of the arm by less is a difference of means by more
        middle = (low + high) / 2
        rejected = _share_as_large(values + middle[:, None] * in_arm, n, ways) <= alpha
        low, high = np.where(rejected, low, middle), np.where(rejected, middle, high)
    reach_e, scatter = np.maximum(high, of_welch), math.sqrt(1 / n + 1 / m)
    ratios = spread_ratios(n + m - 2)[:, None]

    def missing(effect: float) -> float:
        above, below = (scipy.special.ndtr((sign * effect * ratios - reach_e) / scatter) for sign in (1, -1))
        return float(np.mean(above + below)) - CHANCE

    return scipy.optimize.brentq(missing, 0.0, 1000.0, xtol=1e-6)


def describe_unpaired(arm: Sequence[float], base: Sequence[float]) -> Unpaired:
    """Compare two groups by Welch's interval, without a test."""
    low, high = welch_interval(arm, base)
    return Unpaired([], low=low, high=high, plain_low=low, plain_high=high, arm_values=arm, base_values=base)


def measure_unpaired(arm: Sequence[float], base: Sequence[float], better: Better = None) -> Unpaired:
    """Compare two groups with p, bootstrap interval and effect size."""
    comparison, size = describe_unpaired(arm, base), effect_size_unpaired(arm, base)
    comparison.better, comparison.p = better, unpaired_p(arm, base)
    comparison.bootstrap_low, comparison.bootstrap_high = bootstrap_unpaired(arm, base)
    comparison.effect, comparison.effect_low, comparison.effect_high = size.hedges, size.low, size.high
    return comparison


def confirm_unpaired(family: Sequence[Unpaired]) -> None:
    """Judge comparisons at Bonferroni's share of alpha, with joint intervals, as `lm.stats.verdicts.confirm` does."""
    count, alpha = len(family), ALPHA / max(1, len(family))
    set_joint(family, [unpaired_interval(each.arm_values, each.base_values, alpha) for each in family])
    for comparison in family:
        n, m = len(comparison.arm_values), len(comparison.base_values)
        sd = pooled_sd(comparison.arm_values, comparison.base_values)
        comparison.detectable = detectable_unpaired(n, m, sd, alpha)
        kind: Kind = "inconclusive"
        if not n or not m or comparison.identical:
            kind = "identical" if n and m else "no runs"
        elif comparison.significant:
            kind = direction(comparison.mean, comparison.better)
        elif smallest_unpaired_p(n, m) > alpha:
            kind = "too few"
        needed = runs_needed(count) if kind == "too few" else 0
        comparison.verdict = Verdict(kind, pairs=n, needed=needed, against=m)
