"""Scaling law of loss with size and length, L(N, D) = E + A (N / N0)^-alpha + B (D / D0)^-beta, and gains by it.

Approach 3 of Hoffmann et al. 2022 (https://arxiv.org/abs/2203.15556): Huber's loss on the residuals of log L, minimised
by L-BFGS from a grid of starts. Every draw of a bootstrap over seeds is then fitted from that minimum by damped
Gauss-Newton steps, all draws at once. N are trainable parameters with the embeddings, D training tokens, N0 and D0
their geometric means. Legend: d draws, k points, p the five numbers of the law.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike

from lm.stats.compute_gain import DRAWS, Beyond, Gain, LadderDraws, ScalePoint, misfit
from lm.stats.scaling import Array, interval
from lm.stats.trend import Estimate

POINTS, SIZES = 5, 3  # of a law: as many points as it has numbers, and sizes or lengths to tell E, A and alpha apart
SMALLEST = 1e-3  # share of the loss at which E, A or B counts as zero
EXPONENTS = (0.01, 3.0)  # bounds of alpha and beta
STARTS = tuple(product((0.3, 0.8), (0.2, 0.8), (0.2, 0.8)))  # E as a share of the loss, alpha, beta
_STEPS, _DOUBLINGS = 80, 60


@dataclass(frozen=True)
class SizeLengthLaw:
    """The law, or as many of them as its arrays are long; `parameters` and `tokens` are N0 and D0."""

    floor: Array
    of_size: Array
    of_length: Array
    alpha: Array
    beta: Array
    parameters: float
    tokens: float

    def loss(self, parameters: ArrayLike, tokens: ArrayLike) -> Array:
        """Return the loss of a size and a length."""
        return self.floor + self._size(parameters) + self._length(tokens)

    def log_tokens(self, loss: ArrayLike, parameters: ArrayLike) -> Array:
        """Return the logarithm of the tokens at which a size reaches a loss; infinite beyond any amount of data."""
        above = np.asarray(loss) - self.floor - self._size(parameters)
        return _log_ratio(self.of_length, above, self.beta) + math.log(self.tokens)

    def log_parameters(self, loss: ArrayLike, tokens: ArrayLike) -> Array:
        """Return the logarithm of the parameters that reach a loss with some tokens; infinite beyond any size."""
        above = np.asarray(loss) - self.floor - self._length(tokens)
        return _log_ratio(self.of_size, above, self.alpha) + math.log(self.parameters)

    def log_growth(self, loss: ArrayLike, parameters: float, tokens: float) -> Array:
        """Return the logarithm of the factor by which size and length reach a loss together; infinite at the floor."""
        above = np.asarray(loss) - self.floor
        a, b = self._size(parameters), self._length(tokens)
        low, high = np.full(above.shape, -200.0), np.full(above.shape, 200.0)
        for _ in range(_DOUBLINGS):
            middle = (low + high) / 2
            more = a * np.exp(-self.alpha * middle) + b * np.exp(-self.beta * middle) > above
            low, high = np.where(more, middle, low), np.where(more, high, middle)
        return np.where(above > 0, (low + high) / 2, np.inf)

    def _size(self, parameters: ArrayLike) -> Array:
        return self.of_size * np.exp(-self.alpha * np.log(np.asarray(parameters) / self.parameters))

    def _length(self, tokens: ArrayLike) -> Array:
        return self.of_length * np.exp(-self.beta * np.log(np.asarray(tokens) / self.tokens))


def _log_ratio(scale: Array, above: Array, exponent: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(above > 0, np.log(scale / above) / exponent, np.inf)


class SizeLengthFit:
    """Fits of the law to losses at sizes and lengths."""

    def __init__(self, parameters_k: ArrayLike, tokens_k: ArrayLike, delta: float) -> None:
        """Take the points; `delta` is Huber's bound. Raises ValueError for points that cannot identify a law."""
        self.n_k, self.d_k = (np.asarray(values, dtype=float) for values in (parameters_k, tokens_k))
        if not (self.n_k > 0).all() or not (self.d_k > 0).all() or not delta > 0:
            raise ValueError("expected sizes, lengths and delta above zero")
        if reason := unidentified(self.n_k, self.d_k):
            raise ValueError(reason)
        self.delta = delta
        self.n0, self.d0 = (math.exp(float(np.log(values).mean())) for values in (self.n_k, self.d_k))
        self.x_k, self.y_k = np.log(self.n_k / self.n0), np.log(self.d_k / self.d0)

    def best(self, loss_k: ArrayLike) -> tuple[Array, str]:
        """Return the five logarithms of the best law, (1, p), and which of them are at a bound, in words."""
        log_k = np.log(np.asarray(loss_k, dtype=float))
        box = self._box(log_k)
        starts = np.array([np.log([e, (1 - e) / 2, (1 - e) / 2, a, b]) for e, a, b in STARTS])
        starts[:, :3] += log_k.mean()
        how: dict[str, Any] = {"method": "L-BFGS-B", "jac": True, "bounds": list(zip(*box, strict=True))}
        ends = [scipy.optimize.minimize(self._objective, start, (log_k,), **how) for start in starts]
        best_1p = self.closer(min(ends, key=lambda end: float(end.fun)).x[None], log_k[None], box)
        at_1p = np.isclose(best_1p, box[0], atol=1e-3) | np.isclose(best_1p, box[1], atol=1e-3)
        names = ("E", "A", "B", "alpha", "beta")
        return best_1p, ", ".join(name for name, at in zip(names, at_1p[0], strict=True) if at)

    def draws(self, best_1p: Array, loss_k: ArrayLike, loss_dk: Array) -> Array:
        """Return the logarithms of the laws of many sets of losses, (d, p), from the best law."""
        box = self._box(np.log(np.asarray(loss_k, dtype=float)))
        return self.closer(np.repeat(best_1p, len(loss_dk), axis=0), np.log(loss_dk), box)

    def law(self, theta_dp: Array) -> SizeLengthLaw:
        """Return laws by their logarithms; one alone has plain numbers."""
        e, a, b, alpha, beta = map(np.asarray, np.exp(theta_dp[0] if len(theta_dp) == 1 else theta_dp.T))
        return SizeLengthLaw(e, a, b, alpha, beta, self.n0, self.d0)

    def _box(self, log_k: Array) -> tuple[Array, Array]:
        shares = [float(log_k.min()) + math.log(SMALLEST), float(log_k.max())]
        exponents = np.log(EXPONENTS)
        return np.array([shares[0]] * 3 + [exponents[0]] * 2), np.array([shares[1]] * 3 + [exponents[1]] * 2)

    def _fitted(self, theta_dp: Array) -> tuple[Array, Array]:
        """Return log L of each law, (d, k), and its slopes, (d, k, p)."""
        e, a, b, alpha, beta = np.exp(theta_dp.T)[:, :, None]
        size_dk, length_dk = a * np.exp(-alpha * self.x_k), b * np.exp(-beta * self.y_k)
        slopes = (e + 0 * size_dk, size_dk, length_dk, -alpha * self.x_k * size_dk, -beta * self.y_k * length_dk)
        loss_dk = e + size_dk + length_dk
        return np.log(loss_dk), np.stack(slopes, axis=2) / loss_dk[:, :, None]

    def _huber(self, residual: Array) -> Array:
        size = np.abs(residual) / self.delta
        return np.where(size <= 1, 0.5 * size**2, size - 0.5).sum(axis=1)

    def _objective(self, theta_p: Array, log_k: Array) -> tuple[float, Array]:
        fitted_1k, slopes_1kp = self._fitted(theta_p[None])
        r_1k = log_k - fitted_1k
        pull_k = np.clip(r_1k[0] / self.delta, -1, 1) / self.delta
        return float(self._huber(r_1k)[0]), -pull_k @ slopes_1kp[0]

    def closer(self, theta_dp: Array, log_dk: Array, box: tuple[Array, Array]) -> Array:
        """Descend from `theta_dp`, each by damped Gauss-Newton steps under Huber's weights, within the box."""
        damping_d = np.full(len(theta_dp), 1e-3)
        fitted_dk, slopes_dkp = self._fitted(theta_dp)
        missed_d = self._huber(log_dk - fitted_dk)
        for _ in range(_STEPS):
            r_dk = log_dk - fitted_dk
            w_dk = np.minimum(1.0, self.delta / np.maximum(np.abs(r_dk), 1e-300))
            pull_dp = np.einsum("dkp,dk->dp", slopes_dkp, w_dk * r_dk)
            out_dp = ((theta_dp <= box[0]) & (pull_dp < 0)) | ((theta_dp >= box[1]) & (pull_dp > 0))
            free_dkp = np.where(out_dp[:, None], 0.0, slopes_dkp)
            square_dpp = np.einsum("dkp,dk,dkq->dpq", free_dkp, w_dk, free_dkp)
            scale_d = np.trace(square_dpp, axis1=1, axis2=2) + 1e-300
            square_dpp += (damping_d * scale_d)[:, None, None] * np.eye(5)
            step_dp = np.linalg.solve(square_dpp, np.where(out_dp, 0.0, pull_dp)[:, :, None])[:, :, 0]
            tried_dp = np.clip(theta_dp + step_dp, *box)
            fitted_new, slopes_new = self._fitted(tried_dp)
            missed_new = self._huber(log_dk - fitted_new)
            better = missed_new <= missed_d
            damping_d = np.clip(damping_d * np.where(better, 0.2, 5.0), 1e-12, 1e6)
            theta_dp = np.where(better[:, None], tried_dp, theta_dp)
            fitted_dk = np.where(better[:, None], fitted_new, fitted_dk)
            slopes_dkp = np.where(better[:, None, None], slopes_new, slopes_dkp)
            missed_d = np.where(better, missed_new, missed_d)
        return theta_dp


