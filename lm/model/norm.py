"""Normalisation of the residual stream: (b, t, d) -> (b, t, d)."""

from abc import ABC

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
    """Unit root mean square, then a gain (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467)."""

    def __init__(self, shape: Shape, eps: float = 1e-6) -> None:
        require_positive(eps=eps)
        super().__init__(shape.width, eps=eps)


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
