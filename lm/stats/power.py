"""How large a difference has to be for the exact sign-flip test to find it: its power, for normal differences.

The test is not Student's: at few seeds it has few levels, and at a small level it wants nearly all signs alike. So its
power is counted in simulated experiments, the same ones on every call. What the seeds of one have beside their mean is
drawn, and tells how far from zero the mean has to be for the test to find it: as far as its interval reaches. The
chance that a normal mean is that far is known. Up to 13 pairs the test is carried out in full; beyond, random flips
stand for all.
"""

import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from lm.stats.tests import ALPHA, smallest_p, subsets

FLIPS = 2**13
"""Patterns of signs that are counted, all of them for up to 13 pairs."""

EXPERIMENTS = 4_000
"""Simulated for up to 10 pairs, fewer with more; each counts twice, mirrored."""

CHANCE = 0.8
"""With which an effect that is called detectable would have been found."""


def power(n: int, effect: float, sd: float, alpha: float = ALPHA) -> float:
    """Chance that a two-sided sign-flip test finds an effect in n normal differences of spread `sd`; NaN for n < 2."""
    if n < 2 or math.isnan(sd):
        return math.nan
    if alpha < smallest_p(n):
        return 0.0
    if sd == 0:
        return 1.0 if effect else 0.0
    reach_e, _ = reaches(n, alpha)
    size = abs(effect) / sd
    found = special.ndtr(math.sqrt(n) * (size - reach_e)) + special.ndtr(math.sqrt(n) * (-size - reach_e))
    return float(np.mean(found))


@functools.cache
def _detectable(n: int, alpha: float, chance: float) -> float:
    """The effect in standard deviations."""
    return float(optimize.brentq(lambda effect: power(n, effect, 1.0, alpha) - chance, 0.0, 100.0, xtol=1e-9))


def detectable(n: int, sd: float, alpha: float = ALPHA, chance: float = CHANCE) -> float:
    """The smallest effect that n differences with spread `sd` would have shown with the given chance.

    Infinite where no effect could be shown: no p of so few is as small. NaN for n < 2.
    """
    if n < 2 or math.isnan(sd):
        return math.nan
    return math.inf if alpha < smallest_p(n) else sd * _detectable(n, alpha, chance)


@functools.cache
def reaches(n: int, alpha: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How far the test's interval reaches from the mean in simulated experiments with a spread of one, to each side.

    Beside it the variance that each of these experiments shows (e,).
    """
    flips = min(FLIPS, 2**n)
    rows, place = min(EXPERIMENTS, 2**22 // flips), math.floor(alpha / 2 * flips + 1e-9)
    noise = np.random.default_rng(n).normal(size=(rows, n))
    noise -= noise.mean(axis=1, keepdims=True)
    variance_e = noise.var(axis=1, ddof=1)
    weights, ends, variances = subsets(n, FLIPS), [], []
    for start in range(0, rows, 256):
        means = np.partition(noise[start : start + 256] @ weights, [place - 1, -place], axis=1)
        ends += [-means[:, place - 1], means[:, -place]]
        variances += [variance_e[start : start + 256]] * 2
    return np.concatenate(ends), np.concatenate(variances)
