"""A layer of a transformer: sublayers, and how they are joined to the residual stream.

Legend: b batch, t time, d width.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lm.config.domain import require_from, require_positive, require_share
from lm.model.attention import Attention, Mask
from lm.model.cache import Cache
from lm.model.initializers import QueryKeyLinear
from lm.model.mlp import FeedForward
from lm.model.norm import Norm
from lm.model.position import Position
from lm.model.shape import Shape

MakeNorm = Callable[[Shape], Norm]
Sublayer = Callable[[Tensor], Tensor]


class BlockLayout(nn.Module, ABC):
    """A composition of the sublayers of a layer with norms and residual connections, at `model.block`.

    A class that composes them itself has `forward(x_btd, attention, mlp)`: both are callables, (b, t, d) to (b, t, d).
    Attention is called once a pass, since it may append to a cache. A class whose `forward` has a last argument
    `cross=None` works in an encoder-decoder too, where a decoder's layers have cross-attention.
    """

    initial_gain = 1.0  # the factor on initial weights of the sublayers, but for queries and keys
    streams = 1  # that the layer gives, unless it is the last: (b, t, streams, d)

    @staticmethod
    def final_norm(shape: Shape, norm: MakeNorm) -> nn.Module:
        """Return the module between the last layer and the output: a norm, unless layers end in one."""
        return norm(shape)


class ResidualConnection(BlockLayout):
    """A residual connection around one sublayer, with its norm; a layer has one for each sublayer, in sequence."""

    def __init__(self, shape: Shape, norm: MakeNorm, dropout: float) -> None:
        super().__init__()
        require_share(dropout=dropout)
        self.norm = norm(shape)
        self.dropout = nn.Dropout(dropout)

    @abstractmethod
    def forward(self, x_btd: Tensor, sublayer: Sublayer) -> Tensor:
        """Return the residual stream after the sublayer."""


class PostNorm(ResidualConnection):
    """norm(x + f(x)), post-LN: the original connection (Vaswani et al. 2017)."""

    def forward(self, x_btd: Tensor, sublayer: Sublayer) -> Tensor:
        """Add the sublayer's output and normalise the sum."""
        return self.norm(x_btd + self.dropout(sublayer(x_btd)))

    @staticmethod
    def final_norm(shape: Shape, norm: MakeNorm) -> nn.Module:
        """Return no norm: the stream is normalised already."""
        return nn.Identity()


class PreNorm(ResidualConnection):
    """x + f(norm(x)), pre-LN, with a last norm at the end (Xiong et al. 2020, https://arxiv.org/abs/2002.04745)."""

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


class NormAfter(ResidualConnection):
    """x + norm(f(x)), with one more norm at the end (OLMo 2, 2025, https://arxiv.org/abs/2501.00656)."""

    def forward(self, x_btd: Tensor, sublayer: Sublayer) -> Tensor:
        """Add the normalised output of the sublayer."""
        return x_btd + self.dropout(self.norm(sublayer(x_btd)))


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


class DeepNorm(PostNorm):
    """norm(a x + f(x)), a = (2 layers)^(1/4) in a decoder (Wang et al. 2022, https://arxiv.org/abs/2203.00555).

    For initialisers that do not scale by depth, such as Xavier.

    Args:
        alpha: the factor of the stream; by default that of a stack of as many layers.
        beta: the factor on initial weights of values, outputs and MLPs; (8 layers)^(-1/4) by default.
    """

    def __init__(
        self, shape: Shape, norm: MakeNorm, dropout: float, alpha: float | None = None, beta: float | None = None
    ) -> None:
        super().__init__(shape, norm, dropout)
        require_positive(alpha=alpha, beta=beta)
        self.alpha = (2 * shape.layers) ** 0.25 if alpha is None else alpha
        self.initial_gain = (8 * shape.layers) ** -0.25 if beta is None else beta

    def forward(self, x_btd: Tensor, sublayer: Sublayer) -> Tensor:
        """Add the sublayer's output to `alpha` times the stream and normalise the sum."""
        return self.norm(self.alpha * x_btd + self.dropout(sublayer(x_btd)))


