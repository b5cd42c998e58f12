"""Two kinds of noise in a difference, of the seeds that were trained and of the text, and the power over both.

Seeds and documents are crossed random effects: every seed is evaluated on every document. More seeds lower the noise of
seeds and not that of the text. Power is counted in simulated experiments as `lm.stats.power` does, averaged over what
the true noise of both kinds may be. Legend: s seeds, d documents, e simulated experiments.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from lm.stats.power import CHANCE, reaches, spread_ratios
from lm.stats.tests import ALPHA, Side, smallest_p
from lm.stats.verdicts import Comparison, withdraw

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TwoWay:
    """Standard errors of a mean difference per token: over seeds, over documents, and over both.

    `floor` is that over documents with as many seeds as there may be: `text` less what belongs to a seed on a document.
    `freedom` is Satterthwaite's, of `both`. `effective` documents of one length would scatter as much (Kish 1965) as
    these `documents` with tokens, or what else stands for them.
    """

    seeds: float
    text: float
    floor: float
    both: float
    freedom: float
    documents: int
    effective: float

    def interval(self, mean: float, alpha: float) -> tuple[float, float]:
        """Return Student's interval for the difference on other seeds and other text."""
        reach = float(scipy.special.stdtrit(self.freedom, 1 - alpha / 2)) * self.both if self.both else 0.0
        return mean - reach, mean + reach

    def p(self, distance: float, side: Side = "two-sided") -> float:
        """Return Student's p of a distance from zero, above it for `greater`, on other seeds and other text."""
        observed = {"greater": distance, "less": -distance, "two-sided": abs(distance)}[side]
        if not self.both:
            return float(observed <= 0)
        return (2 if side == "two-sided" else 1) * float(scipy.special.stdtr(self.freedom, -observed / self.both))


def two_way(difference_sd: Array, tokens_d: Array) -> TwoWay:
    """Estimate the noise of seeds and of text in the difference per token, in nats.

    Documents differ in length, so that the difference is a ratio (Cochran 1977, chapter 6), clustered by document
    (Miller 2024, https://arxiv.org/abs/2411.00640). Its error over documents is the jackknife's: residuals alone are
    too small where a few long documents weigh most (MacKinnon, Nielsen, Webb 2023, https://doi.org/10.1002/jae.2969).
    What belongs to a seed on a document is in both, and taken off once (Cameron, Gelbach, Miller 2011), but never below
    the larger. Raises ValueError for fewer than two seeds, or two documents with tokens.
    """
    held = tokens_d > 0
    difference_sd, tokens_d = difference_sd[:, held], tokens_d[held]
    n, m = difference_sd.shape
    if n < 2 or m < 2:
        raise ValueError(f"difference_sd={n} x {m} must be at least 2 x 2")
    total = float(tokens_d.sum())
    left_d = total - tokens_d
    effective = total**2 / float((tokens_d**2).sum())
    mean_s, sum_d = difference_sd.sum(axis=1) / total, difference_sd.mean(axis=0)
    mean = float(mean_s.mean())
    seeds = float(mean_s.var(ddof=1)) / n
    text = (m - 1) / m * float((((sum_d - mean * tokens_d) / left_d) ** 2).sum())
    rest_sd = difference_sd - sum_d - (mean_s - mean)[:, None] * tokens_d
    twice = (m - 1) / m * float(((rest_sd / left_d) ** 2).sum()) / (n * (n - 1))
    both = max(seeds, text, seeds + text - twice)
    weights = seeds**2 / (n - 1) + text**2 / degrees(effective)
    freedom = max(both**2 / weights, min(n, m) - 1) if weights else math.inf
    floor = max(0.0, text - twice)
    return TwoWay(math.sqrt(seeds), math.sqrt(text), math.sqrt(floor), math.sqrt(both), freedom, m, effective)


def degrees(effective: float) -> float:
    """Return the degrees of freedom of an error over so many documents of one length, at least one."""
    return max(1.0, effective - 1)


