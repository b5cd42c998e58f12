"""Compare two groups of runs that no seed pairs: permutation test, Welch's test, intervals, verdicts of a family.

Two tests have to agree, and p is the larger of both. The first permutes Welch's t, and is exact where an arm changes
nothing, whatever the noise looks like. The second is Welch's own, which holds, about, where an arm changes the spread
of normal noise alone. For skewed noise of unequal spreads neither holds: docs/verdicts.md has the rates.

Legend: n runs of the arm, m of the baseline, w ways to divide them, the one seen first; e simulated experiments.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lm.stats.power import CHANCE, spread_ratios
from lm.stats.quantiles import bootstrap_bca, find_root, t_quantile
from lm.stats.tests import ALPHA, Effect, bonferroni, standardised
from lm.stats.verdicts import Better, Comparison, Kind, Verdict, align_interval_with_test, direction, num_tested

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


class _Sums:
    """Sums over members of each division of values (..., n + m), from which p follows for any shift of the arm's n."""

    def __init__(self, values: Floats, n: int, ways: Floats) -> None:
        values = values - values.mean(axis=-1, keepdims=True)
        self.n, self.m = n, values.shape[-1] - n
        arm = np.where(np.arange(values.shape[-1]) < n, values, 0.0)
        self.sums, self.squares, self.arm_sums = values @ ways, values**2 @ ways, arm @ ways
        self.arm_members = ways[:n].sum(axis=0)
        self.total, self.total_squares = (part.sum(axis=-1, keepdims=True) for part in (values, values**2))
        self.arm_total = arm.sum(axis=-1, keepdims=True)

    def p(self, shift: Floats | float) -> Floats:
        """Return the share of divisions whose Welch's t, with the arm's values less `shift`, is that seen or larger."""
        n, m = self.n, self.m
        first = self.sums - shift * self.arm_members
        squares = self.squares - 2 * shift * self.arm_sums + shift**2 * self.arm_members
        second = self.total - shift * n - first
        squares_of_second = self.total_squares - 2 * shift * self.arm_total + shift**2 * n - squares
        variance = (squares - first**2 / n) / (n - 1) / n + (squares_of_second - second**2 / m) / (m - 1) / m
        difference = np.abs(first / n - second / m)
        rounding = 1e-13 * (squares + squares_of_second)
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
    return float(_sums(arm, base).p(0.0))


def _sums(arm: Sequence[float], base: Sequence[float]) -> _Sums:
    return _Sums(np.array([*arm, *base], dtype=float), len(arm), permutation_weights(len(arm), len(base)))


def permutation_interval(arm: Sequence[float], base: Sequence[float], level: float = ALPHA) -> tuple[float, float]:
    """Return the smallest interval of all shifts that the permutation test does not reject; NaN for under two runs."""
    n, m = len(arm), len(base)
    if min(n, m) < 2:
        return math.nan, math.nan
    if level < smallest_unpaired_p(n, m):
        return -math.inf, math.inf
    sums, middle = _sums(arm, base), float(np.mean(arm) - np.mean(base))
    scale = float(max(np.ptp(arm), np.ptp(base)))
    if scale == 0:
        return middle, middle
    return _end(sums, middle, -scale, level), _end(sums, middle, scale, level)


