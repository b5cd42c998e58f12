"""What training minimises. Legend: n tokens, v vocabulary."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from lm.data import IGNORED as IGNORED
from lm.training.chunked import chunked_cross_entropy


class Objective(ABC):
    """The loss that training minimises; evaluation always uses the plain negative log-likelihood."""

    @abstractmethod
    def loss(self, logits_nv: Tensor, targets_n: Tensor) -> Tensor:
        """A scalar, in nats per token."""

    def of_product(self, x_nd: Tensor, weight_vd: Tensor, targets_n: Tensor) -> Tensor:
        """`loss` of the logits x W^T; a subclass may do without having them all at once."""
        return self.loss(nn.functional.linear(x_nd, weight_vd), targets_n)


class CrossEntropy(Objective):
    """Mean cross-entropy against (1 - a) onehot + a / v, plus z mean(log(sum(exp(logits)))^2).

    Label smoothing a: Szegedy et al. 2016, https://arxiv.org/abs/1512.00567. The second term, the z-loss, keeps logits
    near log-probabilities: Chowdhery et al. 2022, section 5, https://arxiv.org/abs/2204.02311, with z = 1e-4. Means
    are over the targets that are not IGNORED, and 0 where there is none.

    Args:
        label_smoothing: a.
        z_loss: z.
    """

    def __init__(self, label_smoothing: float = 0.0, z_loss: float = 0.0) -> None:
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing={label_smoothing} must lie in [0, 1)")
        if not (z_loss >= 0 and math.isfinite(z_loss)):
            raise ValueError(f"z_loss={z_loss} must be a finite number, 0 or more; the PaLM paper has 1e-4")
        self.label_smoothing = label_smoothing
        self.z_loss = z_loss

    def loss(self, logits_nv: Tensor, targets_n: Tensor) -> Tensor:
        kept_n = targets_n != IGNORED
        mean = nn.functional.cross_entropy(
            logits_nv, targets_n, ignore_index=IGNORED, label_smoothing=self.label_smoothing
        )
        mean = torch.where(kept_n.any(), mean, 0.0)  # the mean of no tokens is NaN; asking in Python would wait
        return mean + self.z_loss * log_normalizer_squared(logits_nv, kept_n) if self.z_loss else mean

    def of_product(self, x_nd: Tensor, weight_vd: Tensor, targets_n: Tensor) -> Tensor:
        return chunked_cross_entropy(x_nd, weight_vd, targets_n, self.label_smoothing, self.z_loss)


def log_normalizer_squared(logits_nv: Tensor, kept_n: Tensor) -> Tensor:
    """The mean of log(sum(exp(logits)))^2 over the rows kept, in float32 at least; 0 where none is kept."""
    exact_nv = logits_nv.float() if logits_nv.dtype in (torch.float16, torch.bfloat16) else logits_nv
    squared_n = exact_nv.logsumexp(-1).square()
    return torch.where(kept_n, squared_n, 0.0).sum() / kept_n.sum().clamp(min=1)