def set_p_over_texts(comparison: Comparison, noise: TwoWay) -> None:
    """Set the p over seeds and text of a difference, and of its equivalence within the margin."""
    if comparison.identical or not comparison.differences:
        return
    comparison.p_both = noise.p(comparison.mean)
    if not math.isnan(comparison.margin):
        inside = comparison.mean + comparison.margin, comparison.mean - comparison.margin
        comparison.p_equivalent_both = max(noise.p(inside[0], "greater"), noise.p(inside[1], "less"))


def cover_texts(comparison: Comparison, noise: TwoWay, alpha: float) -> None:
    """Widen an interval to hold the seeds' own and that over text, and withdraw claims that go beyond it."""
    if comparison.identical or not comparison.differences:
        return
    low, high = noise.interval(comparison.mean, alpha)
    comparison.interval = "seeds-and-text"
    comparison.low, comparison.high = min(comparison.low, low), max(comparison.high, high)
    withdraw(comparison, low, high, "seeds only")


def detectable_on_texts(n: int, noise: TwoWay, alpha: float = ALPHA) -> float:
    """Return the smallest effect that n seeds on as much text would show over seeds and text with a power of 80 %.

    `noise` is as the seeds showed it; the power is averaged over the true one. Infinite where no p is as small.
    """
    if alpha < smallest_p(n):
        return math.inf
    if not noise.both:
        return 0.0
    reach_e, variance_e = reaches(n, alpha)
    free, m = degrees(noise.effective), noise.documents
    random, count = np.random.default_rng(m), len(variance_e)
    shown_e = random.chisquare(free, count) / free
    shared = max(0.0, noise.seeds**2 + noise.text**2 - noise.both**2)
    seeds_e = noise.seeds**2 * (n - 1) / random.chisquare(n - 1, count)
    text_e = noise.text**2 * free / random.chisquare(free, count)
    shared_e = np.minimum(shared, np.minimum(seeds_e, text_e))
    both_e = np.maximum(seeds_e + text_e - shared_e, np.maximum(seeds_e, text_e))
    seen_seeds_e, seen_text_e = seeds_e * variance_e, text_e * shown_e
    larger_e = np.maximum(seen_seeds_e, seen_text_e)
    seen_both_e = np.maximum(seen_seeds_e + seen_text_e - shared_e, larger_e)
    weights_e = seen_seeds_e**2 / (n - 1) + seen_text_e**2 / free
    freedom_e = np.maximum(seen_both_e**2 / weights_e, min(n, m) - 1)
    over_both_e = scipy.special.stdtrit(freedom_e, 1 - alpha / 2) * np.sqrt(seen_both_e)
    needed_e, both_e = np.maximum(np.sqrt(n * seeds_e) * reach_e, over_both_e), np.sqrt(both_e)

    def missing(effect: float) -> float:
        above, below = (scipy.special.ndtr((sign * effect - needed_e) / both_e) for sign in (1, -1))
        return float(np.mean(above + below)) - CHANCE

    return scipy.optimize.brentq(missing, 0.0, float((needed_e + 10 * both_e).max()), rtol=1e-9)


def detectable_floor(noise: TwoWay, alpha: float = ALPHA) -> float:
    """Return the same with as many seeds as there may be, on as much text: what no seeds lower. Student's t-test."""
    return noise.floor * _floor(degrees(noise.effective), alpha)


@functools.lru_cache(maxsize=256)
def _floor(freedom: float, alpha: float) -> float:
    """Return the mean that Student's t-test finds with a power of 80 %, in standard errors as they were estimated."""
    bound, ratios = float(scipy.special.stdtrit(freedom, 1 - alpha / 2)), spread_ratios(freedom)

    def missing(effect: float) -> float:
        below = scipy.special.nctdtr(freedom, effect * ratios, bound)
        return float(np.mean(1 - np.where(np.isfinite(below), below, 0.0))) - CHANCE

    return scipy.optimize.brentq(missing, 0.0, 1e5, xtol=1e-9)
