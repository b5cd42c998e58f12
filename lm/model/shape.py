"""The sizes every part of a model may ask for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder.

    Args:
        vocabulary: tokens the model can read and predict.
        context: positions in a training block.
        width: size of the residual stream, d_model.
        heads: attention heads in a layer.
        layers: blocks.
    """

    vocabulary: int
    context: int
    width: int
    heads: int
    layers: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if self.width % self.heads:
            raise ValueError(f"heads={self.heads} must divide width={self.width}")

    @property
    def head_size(self) -> int:
        """Width of one head, d_k."""
        return self.width // self.heads
