"""Effect of an arm at every rung of a ladder, and its trend with compute. Numbers in, values out.

The compute-equivalent gain of an arm is the compute that the baseline needs for the arm's loss, over the arm's own
(Gundlach et al. 2025, https://arxiv.org/abs/2511.21622). The baseline's law is read at its own loss at the rung plus
the paired difference: an arm that changes nothing has a gain of exactly one. Legend: d draws, k rungs, s seeds.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy

from lm.stats import trend
from lm.stats.scaling import DELTA, MIN_RUNGS, TUNING, Array, Law, draw_means, fit, interval
from lm.stats.trend import Estimate, Trend

DRAWS = 1_000

# Kind of extrapolation: above all rungs, below them, or at losses that the law never reaches.
Beyond = Literal["", "above", "below", "floor"]


@dataclass(frozen=True)
class ScalePoint:
    """Compute in FLOPs and loss of each seed of the baseline and of an arm at one size; NaN for a lost seed."""

    compute: float
    arm_compute: float
    baseline_s: Array
    arm_s: Array

    @functools.cached_property
    def base(self) -> Array:
        """Losses of the baseline's finished seeds."""
        return self.baseline_s[np.isfinite(self.baseline_s)]

    @functools.cached_property
    def arms(self) -> Array:
        """Losses of the arm's finished seeds."""
        return self.arm_s[np.isfinite(self.arm_s)]

    @functools.cached_property
    def pairs(self) -> Array:
        """Paired differences of the seeds that both finished."""
        differences = self.arm_s - self.baseline_s
        return differences[np.isfinite(differences)]


@dataclass(frozen=True)
class Gain:
    """Logarithm of a compute-equivalent gain, and where its law was extrapolated."""

    log: Estimate
    beyond: Beyond


@dataclass(frozen=True)
class Forecast:
    """Extrapolation of the lower rungs to the top one, with prediction intervals for the means measured there."""

    baseline: Estimate
    arm: Estimate
    difference: Estimate


@dataclass(frozen=True)
class ScalingFit:
    """Differences, gains, trends and forecast of one arm; None for what needs a law and has none."""

    differences: list[Estimate]
    gains: list[Gain] | None
    law: Law | None
    of_difference: Trend
    of_gain: Trend
    forecast: Forecast | None


class LadderDraws:
    """Rungs of one arm, from the least compute to the most, with bootstrap draws of the mean of seeds and pairs."""

    def __init__(self, rungs: Sequence[ScalePoint], draws: int = DRAWS) -> None:
        self.rungs = list(rungs)
        self.compute_k = np.array([rung.compute for rung in rungs])
        self.arm_compute_k = np.array([rung.arm_compute for rung in rungs])
        self.base_k = np.array([rung.base.mean() for rung in rungs])
        self.difference_k = np.array([rung.pairs.mean() for rung in rungs])
        base, paired = [], []
        for place, rung in enumerate(rungs):
            normal_ds = np.random.default_rng(place).normal(size=(draws, len(rung.baseline_s)))
            centre = rung.base.mean()
            base.append(centre * np.exp(draw_means(rung.baseline_s, normal_ds) / centre - 1))
            paired.append(draw_means(rung.arm_s - rung.baseline_s, normal_ds))
        self.base_dk, self.difference_dk = np.stack(base, axis=1), np.stack(paired, axis=1)
        self.arm_k = self.base_k + self.difference_k
        self.arm_dk = np.maximum(self.base_dk + self.difference_dk, 1e-3 * self.base_dk)
        self.relative_k = np.array([_variance(rung.base) for rung in rungs]) / self.base_k**2
        self.n_k = np.array([len(rung.base) for rung in rungs])
        self.of_k = np.maximum(1, np.array([min(len(rung.base), len(rung.pairs)) for rung in rungs]) - 1)

    @property
    def repeated(self) -> bool:
        """True if every rung has two pairs, from which its noise is estimated."""
        return min(len(rung.pairs) for rung in self.rungs) > 1

    def sources(self, rungs: int) -> list[Array]:
        """Return the draws of the lowest rungs, each an independent source of noise."""
        return [np.stack([self.base_dk[:, k], self.difference_dk[:, k]], axis=1) for k in range(rungs)]

    def delta(self, rungs: int) -> float:
        """Return Huber's bound for the means of the lowest rungs."""
        return max(DELTA, TUNING * math.sqrt(float((self.relative_k[:rungs] / self.n_k[:rungs]).mean())))

    def laws(self, of_k: Array, of_dk: Array, rungs: int) -> tuple[Law, Law]:
        """Fit the law of the means of the lowest rungs, and of each of their draws."""
        delta = self.delta(rungs)
        compute_k = (self.compute_k if of_k is self.base_k else self.arm_compute_k)[:rungs]
        return fit(compute_k, of_k[:rungs], delta), fit(compute_k, of_dk[:, :rungs], delta)


