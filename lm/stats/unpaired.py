"""What two groups of runs can show that no seed pairs: the exact permutation test, its interval, verdicts of a family.

Where an arm changes nothing, every way of dealing all values out into two groups of these sizes is as likely, whatever
the noise looks like. The difference of means is compared with that of each way. An arm that leaves the mean alone and
changes the shape of the noise is no such arm: docs/verdicts.md says how often it is taken for one.

Legend: n runs of the arm, m of the baseline, w ways to deal them out but the one that was seen.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from lm.stats.tests import ALPHA, TIE, Effect, bonferroni, noncentral_interval, unbiased
from lm.stats.verdicts import Better, Comparison, Verdict, agreeing, direction, tested

WAYS = 200_000
"""Ways up to which all are counted, among them those of 10 runs against 10."""

RANDOM_WAYS = 2**16
"""Random ones that stand for all beyond, fewer of very many runs."""

LARGEST = 2**24
"""Numbers of a table of ways."""

SIMULATED = 2**22
"""Differences that are simulated to know what a test could have found."""

Floats = NDArray[np.float64]


@dataclass
class Unpaired(Comparison):
    """Values of an arm and of the baseline that no seed pairs, and what was found in them; `differences` are none."""

    mine: Sequence[float] = ()
    base: Sequence[float] = ()

    @property
    def mean(self) -> float:
        """Difference of the means; NaN where there is none."""
        return float(np.mean(self.mine) - np.mean(self.base)) if self.mine and self.base else math.nan

    @property
    def identical(self) -> bool:
        """Whether all values are one."""
        return bool(self.mine and self.base) and len({*self.mine, *self.base}) == 1


# the test ------------------------------------------------------------------------------------------------------------


def smallest_dealt_p(n: int, m: int) -> float:
    """The smallest two-sided p that an exact permutation test of n runs and m can give.

    >>> smallest_dealt_p(4, 4)
    0.02857142857142857
    """
    return min(1.0, 2.0 / math.comb(n + m, n)) if n and m else 1.0


def runs_needed(comparisons: int, alpha: float = ALPHA) -> int:
    """Runs of each group with which the test can reach `alpha`, shared by so many comparisons.

    >>> runs_needed(1), runs_needed(3)
    (4, 5)
    """
    return next(n for n in range(2, 64) if smallest_dealt_p(n, n) <= alpha / max(1, comparisons))


@functools.lru_cache(maxsize=2)
def dealt(n: int, m: int, most: int = WAYS) -> Floats:
    """Ways to deal n + m values out again, (n + m, w): what changes hands, as weights of a difference of two means.

    A column holds one over k for the k values of the first group that leave it, and minus one over k for those that
    take their places. The mean of the first group minus `shift` is no larger than before exactly where the values
    times the column are at least `shift`, so that these products say which shifts a test does not reject (Pitman
    1937). Up to `most` ways all are there, beyond it random ones.
    """
    size = n + m
    if math.comb(size, n) <= most:
        ways = itertools.islice(itertools.combinations(range(size), n), 1, None)  # the first is the one that was seen
        first = np.fromiter(itertools.chain.from_iterable(ways), dtype=np.intp).reshape(-1, n)
    else:
        draws = min(RANDOM_WAYS, most, LARGEST // size)
        first = np.random.default_rng(0).random((draws, size)).argsort(axis=1)[:, :n]
    inside = np.zeros((len(first), size), dtype=bool)
    np.put_along_axis(inside, first, True, axis=1)
    weights = np.where(np.arange(size) < n, 1.0 - inside, -1.0 * inside)
    moved = np.abs(weights).sum(axis=1) / 2
    return np.ascontiguousarray((weights[moved > 0] / moved[moved > 0, None]).T)


def _products(mine: Sequence[float], base: Sequence[float]) -> tuple[Floats, float]:
    """The mean differences of what changes hands, (w,), and within what of zero they count as zero."""
    pooled = np.array([*mine, *base], dtype=float)
    middle = pooled.mean()
    tie = TIE * float(np.abs(pooled - middle).sum())
    return np.asarray((pooled - middle) @ dealt(len(mine), len(base)), dtype=float), tie


def permutation_p(mine: Sequence[float], base: Sequence[float]) -> float:
    """Two-sided p of the difference of means over all ways to deal the values out; NaN where a group is empty.

    Twice the smaller of the two one-sided ones. Up to 200,000 ways all are counted (10 runs against 10), beyond it
    65,536 random ones.

    >>> permutation_p([1.0, 1.1, 1.2, 1.3], [2.0, 2.1, 2.2, 2.3])  # 2 of 70 ways
    0.02857142857142857
    """
    if not mine or not base:
        return math.nan
    found, tie = _products(mine, base)
    below, above = int((found <= tie).sum()), int((found >= -tie).sum())
    return min(1.0, 2 * (1 + min(below, above)) / (1 + len(found)))


def permutation_interval(mine: Sequence[float], base: Sequence[float], level: float = ALPHA) -> tuple[float, float]:
    """The shifts between the groups that the test does not reject at `level`; NaN where a group is empty.

    Infinite where so few runs reject nothing.
    """
    if not mine or not base:
        return math.nan, math.nan
    found, _ = _products(mine, base)
    place = math.floor(level / 2 * (len(found) + 1) + 1e-9)
    if not place:
        return -math.inf, math.inf
    ordered = np.sort(found)
    return float(ordered[place - 1]), float(ordered[-place])


# beside it -----------------------------------------------------------------------------------------------------------


def welch_interval(mine: Sequence[float], base: Sequence[float]) -> tuple[float, float]:
    """Welch's 95 % interval for a difference of means; NaN where a group has fewer than two values."""
    if min(len(mine), len(base)) < 2:
        return math.nan, math.nan
    difference = float(np.mean(mine) - np.mean(base))
    parts = [0.0 if np.ptp(one) == 0 else float(np.var(one, ddof=1)) / len(one) for one in (mine, base)]
    if not any(parts):
        return difference, difference
    freedom = sum(parts) ** 2 / sum(part**2 / (len(one) - 1) for part, one in zip(parts, (mine, base), strict=True))
    reach = float(stats.t.ppf(0.975, freedom)) * math.sqrt(sum(parts))
    return difference - reach, difference + reach


