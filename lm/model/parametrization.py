"""Scaling of initial weights, learning rates and multipliers with the width of a model.

A matrix [outputs, inputs] maps one width to another unless it is an embedding, the layer to logits, or named in
`table_parameters` by its module: those and all vectors have a side that does not grow.
"""

import copy
import functools
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Literal

from torch import nn

from lm.config.domain import require_from
from lm.model.initializers import Initializer, OutputLinear, PositionTable
from lm.model.shape import MAX_SIZES, Shape

# Kinds of updates: each entry about the learning rate, or an orthogonal matrix of that root mean square.
Optimizer = Literal["AdamW", "Muon"]


class Parametrization(ABC):
    """A rule by which a recipe is carried over from the width that it was tuned at to another."""

    @abstractmethod
    def shape(self, shape: Shape) -> Shape:
        """Return the sizes with those that the recipe was tuned at as their `base`."""

    @abstractmethod
    def rate(self, shape: Shape, optimizer: Optimizer) -> float:
        """Return the factor on the learning rate of layers from one width to another."""

    def initializer(self, initializer: Initializer, shape: Shape) -> Initializer:
        """Return the initializer of a model of these sizes."""
        if shape.base is None or shape.base.width == shape.width:
            return initializer
        scaled = copy.copy(initializer)
        vars(scaled)["std"] = functools.partial(_std, initializer, shape)
        return scaled


class Standard(Parametrization):
    """One learning rate for all parameters, at every width."""

    def shape(self, shape: Shape) -> Shape:
        """Return the shape as it is."""
        return shape

    def rate(self, shape: Shape, optimizer: Optimizer) -> float:
        """Return 1: the learning rate does not depend on the width."""
        return 1.0


class MuP(Parametrization):
    """The maximal update parametrisation: a learning rate tuned at a small width holds at a larger (Yang et al. 2022).

    https://arxiv.org/abs/2203.03466, table 8: linear layers have initial weights of variance 1 /
    inputs and, with AdamW, a learning rate that goes with 1 / width; tables and vectors keep theirs; the input of the
    output layer, tied or not, is multiplied by base / width; scores are scaled by 1 / d_k. At the base width all of it
    is the standard model. Muon's updates keep their spectral norm (Yang, Simon and Bernstein 2023,
    https://arxiv.org/abs/2310.17813): its rate goes with 1 / sqrt(width). Rate times weight decay stays as it is.

    Args:
        base_width: at which the recipe was found.
        base_heads: attention heads there; as many as the model has by default, so that heads grow with the width.
    """

    def __init__(self, base_width: int = 64, base_heads: int | None = None) -> None:
        require_from(1, MAX_SIZES["width"], base_width=base_width)
        if base_heads is not None:
            require_from(1, MAX_SIZES["heads"], base_heads=base_heads)
        self.base_width, self.base_heads = base_width, base_heads

    def shape(self, shape: Shape) -> Shape:
        """Return the shape with the sizes of the base model."""
        heads = self.base_heads or shape.heads
        if self.base_width % heads:
            needed = f"a multiple of the {heads} heads that a model of that width has"
            raise ValueError(f"base_width={self.base_width} must be {needed}; give their number as base_heads")
        return replace(shape, base=replace(shape, width=self.base_width, heads=heads))

    def rate(self, shape: Shape, optimizer: Optimizer) -> float:
        """Return the factor on the learning rate of layers at this width."""
        ratio = self.base_width / shape.width
        return float(ratio**0.5) if optimizer == "Muon" else ratio


def _std(initializer: Initializer, shape: Shape, module: nn.Linear | nn.Embedding) -> float:
    """Return the standard deviation of a weight: that at base width, for layers times sqrt(base inputs / inputs)."""
    if "weight" in getattr(type(module), "table_parameters", ()):
        return initializer.std(module)
    base = shape.base_shape
    ratio = base.width / shape.width
    if isinstance(module, nn.Embedding):
        size = base.width if module.embedding_dim == shape.width else module.embedding_dim
        kind = PositionTable if isinstance(module, PositionTable) else nn.Embedding
        return initializer.std(kind(1, size, device="meta"))
    inputs = max(1, round(module.in_features * ratio))
    if isinstance(module, OutputLinear):
        return initializer.std(nn.Linear(inputs, module.out_features, bias=False, device="meta"))
    outputs = max(1, round(module.out_features * ratio))
    smaller = nn.Linear(inputs, outputs, bias=False, device="meta")
    return float(initializer.std(smaller) * (inputs / module.in_features) ** 0.5)


def scales(parametrization: Any) -> bool:
    """Return True if learning rates go with the width."""
    return isinstance(parametrization, Parametrization) and not isinstance(parametrization, Standard)


def without_standard(model: dict[str, Any]) -> dict[str, Any]:
    """Drop the standard parametrisation, which older configurations do not name, from a model's node."""
    options = model["init_args"]
    if options.get("parametrization", "none given") not in (None, {"class_path": "Standard", "init_args": {}}):
        return model
    return {**model, "init_args": {key: value for key, value in options.items() if key != "parametrization"}}
