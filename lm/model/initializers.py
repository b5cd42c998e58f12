"""Initial weights, each drawn from a random stream named after its parameter.

Swapping one component therefore leaves every other parameter of the same seed bit for bit as it was.
"""

from abc import ABC, abstractmethod

import torch
from torch import nn

from lm.config.domain import require_positive
from lm.data.order import derive_seed


class ResidualLinear(nn.Linear):
    """A linear layer whose output is added to the residual stream; an initialisation may scale it by depth."""


class QueryKeyLinear(nn.Linear):
    """A linear layer to queries or keys; an initialisation may give it a variance of its own."""


class OutputLinear(nn.Linear):
    """A linear layer to logits, one output per token."""


class TableLinear(nn.Linear):
    """A linear layer with a side that does not go with the width of the model."""

    table_parameters = ("weight",)


class PositionTable(nn.Embedding):
    """A learned vector per position; an initialisation may give it a size of its own."""


class NormalVectors(nn.ParameterList):
    """Vectors, (size,), that any initialisation draws from N(0, std^2)."""

    def __init__(self, number: int, size: int, std: float) -> None:
        super().__init__(torch.zeros(size) for _ in range(number))
        self.std = std


class Initializer(ABC):
    """A distribution of the weights of linear layers and embeddings; biases start at zero, gains of norms at one.

    Args:
        query_key: factor on the standard deviation of the layers to queries and keys.
        scale_residual: whether layers into the residual stream are divided by sqrt(2 layers), as in GPT-2.
    """

    def __init__(self, query_key: float = 1.0, scale_residual: bool = True) -> None:
        require_positive(query_key=query_key)
        self.query_key, self.scale_residual = query_key, scale_residual

    @abstractmethod
    def std(self, module: nn.Linear | nn.Embedding) -> float:
        """Return the standard deviation of a module's weight, before the factors of the constructor."""

    def initialize(self, model: nn.Module, layers: int, seed: int) -> None:
        """Fill the parameters of a model in place; draws are made in float32 on the CPU for every device."""
        initialized: set[torch.Tensor] = set()
        for name, module in model.named_modules():
            for index, vector in enumerate(module if isinstance(module, NormalVectors) else ()):
                generator = torch.Generator().manual_seed(derive_seed("parameter", seed, f"{name}.{index}"))
                with torch.no_grad():
                    vector.copy_(torch.empty(vector.shape).normal_(0.0, module.std, generator=generator))
            if not isinstance(module, (nn.Linear, nn.Embedding)) or module.weight in initialized:
                continue
            generator = torch.Generator().manual_seed(derive_seed("parameter", seed, f"{name}.weight"))
            value = torch.empty(module.weight.shape, dtype=torch.float32)
            factor = self.query_key if isinstance(module, QueryKeyLinear) else 1.0
            if self.scale_residual and isinstance(module, ResidualLinear):
                factor = (2 * layers) ** -0.5
            value.normal_(0.0, self.std(module) * factor, generator=generator)
            with torch.no_grad():
                module.weight.copy_(value)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    module.bias.zero_()
            initialized.add(module.weight)


class Normal(Initializer):
    """N(0, std^2) everywhere.

    Args:
        std: standard deviation.
    """

    def __init__(self, std: float = 0.02, query_key: float = 1.0, scale_residual: bool = True) -> None:
        super().__init__(query_key, scale_residual)
        require_positive(std=std)
        self.deviation = std

    def std(self, module: nn.Linear | nn.Embedding) -> float:
        """Return the standard deviation of a module's initial weights."""
        return self.deviation


class Xavier(Initializer):
    """Variance 2 / (inputs + outputs) for linear layers (Glorot and Bengio 2010), a fixed one for embeddings.

    Args:
        embedding: standard deviation of embeddings.
    """

    def __init__(self, embedding: float = 1.0, query_key: float = 1.0, scale_residual: bool = False) -> None:
        super().__init__(query_key, scale_residual)
        require_positive(embedding=embedding)
        self.embedding = embedding

    def std(self, module: nn.Linear | nn.Embedding) -> float:
        """Return the standard deviation of a module's initial weights."""
        if isinstance(module, nn.Embedding):
            return self.embedding
        return (2 / (module.in_features + module.out_features)) ** 0.5


class FanIn(Initializer):
    """Variance gain^2 / inputs for linear layers (LeCun et al. 1998, section 4.6), 1 / width for token embeddings.

    With `embedding.scaled` the tokens then enter with unit variance, and a tied output layer has logits of about that.

    Args:
        gain: of linear layers.
        position: standard deviation of learned positions.
    """

    def __init__(
        self, gain: float = 1.0, position: float = 0.1, query_key: float = 1.0, scale_residual: bool = True
    ) -> None:
        super().__init__(query_key, scale_residual)
        require_positive(gain=gain, position=position)
        self.gain, self.position = gain, position

    def std(self, module: nn.Linear | nn.Embedding) -> float:
        """Return the standard deviation of a module's initial weights."""
        if isinstance(module, PositionTable):
            return self.position
        if isinstance(module, nn.Embedding):
            return float(module.embedding_dim**-0.5)
        return float(self.gain * module.in_features**-0.5)
