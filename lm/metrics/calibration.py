"""Calibration errors, as pure functions of sums over bins, and the temperature that fits best.

They take sums over the tokens of each bin, float64 of shape (m,): the number of tokens, their confidences, the tokens
that are right, and confidence (1 - confidence), the variance of being right under calibration.

Legend: m bins, f fine bins, n tokens, r some of them, k classes, v vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from lm.data import IGNORED

FINE_BINS, FINE_LIMIT = 4096, 16.0
"""The fine histogram: equal bins of the log-odds of the confidence between -limit and limit, open at both ends."""

LOGITS_PER_CHUNK = 2**21
"""Logits processed at a time: few enough for a processor's cache, and enough to keep its threads busy."""

MAX_LOG_TEMPERATURE = 5.0  # bound of |log T|


def bin_index(confidence_n: Tensor, bins: int) -> Tensor:
    """Return the equal-width bin [lo, hi) of each probability; 1.0 falls into the last.

    >>> bin_index(torch.tensor([0.0, 0.49, 0.5, 1.0]), bins=2).tolist()
    [0, 0, 1, 1]
    """
    return (confidence_n * bins).long().clamp(0, bins - 1)


def fine_bin_index(odds_against_n: Tensor) -> Tensor:
    """Return the fine bin of each confidence c, given (1 - c) / c, which loses no digits next to c = 1."""
    index_n = (FINE_LIMIT - odds_against_n.log()) * (FINE_BINS / (2 * FINE_LIMIT))
    return index_n.clamp(0, FINE_BINS - 1).long().clamp(0, FINE_BINS - 1)  # a NaN is clamped once it is a number


def expected_calibration_error(count_m: Tensor, confidence_m: Tensor, correct_m: Tensor) -> float:
    """Compute sum over bins of |correct - confidence| / n (Guo et al. 2017, equation 3).

    >>> count_m, confidence_m, correct_m = torch.tensor([[2.0, 2.0], [0.5, 1.5], [0.0, 2.0]])
    >>> expected_calibration_error(count_m, confidence_m, correct_m)
    0.25
    """
    return float((correct_m - confidence_m).abs().sum() / count_m.sum())


def maximum_calibration_error(count_m: Tensor, confidence_m: Tensor, correct_m: Tensor) -> float:
    """Compute the largest |accuracy - confidence| of a bin that holds tokens; NaN without any.

    Guo et al. 2017, equation 5.
    """
    filled_m = count_m > 0
    gap_m = ((correct_m - confidence_m).abs() / count_m)[filled_m]
    return float(gap_m.max()) if gap_m.numel() else math.nan


def corrected_calibration_error(error: float, floor: float) -> float:
    """Subtract the part of sampling noise from a calibration error: sqrt(error^2 - floor^2), or 0.

    Where gaps are far above the noise nothing is to be subtracted, and next to nothing is. A perfectly calibrated model
    keeps .25 to .29 of its floor on average, since half of the samples lie above it: for a language model's confidences
    .015 at 500 tokens, .008 at 1,500, .003 at 10,000. Gaps about as large as the noise come out up to .2 of the floor
    too small. No estimate is free of bias at both ends; with the same samples, that of Kumar et al. 2019
    (https://arxiv.org/abs/1909.10155, section 5) keeps .57 of the floor, and the monotonic sweep of Roelofs et al. 2022
    (https://arxiv.org/abs/2012.08668) .7 to 1.0.

    >>> round(corrected_calibration_error(0.05, floor=0.03), 6)
    0.04
    """
    return math.sqrt(max(0.0, error**2 - floor**2)) if not math.isnan(error) else error


def calibration_floor(count_m: Tensor, confidence_m: Tensor, variance_m: Tensor) -> float:
    """Compute the mean calibration error of a perfectly calibrated model with these confidences.

    Each bin adds E|right - sum of confidences| / n. Of `count` tokens of equal confidence the number right is binomial,
    and its mean absolute deviation has a closed form (de Moivre); it is scaled to the standard deviation of the bin. In
    large bins this is sqrt(2 variance / pi), and 2 variance for one token.
    """
    filled_m = count_m > 0
    count_m, variance_m = count_m[filled_m], variance_m[filled_m]
    confidence_m = confidence_m[filled_m].minimum(count_m)
    chance_m = confidence_m / count_m
    below_m = confidence_m.floor().minimum(count_m - 1)
    log_ways_m = count_m.lgamma() - (below_m + 1).lgamma() - (count_m - below_m).lgamma()
    above_m = count_m - 1 - below_m
    log_mass_m = log_ways_m + torch.xlogy(below_m, chance_m) + torch.special.xlog1py(above_m, -chance_m)
    deviation_m = 2 * (variance_m * confidence_m * (1 - chance_m)).sqrt() * log_mass_m.exp()
    return float(deviation_m.sum() / count_m.sum())


