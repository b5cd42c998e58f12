"""Scaling laws of loss with compute, L = E + A (C / C0)^-a: fit, extrapolation and intervals.

The law is fitted to the means of the rungs of a ladder by Huber's loss on the residuals of log L (Hoffmann et al. 2022,
https://arxiv.org/abs/2203.15556, appendix D.3), over all exponents of a grid and then closer: for one exponent the rest
is nearly linear. A is above zero, and E lies between zero and the data. Intervals come from a bootstrap over seeds, the
same in baseline and arm, whose percentiles are too narrow for 3 to 6 seeds: they are stretched by Student's t with
Satterthwaite's degrees of freedom. Legend: d draws, k rungs, s seeds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

MIN_RUNGS = 3  # rungs that a law of three parameters takes
EXPONENTS = np.geomspace(0.005, 4.0, 14)  # grid of exponents that are tried first
DELTA = 1e-3  # residual of log L from which Huber's loss grows no longer with its square: that of Hoffmann et al
TUNING = 1.345  # Huber's threshold in standard errors of a rung's mean: normal noise then costs 5 % of the precision
_GOLDEN = (math.sqrt(5) - 1) / 2
_CLOSER, _NEWTON = 14, 2


@dataclass(frozen=True)
class Law:
    """L = floor + scale (C / reference)^-exponent, or as many of them as its arrays are long.

    `reference` is a compute in the middle of those it was fitted to; the other three are NaN where losses do not fall.
    """

    floor: Array
    scale: Array
    exponent: Array
    reference: float

    def loss(self, compute: ArrayLike) -> Array:
        """Return the loss at a compute."""
        return self.floor + self.scale * np.exp(-self.exponent * np.log(np.asarray(compute) / self.reference))

    def log_compute(self, loss: ArrayLike) -> Array:
        """Return the logarithm of the compute that reaches a loss; infinite at the floor or below."""
        above = np.asarray(loss) - self.floor
        with np.errstate(divide="ignore", invalid="ignore"):
            log_ratio = np.log(self.scale / above) / self.exponent
        reached = np.where(above > 0, log_ratio, np.inf)
        return np.where(np.isnan(self.scale), np.nan, reached) + math.log(self.reference)

    def steepness(self, compute: ArrayLike) -> Array:
        """Return the fall of the loss per e-fold of compute."""
        return self.exponent * (self.loss(compute) - self.floor)

    @property
    def falls(self) -> bool:
        """True if the losses fall with compute, so that the law is defined."""
        return bool(np.isfinite(self.scale).all())


def fit(compute: Sequence[float] | Array, loss: ArrayLike, delta: float = DELTA) -> Law:
    """Fit the law to losses (k,), or many sets of them (d, k), by compute (k,) in any unit, with Huber's loss.

    Raises ValueError for fewer than three rungs, and computes or losses that are not above zero.
    """
    c_k, y_dk = np.asarray(compute, dtype=float), np.atleast_2d(np.asarray(loss, dtype=float))
    if len(c_k) < MIN_RUNGS:
        raise ValueError(f"{len(c_k)} rungs, expected {MIN_RUNGS} or more: a law has three parameters")
    if not (c_k > 0).all() or not (y_dk > 0).all():
        raise ValueError("expected computes and losses above zero")
    reference = math.exp(float(np.log(c_k).mean()))
    log_k = np.log(c_k / reference)

    def missed(exponent_d: Array) -> Array:
        return _linear(exponent_d, log_k, y_dk, delta)[2]

    misfits = np.stack([missed(np.full(len(y_dk), guess)) for guess in EXPONENTS])
    place = np.clip(misfits.argmin(axis=0), 1, len(EXPONENTS) - 2)
    low, high = np.log(EXPONENTS[place - 1]), np.log(EXPONENTS[place + 1])
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    of_left, of_right = missed(np.exp(left)), missed(np.exp(right))
    for _ in range(_CLOSER if len(y_dk) > 1 else 3 * _CLOSER):
        lower = of_left < of_right
        low, high = np.where(lower, low, left), np.where(lower, right, high)
        new = np.where(lower, high - _GOLDEN * (high - low), low + _GOLDEN * (high - low))
        of_new = missed(np.exp(new))
        left, right = np.where(lower, new, right), np.where(lower, left, new)
        of_left, of_right = np.where(lower, of_new, of_right), np.where(lower, of_left, of_new)
    exponent = np.exp((low + high) / 2)
    floor, scale, _ = _linear(exponent, log_k, y_dk, delta)
    falls = scale > 0
    of_d = [np.where(falls, part, np.nan) for part in (floor, scale, exponent)]
    floor, scale, exponent = (part[0] for part in of_d) if np.ndim(loss) == 1 else of_d
    return Law(floor, scale, exponent, reference)


def _linear(exponent_d: Array, log_k: Array, y_dk: Array, delta: float) -> tuple[Array, Array, Array]:
    """Fit floor and scale for each exponent, and return Huber's loss of each fit."""
    x_dk = np.exp(-exponent_d[:, None] * log_k)
    floor, scale = _solved(x_dk, y_dk, 1 / y_dk**2)
    for _ in range(_NEWTON):
        y_hat = np.maximum(floor[:, None] + scale[:, None] * x_dk, 1e-9 * y_dk)
        r_dk = np.log(y_dk / y_hat)
        w_dk = np.minimum(1.0, delta / np.maximum(np.abs(r_dk), 1e-300)) / y_hat**2
        floor, scale = _solved(x_dk, y_hat * (1 + r_dk), w_dk)
    pure = np.log(y_dk / x_dk)  # with a floor of zero only the scale is left, a location
    level = pure.mean(axis=1)
    for _ in range(_NEWTON):
        w_dk = np.minimum(1.0, delta / np.maximum(np.abs(pure - level[:, None]), 1e-300))
        level = (w_dk * pure).sum(axis=1) / w_dk.sum(axis=1)
    below = floor < 0
    floor, scale = np.where(below, 0.0, floor), np.where(below, np.exp(level), scale)
    flat = scale <= 0
    floor, scale = np.where(flat, np.exp(np.log(y_dk).mean(axis=1)), floor), np.where(flat, 0.0, scale)
    r_dk = np.abs(np.log(y_dk / np.maximum(floor[:, None] + scale[:, None] * x_dk, 1e-9 * y_dk)))
    losses = np.where(r_dk <= delta, 0.5 * r_dk**2, delta * (r_dk - 0.5 * delta))
    return floor, scale, losses.sum(axis=1)