def bootstrap_of_two(mine: Sequence[float], base: Sequence[float]) -> tuple[float, float]:
    """BCa bootstrap interval for a difference of means, 9,999 seeded resamples; NaN where a group has under two."""
    if min(len(mine), len(base)) < 2:
        return math.nan, math.nan
    if np.ptp(mine) == 0 and np.ptp(base) == 0:
        return welch_interval(mine, base)
    done = stats.bootstrap(
        (mine, base),
        lambda x, y, axis: np.mean(x, axis=axis) - np.mean(y, axis=axis),
        method="BCa",
        rng=0,
    )
    return float(done.confidence_interval.low), float(done.confidence_interval.high)


def pooled_sd(mine: Sequence[float], base: Sequence[float]) -> float:
    """The spread of both groups around their own means; NaN for under three values."""
    freedom = len(mine) + len(base) - 2
    if not mine or not base or freedom < 1:
        return math.nan
    squares = sum(0.0 if np.ptp(one) == 0 else float(np.var(one)) * len(one) for one in (mine, base))
    return math.sqrt(squares / freedom)


def effect_of_two(mine: Sequence[float], base: Sequence[float]) -> Effect:
    """The difference in pooled standard deviations, and the 95 % interval of the truth; NaN for under four values."""
    n, m = len(mine), len(base)
    if not n or not m or n + m < 4:
        return Effect(math.nan, math.nan, math.nan, math.nan)
    difference, spread = float(np.mean(mine) - np.mean(base)), pooled_sd(mine, base)
    if spread == 0:
        found = math.copysign(math.inf, difference) if difference else 0.0
        return Effect(found, found, found, found)
    cohen, freedom, root = difference / spread, n + m - 2, math.sqrt(n * m / (n + m))
    low, high = noncentral_interval(cohen * root, freedom)
    return Effect(cohen, unbiased(freedom) * cohen, low / root, high / root)