def _end(sums: _Sums, inside: float, step: float, level: float) -> float:
    """Return the farthest shift from `inside` in the direction of `step` that the test does not reject."""
    far = step
    while float(sums.p(inside + far)) > level:
        far *= 2
    accepted, rejected = inside, inside + far
    points = max(1, min(8, SIMULATION_SIZE // len(sums.arm_members)))
    while abs(rejected - accepted) > 1e-8 * abs(far):
        ends = np.linspace(accepted, rejected, points + 2)
        last = max(np.flatnonzero(sums.p(ends[1:-1, None]) > level), default=-1) + 1
        accepted, rejected = float(ends[last]), float(ends[last + 1])
    return accepted


def welch_p(arm: Sequence[float], base: Sequence[float]) -> float:
    """Return the two-sided p of Welch's t-test; NaN for under two runs of a group."""
    if min(len(arm), len(base)) < 2:
        return math.nan
    if np.ptp(arm) == 0 and np.ptp(base) == 0:
        return float(arm[0] == base[0])
    from scipy import stats  # takes a second

    return float(stats.ttest_ind(arm, base, equal_var=False).pvalue)


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
    difference = float(np.mean(arm) - np.mean(base))
    parts = [0.0 if np.ptp(group) == 0 else float(np.var(group, ddof=1)) / len(group) for group in (arm, base)]
    if not any(parts):
        return difference, difference
    freedom = sum(parts) ** 2 / sum(part**2 / (len(group) - 1) for part, group in zip(parts, (arm, base), strict=True))
    reach = t_quantile((1 + confidence) / 2, freedom) * math.sqrt(sum(parts))
    return difference - reach, difference + reach


def bootstrap_unpaired(arm: Sequence[float], base: Sequence[float]) -> tuple[float, float]:
    """Return the BCa bootstrap interval for a difference of means; NaN where a group has under two values."""
    if min(len(arm), len(base)) < 2:
        return math.nan, math.nan
    if np.ptp(arm) == 0 and np.ptp(base) == 0:
        return welch_interval(arm, base)
    difference = lambda x, y, axis: np.mean(x, axis=axis) - np.mean(y, axis=axis)  # noqa: E731
    return bootstrap_bca((arm, base), difference)


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


def detectable_unpaired(n: int, m: int, sd: float, alpha: float = ALPHA, chance: float = CHANCE) -> float:
    """Return the smallest difference that n other runs and m would show both tests with the given chance.

    `sd` is the spread of normal noise, as n runs and m showed it; infinite where no p is as small.
    """
    if min(n, m) < 2 or math.isnan(sd):
        return math.nan
    return math.inf if alpha < smallest_unpaired_p(n, m) else sd * _detectable(n, m, alpha, chance)


@functools.cache
def _detectable(n: int, m: int, alpha: float, chance: float) -> float:
    """Return the same in standard deviations that were seen, from simulated experiments with a spread of one."""
    ways = permutation_weights(n, m, 2**13)
    random, count = np.random.default_rng(n), max(100, min(2_000, SIMULATION_SIZE // ways.shape[1]))
    noise = random.normal(size=(count, n + m))
    arm, base = (part - part.mean(axis=1, keepdims=True) for part in (noise[:, :n], noise[:, n:]))
    sums = _Sums(np.concatenate([arm, base], axis=1), n, ways)
    parts = [part.var(axis=1, ddof=1) / part.shape[1] for part in (arm, base)]
    freedom_e = (parts[0] + parts[1]) ** 2 / (parts[0] ** 2 / (n - 1) + parts[1] ** 2 / (m - 1))
    of_welch = special.stdtrit(freedom_e, 1 - alpha / 2) * np.sqrt(parts[0] + parts[1])
    low, high = np.zeros(count), np.full(count, 1000.0)
    for _ in range(24):  # a shift of the arm by less is a difference of means by more
        middle = (low + high) / 2
        rejected = sums.p(-middle[:, None]) <= alpha
        low, high = np.where(rejected, low, middle), np.where(rejected, middle, high)
    reach_e, scatter = np.maximum(high, of_welch), math.sqrt(1 / n + 1 / m)
    ratios = spread_ratios(n + m - 2)[:, None]

    def missing(effect: float) -> float:
        above, below = (special.ndtr((sign * effect * ratios - reach_e) / scatter) for sign in (1, -1))
        return float(np.mean(above + below)) - chance

    return find_root(missing, 0.0, 1000.0, xtol=1e-6)


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
    count = num_tested([comparison.p for comparison in family])
    for comparison, p in zip(family, bonferroni([comparison.p for comparison in family]), strict=True):
        n, m, alpha = len(comparison.arm_values), len(comparison.base_values), ALPHA / count
        comparison.p_adjusted, comparison.significant, comparison.interval = p, p <= ALPHA, "joint"
        low, high = unpaired_interval(comparison.arm_values, comparison.base_values, alpha)
        comparison.low, comparison.high = align_interval_with_test(comparison, low, high)
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