def adaptive_calibration_error(count_f: Tensor, confidence_f: Tensor, correct_f: Tensor, bins: int = 15) -> float:
    """Compute the calibration error over bins of equal mass (Nixon et al. 2019).

    https://arxiv.org/abs/1904.01685. The bins are cut from finer ones, in the order of confidence; a fine bin that two
    share is divided in proportion. NaN without tokens.
    """
    filled_f = (count_f > 0).cpu().numpy()
    sums_qf = torch.stack([count_f, confidence_f, correct_f]).cpu().numpy()[:, filled_f]
    if not filled_f.any():
        return math.nan
    until_qf = np.concatenate([np.zeros((3, 1)), sums_qf.cumsum(axis=1)], axis=1)
    edges = np.linspace(0, until_qf[0, -1], bins + 1)
    confidence, correct = (np.diff(np.interp(edges, until_qf[0], until_f)) for until_f in until_qf[1:])
    return float(np.abs(correct - confidence).sum() / until_qf[0, -1])


def classwise_calibration_error(excess_km: Tensor, tokens: int) -> float:
    """Compute the mean over classes of the calibration error of p(class) (Kull et al. 2019).

    https://arxiv.org/abs/1910.12656. `excess_km` sums p(class) - [target is class] over the tokens of each bin of
    p(class).
    """
    return float(excess_km.abs().sum(1).mean() / tokens) if tokens else math.nan


def row_slices(logits_nv: Tensor) -> Iterator[slice]:
    """Return slices of rows of about LOGITS_PER_CHUNK logits, which bounds the memory that they need."""
    tokens, vocabulary = logits_nv.shape
    rows = max(1, LOGITS_PER_CHUNK // vocabulary)
    return (slice(start, start + rows) for start in range(0, tokens, rows))


def at_least_float32(logits_nv: Tensor) -> Tensor:
    """Return logits in float32 at least, without a gradient."""
    return logits_nv.detach().float() if logits_nv.element_size() < 4 else logits_nv.detach()


def scale_logits(logits_nv: Tensor, temperature: float) -> Tensor:
    """Divide logits by a temperature, in float32 at least: rounded to bfloat16, neighbours become ties."""
    return logits_nv if temperature == 1 else at_least_float32(logits_nv) / temperature


def loss_and_slope(logits_nv: Tensor, targets_n: Tensor, log_temperature: Tensor) -> Tensor:
    """Sum the NLL in nats of logits / T, and its derivative to log T, over tokens; float64 of shape (2,)."""
    sums = log_temperature.new_zeros(2, device=logits_nv.device)
    counted_n = targets_n != IGNORED
    for rows in row_slices(logits_nv):
        counted_r, target_r1 = counted_n[rows], targets_n[rows, None].clamp(min=0)
        scaled_rv = logits_nv[rows].detach().double() * (-log_temperature).exp().to(logits_nv.device)
        target_r = scaled_rv.gather(1, target_r1)[:, 0]
        total_r = scaled_rv.logsumexp(1)
        mean_r = torch.linalg.vecdot(scaled_rv, (scaled_rv - total_r[:, None]).exp())
        terms_2r = torch.stack([total_r - target_r, target_r - mean_r])
        sums += torch.where(counted_r, terms_2r, 0.0).sum(1)
    return sums


def fit_temperature(passes: Callable[[], Iterable[tuple[Tensor, Tensor]]]) -> float:
    """Find the T > 0 that minimises the NLL of logits / T (Guo et al. 2017, https://arxiv.org/abs/1706.04599).

    Dividing by it leaves every argmax as it was. T lies within e^-5 and e^5: where every token is right, less is always
    better, and T ends near the lower bound. Fit on one split and measure on another. Raises ValueError where there are
    no tokens, or a logit is not finite.

    Args:
        passes: iterates once over the split each time it is called, about ten times in all: logits (n, v) and targets
            (n,),
            of which those that are IGNORED do not count. The same values each time, recomputed or kept.
    """
    log_temperature = torch.zeros((), dtype=torch.float64)
    optimizer = torch.optim.LBFGS(
        [log_temperature], max_iter=50, tolerance_grad=1e-9, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        bounded = log_temperature.detach().clamp(-MAX_LOG_TEMPERATURE, MAX_LOG_TEMPERATURE)
        excess = log_temperature.detach() - bounded
        sums, tokens = torch.zeros(2, dtype=torch.float64), 0
        for logits_nv, targets_n in passes():
            sums += loss_and_slope(logits_nv, targets_n, bounded).cpu()
            tokens += int((targets_n != IGNORED).sum())
        if not tokens:
            raise ValueError("fit_temperature: passes() gives no tokens, expected at least one target to predict")
        loss, slope = sums / tokens
        if not (loss.isfinite() and slope.isfinite()):
            raise ValueError(f"fit_temperature: the NLL is {float(loss)}, expected logits that are finite")
        log_temperature.grad = slope + 2 * excess  # past the bound the NLL goes on as a parabola with the same slope
        return loss + slope * excess + excess**2

    optimizer.step(closure)
    return float(log_temperature.detach().clamp(-MAX_LOG_TEMPERATURE, MAX_LOG_TEMPERATURE).exp())
