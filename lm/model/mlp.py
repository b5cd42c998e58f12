"""The feed-forward layer of a block: (b, t, d) -> (b, t, d), each position by itself."""

from abc import ABC, abstractmethod
from typing import Literal

from torch import Tensor, nn

from lm.model.initial import ResidualLinear
from lm.model.shape import Shape


class MLP(nn.Module, ABC):
    """Two linear maps with an activation between them (Vaswani et al. 2017, equation 2).

    Args:
        expansion: hidden width as a multiple of the model's.
        bias: whether the maps have offsets.
    """

    def __init__(self, shape: Shape, expansion: float = 4.0, bias: bool = True) -> None:
        super().__init__()
        hidden = round(expansion * shape.width)
        if hidden < 1:
            raise ValueError(f"expansion={expansion} leaves no hidden unit at width={shape.width}")
        self.up = nn.Linear(shape.width, hidden, bias)
        self.down = ResidualLinear(hidden, shape.width, bias)

    @abstractmethod
    def activation(self, x: Tensor) -> Tensor:
        """Applied to the hidden units, element by element."""

    def forward(self, x_btd: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x_btd)))


class ReLU(MLP):
    """max(0, x)."""

    def activation(self, x: Tensor) -> Tensor:
        return nn.functional.relu(x)


class GELU(MLP):
    """x times the normal distribution function of x (Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415).

    Args:
        approximate: `none` for the exact function, `tanh` for GPT-2's approximation.
    """

    def __init__(
        self, shape: Shape, expansion: float = 4.0, bias: bool = True, approximate: Literal["none", "tanh"] = "none"
    ) -> None:
        super().__init__(shape, expansion, bias)
        self.approximate = approximate

    def activation(self, x: Tensor) -> Tensor:
        return nn.functional.gelu(x, approximate=self.approximate)
