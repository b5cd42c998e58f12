"""What the functions that compute the examples share."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lm.model.shape import Shape

Given = Mapping[str, Any]
"""A row's inputs: numbers and lists of numbers."""

Numbers = dict[str, Tensor | float]
"""What a row's function returns: a figure for each name in the row."""


def real(numbers: Any) -> Tensor:
    """A tensor of the default type, whole numbers too."""
    return torch.tensor(numbers, dtype=torch.get_default_dtype())


def largest(errors: Tensor) -> Tensor:
    """The largest absolute value."""
    return errors.abs().max()


def shape_of(width: int, heads: int = 1, context: int = 16) -> Shape:
    """A shape for a part that stands by itself."""
    return Shape(vocabulary=2, context=context, width=width, heads=heads, layers=1)


def fill(linear: nn.Linear, weight: Tensor, bias: Tensor | None = None) -> None:
    """Makes `linear` the map x -> x W + b of the texts, whose W is the transpose of torch's."""
    with torch.no_grad():
        linear.weight.copy_(weight.T)
        if bias is not None:
            linear.bias.copy_(bias)
