"""The temperature that makes a model's probabilities fit best.

Legend: n tokens, r some of them, v vocabulary.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from lm.data import IGNORED
from lm.metrics.tokens import exact, row_slices

LIMIT = 5.0
"""Bound of |log T|."""


def scaled(logits_nv: Tensor, temperature: float) -> Tensor:
    """Logits over a temperature, in float32 at least: rounded to bfloat16, neighbours become ties."""
    return logits_nv if temperature == 1 else exact(logits_nv) / temperature


def loss_and_slope(logits_nv: Tensor, targets_n: Tensor, log_temperature: Tensor) -> Tensor:
    """The NLL in nats of logits / T and its derivative to log T, each summed over tokens; float64 of shape (2,)."""
    sums = log_temperature.new_zeros(2, device=logits_nv.device)
    kept_n = targets_n != IGNORED
    for rows in row_slices(logits_nv):
        kept_r, target_r1 = kept_n[rows], targets_n[rows, None].clamp(min=0)
        scaled_rv = logits_nv[rows].detach().double() * (-log_temperature).exp().to(logits_nv.device)
        target_r = scaled_rv.gather(1, target_r1)[:, 0]
        total_r = scaled_rv.logsumexp(1)
        mean_r = torch.linalg.vecdot(scaled_rv, (scaled_rv - total_r[:, None]).exp())
        each_2r = torch.stack([total_r - target_r, target_r - mean_r])
        sums += torch.where(kept_r, each_2r, 0.0).sum(1)
    return sums


def fit_temperature(passes: Callable[[], Iterable[tuple[Tensor, Tensor]]]) -> float:
    """The T > 0 that minimises the NLL of logits / T (Guo et al. 2017, https://arxiv.org/abs/1706.04599).

    Dividing by it leaves every argmax as it was. T lies within e^-5 and e^5: where every token is right, less is always
    better, and T ends near the lower bound. Fit on one split and measure on another.

    Args:
        passes: goes once over the split each time it is called, about ten times in all: logits (n, v) and targets (n,),
            of which those that are IGNORED count for nothing. The same values each time, recomputed or kept.

    Raises:
        ValueError: where there are no tokens, or a logit is not finite.
    """
    log_temperature = torch.zeros((), dtype=torch.float64)
    optimizer = torch.optim.LBFGS(
        [log_temperature], max_iter=50, tolerance_grad=1e-9, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        bounded = log_temperature.detach().clamp(-LIMIT, LIMIT)
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
    return float(log_temperature.detach().clamp(-LIMIT, LIMIT).exp())
