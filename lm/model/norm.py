"""Normalisation of the residual stream."""

from abc import ABC

from torch import nn

from lm.model.shape import Shape


class Norm(nn.Module, ABC):
    """A map of (b, t, width) onto itself, taken per position."""


class LayerNorm(nn.LayerNorm, Norm):
    """Zero mean and unit variance, then a gain and an offset (Ba et al. 2016, https://arxiv.org/abs/1607.06450).

    Args:
        eps: added to the variance.
        bias: whether there is an offset.
    """

    def __init__(self, shape: Shape, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__(shape.width, eps=eps, bias=bias)


class RMSNorm(nn.RMSNorm, Norm):
    """Unit root mean square, then a gain (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467)."""

    def __init__(self, shape: Shape, eps: float = 1e-6) -> None:
        super().__init__(shape.width, eps=eps)
