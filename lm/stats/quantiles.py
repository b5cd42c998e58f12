"""Distributions and the bootstrap of `scipy.stats`, whose import takes a second, from `scipy.special` alone."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]
RESAMPLES = 9_999


def t_quantile(share: float, freedom: float) -> float:
    """Return the value below which Student's t lies with this chance."""
    return float(special.stdtrit(freedom, share))


def normal_quantile(share: float) -> float:
    """Return the value below which a standard normal number lies with this chance."""
    return float(special.ndtri(share))


def normal_tail(value: float) -> float:
    """Return the chance that a standard normal number lies above a value."""
    return float(special.ndtr(-value))


def f_tail(value: float, above: float, below: float) -> float:
    """Return the chance that F with these degrees of freedom lies above a value."""
    return float(special.fdtrc(above, below, value))


def find_root(function: Callable[..., float], low: float, high: float, **settings: Any) -> float:
    """Return the root of a function between two values, as `scipy.optimize.brentq` does."""
    from scipy import optimize  # takes a fifth of a second

    return float(optimize.brentq(function, low, high, **settings))


def bootstrap_bca(
    samples: Sequence[Sequence[float]], statistic: Callable[..., Any], confidence: float = 0.95
) -> tuple[float, float]:
    """Return the BCa interval (Efron 1987) of a statistic of one sample or of several, over seeded resamples.

    Args:
        samples: a sample, or several that are drawn apart.
        statistic: takes the samples and `axis`, and returns a number for each row.
        confidence: share of intervals that hold the true value.
    """
    data, random = [np.asarray(sample, dtype=float) for sample in samples], np.random.default_rng(0)
    drawn = [sample[random.integers(0, len(sample), (RESAMPLES, len(sample)))] for sample in data]
    draws_d, whole = statistic(*drawn, axis=-1), statistic(*data, axis=-1)
    bias = special.ndtri((np.count_nonzero(draws_d < whole) + np.count_nonzero(draws_d <= whole)) / (2 * RESAMPLES))
    cubes = squares = 0.0
    for index, sample in enumerate(data):
        n = len(sample)
        left_out = np.broadcast_to(sample, (n, n))[~np.eye(n, dtype=bool)].reshape(n, n - 1)
        values_n = statistic(*(left_out if other == index else data[other] for other in range(len(data))), axis=-1)
        influence_n = (n - 1) * (values_n.mean() - values_n)
        cubes += float((influence_n**3).sum()) / n**3
        squares += float((influence_n**2).sum()) / n**2
    acceleration = 1 / 6 * cubes / squares**1.5 if squares else math.nan
    shifts = [bias + sign * special.ndtri((1 - confidence) / 2) for sign in (1, -1)]
    shares = [float(special.ndtr(bias + shift / (1 - acceleration * shift))) for shift in shifts]
    if any(map(math.isnan, shares)):
        return math.nan, math.nan
    low, high = (_quantile(np.sort(draws_d), share) for share in shares)
    return low, high


def _quantile(sorted_d: Array, share: float) -> float:
    """Interpolate a quantile between two values, rounded as `scipy.stats.quantile` does."""
    place = share * len(sorted_d) + 1 - share
    above, last = place // 1, len(sorted_d) - 1
    weight = place % 1 if above >= 1 else 0.0
    lower, upper = (sorted_d[int(np.clip(index, 0, last))] for index in (above - 1, above))
    return float((1 - weight) * lower + weight * upper)