def detectable_apart(n: int, m: int, sd: float, alpha: float = ALPHA, chance: float = 0.8) -> float:
    """The smallest difference that n runs and m of spread `sd` would have shown with the given chance.

    As `lm.stats.power.detectable`, of normal noise in simulated experiments. Infinite where no p is as small, NaN where
    a spread cannot be known.
    """
    if not n or not m or n + m < 3 or math.isnan(sd):
        return math.nan
    return math.inf if alpha < smallest_dealt_p(n, m) else sd * _detectable(n, m, alpha, chance)


@functools.cache
def _detectable(n: int, m: int, alpha: float, chance: float) -> float:
    """The same in standard deviations."""
    ways = dealt(n, m, 2**13)
    place, rows = math.floor(alpha / 2 * (ways.shape[1] + 1) + 1e-9), max(200, min(2_000, SIMULATED // ways.shape[1]))
    noise = np.random.default_rng(n).normal(size=(rows, n + m))
    noise[:, :n] -= noise[:, :n].mean(axis=1, keepdims=True)
    noise[:, n:] -= noise[:, n:].mean(axis=1, keepdims=True)
    products = np.partition(noise @ ways, [place - 1, -place], axis=1)
    reach, root = np.concatenate([-products[:, place - 1], products[:, -place]]), math.sqrt(n * m / (n + m))

    def found(effect: float) -> float:
        return float(np.mean(special.ndtr(root * (effect - reach)) + special.ndtr(root * (-effect - reach))))

    return float(optimize.brentq(lambda effect: found(effect) - chance, 0.0, 1000.0, xtol=1e-9))


# verdicts ------------------------------------------------------------------------------------------------------------


def plain_apart(mine: Sequence[float], base: Sequence[float]) -> Unpaired:
    """Two groups with Welch's interval, of which nothing is claimed."""
    low, high = welch_interval(mine, base)
    return Unpaired([], low=low, high=high, plain_low=low, plain_high=high, mine=mine, base=base)


def measure_apart(mine: Sequence[float], base: Sequence[float], better: Better = None) -> Unpaired:
    """The same with what is needed to judge them: p, the bootstrap interval and the effect size."""
    size, (low, high) = effect_of_two(mine, base), bootstrap_of_two(mine, base)
    return replace(
        plain_apart(mine, base),
        better=better,
        p=permutation_p(mine, base),
        bootstrap_low=low,
        bootstrap_high=high,
        effect=size.hedges,
        effect_low=size.low,
        effect_high=size.high,
    )


def confirm_apart(family: Sequence[Unpaired]) -> None:
    """Judges comparisons as `lm.stats.verdicts.confirm` does: at Bonferroni's share of alpha, with joint intervals."""
    count = tested([one.p for one in family])
    for one, p in zip(family, bonferroni([one.p for one in family]), strict=True):
        n, m, alpha = len(one.mine), len(one.base), ALPHA / count
        one.p_adjusted, one.significant, one.interval = p, p <= ALPHA, "joint"
        low, high = permutation_interval(one.mine, one.base, alpha)
        one.low, one.high = agreeing(one, low, high)
        one.detectable = detectable_apart(n, m, pooled_sd(one.mine, one.base), alpha)
        one.verdict = replace(_verdict(one, count), pairs=n, against=m)


def _verdict(one: Unpaired, comparisons: int) -> Verdict:
    n, m = len(one.mine), len(one.base)
    if not n or not m:
        return Verdict("no runs")
    if one.identical:
        return Verdict("identical")
    if one.significant:
        return Verdict(direction(one.mean, one.better))
    if smallest_dealt_p(n, m) > ALPHA / comparisons:
        return Verdict("too few", needed=runs_needed(comparisons))
    return Verdict("inconclusive")
