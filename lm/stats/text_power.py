"""Power and detectable difference of the tests over seeds and over text together. Legend: e simulated experiments.

More seeds lower the noise of seeds and not that of the text. Counted in simulated experiments as `lm.stats.power` does.
Both kinds of noise are estimates: power is averaged over what the true ones may be.
"""

import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from lm.stats.power import CHANCE, reaches, spread_ratios
from lm.stats.tests import ALPHA, smallest_p
from lm.stats.two_way import TwoWay, degrees

Array = NDArray[np.float64]


def chance_beyond(effect: float, needed_e: Array, scatter_e: Array) -> float:
    """Return the chance that a mean, independent of the noise, lies beyond the one that both tests need (e,)."""
    above, below = (effect - needed_e) / scatter_e, (-effect - needed_e) / scatter_e
    return float(np.mean(special.ndtr(above) + special.ndtr(below)))


def detectable_on_texts(n: int, noise: TwoWay, alpha: float = ALPHA, chance: float = CHANCE) -> float:
    """Return the smallest effect that n seeds on as much text would show over seeds and text with the given chance.

    `noise` is as two or more seeds showed it; the chance is averaged over the true one. Infinite where no effect could
    be shown: no p of so few seeds is as small.
    """
    if alpha < smallest_p(n):
        return math.inf
    if not noise.both:
        return 0.0
    needed_e, both_e = simulate(n, noise, alpha, noise_is_known=False)
    missing = lambda effect: chance_beyond(effect, needed_e, both_e) - chance  # noqa: E731
    return float(optimize.brentq(missing, 0.0, float((needed_e + 10 * both_e).max()), rtol=1e-9))


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


def simulate(n: int, noise: TwoWay, alpha: float, noise_is_known: bool) -> tuple[Array, Array]:
    """Simulate means that both tests need to reject and their standard errors, of this noise or draws of the true one.

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
    return np.maximum(np.sqrt(n * seeds_e) * reach_e, over_both_e), np.sqrt(both_e)
