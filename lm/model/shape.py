"""The sizes that every part of a model may ask for."""

from dataclasses import dataclass, field

# Sizes far beyond any model, above which merely counting parameters takes as long as training.
MAX_SIZES = {"vocabulary": 10**8, "context": 10**8, "width": 10**6, "heads": 10**6, "layers": 1000}


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder: tokens that it can read, positions, width of the residual stream, heads of a layer, layers.

    `base` are the sizes at which a parametrisation scales nothing; None where nothing is scaled. `layer` is the index
    of the layer, from 0, that a part is built for; None for parts outside the layers.
    """

    vocabulary: int
    context: int
    width: int
    heads: int
    layers: int
    base: "Shape | None" = field(default=None, repr=False)
    layer: int | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in MAX_SIZES:
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
            if value > MAX_SIZES[name]:
                raise ValueError(f"{name}={value} must be {MAX_SIZES[name]:,} at most; more could not be trained")
        if self.width % self.heads:
            raise ValueError(f"heads={self.heads} must divide width={self.width}")

    @property
    def head_size(self) -> int:
        """Width of one head, d_k."""
        return self.width // self.heads

    @property
    def base_shape(self) -> "Shape":
        """The sizes that learning rates, initial weights and multipliers are given for."""
        return self.base or self
