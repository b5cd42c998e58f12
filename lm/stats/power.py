"""Power and detectable difference of the exact sign-flip test, for normal differences.

An effect is called detectable where the power, averaged over what the true noise may be given its estimate, is 80 %. It
is counted in simulated experiments, the same ones on every call. Beyond 13 pairs random flips stand for all.
"""

import bisect
import functools
import math

import numpy as np
import scipy
from numpy.typing import NDArray

from lm.stats.tests import ALPHA, smallest_p, subsets

FLIPS = 2**13  # patterns of signs that are counted, all of them for up to 13 pairs
EXPERIMENTS = 4_000  # simulated for up to 10 pairs, fewer with more; each counts twice, mirrored
CHANCE = 0.8  # power at which an effect is called detectable
MOST_PAIRS = 128  # more are not asked for


def power(n: int, effect: float, sd: float, alpha: float = ALPHA) -> float:
    """Return the power of a two-sided sign-flip test on n normal differences of spread `sd`; NaN for n < 2."""
    if n < 2 or math.isnan(sd):
        return math.nan
    if alpha < smallest_p(n):
        return 0.0
    if sd == 0:
        return 1.0 if effect else 0.0
    reach_e, _ = reaches(n, alpha)
    size = abs(effect) / sd
    powers = scipy.special.ndtr(math.sqrt(n) * (size - reach_e)) + scipy.special.ndtr(math.sqrt(n) * (-size - reach_e))
    return float(np.mean(powers))


def spread_ratios(freedom: float, count: int = 101) -> NDArray[np.float64]:
    """Return equally likely values of an estimated over the true standard deviation of normal noise, (count,)."""
    shares = (np.arange(count) + 0.5) / count
    ratios: NDArray[np.float64] = np.sqrt(2 * scipy.special.gammaincinv(freedom / 2, shares) / freedom)
    return ratios


@functools.cache
def _detectable(n: int, alpha: float) -> float:
    """Return the detectable effect in standard deviations that were seen."""
    ratios = spread_ratios(n - 1)

    def missing(effect: float) -> float:
        return float(np.mean([power(n, effect * ratio, 1.0, alpha) for ratio in ratios])) - CHANCE

    return scipy.optimize.brentq(missing, 0.0, 1000.0, xtol=1e-6)


def detectable(n: int, sd: float, alpha: float = ALPHA) -> float:
    """Return the smallest effect that n further differences would show with a power of 80 %.

    The power is averaged over the true spread, of which n differences showed `sd`. Infinite where no p is as small.
    """
    if n < 2 or math.isnan(sd):
        return math.nan
    return math.inf if alpha < smallest_p(n) else sd * _detectable(n, alpha)


def pairs_needed(effect: float, sd: float, pairs: int, alpha: float = ALPHA) -> float:
    """Return how many differences show an effect with a power of 80 %, where `pairs` of them have the spread `sd`.

    The power is averaged over the true spread, as by `detectable`. Infinite above MOST_PAIRS, NaN without a spread.
    """
    if pairs < 2 or math.isnan(sd) or effect == 0:
        return math.nan if effect else math.inf
    ratios = spread_ratios(pairs - 1)

    def is_enough(n: int) -> bool:
        return float(np.mean([power(n, effect * ratio, sd, alpha) for ratio in ratios])) >= CHANCE

    if not is_enough(MOST_PAIRS):
        return math.inf
    return bisect.bisect_left(range(MOST_PAIRS + 1), True, lo=2, key=is_enough)


@functools.cache
def reaches(n: int, alpha: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Simulate how far the test's interval reaches to each side at a spread of one, and the variance shown (e,)."""
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