class LayerScale(PreNorm):
    """x + g f(norm(x)), g a learned factor of each feature (Touvron et al. 2021, https://arxiv.org/abs/2103.17239).

    Args:
        initial: the value of g at first: 0.1 up to 18 layers in the paper, 1e-5 up to 24, 1e-6 beyond.
    """

    def __init__(self, shape: Shape, norm: MakeNorm, dropout: float, initial: float = 0.1) -> None:
        super().__init__(shape, norm, dropout)
        require_positive(initial=initial)
        self.gain = nn.Parameter(torch.full((shape.width,), initial))

    def forward(self, x_btd: Tensor, sublayer: Sublayer) -> Tensor:
        """Add the sublayer's output on the normalised input times the learned factors."""
        return super().forward(x_btd, lambda normed_btd: self.gain * sublayer(normed_btd))


class StochasticDepth(PreNorm):
    """x + d f(norm(x)), d = 0 with probability p, else 1 / (1 - p) (Huang et al. 2016, https://arxiv.org/abs/1603.09382).

    Drawn for each row and sublayer from the stream of dropout. In evaluation d is 1, its expectation.

    Args:
        rate: p of the last layer, to which it grows linearly: rate (l + 1) / layers in layer l.
    """

    def __init__(self, shape: Shape, norm: MakeNorm, dropout: float, rate: float = 0.1) -> None:
        super().__init__(shape, norm, dropout)
        require_share(rate=rate)
        share = 1.0 if shape.layer is None else (shape.layer + 1) / shape.layers
        self.keep: Tensor
        self.register_buffer("keep", torch.tensor(1 - rate * share), persistent=False)  # layers share compiled code

    def forward(self, x_btd: Tensor, sublayer: Sublayer) -> Tensor:
        """Add the sublayer's output on the normalised input in the rows that are drawn."""
        if not self.training:
            return super().forward(x_btd, sublayer)
        draw_b11 = torch.bernoulli(self.keep.expand(len(x_btd), 1, 1)) / self.keep
        return super().forward(x_btd, lambda normed_btd: draw_b11 * sublayer(normed_btd))


class ParallelResidual(BlockLayout):
    """x + attention(norm(x)) + mlp(norm(x)) (GPT-J, 2021; Chowdhery et al. 2022, https://arxiv.org/abs/2204.02311).

    Args:
        shared_norm: whether both read the same norm, as in GPT-J, Falcon-7B, Phi and Cohere; each has its own in
            GPT-NeoX and Pythia (Black et al. 2022, https://arxiv.org/abs/2204.06745).
    """

    def __init__(self, shape: Shape, norm: MakeNorm, dropout: float, shared_norm: bool = True) -> None:
        super().__init__()
        require_share(dropout=dropout)
        self.norm, self.mlp_norm = norm(shape), None if shared_norm else norm(shape)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_btd: Tensor, attention: Sublayer, mlp: Sublayer) -> Tensor:
        """Add what both sublayers give for the normalised input."""
        normed_btd = self.norm(x_btd)
        attention_btd = self.dropout(attention(normed_btd))
        return x_btd + attention_btd + self.dropout(mlp(normed_btd if self.mlp_norm is None else self.mlp_norm(x_btd)))


