"""The gradient noise scale: the batch size beyond which more rows hardly make a step better.

McCandlish et al. 2018, https://arxiv.org/abs/1812.06162, appendix A.1. Legend: p parameters.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Noise:
    """Unbiased estimates from gradients of pieces of a batch; either may come out negative.

    Args:
        trace: the trace of the covariance of one token's gradient.
        signal: the squared norm of the true gradient.
    """

    trace: float
    signal: float


def noise(small: float, big: float, small_tokens: float, big_tokens: float) -> Noise:
    """From the mean squared gradient norm of pieces of `small_tokens` tokens and that of all `big_tokens` together.

    >>> noise(small=5.0, big=2.0, small_tokens=8, big_tokens=32)
    Noise(trace=32.0, signal=1.0)
    """
    signal = (big_tokens * big - small_tokens * small) / (big_tokens - small_tokens)
    trace = (small - big) / (1 / small_tokens - 1 / big_tokens)
    return Noise(trace, signal)


def noise_of_pieces(
    parameters: Sequence[nn.Parameter], losses: Sequence[Callable[[], Tensor]], tokens: Sequence[int]
) -> Noise:
    """Estimates from the gradients of the mean losses of disjoint pieces, of about equal numbers of tokens.

    No `.grad` is touched, and hooks on gradients, such as those of DistributedDataParallel, do not run.
    """
    whole_p = [torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for p in parameters]
    small, everything = 0.0, float(sum(tokens))
    for loss, count in zip(losses, tokens, strict=True):
        gradients_p = torch.autograd.grad(loss(), list(parameters), allow_unused=True)
        given = [g.to(torch.promote_types(g.dtype, torch.float32)) for g in gradients_p if g is not None]
        small += float(sum(g.square().sum().double() for g in given)) / len(losses)
        for total, gradient in zip(whole_p, gradients_p, strict=True):
            if gradient is not None:
                total.add_(gradient, alpha=count / everything)
    big = float(sum(total.square().sum().double() for total in whole_p))
    return noise(small, big, everything / len(losses), everything)