def unidentified(parameters_k: Array, tokens_k: Array) -> str:
    """Return why points cannot identify the law; empty where they can."""
    points = set(zip(parameters_k.tolist(), tokens_k.tolist(), strict=True))
    sizes, lengths = {n for n, _ in points}, {d for _, d in points}
    several = sum(sum(n == size for n, _ in points) > 1 for size in sizes)
    if several < 2:
        return f"{several} size{'s' * (several != 1)} with two lengths, expected 2"
    if min(len(sizes), len(lengths)) < SIZES:
        return f"{len(sizes)} sizes and {len(lengths)} lengths, expected {SIZES} of each"
    return f"{len(points)} pairs of size and length, expected {POINTS}" if len(points) < POINTS else ""


@dataclass(frozen=True)
class FittedLaw:
    """A law, its draws, the intervals of its exponents, and its misses as `lm.stats.compute_gain.misfit` has them."""

    law: SizeLengthLaw
    drawn: SizeLengthLaw
    alpha: Estimate
    beta: Estimate
    misses: tuple[float, float]


@dataclass(frozen=True)
class AxisGains:
    """Logarithms of what an arm is worth in compute at one ratio of tokens to parameters, in data and in parameters."""

    compute: Gain
    data: Gain
    parameters: Gain


Size = tuple[float, float]  # parameters and tokens of a run


