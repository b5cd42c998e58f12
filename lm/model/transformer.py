"""Transformers composed of swappable parts. Legend: b batch, t time, d width, v vocabulary."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from lm.config.domain import require_share
from lm.model.attention import Attention, Mask
from lm.model.block import Arrangement, Block
from lm.model.cache import Cache
from lm.model.initial import Initializer, OutputLinear
from lm.model.joined import is_bare
from lm.model.mlp import MLP
from lm.model.norm import Norm
from lm.model.parametrization import Optimizer, Parametrization, Standard
from lm.model.position import Position
from lm.model.shape import Shape


class Embedding(nn.Module):
    """Token vectors at the input, and the map to logits at the output.

    Args:
        tied: whether the output shares the input's matrix (Press and Wolf 2017, https://arxiv.org/abs/1608.05859).
        scaled: whether inputs are multiplied by sqrt(width), as in Vaswani et al. 2017, section 3.4; by that of the
            base where a parametrisation has one, which multiplies what the output map reads by base / width too.
    """

    def __init__(self, shape: Shape, tied: bool = True, scaled: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.factor = shape.at_base.width**0.5 if scaled else 1.0
        self.output_factor = shape.at_base.width / shape.width
        self.head = OutputLinear(shape.width, shape.vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens_bt: Tensor) -> Tensor:
        return self.tokens(tokens_bt) * self.factor

    def logits(self, x_btd: Tensor) -> Tensor:
        """(b, t, d) -> (b, t, v)."""
        return self.head(self.read(x_btd))

    def read(self, x_btd: Tensor) -> Tensor:
        """What the output map multiplies, (b, t, d)."""
        return x_btd if self.output_factor == 1 else x_btd * self.output_factor

    @property
    def matrix(self) -> Tensor | None:
        """What `logits` multiplies `read` by, (v, d), where it does nothing but that."""
        return self.head.weight if type(self).logits is Embedding.logits and is_bare(self.head) else None


class Model(nn.Module, ABC):
    """Gives logits of the next token; `inputs` of a batch are its arguments."""

    initializer: Initializer
    depth: int

    def initialize(self, seed: int) -> None:
        """Draws every parameter anew from the streams of `seed`."""
        self.initializer.initialize(self, self.depth, seed)

    def map_rate(self, optimizer: Optimizer) -> float:
        """What the rate of the maps from one width to another is multiplied by."""
        return 1.0

    @abstractmethod
    def forward(self, *inputs: Tensor) -> Tensor:
        """Logits of the next token at each position, (b, t, v)."""

    def factors(self, *inputs: Tensor) -> tuple[Tensor, Tensor] | None:
        """What the logits are the product of, (b, t, d) and a matrix (v, d); None where they are not just that."""
        return None


class Decoder(Model):
    """Predicts each next token from the tokens up to it.

    Args:
        vocabulary, context: sizes supplied by the data.
        width, heads, layers: d_model, attention heads, blocks.
        embedding, position, block, norm, attention, mlp: the parts.
        initializer: draws the first values of the parameters.
        dropout: on the embeddings and on each residual branch.
        causal: off, every position sees the token it is to predict: a fault to measure, not a model.
        parametrization: how first values, rates and multipliers go with the width; the standard one by default.
    """

    own_heads = slice(None)
    """Which heads of each layer this process computes: all, where they are not shared out among several."""

    def __init__(
        self,
        vocabulary: int,
        context: int,
        width: int,
        heads: int,
        layers: int,
        embedding: Callable[[Shape], Embedding],
        position: Callable[[Shape], Position],
        block: Callable[[Shape, Callable[[Shape], Norm], float], Arrangement],
        norm: Callable[[Shape], Norm],
        attention: Callable[[Shape], Attention],
        mlp: Callable[[Shape], MLP],
        initializer: Initializer,
        dropout: float = 0.0,
        causal: bool = True,
        parametrization: Parametrization | None = None,
    ) -> None:
        super().__init__()
        require_share(dropout=dropout)
        self.parametrization = parametrization or Standard()
        shape = self.parametrization.shape(Shape(vocabulary, context, width, heads, layers))
        self.shape, self.depth, self.causal = shape, layers, causal
        self.initializer = self.parametrization.initializer(initializer, shape)
        self.embedding = embedding(shape)
        self.position = position(shape)
        self.dropout = nn.Dropout(dropout)
        arrange = lambda: block(shape, norm, dropout)  # noqa: E731
        self.blocks = nn.ModuleList(Block(attention(shape), mlp(shape), arrange) for _ in range(layers))
        joined: Arrangement = arrange()
        self.final_norm = joined.final_norm(shape, norm)

    def map_rate(self, optimizer: Optimizer) -> float:
        return self.parametrization.rate(self.shape, optimizer)

    def forward(self, tokens_bt: Tensor, caches: Sequence[Cache] | None = None) -> Tensor:  # type: ignore[override]
        """Logits of the next token at each position, (b, t, v); with caches, tokens go on from those held."""
        return self.embedding.logits(self.final_norm(self._stream(tokens_bt, caches)))

    def factors(self, tokens_bt: Tensor) -> tuple[Tensor, Tensor] | None:  # type: ignore[override]
        matrix = self.embedding.matrix
        if matrix is None or type(self).forward is not Decoder.forward:
            return None
        return self.embedding.read(self.final_norm(self._stream(tokens_bt))), matrix

    def _stream(self, tokens_bt: Tensor, caches: Sequence[Cache] | None = None) -> Tensor:
        """The residual stream after the last block, (b, t, d)."""
        start = caches[0].length if caches else 0
        time = tokens_bt.shape[1]
        bias, slopes_h = self.position.bias(time, start + time, self.causal), self.position.slopes()
        mask = Mask(
            self.causal,
            None if bias is None else bias[self.own_heads],
            slopes_h=None if slopes_h is None else slopes_h[self.own_heads],
        )
        x_btd = self.dropout(self.position.embed(self.embedding(tokens_bt), start))
        for index, block in enumerate(self.blocks):
            x_btd = block(x_btd, self.position, mask, caches[index] if caches else None)
        return x_btd


Made = TypeVar("Made", bound=Model)


def initialized(model: Callable[[int, int], Made], vocabulary: int, context: int, seed: int) -> Made:
    """A model with the first values of `seed`; the caller's own random stream is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # for parts of a user's own that draw values when built
        built = model(vocabulary, context)
    built.initialize(seed)
    return built