class HyperConnections(BlockLayout):
    """n streams that each sublayer reads, mixes and adds to with learned numbers (Zhu et al. 2024).

    h_i = sum_j m_ij h_j + w_i f(norm(sum_j r_j h_j)), https://arxiv.org/abs/2409.19606, static; at first a pre-norm
    layer with equal streams. The first layer copies its input, the last adds up the streams. All layers need it.

    Args:
        streams: n, the expansion rate.
    """

    def __init__(self, shape: Shape, norm: MakeNorm, dropout: float, streams: int = 4) -> None:
        super().__init__()
        require_share(dropout=dropout)
        require_from(1, 64, streams=streams)
        first = 2 * (shape.layer or 0)
        self.attention_norm, self.mlp_norm, self.dropout = norm(shape), norm(shape), nn.Dropout(dropout)
        # vectors, which do not decay and do not scale with the width
        self.read = nn.Parameter(torch.eye(streams)[[first % streams, (first + 1) % streams]].flatten())
        self.mix = nn.Parameter(torch.eye(streams).flatten().repeat(2))
        self.write = nn.Parameter(torch.ones(2 * streams))
        self.streams, self.is_last = streams, shape.layer is None or shape.layer == shape.layers - 1

    def forward(self, x_btd: Tensor, attention: Sublayer, mlp: Sublayer) -> Tensor:
        """Pass the streams (b, t, n, d) through both sublayers; the first layer gets (b, t, d), the last gives it."""
        h_btnd = x_btd if x_btd.ndim == 4 else x_btd[:, :, None].expand(-1, -1, self.streams, -1)
        reads, writes = self.read.view(2, -1, 1), self.write.view(2, -1, 1)
        mixes = self.mix.view(2, self.streams, self.streams, 1)
        for index, (sublayer, norm) in enumerate(((attention, self.attention_norm), (mlp, self.mlp_norm))):
            added_btd = self.dropout(sublayer(norm((reads[index] * h_btnd).sum(2))))
            h_btnd = (mixes[index] * h_btnd[:, :, None]).sum(3) + writes[index] * added_btd[:, :, None]
        return h_btnd.sum(2) if self.is_last else h_btnd


class Block(nn.Module):
    """Self-attention, cross-attention in a decoder with an encoder, and a feed-forward layer, as a layout joins them.

    Args:
        make_layout: makes a residual connection, called for each sublayer, or what composes all of them.
        cross: the attention to an encoder.
    """

    attention_residual: Any  # a ResidualConnection, as those of the other sublayers; absent where there is a layout
    mlp_residual: Any
    mlp: Any
    layout: BlockLayout | None
    position: Position | None  # the layer's own, in place of the model's

    def __init__(
        self,
        attention: Attention,
        mlp: FeedForward,
        make_layout: Callable[[], BlockLayout],
        cross: Attention | None = None,
    ) -> None:
        super().__init__()
        layout = make_layout()
        self.attention, self.position = attention, None
        if isinstance(layout, ResidualConnection):
            self.layout, self.attention_residual = None, layout
            if cross is not None:
                self.cross, self.cross_residual = cross, make_layout()
            self.mlp, self.mlp_residual = mlp, make_layout()
            return
        if cross is not None:
            if "cross" not in inspect.signature(layout.forward).parameters:
                problem = "takes no cross-attention, which the decoder after an encoder has"
                raise ValueError(f"block {type(layout).__name__} {problem}; expected one that does, such as PreNorm")
            self.cross = cross
        self.mlp, self.layout = mlp, layout

    def forward(
        self,
        x_btd: Tensor,
        position: Position,
        mask: Mask,
        cache: Cache | None = None,
        memory_bsd: Tensor | None = None,
        memory: Mask | None = None,
    ) -> Tensor:
        """Apply attention, cross-attention to `memory_bsd` if there is one, and MLP, (b, t, width) to (b, t, width)."""

        def attention(x_btd: Tensor) -> Tensor:
            return self.attention(x_btd, position, mask, cache=cache)

        def cross(x_btd: Tensor) -> Tensor:
            return self.cross(x_btd, position, memory, memory_bsd)

        if self.layout is not None:
            return self.layout(x_btd, attention, self.mlp, *(() if memory_bsd is None else (cross,)))
        x_btd = self.attention_residual(x_btd, attention)
        if memory_bsd is not None:
            x_btd = self.cross_residual(x_btd, cross)
        return self.mlp_residual(x_btd, self.mlp)

    @torch.no_grad()
    def scale_initial_weights(self) -> None:
        """Multiply the weights that an initialiser drew by the factor of the layout."""
        gain = next(part.initial_gain for part in self.modules() if isinstance(part, BlockLayout))
        for module in self.modules() if gain != 1 else ():
            if isinstance(module, nn.Linear) and not isinstance(module, QueryKeyLinear):
                module.weight.mul_(gain)
