"""Components of one's own. A class is one choice, and the parameters of its constructor are its options."""

from torch import Tensor

from lm.config.domain import require_positive
from lm.model.norm import Norm
from lm.model.shape import Shape


class SoftClip(Norm):
    """x / sqrt(1 + (x / limit)^2): small values pass, large ones end at the limit. (b, t, width) to (b, t, width).

    Args:
        limit: above 0.
    """

    def __init__(self, shape: Shape, limit: float = 3.0) -> None:
        super().__init__()
        require_positive(limit=limit)
        self.limit = limit

    def forward(self, x_btd: Tensor) -> Tensor:
        """Limit the values, (b, t, width) to (b, t, width)."""
        return x_btd / (1 + (x_btd / self.limit).square()).sqrt()
