"""Stopping early without being wrong more often: a group-sequential sign-flip test, for seeds added in stages.

By look k at most `spent(alpha, pairs / maximum)` of all experiments without an effect may have been called one (Lan and
DeMets 1983). At look k the critical sum is the lowest for which the sequences of signs, all equally likely where an arm
changes nothing, that have crossed so far stay within that; no later look changes an earlier decision. Up to 20 planned
pairs all sequences are counted, beyond 131,071 random ones and the one seen.

Seeds added after a look that no stage planned are tested by bets, which may be looked at at any time, with the error
that the first look could not use: all looks together err with at most alpha, whatever decides when to stop.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from lm.stats.tests import ALPHA, signed_sums, smallest_p, t_interval

EXACT_PAIRS = 20  # planned pairs up to which every sequence of signs is counted
SEQUENCES = 2**17  # sequences of signs, the one seen among them, where there are too many to count
DIGITS = 11  # decimals of a sum, as a share of the sum of magnitudes, that count: sums that agree in them are tied


@dataclass(frozen=True)
class Look:
    """Result of the last look reached, at `pairs` pairs, and the look that found a difference.

    `p` is the share of sequences whose sum is as far from zero, `level` the p up to which this look finds one.
    """

    pairs: int
    rejected_at: int | None
    p: float
    level: float

    @property
    def rejected(self) -> bool:
        """True if this look or an earlier one found a difference."""
        return self.rejected_at is not None


def spent(alpha: float, fraction: float) -> float:
    """Return the error that may be spent by a fraction of the pairs, O'Brien-Fleming-like."""
    if fraction <= 0:
        return 0.0
    return 2 * float(scipy.special.ndtr(scipy.special.ndtri(alpha / 2) / math.sqrt(min(1.0, fraction))))


def plan_looks(minimum: int, maximum: int, stages: int, alpha: float = ALPHA) -> tuple[int, ...]:
    """Plan the pairs at which to look: at most `stages`, evenly spaced, from the first that can reject to `maximum`."""
    able = (n for n in range(minimum, maximum) if smallest_p(n) <= spent(alpha, n / maximum))
    first = next(able, maximum) if stages > 1 else maximum
    return tuple(sorted({round(n) for n in np.linspace(maximum, first, stages)}))


def sequential(differences: Sequence[float], planned: Sequence[int], maximum: int, alpha: float = ALPHA) -> Look | None:
    """Test the first differences, as many as the last look that they reach, at alpha; None before the first look."""
    reached = [look for look in planned if look <= len(differences)]
    if not reached:
        return None
    sample = np.asarray(differences[: reached[-1]], dtype=float)
    courses = []  # the sums at each look under every sequence of signs or random ones, the observed one first
    if maximum <= EXACT_PAIRS:
        courses = [np.repeat(signed_sums(sample[:pairs])[::-1], 2 ** (len(sample) - pairs)) for pairs in reached]
    else:
        sums = np.zeros(SEQUENCES)
        for pairs, (value, flips) in enumerate(zip(sample, _signs(maximum), strict=False), start=1):
            sums = sums + value * flips
            courses += [sums] * (pairs in reached)
    rejected_at, p, level, crossed = None, 1.0, 0.0, np.zeros(len(courses[0]), dtype=bool)
    for pairs, course in zip(reached, courses, strict=True):
        total = float(np.abs(sample[:pairs]).sum()) or 1.0
        distances = np.round(np.abs(course) / total, DIGITS)
        may_cross = math.floor(spent(alpha, pairs / maximum) * len(course) + 1e-9) - int(crossed.sum())
        left, bound = distances[~crossed], -math.inf
        if may_cross < len(left):  # ties stay together on the near side
            place = len(left) - 1 - may_cross
            bound = float(np.partition(left, place)[place])
        p, level = float(np.mean(distances >= distances[0])), float(np.mean(distances > bound))
        if rejected_at is None and distances[0] > bound:
            rejected_at = pairs
        crossed |= distances > bound
    return Look(reached[-1], rejected_at, p, level)


def repeated_interval(
    differences: Sequence[float], planned: Sequence[int], maximum: int, alpha: float = ALPHA
) -> tuple[float, float]:
    """Return an interval for the mean that holds at every look: Student's, widened; NaN before the first look.

    For normal differences all of them together cover the truth with a chance of 1 - alpha (Jennison and Turnbull 1989).
    """
    reached = [look for look in planned if look <= len(differences)]
    if not reached:
        return math.nan, math.nan
    return t_interval(differences[: reached[-1]], 1 - stage_alpha(len(differences), planned, maximum, alpha))


