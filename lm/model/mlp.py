"""The feed-forward layer of a block: (b, t, d) -> (b, t, d), each position by itself."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from lm.config.domain import require_from, require_positive, require_share
from lm.model.fused_linear import fused_linear, padded_linear, zeros_to_add
from lm.model.initializers import ResidualLinear
from lm.model.shape import Shape

Approximate = Literal["none", "tanh"]
MAX_HIDDEN = 10**8  # hidden units above which a model could not be trained


class FeedForward(nn.Module, ABC):
    """A map of each position by itself, (b, t, width) onto itself."""

    @abstractmethod
    def forward(self, x_btd: Tensor) -> Tensor:
        """Map (b, t, width) to (b, t, width)."""


class MLP(FeedForward):
    """Two linear layers with an activation between them (Vaswani et al. 2017, equation 2).

    Args:
        expansion: hidden width as a multiple of the model's.
        bias: whether the layers have offsets.
        dropout: on the hidden units.
        hidden: the hidden width itself, which `expansion` then does not set; `intermediate_size` of other libraries.
    """

    ADDED: ClassVar = ("hidden",)

    def __init__(
        self,
        shape: Shape,
        expansion: float = 4.0,
        bias: bool = True,
        dropout: float = 0.0,
        hidden: int | None = None,
    ) -> None:
        super().__init__()
        require_positive(expansion=expansion)
        require_share(dropout=dropout)
        if hidden is not None:
            require_from(1, MAX_HIDDEN, hidden=hidden)
        hidden = hidden or self.hidden_width(shape.width, round(expansion * shape.width), bias)
        if hidden < 1:
            raise ValueError(f"expansion={expansion} leaves no hidden unit at width={shape.width}")
        if hidden > MAX_HIDDEN:
            raise ValueError(f"expansion={expansion} makes {hidden} hidden units, expected {MAX_HIDDEN:,} at most")
        self.up = nn.Linear(shape.width, hidden, bias)
        self.dropout = nn.Dropout(dropout)
        self.down = ResidualLinear(hidden, shape.width, bias)

    @staticmethod
    def hidden_width(width: int, hidden: int, bias: bool) -> int:
        """Return the hidden units of this layer, where a plain one has `hidden`."""
        return hidden

    @abstractmethod
    def activation(self, x: Tensor, /) -> Tensor:
        """Apply the activation to the hidden units, element by element."""

    def forward(self, x_btd: Tensor) -> Tensor:
        """Map (b, t, width) to (b, t, width)."""
        return self.down(self.dropout(self.activation(self.up(x_btd))))


class ReLU(MLP):
    """max(0, x) (Nair and Hinton 2010)."""

    activation = staticmethod(nn.functional.relu)


class SquaredReLU(MLP):
    """max(0, x)^2 (So et al. 2021, Primer, https://arxiv.org/abs/2109.08668)."""

    def activation(self, x: Tensor) -> Tensor:
        """Apply the squared ReLU."""
        return nn.functional.relu(x).square()


class GELU(MLP):
    """x times the normal distribution function of x (Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415).

    Args:
        approximate: `none` for the exact function, `tanh` for GPT-2's approximation.
    """

    def __init__(self, shape: Shape, approximate: Approximate = "none", **options: Any) -> None:
        super().__init__(shape, **options)
        self.approximate = approximate

    def activation(self, x: Tensor) -> Tensor:
        """Apply GELU."""
        return nn.functional.gelu(x, approximate=self.approximate)


class SiLU(MLP):
    """x times the logistic function of x, also called Swish (Ramachandran et al. 2017)."""

    activation = staticmethod(nn.functional.silu)


class Sigmoid(MLP):
    """The logistic function."""

    activation = staticmethod(torch.sigmoid)


class GatedMLP(MLP):
    """down(activation(gate x) * up x) (Shazeer 2020, https://arxiv.org/abs/2002.05202).

    Its three layers have a hidden width of about two thirds of a plain MLP's, so that the parameters come closest to
    equal.
    """

    def __init__(self, shape: Shape, **options: Any) -> None:
        super().__init__(shape, **options)
        self.gate = nn.Linear(shape.width, self.up.out_features, self.up.bias is not None)

    @staticmethod
    def hidden_width(width: int, hidden: int, bias: bool) -> int:
        """Return the hidden width at which gated and ungated MLPs have equally many parameters."""
        return round(hidden * (2 * width + bias) / (3 * width + 2 * bias))

    def forward(self, x_btd: Tensor) -> Tensor:
        """Map (b, t, width) to (b, t, width) by a gated hidden layer."""
        padding = zeros_to_add(x_btd, (self.gate, self.up), after=self.down)
        gate_btf, up_btf = fused_linear(x_btd, self.gate, self.up, padding=padding).chunk(2, dim=-1)
        return padded_linear(self.dropout(self.activation(gate_btf) * up_btf), self.down, padding)


class GLU(GatedMLP):
    """A gated layer whose gate is the logistic function (Dauphin et al. 2017, https://arxiv.org/abs/1612.08083)."""

    activation = staticmethod(torch.sigmoid)


class ReGLU(GatedMLP):
    """A gated layer whose gate is max(0, x) (Shazeer 2020)."""

    activation = staticmethod(nn.functional.relu)


class GEGLU(GatedMLP):
    """A gated layer whose gate is GELU (Shazeer 2020).

    Args:
        approximate: `none` for the exact function, `tanh` for Gemma's approximation.
    """

    ADDED: ClassVar = ("approximate",)

    def __init__(self, shape: Shape, approximate: Approximate = "none", **options: Any) -> None:
        super().__init__(shape, **options)
        self.approximate = approximate

    def activation(self, x: Tensor) -> Tensor:
        """Apply GELU."""
        return nn.functional.gelu(x, approximate=self.approximate)


class SwiGLU(GatedMLP):
    """A gated layer whose gate is SiLU (Shazeer 2020)."""

    activation = staticmethod(nn.functional.silu)