def fit_scaling(
    rungs: Sequence[ScalePoint], forecast: bool, margins: tuple[float, float], level: float = 0.05, draws: int = DRAWS
) -> ScalingFit:
    """Compute differences, gains, trends at `level` with `margins` a decade, and a forecast of an arm over rungs."""
    ladder = LadderDraws(rungs, draws)
    values = [rung.pairs for rung in rungs]
    by_rung = [
        trend.estimate_from_means([pairs], np.ones(1), 0.95) if len(pairs) > 1 else Estimate(float(pairs.mean()))
        for pairs in values
    ]
    of_difference = trend.trend_of_means(ladder.compute_k, values, margins[0], 1 - level)
    if len(rungs) < MIN_RUNGS or not ladder.repeated:
        unknown = Trend("none" if ladder.repeated else "too few", margin=margins[1])
        return ScalingFit(by_rung, None, None, of_difference, unknown, None)
    laws = ladder.laws(ladder.base_k, ladder.base_dk, len(rungs))
    gains, of_gain = None, Trend(margin=margins[1])
    if laws[0].falls:
        gains, of_gain = gains_of(ladder, laws, margins[1], level)
    own = ladder.laws(ladder.arm_k, ladder.arm_dk, len(rungs))[0]
    top_forecast = forecast_of(ladder) if forecast and len(rungs) > MIN_RUNGS else None
    return ScalingFit(by_rung, gains, own if own.falls else None, of_difference, of_gain, top_forecast)


def gains_of(ladder: LadderDraws, laws: tuple[Law, Law], margin: float, level: float) -> tuple[list[Gain], Trend]:
    """Compute the gain at every rung, and its trend."""
    (law, drawn), count = laws, len(ladder.rungs)
    sources, of = ladder.sources(count), list(map(int, ladder.of_k))
    value_k, draws_dk = np.empty(count), np.empty_like(ladder.base_dk)
    gains = []
    for k, rung in enumerate(ladder.rungs):
        needed = float(law.log_compute(law.loss(rung.compute) + ladder.difference_k[k]))
        value_k[k] = needed - math.log(rung.arm_compute)
        at = drawn.loss(rung.compute) + ladder.difference_dk[:, k]
        draws_dk[:, k] = drawn.log_compute(at) - math.log(rung.arm_compute)
        log = Estimate(value_k[k], *interval(value_k[k], draws_dk[:, k], sources, of))
        low, high = math.log(ladder.compute_k[0]) - 1e-9, math.log(ladder.compute_k[-1]) + 1e-9
        beyond: Beyond = "below" if needed < low else "above" if needed > high else ""
        gains.append(Gain(log, "floor" if math.isinf(needed) else beyond))
    variance_k = np.array([_variance(rung.pairs) for rung in ladder.rungs])
    spread_k = trend.mean_variances(variance_k, np.array([len(rung.pairs) for rung in ladder.rungs]))
    spread_k = spread_k / law.steepness(ladder.compute_k) ** 2 if spread_k.all() else np.ones(count)
    rise_k, middle_k = trend.trend_weights(ladder.compute_k, spread_k)
    slope, narrow = (
        trend.estimate_from_draws(value_k, draws_dk, rise_k, sources, of, 1 - part) for part in (level, 2 * level)
    )
    middle = trend.estimate_from_draws(value_k, draws_dk, middle_k, sources, of, 1 - level)
    return gains, trend.judge_trend(slope, narrow, middle, min(len(rung.pairs) for rung in ladder.rungs), margin)


def forecast_of(ladder: LadderDraws) -> Forecast | None:
    """Forecast the top rung, with noise like that below, from the laws of those below; None without a law."""
    below, top = len(ladder.rungs) - 1, ladder.rungs[-1]
    base, base_d = ladder.laws(ladder.base_k, ladder.base_dk, below)
    arm, arm_d = ladder.laws(ladder.arm_k, ladder.arm_dk, below)
    if not (base.falls and arm.falls):
        return None
    lower = ladder.rungs[:below]
    normal_d = np.random.default_rng(below).normal(size=len(ladder.base_dk))
    sources, of = ladder.sources(below), [*map(int, ladder.of_k[:below]), int(ladder.of_k[:below].sum())]

    def estimate(value: Array, draws_d: Array, kind: Literal["base", "arms", "pairs"]) -> Estimate:
        shares = [_variance(getattr(rung, kind)) / float(rung.base.mean()) ** 2 for rung in lower]
        together = float(np.average(shares, weights=ladder.of_k[:below]))
        noise_d = math.sqrt(together / len(getattr(top, kind))) * float(base.loss(top.compute)) * normal_d
        return Estimate(float(value), *interval(float(value), draws_d + noise_d, [*sources, noise_d], of))

    of_base, of_arm = base.loss(top.compute), arm.loss(top.arm_compute)
    of_base_d, of_arm_d = base_d.loss(top.compute), arm_d.loss(top.arm_compute)
    difference = estimate(of_arm - of_base, of_arm_d - of_base_d, "pairs")
    return Forecast(estimate(of_base, of_base_d, "base"), estimate(of_arm, of_arm_d, "arms"), difference)


def misfit(ladder: LadderDraws, law_k: Array, numbers: int = MIN_RUNGS) -> tuple[float, float]:
    """Return the largest relative error of a law of some `numbers`, and the p of it by seed noise, NaN if unknown.

    `law_k` is the loss of the baseline at each rung by the law.
    """
    missed_k = np.log(ladder.base_k / law_k)
    largest, spare = float(np.abs(missed_k).max()), len(missed_k) - numbers
    free = ladder.n_k - 1
    if not spare or not free.any() or not ladder.relative_k.any():
        return largest, math.nan
    together = float((ladder.relative_k * free).sum() / free.sum())
    f = (missed_k**2 * ladder.n_k).sum() / together / spare
    return largest, float(scipy.special.fdtrc(spare, free.sum(), f))


def _variance(values: Array) -> float:
    return float(values.var(ddof=1)) if len(values) > 1 else 0.0
