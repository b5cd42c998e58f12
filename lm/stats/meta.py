"""One difference over several experiments: a random-effects summary (Hartung and Knapp 2001; Higgins et al. 2009)."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

LEVEL = 0.95  # of both intervals
FEWEST = 3  # experiments from which on a mean may have a verdict: two hardly tell how far a third may be
TAU_BOUND = 0.2  # chance with which tau lies above what the interval of another experiment is made with


@dataclass(frozen=True)
class OverExperiments:
    """The mean of true differences over experiments like these, and how much they differ.

    `low` and `high` hold the mean. `tau` is the standard deviation of true differences, `i2` the share of the variance
    that is theirs, and `next_low` and `next_high` hold the true difference in another experiment; NaN below three.
    """

    mean: float
    low: float
    high: float
    tau: float
    i2: float
    next_low: float
    next_high: float


def over_experiments(
    differences: Sequence[float],
    errors: Sequence[float],
    lower: Sequence[float] | None = None,
    higher: Sequence[float] | None = None,
) -> OverExperiments:
    """Summarise differences of two or more experiments with their standard errors.

    Each may lie `lower` and `higher` by so much for other reasons than noise, such as the choice of learning rates:
    the intervals reach as far as the mean moves with it.

    tau is Paule and Mandel's. The interval is the wider one of Hartung and Knapp's and of the plain one with quantiles
    of Student's t: the first alone is too short where differences happen to agree (Röver et al. 2015). That of another
    experiment takes an upper bound of tau by Q profiles (Viechtbauer 2007): with tau itself, simulated ones held .86.
    """
    from statsmodels.stats.meta_analysis import combine_effects  # takes a second to import

    d, variance, number = np.array(differences), np.square(errors), len(differences)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it speaks of intervals of single experiments, which are not asked for
        combined = combine_effects(d, variance, method_re="iterated", use_t=True)
        _, plain, _, knapp = combined.conf_int(alpha=1 - LEVEL, use_t=True)
    mean, tau2 = float(combined.mean_effect_re), max(0.0, float(combined.tau2))
    half = max(float(high - low) / 2 for low, high in (plain, knapp))
    spread = math.nan
    if number > 2:
        bound = max(tau2, _tau2_at(d, variance, float(stats.chi2.ppf(TAU_BOUND, number - 1))))
        quantile = float(stats.t.ppf((1 + LEVEL) / 2, number - 2))
        spread = quantile * math.sqrt(bound + 1 / float((1 / (variance + bound)).sum()))
    q = _q(0.0, d, variance)
    i2 = max(0.0, 1 - (number - 1) / q) if q else 0.0
    weights = 1 / (variance + tau2)
    down, up = (0.0 if shift is None else float(np.average(shift, weights=weights)) for shift in (lower, higher))
    low, next_low = (mean - reach - down for reach in (half, spread))
    high, next_high = (mean + reach + up for reach in (half, spread))
    return OverExperiments(mean, low, high, math.sqrt(tau2), i2, next_low, next_high)


def _q(tau2: float, d: np.ndarray, variance: np.ndarray) -> float:
    """Compute Cochran's Q of differences whose true values vary by `tau2`."""
    weights = 1 / (variance + tau2)
    return float(weights @ (d - weights @ d / weights.sum()) ** 2)


def _tau2_at(d: np.ndarray, variance: np.ndarray, target: float) -> float:
    """Return the tau squared at which Q is `target`, 0 where Q is less from the start."""
    if _q(0.0, d, variance) <= target:
        return 0.0
    high = float(d.var() + variance.max())
    while _q(high, d, variance) > target:
        high *= 4
    return float(optimize.brentq(lambda tau2: _q(tau2, d, variance) - target, 0.0, high))
