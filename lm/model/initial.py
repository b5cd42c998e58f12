"""Initial values of parameters, each drawn from a random stream named after the parameter.

Swapping one component therefore leaves every other parameter of the same seed bit for bit as it was.
"""

from abc import ABC, abstractmethod

import torch
from torch import nn

from lm.data.order import seed_of


class ResidualLinear(nn.Linear):
    """A linear map whose output is added to the residual stream, and which an initialisation may scale by depth."""


class Initializer(ABC):
    """Draws the weights of linear maps and embeddings; offsets start at zero, gains of norms at one."""

    @abstractmethod
    def std(self, module: nn.Linear | nn.Embedding, layers: int) -> float:
        """Standard deviation of the weight of `module` in a model of `layers` blocks."""

    def initialize(self, model: nn.Module, layers: int, seed: int) -> None:
        """Fills the parameters of `model` in place; the draw is made in float32 on the CPU whatever the device."""
        filled: set[torch.Tensor] = set()
        for name, module in model.named_modules():
            if not isinstance(module, (nn.Linear, nn.Embedding)) or module.weight in filled:
                continue
            generator = torch.Generator().manual_seed(seed_of("parameter", seed, f"{name}.weight"))
            value = torch.empty(module.weight.shape, dtype=torch.float32)
            value.normal_(0.0, self.std(module, layers), generator=generator)
            with torch.no_grad():
                module.weight.copy_(value)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    module.bias.zero_()
            filled.add(module.weight)


class Normal(Initializer):
    """N(0, std^2); maps into the residual stream are divided by sqrt(2 layers) (GPT-2, Radford et al. 2019).

    Args:
        std: standard deviation.
        scale_residual: whether to divide maps into the residual stream.
    """

    def __init__(self, std: float = 0.02, scale_residual: bool = True) -> None:
        if std <= 0:
            raise ValueError(f"std={std} must be above 0")
        self.deviation = std
        self.scale_residual = scale_residual

    def std(self, module: nn.Linear | nn.Embedding, layers: int) -> float:
        scaled = self.scale_residual and isinstance(module, ResidualLinear)
        return self.deviation / (2 * layers) ** 0.5 if scaled else self.deviation