def stage_alpha(pairs: int, planned: Sequence[int], maximum: int, alpha: float = ALPHA) -> float:
    """Return the error that the last look reached may add to that of earlier ones; 0 before the first."""
    shares = [0.0, *(spent(alpha, look / maximum) for look in planned if look <= pairs)]
    return shares[-1] - shares[-2] if len(shares) > 1 else 0.0


# seeds added after a look that no stage planned ----------------------------------------------------------------------

BETS = (0.5, 1.5, 4.5)  # of a difference of the size of all so far: the best ones for effects of about .5, 1 and 2
SIGN_BETS = (0.3, 0.6, 0.9)  # shares of what is held that are put on the next value lying beyond a bound


def left_after(pairs: int, comparisons: int = 1, sides: int = 2, stepwise: bool = False) -> float:
    """Return the error that a first look at so many pairs leaves to all looks after it.

    A p of n pairs is a multiple of `sides` / 2^n, so a test finds something with a chance below alpha where nothing is
    to be found. The look could use that chance, by Bonferroni over the comparisons or, `stepwise`, by Holm or by
    Benjamini and Hochberg. At least 1e-15, with which nothing is found.
    """
    total, step = max(1, comparisons), sides / 2**pairs
    shares = range(1, total + 1 if stepwise else 2)
    used = max(math.floor(share * ALPHA / total / step + 1e-9) * step * total / share for share in shares)
    return max(ALPHA - used, 1e-15)


def anytime_p(differences: Sequence[float]) -> float:
    """Return a two-sided p of the mean difference that may be looked at after every pair; NaN for no pairs.

    Whoever bets on the sign of each difference, more on a large one, holds on average what was held before where signs
    are fair coins; the inverse of that is p (Ville 1939; Howard et al. 2021). When to stop may depend on everything.
    """
    return min(1.0, 1 / float(_held(np.asarray(differences, dtype=float)[:, None])[0])) if differences else math.nan


def anytime_interval(differences: Sequence[float], level: float = ALPHA) -> tuple[float, float]:
    """Return the confidence sequence of `anytime_p`: the means that it does not reject at `level`, at whatever look.

    Infinite where so few pairs reject nothing; NaN for no pairs.
    """
    sample = np.asarray(differences, dtype=float)
    if not len(sample):
        return math.nan, math.nan
    mean, spread, held = float(sample.mean()), float(np.ptp(sample)), 1 / level
    if spread == 0:
        return (mean, mean) if float(_held(np.ones((len(sample), 1)))[0]) >= held else (-math.inf, math.inf)
    ends = []
    for side in (-1, 1):
        steps = np.concatenate([[0.0], np.geomspace(1e-3, 1e3, 61)]) * spread * side
        inside = np.flatnonzero(_held(sample[:, None] - (mean + steps)) < held)
        if len(inside) == 0 or inside[-1] == len(steps) - 1:
            return (mean, mean) if len(inside) == 0 else (-math.inf, math.inf)
        near, far = (mean + steps[inside[-1] + place] for place in (0, 1))
        ends.append(scipy.optimize.brentq(lambda end: float(_held(sample[:, None] - end)[0]) - held, near, far))
    return ends[0], ends[1]


def _held(differences_nm: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what is held after bets on n signs, for m sets of differences: the mean over bets and both sides."""
    sizes_n1 = np.arange(1, len(differences_nm) + 1)[:, None]
    scale_nm = np.sqrt(np.cumsum(differences_nm**2, axis=0) / sizes_n1)
    relative_nm = np.divide(differences_nm, scale_nm, out=np.zeros_like(differences_nm), where=scale_nm > 0)
    logs = [np.log(2 * scipy.special.expit(2 * bet * relative_nm)).sum(axis=0) for own in BETS for bet in (own, -own)]
    return np.exp(np.clip(scipy.special.logsumexp(logs, axis=0) - math.log(len(logs)), -700, 700))


def anytime_pairs_needed(level: float) -> int:
    """Return the number of equal differences with which `anytime_p` reaches a level."""
    return next(n for n in itertools.count(2) if anytime_p([1.0] * n) <= level)


def anytime_values_needed(level: float) -> int:
    """Return the number of values, all beyond a bound, with which `anytime_sign_p` reaches a level."""
    return next(n for n in itertools.count(1) if anytime_sign_p(n, n) <= level)


def anytime_sign_p(beyond: int, values: int) -> float:
    """Return p that the median lies beyond a bound, as so many of the values do, whenever it is looked at."""
    return min(1.0, 1 / float(np.mean([(1 + bet) ** beyond * (1 - bet) ** (values - beyond) for bet in SIGN_BETS])))


@functools.cache
def _signs(maximum: int) -> NDArray[np.float64]:
    """Draw random signs, pairs x sequences; the first sequence flips nothing."""
    signs = np.random.default_rng(0).choice(np.array([-1.0, 1.0]), (maximum, SEQUENCES))
    signs[:, 0] = 1
    return signs