def _solved(x_dk: Array, y_dk: Array, w_dk: Array) -> tuple[Array, Array]:
    """Return offset and slope of weighted least squares, a line for each draw."""
    total = w_dk.sum(axis=1)
    x, y = (w_dk * x_dk).sum(axis=1) / total, (w_dk * y_dk).sum(axis=1) / total
    off = x_dk - x[:, None]
    slope = (w_dk * off * y_dk).sum(axis=1) / np.maximum((w_dk * off**2).sum(axis=1), 1e-300)
    return y - slope * x, slope


def draw_means(values_s: Array, weights_ds: Array) -> Array:
    """Draw bootstrap means of a rung's finite seeds, (d,), with a normal weight for each seed's deviation."""
    finite = np.isfinite(values_s)
    n = int(finite.sum())
    if n < 2:
        return np.full(len(weights_ds), float(values_s[finite][0]) if n else math.nan)
    centre = values_s[finite].mean()
    return centre + weights_ds[:, finite] @ (values_s[finite] - centre) / math.sqrt(n * (n - 1))


def freedom(statistic_d: Array, sources: Sequence[Array], of_sources: Sequence[int]) -> float:
    """Return Satterthwaite's degrees of freedom of a statistic from its draws and those of its sources of noise."""
    finite = np.isfinite(statistic_d)
    if not finite.any():
        return float(min(of_sources))
    low, high = np.quantile(statistic_d[finite], (0.02, 0.98))
    y_d = np.clip(np.nan_to_num(statistic_d, nan=low, posinf=high, neginf=low), low, high)
    columns = [np.atleast_2d(source.T).T for source in sources]
    centred = [column - column.mean(axis=0) for column in columns]
    slopes = np.linalg.lstsq(np.hstack(centred), y_d - y_d.mean(), rcond=None)[0]
    ends = np.cumsum([column.shape[1] for column in columns])[:-1]
    parts = [float((c @ b).var()) for c, b in zip(centred, np.split(slopes, ends), strict=True)]
    total = sum(part**2 / of for part, of in zip(parts, of_sources, strict=True))
    return sum(parts) ** 2 / total if total > 0 else float(sum(of_sources))


def interval(
    value: float, draws_d: Array, sources: Sequence[Array], of_sources: Sequence[int], confidence: float = 0.95
) -> tuple[float, float]:
    """Stretch the percentile interval of a value by Student's t over the normal quantile.

    That of an infinite value, from which nothing can be measured, holds as many more of the draws.
    """
    low, high = quantiles(draws_d, confidence)
    share = 1 - (1 - confidence) / 2
    reach = float(scipy.special.stdtrit(freedom(draws_d, sources, of_sources), share))
    if math.isinf(value):
        return quantiles(draws_d, 1 - 2 * float(scipy.special.ndtr(-reach)))
    wider = reach / float(scipy.special.ndtri(share))
    return value + wider * (low - value), value + wider * (high - value)


def quantiles(draws_d: Array, confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval that holds a share of the draws; NaN counts as infinite on either side."""
    sorted_low, sorted_high = (np.sort(np.where(np.isnan(draws_d), far, draws_d)) for far in (-np.inf, np.inf))
    tail = (1 - confidence) / 2 * (len(draws_d) - 1)
    return float(sorted_low[math.floor(tail)]), float(sorted_high[math.ceil(len(draws_d) - 1 - tail)])
