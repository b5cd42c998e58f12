"""How large a difference has to be to be claimed over seeds and text: the power of both tests together.

More seeds lower the noise of seeds and not that of the text: with as many as there may be, one of documents is left.
Counted in simulated experiments as `lm.stats.power` does, whose seeds and documents scatter as those that were seen.

Legend: e simulated experiments.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from lm.stats.power import CHANCE, reaches
from lm.stats.tests import ALPHA, noncentral_interval, smallest_p
from lm.stats.two_way import TwoWay, degrees

Array = NDArray[np.float64]


def power_on_texts(n: int, effect: float, noise: TwoWay, alpha: float = ALPHA) -> float:
    """Chance that an effect is claimed over seeds and text.

    Args:
        n: seeds, two or more.
        effect: mean difference on all seeds and all text.
        noise: as it was seen, taken for the truth.
        alpha: share of the comparison.
    """
    if alpha < smallest_p(n):
        return 0.0
    if not noise.both:
        return float(effect != 0)
    return _found(abs(effect), _needed(n, noise, alpha), noise.both)


def detectable_on_texts(n: int, noise: TwoWay, alpha: float = ALPHA, chance: float = CHANCE) -> float:
    """The smallest effect that would have been claimed over seeds and text with the given chance.

    Infinite where no effect could be: no p of so few seeds is as small.
    """
    if alpha < smallest_p(n):
        return math.inf
    if not noise.both:
        return 0.0
    needed_e = _needed(n, noise, alpha)
    most = float(needed_e.max()) + 10 * noise.both
    return float(optimize.brentq(lambda effect: _found(effect, needed_e, noise.both) - chance, 0.0, most, rtol=1e-9))


def detectable_floor(noise: TwoWay, alpha: float = ALPHA, chance: float = CHANCE) -> float:
    """The same with as many seeds as there may be, on as much text: what no seeds lower. Student's over documents."""
    freedom = degrees(noise.effective)
    bound = float(stats.t.ppf(1 - alpha / 2, freedom))
    return noise.floor * noncentral_interval(bound, freedom, 2 * chance - 1)[1]


def _found(effect: float, needed_e: Array, both: float) -> float:
    """The chance that a mean that scatters by `both` lies beyond what is needed, which tells nothing of it."""
    found = special.ndtr((effect - needed_e) / both) + special.ndtr((-effect - needed_e) / both)
    return float(np.mean(found))


def _needed(n: int, noise: TwoWay, alpha: float) -> Array:
    """How far from zero the mean has to be in each simulated experiment for both tests to find it (e,)."""
    reach_e, variance_e = reaches(n, alpha)
    free, m = degrees(noise.effective), noise.documents
    twice = max(0.0, noise.seeds**2 + noise.text**2 - noise.both**2)
    seeds_e = noise.seeds**2 * variance_e
    text_e = noise.text**2 * np.random.default_rng(m).chisquare(free, len(variance_e)) / free
    both_e = np.maximum(seeds_e + text_e - twice, np.maximum(seeds_e, text_e))
    freedom_e = np.maximum(both_e**2 / (seeds_e**2 / (n - 1) + text_e**2 / free), min(n, m) - 1)
    over_both_e = special.stdtrit(freedom_e, 1 - alpha / 2) * np.sqrt(both_e)
    return np.maximum(math.sqrt(n) * noise.seeds * reach_e, over_both_e)
