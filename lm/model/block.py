"""A layer of a transformer: sublayers, each joined to the residual stream in the same way.

Legend: b batch, t time, d width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lm.config.domain import require_positive, require_share
from lm.model.attention import Attention, Mask
from lm.model.cache import Cache
from lm.model.deprecated import resolve_old_name
from lm.model.mlp import FeedForward
from lm.model.norm import Norm
from lm.model.position import Position
from lm.model.shape import Shape

MakeNorm = Callable[[Shape], Norm]
Sublayer = Callable[[Tensor], Tensor]


class ResidualConnection(nn.Module, ABC):
    """A residual connection around one sublayer, with its norm."""

    def __init__(self, shape: Shape, norm: MakeNorm, dropout: float) -> None:
        super().__init__()
        require_share(dropout=dropout)
        self.norm = norm(shape)
        self.dropout = nn.Dropout(dropout)

    @abstractmethod
    def forward(self, x_btd: Tensor, sublayer: Sublayer) -> Tensor:
        """Return the residual stream after the sublayer."""

    @staticmethod
    def final_norm(shape: Shape, norm: MakeNorm) -> nn.Module:
        """Return the module between the last layer and the output: a norm, unless layers end in one."""
        return norm(shape)


def __getattr__(name: str) -> Any:
    return resolve_old_name(__name__, name, {"Arrangement": "lm.model.block.ResidualConnection"})


class PostNorm(ResidualConnection):
    """norm(x + f(x)): the original connection (Vaswani et al. 2017)."""

    def forward(self, x_btd: Tensor, sublayer: Sublayer) -> Tensor:
        """Add the sublayer's output and normalise the sum."""
        return self.norm(x_btd + self.dropout(sublayer(x_btd)))

    @staticmethod
    def final_norm(shape: Shape, norm: MakeNorm) -> nn.Module:
        """Return no norm: the stream is normalised already."""
        return nn.Identity()


class PreNorm(ResidualConnection):
    """x + f(norm(x)), with one more norm at the end (Xiong et al. 2020, https://arxiv.org/abs/2002.04745)."""

    def forward(self, x_btd: Tensor, sublayer: Sublayer) -> Tensor:
        """Add the output of the sublayer on the normalised input."""
        return x_btd + self.dropout(sublayer(self.norm(x_btd)))


class Sandwich(ResidualConnection):
    """x + norm(f(norm(x))): a norm before and after (Ding et al. 2021, https://arxiv.org/abs/2105.13290)."""

    def __init__(self, shape: Shape, norm: MakeNorm, dropout: float) -> None:
        super().__init__(shape, norm, dropout)
        self.outer_norm = norm(shape)

    def forward(self, x_btd: Tensor, sublayer: Sublayer) -> Tensor:
        """Add the normalised output of the sublayer on the normalised input."""
        return x_btd + self.dropout(self.outer_norm(sublayer(self.norm(x_btd))))


class ReZero(ResidualConnection):
    """x + a f(x), a learned and 0 at first, without norms (Bachlechner et al. 2020, https://arxiv.org/abs/2003.04887)."""

    def __init__(self, shape: Shape, norm: MakeNorm, dropout: float) -> None:
        nn.Module.__init__(self)
        self.dropout = nn.Dropout(dropout)
        self.share = nn.Parameter(torch.zeros(()))

    def forward(self, x_btd: Tensor, sublayer: Sublayer) -> Tensor:
        """Add the sublayer's output times a learned share."""
        return x_btd + self.share * self.dropout(sublayer(x_btd))

    @staticmethod
    def final_norm(shape: Shape, norm: MakeNorm) -> nn.Module:
        """Return no norm: this arrangement has none."""
        return nn.Identity()


class ScaledResidual(ResidualConnection):
    """x + alpha f(norm(x)), alpha fixed.

    Args:
        alpha: share of each sublayer's output.
    """

    def __init__(self, shape: Shape, norm: MakeNorm, dropout: float, alpha: float = 0.5) -> None:
        super().__init__(shape, norm, dropout)
        require_positive(alpha=alpha)
        self.alpha = alpha

    def forward(self, x_btd: Tensor, sublayer: Sublayer) -> Tensor:
        """Add `alpha` times the sublayer's output on the normalised input."""
        return x_btd + self.alpha * self.dropout(sublayer(self.norm(x_btd)))


class Block(nn.Module):
    """Self-attention, cross-attention in a decoder with an encoder, then a feed-forward layer."""

    mlp: Any

    def __init__(
        self,
        attention: Attention,
        mlp: FeedForward,
        arrange: Callable[[], ResidualConnection],
        cross: Attention | None = None,
    ) -> None:
        super().__init__()
        self.attention, self.attention_residual = attention, arrange()
        if cross is not None:
            self.cross, self.cross_residual = cross, arrange()
        self.mlp, self.mlp_residual = mlp, arrange()

    def forward(self, x_btd: Tensor, position: Position, mask: Mask, cache: Cache | None = None) -> Tensor:
        """Apply attention and MLP, (b, t, width) to (b, t, width)."""
        x_btd = self.attention_residual(x_btd, lambda x: self.attention(x, position, mask, cache=cache))
        return self.mlp_residual(x_btd, self.mlp)

    def forward_with_cross_attention(
        self,
        x_btd: Tensor,
        position: Position,
        mask: Mask,
        memory_bsd: Tensor,
        memory: Mask,
        cache: Cache | None = None,
    ) -> Tensor:
        """Apply self-attention, cross-attention to `memory_bsd`, then the feed-forward layer."""
        x_btd = self.attention_residual(x_btd, lambda x: self.attention(x, position, mask, cache=cache))
        x_btd = self.cross_residual(x_btd, lambda x: self.cross(x, position, memory, memory_bsd))
        return self.mlp_residual(x_btd, self.mlp)