class SizeLengthDraws:
    """An arm and the baseline over sizes and lengths, each point with the `Size` of either."""

    def __init__(
        self, points: Sequence[ScalePoint], base: Sequence[Size], arm: Sequence[Size], draws: int = DRAWS
    ) -> None:
        """Take at least one point, and the draws of the bootstrap. Raises ValueError unless each has both sizes."""
        if not len(points) == len(base) == len(arm):
            raise ValueError(f"{len(points)} points, with sizes of {len(base)} and {len(arm)}")
        self.ladder, self.base, self.arm = LadderDraws(points, draws), base, arm
        self.sources, self.of = self.ladder.sources(len(points)), list(map(int, self.ladder.of_k))

    def fit(self, of: Literal["base", "arm"]) -> FittedLaw | str:
        """Return the law of the baseline or of the arm, or why there is none."""
        ladder, sizes = self.ladder, np.array(self.base if of == "base" else self.arm, dtype=float)
        if not ladder.repeated:
            return "a rung has fewer than two pairs"
        if reason := unidentified(sizes[:, 0], sizes[:, 1]):
            return reason
        loss_k, loss_dk = (ladder.base_k, ladder.base_dk) if of == "base" else (ladder.arm_k, ladder.arm_dk)
        fits = SizeLengthFit(sizes[:, 0], sizes[:, 1], ladder.delta(len(sizes)))
        best_1p, at_bound = fits.best(loss_k)
        if at_bound:
            return f"the fit ends at a bound of {at_bound}, so these points do not tell its parts apart"
        law, drawn = fits.law(best_1p), fits.law(fits.draws(best_1p, loss_k, loss_dk))
        exponents = []
        for value, draws in ((float(law.alpha), drawn.alpha), (float(law.beta), drawn.beta)):
            low, high = interval(value, draws, self.sources, self.of)
            exponents.append(Estimate(value, max(0.0, low), high))
        misses = misfit(ladder, law.loss(*sizes.T), POINTS) if of == "base" else (math.nan, math.nan)
        return FittedLaw(law, drawn, exponents[0], exponents[1], misses)

    def gains(self, fitted: FittedLaw, k: int) -> AxisGains:
        """Return what the arm is worth at a point, by the baseline's law at its own loss there plus the difference."""
        (n, d), (arm_n, arm_d), point = self.base[k], self.arm[k], self.ladder.rungs[k]
        spent = math.log(point.arm_compute / point.compute)
        logs = []
        for law, difference in (
            (fitted.law, self.ladder.difference_k[k]),
            (fitted.drawn, self.ladder.difference_dk[:, k]),
        ):
            loss = law.loss(n, d) + difference
            tokens, parameters = law.log_tokens(loss, arm_n), law.log_parameters(loss, arm_d)
            logs.append(
                (2 * law.log_growth(loss, n, d) - spent, tokens - math.log(arm_d), parameters - math.log(arm_n))
            )
        sizes = np.log(np.array(self.base))
        whole = sizes.sum(axis=1)  # of compute, which goes by the product of both
        reaches = ((whole, math.log(n * d) + spent), (sizes[:, 1], math.log(arm_d)), (sizes[:, 0], math.log(arm_n)))
        of_axes = (self._gain(float(value), draws, *reach) for value, draws, reach in zip(*logs, reaches, strict=True))
        return AxisGains(*of_axes)

    def _gain(self, value: float, draws_d: Array, trained_k: Array, own: float) -> Gain:
        """Return a gain, and whether what the baseline needs lies above or below all that was trained."""
        log = Estimate(value, *interval(value, draws_d, self.sources, self.of))
        needed = own + value
        beyond: Beyond = (
            "below" if needed < trained_k.min() - 1e-9 else "above" if needed > trained_k.max() + 1e-9 else ""
        )
        return Gain(log, "floor" if math.isinf(value) else beyond)
