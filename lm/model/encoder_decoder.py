"""The encoder-decoder transformer for pairs of texts. Legend: b batch, s source time, t target time, d width,
v vocabulary."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lm.config.domain import require_share
from lm.model.attention import Attention, Mask, SoftmaxAttention
from lm.model.block import Arrangement, Block
from lm.model.cache import Cache
from lm.model.initial import Initializer
from lm.model.mlp import MLP
from lm.model.norm import Norm
from lm.model.parametrization import Optimizer, Parametrization, Standard
from lm.model.position import Position
from lm.model.shape import Shape
from lm.model.transformer import Embedding, Model


class EncoderDecoder(Model):
    """Predicts each next token of a target from the tokens before it and all of a source.

    Vaswani et al. 2017, https://arxiv.org/abs/1706.03762. Source and target share a vocabulary and its vectors
    (section 3.4); encoder and decoder have position encodings of their own, and cross-attention has none.

    Args:
        vocabulary, context: sizes supplied by the data; the context is the longest source and the longest target.
        width, heads: d_model, attention heads.
        layers: blocks of the encoder, and as many of the decoder.
        embedding, position, block, norm, attention, mlp: the parts.
        initializer: draws the first values of the parameters.
        dropout: on the embeddings and on each residual branch.
        cross: the decoder's attention to the encoder; the same as `attention` by default.
        parametrization: how first values, rates and multipliers go with the width; the standard one by default.
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
        block: Callable[[Shape, Callable[[Shape], Norm], float], Arrangement],
        norm: Callable[[Shape], Norm],
        attention: Callable[[Shape], Attention],
        mlp: Callable[[Shape], MLP],
        initializer: Initializer,
        dropout: float = 0.0,
        cross: Callable[[Shape], Attention] | None = None,
        parametrization: Parametrization | None = None,
    ) -> None:
        super().__init__()
        require_share(dropout=dropout)
        self.parametrization = parametrization or Standard()
        shape = self.parametrization.shape(Shape(vocabulary, context, width, heads, layers))
        self.shape, self.depth = shape, layers
        self.initializer = self.parametrization.initializer(initializer, shape)
        arrange = lambda: block(shape, norm, dropout)  # noqa: E731
        self.embedding = embedding(shape)
        self.dropout = nn.Dropout(dropout)
        self.encoder_position, self.decoder_position = position(shape), position(shape)
        self.encoder = nn.ModuleList(Block(attention(shape), mlp(shape), arrange) for _ in range(layers))
        self.decoder = nn.ModuleList(
            Block(attention(shape), mlp(shape), arrange, _cross(cross or attention, shape)) for _ in range(layers)
        )
        joined: Arrangement = arrange()
        self.encoder_norm = joined.final_norm(shape, norm)
        self.decoder_norm = joined.final_norm(shape, norm)

    def map_rate(self, optimizer: Optimizer) -> float:
        return self.parametrization.rate(self.shape, optimizer)

    def forward(self, target_bt: Tensor, source_bs: Tensor, hidden_bs: Tensor) -> Tensor:  # type: ignore[override]
        """Logits of the next target token at each position, (b, t, v); `hidden_bs` marks padding of the source."""
        with _kernel(target_bt.device):
            return self.decode(target_bt, self.encode(source_bs, hidden_bs), hidden_bs)

    def encode(self, source_bs: Tensor, hidden_bs: Tensor) -> Tensor:
        """What the decoder attends to, (b, s, d)."""
        time, position = source_bs.shape[1], self.encoder_position
        mask = Mask(False, position.bias(time, time, causal=False), hidden_bs)
        x_bsd = self.dropout(position.embed(self.embedding(source_bs)))
        for block in self.encoder:
            x_bsd = block(x_bsd, position, mask)
        return self.encoder_norm(x_bsd)

    def decode(
        self, target_bt: Tensor, memory_bsd: Tensor, hidden_bs: Tensor, caches: Sequence[Cache] | None = None
    ) -> Tensor:
        """Logits (b, t, v) given what `encode` made; with caches, tokens go on from those held."""
        start = caches[0].length if caches else 0
        time, position = target_bt.shape[1], self.decoder_position
        mask = Mask(True, position.bias(time, start + time))
        memory = Mask(False, None, hidden_bs)
        x_btd = self.dropout(position.embed(self.embedding(target_bt), start))
        for index, layer in enumerate(self.decoder):
            block, cache = cast(Block, layer), caches[index] if caches else None
            x_btd = block.with_memory(x_btd, position, mask, memory_bsd, memory, cache)
        return self.embedding.logits(self.decoder_norm(x_btd))


def _cross(make: Callable[[Shape], Attention], shape: Shape) -> Attention:
    """Attention that fits between two texts, whose positions cannot be compared."""
    attention = make(shape)
    if isinstance(attention, SoftmaxAttention) and attention.window is not None:
        raise ValueError(
            f"window={attention.window} has no meaning between source and target; set model.cross to an attention "
            "without a window"
        )
    return attention


def _kernel(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """The plain attention of torch on a CPU under autocast, where the fused one takes 15 times as long to go back."""
    slow = device.type == "cpu" and torch.is_autocast_enabled("cpu")
    return sdpa_kernel(SDPBackend.MATH) if slow else contextlib.nullcontext()
