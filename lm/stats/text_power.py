"""Power and detectable difference of the tests over seeds and over text together.

More seeds lower the noise of seeds and not that of the text: with as many as there may be, one of documents is left.
Counted in simulated experiments as `lm.stats.power` does. Both kinds of noise are estimates: what is called detectable
has its power averaged over what the true ones may be.

Legend: e simulated experiments.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from lm.stats.power import CHANCE, reaches, spread_ratios
from lm.stats.tests import ALPHA, smallest_p
from lm.stats.two_way import TwoWay, degrees

Array = NDArray[np.float64]


@dataclass(frozen=True)
class _Simulated:
    """Means needed for both tests to reject (e,), and the standard error of means (e,)."""

    needed_e: Array
    both_e: Array

    def power(self, effect: float) -> float:
        """Return the chance that the mean lies beyond the needed one; it is independent of the noise."""
        above, below = (effect - self.needed_e) / self.both_e, (-effect - self.needed_e) / self.both_e
        return float(np.mean(special.ndtr(above) + special.ndtr(below)))


def power_on_texts(n: int, effect: float, noise: TwoWay, alpha: float = ALPHA) -> float:
    """Return the chance that an effect is claimed over seeds and text.

    Args:
        n: seeds, two or more.
        effect: mean difference on all seeds and all text.
        noise: of the mean, known.
        alpha: share of the comparison.
    """
    if alpha < smallest_p(n):
        return 0.0
    if not noise.both:
        return float(effect != 0)
    return _simulated(n, noise, alpha, noise_is_known=True).power(abs(effect))


def detectable_on_texts(n: int, noise: TwoWay, alpha: float = ALPHA, chance: float = CHANCE) -> float:
    """Return the smallest effect that n seeds on as much text would show over seeds and text with the given chance.

    Args:
        n: seeds, two or more.
        noise: as it was estimated from n seeds; the chance is averaged over the true one.
        alpha: share of the comparison.
        chance: of a claim.

    Returns:
        Infinity where no effect could be shown: no p of so few seeds is as small.
    """
    if alpha < smallest_p(n):
        return math.inf
    if not noise.both:
        return 0.0
    simulated = _simulated(n, noise, alpha, noise_is_known=False)
    most = float((simulated.needed_e + 10 * simulated.both_e).max())
    return float(optimize.brentq(lambda effect: simulated.power(effect) - chance, 0.0, most, rtol=1e-9))


def detectable_floor(noise: TwoWay, alpha: float = ALPHA, chance: float = CHANCE) -> float:
    """Return the same with as many seeds as there may be, on as much text: what no seeds lower. Student's t-test."""
    return noise.floor * _floor(degrees(noise.effective), alpha, chance)


@functools.lru_cache(maxsize=256)
def _floor(freedom: float, alpha: float, chance: float) -> float:
    """Return the mean that Student's t-test finds with the given chance, in standard errors as they were estimated."""
    bound, ratios = float(stats.t.ppf(1 - alpha / 2, freedom)), spread_ratios(freedom)

    def missing(effect: float) -> float:
        below = special.nctdtr(freedom, effect * ratios, bound)
        return float(np.mean(1 - np.where(np.isfinite(below), below, 0.0))) - chance

    return float(optimize.brentq(missing, 0.0, 1e5, xtol=1e-9))


def _simulated(n: int, noise: TwoWay, alpha: float, noise_is_known: bool) -> _Simulated:
    """Simulate experiments of normal noise: of the given noise, or of draws of the true one.

    A true variance is its estimate times the degrees of freedom over a chi-squared number of as many.
    """
    reach_e, variance_e = reaches(n, alpha)
    free, m = degrees(noise.effective), noise.documents
    random, count = np.random.default_rng(m), len(variance_e)
    shown_e = random.chisquare(free, count) / free
    seeds_e, text_e = np.full(count, noise.seeds**2), np.full(count, noise.text**2)
    shared = max(0.0, noise.seeds**2 + noise.text**2 - noise.both**2)
    if not noise_is_known:
        seeds_e = seeds_e * (n - 1) / random.chisquare(n - 1, count)
        text_e = text_e * free / random.chisquare(free, count)
    shared_e = np.minimum(shared, np.minimum(seeds_e, text_e))
    both_e = np.maximum(seeds_e + text_e - shared_e, np.maximum(seeds_e, text_e))
    seen_seeds_e, seen_text_e = seeds_e * variance_e, text_e * shown_e
    larger_e = np.maximum(seen_seeds_e, seen_text_e)
    seen_both_e = np.maximum(seen_seeds_e + seen_text_e - shared_e, larger_e)
    weights_e = seen_seeds_e**2 / (n - 1) + seen_text_e**2 / free
    freedom_e = np.maximum(seen_both_e**2 / weights_e, min(n, m) - 1)
    over_both_e = special.stdtrit(freedom_e, 1 - alpha / 2) * np.sqrt(seen_both_e)
    return _Simulated(np.maximum(np.sqrt(n * seeds_e) * reach_e, over_both_e), np.sqrt(both_e))
