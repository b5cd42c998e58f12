"""Trend of an effect with compute (grows, holds, fades): a line over log compute, weighted by noise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy

from lm.stats.scaling import Array, interval

MIN_PAIRS = 3  # pairs that every rung needs before a trend is called anything

# Kind of trend; `turns` is a significant slope whose middle is not significant.
Kind = Literal["grows", "holds", "fades", "turns", "inconclusive", "too few", "none"]


@dataclass(frozen=True)
class Estimate:
    """A value and its interval, NaN where undefined."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan

    @property
    def excludes_zero(self) -> bool:
        """True if the interval lies on one side of zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Trend:
    """The slope of a line per decade of compute and its middle; `margin` is the slope that counts as none, or NaN."""

    kind: Kind = "none"
    slope: Estimate = Estimate()
    middle: Estimate = Estimate()
    margin: float = math.nan


def mean_variances(variance_k: Array, seeds_k: Array) -> Array:
    """Return the variance of each rung's mean under the pooled variance: that of a few seeds may be small by chance."""
    free_k = seeds_k - 1
    variances_k: Array = (variance_k * free_k).sum() / free_k.sum() / seeds_k
    return variances_k


def trend_weights(compute_k: Array, variance_k: Array) -> tuple[Array, Array]:
    """Return the weights of heights in the slope per decade of the best line, and in its middle."""
    x_k, w_k = np.log10(compute_k), 1 / variance_k
    middle = w_k / w_k.sum()
    off = x_k - middle @ x_k
    return w_k * off / (w_k @ off**2), middle


def estimate_from_means(values: Sequence[Array], weights_k: Array, confidence: float) -> Estimate:
    """Return a weighted sum of the means of several rungs' values, with Welch's interval."""
    n_k = np.array([len(rung_values) for rung_values in values])
    parts_k = weights_k**2 * np.array([rung_values.var(ddof=1) for rung_values in values]) / n_k
    value = float(weights_k @ np.array([rung_values.mean() for rung_values in values]))
    if not parts_k.any():
        return Estimate(value, value, value)
    degrees = parts_k.sum() ** 2 / (parts_k**2 / (n_k - 1)).sum()
    half = float(scipy.special.stdtrit(degrees, 1 - (1 - confidence) / 2) * math.sqrt(parts_k.sum()))
    return Estimate(value, value - half, value + half)


def estimate_from_draws(
    values_k: Array, draws_dk: Array, weights_k: Array, sources: Sequence[Array], of: Sequence[int], confidence: float
) -> Estimate:
    """Return a weighted sum of heights that have draws; unbounded where a height is."""
    with np.errstate(invalid="ignore"):
        value, drawn = float(weights_k @ values_k), draws_dk @ weights_k
    if not math.isfinite(value):
        return Estimate()
    return Estimate(value, *interval(value, drawn, sources, of, confidence))


def judge_trend(slope: Estimate, narrow: Estimate, middle: Estimate, fewest: int, margin: float) -> Trend:
    """Judge a slope by itself, its `narrow` interval for two one-sided tests, its `middle`, and the `fewest` pairs."""
    if math.isnan(slope.value):
        return Trend("none", slope, middle, margin)
    kind: Kind = "inconclusive"
    if fewest < MIN_PAIRS:
        kind = "too few"
    elif -margin < narrow.low and narrow.high < margin:
        kind = "holds"
    elif slope.excludes_zero:
        kind = "turns" if not middle.excludes_zero else "grows" if slope.value * middle.value > 0 else "fades"
    return Trend(kind, slope, middle, margin)


def trend_of_means(compute_k: Array, values: Sequence[Array], margin: float, confidence: float) -> Trend:
    """Judge the trend of the means of several rungs' values; each rung needs two values."""
    fewest = min(len(rung_values) for rung_values in values)
    if len(values) < 2 or fewest < 2:
        return Trend("too few" if fewest < 2 else "none", margin=margin)
    variance_k = np.array([rung_values.var(ddof=1) for rung_values in values])
    spread_k = mean_variances(variance_k, np.array([len(rung_values) for rung_values in values]))
    if not spread_k.all():
        spread_k = np.ones(len(values))
    rise_k, middle_k = trend_weights(compute_k, spread_k)
    slope, narrow = (estimate_from_means(values, rise_k, level) for level in (confidence, 2 * confidence - 1))
    return judge_trend(slope, narrow, estimate_from_means(values, middle_k, confidence), fewest, margin)
