"""A causal decoder-only transformer composed of swappable parts. Legend: b batch, t time, d width, v vocabulary."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from lm.model.attention import Attention, causal
from lm.model.initial import Initializer
from lm.model.mlp import MLP
from lm.model.norm import Norm
from lm.model.position import Position
from lm.model.shape import Shape


class Block(nn.Module, ABC):
    """Attention, then a feed-forward layer, each on a residual branch with a norm of its own."""

    def __init__(
        self, shape: Shape, attention: Attention, mlp: MLP, norm: Callable[[Shape], Norm], dropout: float
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_norm = norm(shape)
        self.mlp = mlp
        self.mlp_norm = norm(shape)
        self.dropout = nn.Dropout(dropout)

    @abstractmethod
    def forward(self, x_btd: Tensor, position: Position, mask_htt: Tensor | None) -> Tensor:
        """The residual stream after this block."""

    @staticmethod
    @abstractmethod
    def final_norm(shape: Shape, norm: Callable[[Shape], Norm]) -> nn.Module:
        """What stands between the last block and the output."""


class PostNorm(Block):
    """norm(x + f(x)): the original arrangement (Vaswani et al. 2017)."""

    def forward(self, x_btd: Tensor, position: Position, mask_htt: Tensor | None) -> Tensor:
        x_btd = self.attention_norm(x_btd + self.dropout(self.attention(x_btd, position, mask_htt)))
        return self.mlp_norm(x_btd + self.dropout(self.mlp(x_btd)))

    @staticmethod
    def final_norm(shape: Shape, norm: Callable[[Shape], Norm]) -> nn.Module:
        return nn.Identity()  # the last block's output is normalised already


class PreNorm(Block):
    """x + f(norm(x)), with one more norm at the end (Xiong et al. 2020, https://arxiv.org/abs/2002.04745)."""

    def forward(self, x_btd: Tensor, position: Position, mask_htt: Tensor | None) -> Tensor:
        x_btd = x_btd + self.dropout(self.attention(self.attention_norm(x_btd), position, mask_htt))
        return x_btd + self.dropout(self.mlp(self.mlp_norm(x_btd)))

    @staticmethod
    def final_norm(shape: Shape, norm: Callable[[Shape], Norm]) -> nn.Module:
        return norm(shape)


class Embedding(nn.Module):
    """Token vectors at the input, and the map to logits at the output.

    Args:
        tied: whether the output shares the input's matrix (Press and Wolf 2017, https://arxiv.org/abs/1608.05859).
        scaled: whether inputs are multiplied by sqrt(width), as in Vaswani et al. 2017, section 3.4.
    """

    def __init__(self, shape: Shape, tied: bool = True, scaled: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.factor = shape.width**0.5 if scaled else 1.0
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens_bt: Tensor) -> Tensor:
        return self.tokens(tokens_bt) * self.factor

    def logits(self, x_btd: Tensor) -> Tensor:
        """(b, t, d) -> (b, t, v)."""
        return self.head(x_btd)


class Decoder(nn.Module):
    """Predicts each next token from the tokens up to it.

    Args:
        vocabulary, context: sizes supplied by the data.
        width, heads, layers: d_model, attention heads, blocks.
        embedding, position, block, norm, attention, mlp: the parts.
        initializer: draws the first values of the parameters.
        dropout: on the embeddings and on each residual branch.
    """

    def __init__(
        self,
        vocabulary: int,
        context: int,
        width: int,
        heads: int,
        layers: int,
        embedding: Callable[[Shape], Embedding],
        position: Callable[[Shape], Position],
        block: Callable[[Shape, Attention, MLP, Callable[[Shape], Norm], float], Block],
        norm: Callable[[Shape], Norm],
        attention: Callable[[Shape], Attention],
        mlp: Callable[[Shape], MLP],
        initializer: Initializer,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout} must lie in [0, 1)")
        shape = Shape(vocabulary, context, width, heads, layers)
        self.shape = shape
        self.initializer = initializer
        self.embedding = embedding(shape)
        self.position = position(shape)
        self.dropout = nn.Dropout(dropout)
        built = [block(shape, attention(shape), mlp(shape), norm, dropout) for _ in range(layers)]
        self.blocks = nn.ModuleList(built)
        self.final_norm = built[0].final_norm(shape, norm)

    def initialize(self, seed: int) -> None:
        """Draws every parameter anew from the streams of `seed`."""
        self.initializer.initialize(self, self.shape.layers, seed)

    def forward(self, tokens_bt: Tensor) -> Tensor:
        """Logits of the next token at each position, (b, t, v)."""
        bias_htt = self.position.bias(tokens_bt.shape[1])
        mask_htt = None if bias_htt is None else causal(bias_htt)
        x_btd = self.dropout(self.position.embed(self.embedding(tokens_bt)))
        for block in self.blocks:
            x_btd = block(x_btd, self.position, mask_htt)
        return self.embedding.logits(self.final_norm(x_btd))


def initialized(model: Callable[[int, int], Decoder], vocabulary: int, context: int, seed: int) -> Decoder:
    """A model with the first values of `seed`; the caller's own random stream is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # for parts of a user's own that draw values when built
        built = model(vocabulary, context)
    built.initialize(seed)
    return built
