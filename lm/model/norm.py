"""Normalisation of the residual stream: (b, t, d) -> (b, t, d)."""

from abc import ABC
from typing import ClassVar

import torch
from torch import Tensor, nn

from lm.config.domain import require_positive
from lm.model.shape import Shape


class Norm(nn.Module, ABC):
    """A map of (b, t, width) onto itself."""


class LayerNorm(nn.LayerNorm, Norm):
    """Zero mean and unit variance, then a gain and an offset (Ba et al. 2016, https://arxiv.org/abs/1607.06450).

    Args:
        eps: added to the variance.
        bias: whether there is an offset.
    """

    def __init__(self, shape: Shape, eps: float = 1e-5, bias: bool = True) -> None:
        require_positive(eps=eps)
        super().__init__(shape.width, eps=eps, bias=bias)


class RMSNorm(nn.RMSNorm, Norm):
    """Unit root mean square, then a gain (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467).

    Args:
        eps: added to the mean square.
        gain: whether there is a gain; without one nothing is learned (OLMo 2024, https://arxiv.org/abs/2402.00838).
        unit_offset: the gain is 1 + weight, and the weight starts at 0 (Gemma 2024, https://arxiv.org/abs/2403.08295).
    """

    ADDED: ClassVar = ("gain", "unit_offset")

    def __init__(self, shape: Shape, eps: float = 1e-6, gain: bool = True, unit_offset: bool = False) -> None:
        require_positive(eps=eps)
        if unit_offset and not gain:
            raise ValueError("unit_offset=True needs a gain, and gain=False leaves none")
        super().__init__(shape.width, eps=eps, elementwise_affine=gain)
        self.unit_offset = unit_offset
        if unit_offset:
            nn.init.zeros_(self.weight)

    def forward(self, x_btd: Tensor) -> Tensor:
        """Divide each position by its root mean square, and multiply by the gain."""
        gain_d = 1 + self.weight if self.unit_offset else self.weight
        return nn.functional.rms_norm(x_btd, self.normalized_shape, gain_d, self.eps)


class DyT(Norm):
    """gain * tanh(alpha x) + offset, without statistics (Zhu et al. 2025, https://arxiv.org/abs/2503.10622).

    Args:
        alpha: first value of the learned factor, one for all channels.
    """

    def __init__(self, shape: Shape, alpha: float = 0.5) -> None:
        super().__init__()
        require_positive(alpha=alpha)
        self.alpha = nn.Parameter(torch.full((), alpha))
        self.weight, self.bias = nn.Parameter(torch.ones(shape.width)), nn.Parameter(torch.zeros(shape.width))

    def forward(self, x_btd: Tensor) -> Tensor:
        """Squash each channel."""
        return torch.addcmul(self.bias, self.weight, torch.tanh(self.alpha * x_btd))


class NoNorm(nn.Identity, Norm):
    """No normalisation."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()


class BatchNorm(Norm):
    """Zero mean and unit variance over the batch and all positions (Ioffe and Szegedy 2015): a negative control.

    In training a position's output depends on later positions, so the training loss of a causal model is not honest.

    Args:
        eps: added to the variance.
        momentum: of the running statistics that evaluation uses.
    """

    def __init__(self, shape: Shape, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        require_positive(eps=eps)
        if not 0 < momentum <= 1:
            raise ValueError(f"momentum={momentum} must lie in (0, 1]")
        self.over_rows = nn.BatchNorm1d(shape.width, eps=eps, momentum=momentum)

    def forward(self, x_btd: Tensor) -> Tensor:
        """Normalise each channel over all positions of the batch."""
        return self.over_rows(x_btd.flatten(0, 1)).view_as(x_btd)
