"""Transformers composed of swappable parts, and the weights of one in a checkpoint.

Legend: b batch, s source time, t (target) time, d width, v vocabulary.
"""

import contextlib
import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from lm.config.domain import require_positive, require_share
from lm.model.attention import Attention, Mask
from lm.model.block import Block, BlockLayout
from lm.model.cache import Cache
from lm.model.fused_linear import is_plain_linear
from lm.model.initializers import Initializer, OutputLinear
from lm.model.mlp import FeedForward
from lm.model.norm import NoNorm, Norm
from lm.model.parametrization import Optimizer, Parametrization, Standard
from lm.model.position import Position
from lm.model.prediction import Prediction
from lm.model.shape import Shape
from lm.store.files import is_intact

Layer = Mapping[str, Any]  # the parts in which a layer differs from the model, by name
Layers = int | list[dict[str, Any]] | dict[str, Any]  # a mapping in a configuration alone: see lm/config/layers.py


class Embedding(nn.Module):
    """Token vectors at the input, and the linear layer to logits at the output.

    Args:
        tied: whether the output shares the input's matrix (Press and Wolf 2017, https://arxiv.org/abs/1608.05859).
        scaled: whether inputs are multiplied by sqrt(width), as in Vaswani et al. 2017, section 3.4; by that of the
            base where a parametrisation has one, which multiplies the input of the output layer by base / width too.
        norm: of the vectors, before positions (BLOOM 2022, https://arxiv.org/abs/2211.05100); none by default.
        logit_scale: multiplies the logits (Cohere's Command R, 2024).
        softcap: bounds the logits by cap tanh(logits / cap) (Gemma 2 2024, https://arxiv.org/abs/2408.00118).
        output_bias: whether the output layer has an offset (GPT-J, Phi).
    """

    ADDED: ClassVar = ("norm", "logit_scale", "softcap", "output_bias")

    def __init__(
        self,
        shape: Shape,
        tied: bool = True,
        scaled: bool = False,
        norm: Callable[[Shape], Norm] | None = None,
        logit_scale: float = 1.0,
        softcap: float | None = None,
        output_bias: bool = False,
    ) -> None:
        super().__init__()
        require_positive(logit_scale=logit_scale, softcap=softcap)
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.factor = shape.base_shape.width**0.5 if scaled else 1.0
        self.output_factor, self.softcap = logit_scale * (shape.base_shape.width / shape.width), softcap
        self.head = OutputLinear(shape.width, shape.vocabulary, bias=output_bias)
        if tied:
            self.head.weight = self.tokens.weight
        self.norm = nn.Identity() if norm is None else norm(shape)

    def forward(self, tokens_bt: Tensor) -> Tensor:
        """Return the scaled and normalised embeddings (b, t, width) of tokens (b, t)."""
        return self.norm(self.tokens(tokens_bt) * self.factor)

    def logits(self, x_btd: Tensor) -> Tensor:
        """Map (b, t, d) to logits (b, t, v)."""
        logits_btv: Tensor = self.head(self.scale_for_output(x_btd))
        return logits_btv if self.softcap is None else self.softcap * (logits_btv / self.softcap).tanh()

    def scale_for_output(self, x_btd: Tensor) -> Tensor:
        """Scale hidden states for the output layer, (b, t, d)."""
        return x_btd if self.output_factor == 1 else x_btd * self.output_factor

    @property
    def output_weight(self) -> Tensor | None:
        """The weight (v, d) whose product with scaled hidden states `logits` is, but for a soft-cap; else None."""
        plain = type(self).logits is Embedding.logits and self.head.bias is None and is_plain_linear(self.head)
        return self.head.weight if plain else None


class Model(nn.Module, ABC):
    """A model that gives logits of the next token; `inputs` of a batch are its arguments.

    Args:
        vocabulary, context: sizes supplied by the data; the context is the longest row, source or target.
        width, heads, layers: d_model, attention heads, blocks, of an encoder as many as of its decoder.
        embedding, position, block, norm, attention, mlp: the parts.
        initializer: draws the initial weights.
        dropout: on the embeddings and on each residual branch.
        parametrization: how initial weights, learning rates and multipliers go with the width; by default Standard.
    """

    initializer: Initializer
    depth: int
    parametrization: Parametrization | None = None
    logit_softcap: float | None = None
    shape: Shape
    ADAPTS = (nn.Module,)  # classes that `adapt` makes a model of

    @staticmethod
    def adapt(build: Callable[[int, int], nn.Module]) -> "Callable[[int, int], Model]":
        """Return a constructor of models around modules that map tokens (b, t) to logits (b, t, v)."""
        return functools.partial(AdaptedModel, build)

    def initialize(self, seed: int) -> None:
        """Draw every parameter anew from the random streams of `seed`."""
        self.initializer.initialize(self, self.depth, seed)
        for module in self.modules():
            if isinstance(module, Block):
                module.scale_initial_weights()

    def map_rate(self, optimizer: Optimizer) -> float:
        """Return the factor on the learning rate of layers from one width to another."""
        return 1.0 if self.parametrization is None else self.parametrization.rate(self.shape, optimizer)

    @abstractmethod
    def forward(self, *inputs: Tensor) -> Tensor:
        """Return logits of the next token at each position, (b, t, v)."""

    def hidden_and_weight(self, *inputs: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return hidden states (b, t, d) and output weight (v, d) whose product is the logits, or None.

        Where the model has a `logit_softcap`, logits are cap tanh(product / cap).
        """
        return None


class AdaptedModel(Model):
    """A module of any kind, whose constructor draws its initial weights unless it has a method `initialize(seed)`."""

    is_choice = False

    def __init__(self, build: Callable[[int, int], nn.Module], vocabulary: int, context: int) -> None:
        super().__init__()
        self.module, self.vocabulary, self.context = build(vocabulary, context), vocabulary, context

    def initialize(self, seed: int) -> None:
        """Call the module's own `initialize`, if it has one."""
        if callable(initialize := getattr(self.module, "initialize", None)):
            initialize(seed)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the module's logits; caches, here None, are left out. Raises ValueError for another shape."""
        logits_btv = self.module(*(x for x in inputs if x is not None))
        expected = (*inputs[0].shape, self.vocabulary)
        if not isinstance(logits_btv, Tensor) or logits_btv.shape != expected:
            output = tuple(logits_btv.shape) if isinstance(logits_btv, Tensor) else type(logits_btv).__name__
            raise ValueError(f"{type(self.module).__name__} gives {output}, expected logits of the shape {expected}")
        return logits_btv


class Decoder(Model):
    """A transformer that predicts each next token from the tokens up to it.

    Args:
        layers: their number; or, for each, the parts in which it differs.
        causal: off, every position sees the token it is to predict: a fault to measure, not a model.
        prediction: heads that predict later tokens, in training alone; each like the last block.
        skips: whether layer n - 1 - i reads the output of layer i too, times a learned number that is 1 at first, for
            each i below n // 2 (U-net: Ronneberger et al. 2015; modded-nanogpt 2024,
            https://github.com/KellerJordan/modded-nanogpt).
    """

    ADDED: ClassVar = ("prediction", "skips")
    LAYER_PARTS: ClassVar = ("attention", "mlp", "norm", "block", "position")  # the parts in which layers may differ
    keeps_activations = True  # from the forward pass to the backward pass; see `checkpoint_activations`
    local_heads = slice(None)  # the heads of each layer that this process computes: all but under tensor parallelism

    def __init__(
        self,
        vocabulary: int,
        context: int,
        width: int,
        heads: int,
        layers: Layers,
        embedding: Callable[[Shape], Embedding],
        position: Callable[[Shape], Position],
        block: Callable[[Shape, Callable[[Shape], Norm], float], BlockLayout],
        norm: Callable[[Shape], Norm],
        attention: Callable[[Shape], Attention],
        mlp: Callable[[Shape], FeedForward],
        initializer: Initializer,
        dropout: float = 0.0,
        causal: bool = True,
        parametrization: Parametrization | None = None,
        prediction: Callable[[Shape, Callable[[], Block]], Prediction] | None = None,
        skips: bool = False,
    ) -> None:
        super().__init__()
        require_share(dropout=dropout)
        self.parametrization = parametrization or Standard()
        own = [{}] * layers if isinstance(layers, int) else cast(Sequence[Layer], layers)
        shape = self.parametrization.shape(Shape(vocabulary, context, width, heads, len(own)))
        self.shape, self.depth, self.causal = shape, len(own), causal
        self.initializer = self.parametrization.initializer(initializer, shape)
        self.embedding, self.position, self.dropout = embedding(shape), position(shape), nn.Dropout(dropout)
        self.logit_softcap = self.embedding.softcap
        model_parts: Layer = {"attention": attention, "mlp": mlp, "norm": norm, "block": block}

        def build(layer: int) -> Block:
            at, parts = replace(shape, layer=layer), {**model_parts, **own[layer]}
            built = Block(parts["attention"](at), parts["mlp"](at), partial(parts["block"], at, parts["norm"], dropout))
            if "position" in own[layer]:
                built.position = own[layer]["position"](at)
            return built

        last = len(own) - 1
        self.blocks = nn.ModuleList(map(build, range(len(own))))
        streams = [getattr(block.layout, "streams", 1) for block in self.blocks]
        for layer, (before, after) in enumerate(itertools.pairwise(streams), start=1):
            if 1 != before != after:
                problem = f"layer {layer - 1} gives {before} streams and layer {layer} takes {after}"
                raise ValueError(f"{problem}; expected HyperConnections of as many in all layers")
        if prediction is not None and max(streams) > 1:
            raise ValueError("prediction reads one stream, and HyperConnections give several; expected another block")
        parts = {**model_parts, **own[last]}
        self.final_norm = parts["block"](replace(shape, layer=last), parts["norm"], dropout).final_norm(shape, norm)
        self.skip_gains = nn.Parameter(torch.ones(len(own) // 2)) if skips and len(own) > 1 else None
        self.prediction = None if prediction is None else prediction(shape, partial(build, last))

    def forward(self, tokens_bt: Tensor, caches: Sequence[Cache] | None = None) -> Tensor:  # type: ignore[override]
        """Return logits (b, t, v) of the next tokens; with caches, the tokens continue those that the caches hold."""
        return self.embedding.logits(self.final_norm(self._stream(tokens_bt, caches)))

    def hidden_and_weight(self, tokens_bt: Tensor) -> tuple[Tensor, Tensor] | None:  # type: ignore[override]
        """Return hidden states and output weight whose product is the logits; None if there is more to it."""
        matrix = self.embedding.output_weight
        if matrix is None or type(self).forward is not Decoder.forward:
            return None
        return self.embedding.scale_for_output(self.final_norm(self._stream(tokens_bt))), matrix

    def _stream(self, tokens_bt: Tensor, caches: Sequence[Cache] | None = None) -> Tensor:
        """Return the residual stream after the last block, (b, t, d)."""
        start = caches[0].length if caches else 0
        mask = self._mask(self.position, tokens_bt.shape[1], start)
        keep = self.keeps_activations or not torch.is_grad_enabled()

        def run(block: nn.Module, x_btd: Tensor, cache: Cache | None = None) -> Tensor:
            position, own_mask = cast(Position | None, block.position), mask
            if position is not None:
                own_mask = self._mask(position, tokens_bt.shape[1], start)
                own_mask.first_values = mask.first_values
            arguments = x_btd, position or self.position, own_mask, cache
            return cast(Tensor, block(*arguments) if keep else checkpoint(block, *arguments, use_reentrant=False))

        embedded_btd = self.embedding(tokens_bt)
        outputs = [self.dropout(self.position.embed(embedded_btd, start))]  # of each layer, behind the input
        for index, block in enumerate(self.blocks):
            x_btd = outputs[-1]
            if self.skip_gains is not None and (first := self.depth - 1 - index) < len(self.skip_gains):
                x_btd = x_btd + self.skip_gains[first] * outputs[first + 1]
            outputs.append(run(block, x_btd, caches[index] if caches else None))
        if self.prediction is not None and self.training:
            states = self.prediction(outputs[-2], outputs[-1], embedded_btd, run)
            self.prediction.states = [self.final_norm(state_btd) for state_btd in states]
        return outputs[-1]

    def _mask(self, position: Position, time: int, start: int) -> Mask:
        """Return the mask of layers with a position encoding, for `time` tokens after `start` others."""
        by_head = position.bias(time, start + time, self.causal), position.slopes()
        bias, slopes_h = (None if values is None else values[self.local_heads] for values in by_head)
        mask = Mask(self.causal, bias, slopes_h=slopes_h)
        mask.is_shared = self.keeps_activations or not torch.is_grad_enabled()
        return mask


def checkpoint_activations(model: Model) -> None:
    """Make each layer compute its activations again in the backward pass instead of keeping them (Chen et al. 2016).

    https://arxiv.org/abs/1604.06174. Gradients are the same to the last bit. Raises ValueError for a model that is no
    Decoder, and for a layer with a state that every forward pass changes.
    """
    if not isinstance(model, Decoder):
        raise ValueError(f"checkpoint_activations: expected a Decoder, found {type(model).__name__}")
    for part in model.modules():
        if hasattr(part, "extra_losses") or (isinstance(part, _BatchNorm) and part.track_running_stats):
            problem = f"{type(part).__name__} changes its state in each forward pass, which would be run twice"
            raise ValueError(f"checkpoint_activations: {problem}; leave it out")
    model.keeps_activations = False


AnyModel = TypeVar("AnyModel", bound=Model)


def build_and_initialize(model: Callable[[int, int], AnyModel], vocabulary: int, context: int, seed: int) -> AnyModel:
    """Build a model and draw its initial weights from `seed`; the caller's own random stream is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # for parts of a user's own that draw values when built
        built = model(vocabulary, context)
    built.initialize(seed)
    return built


class EncoderDecoder(Model):
    """A transformer that predicts each next token of a target from the tokens before it and all of a source.

    Vaswani et al. 2017, https://arxiv.org/abs/1706.03762. Source and target share a vocabulary and its vectors
    (section 3.4); encoder and decoder have position encodings of their own, and cross-attention has none.

    Args:
        cross: the decoder's attention to the encoder; the same as `attention` by default.
        embedding_norm: in each stack after positions are added (BART 2019, https://arxiv.org/abs/1910.13461), or none.
    """

    ADDED: ClassVar = ("embedding_norm",)

    def __init__(
        self,
        vocabulary: int,
        context: int,
        width: int,
        heads: int,
        layers: int,
        embedding: Callable[[Shape], Embedding],
        position: Callable[[Shape], Position],
        block: Callable[[Shape, Callable[[Shape], Norm], float], BlockLayout],
        norm: Callable[[Shape], Norm],
        attention: Callable[[Shape], Attention],
        mlp: Callable[[Shape], FeedForward],
        initializer: Initializer,
        dropout: float = 0.0,
        cross: Callable[[Shape], Attention] | None = None,
        parametrization: Parametrization | None = None,
        embedding_norm: Callable[[Shape], Norm] | None = None,
    ) -> None:
        super().__init__()
        require_share(dropout=dropout)
        self.parametrization = parametrization or Standard()
        shape = self.parametrization.shape(Shape(vocabulary, context, width, heads, layers))
        self.shape, self.depth = shape, layers
        self.initializer = self.parametrization.initializer(initializer, shape)
        self.embedding, self.dropout = embedding(shape), nn.Dropout(dropout)
        self.encoder_position, self.decoder_position = position(shape), position(shape)
        embedding_norm = embedding_norm or NoNorm
        self.encoder_embedding_norm, self.decoder_embedding_norm = embedding_norm(shape), embedding_norm(shape)
        shapes = [replace(shape, layer=layer) for layer in range(layers)]
        layout, crossed = lambda at: partial(block, at, norm, dropout), cross or attention
        self.encoder = nn.ModuleList(Block(attention(at), mlp(at), layout(at)) for at in shapes)
        self.decoder = nn.ModuleList(Block(attention(at), mlp(at), layout(at), crossed(at)) for at in shapes)
        window = getattr(cast(Block, self.decoder[0]).cross, "window", None)
        if window is not None:  # positions of two texts cannot be compared
            remedy = "set model.cross to an attention without a window"
            raise ValueError(f"window={window} has no meaning between source and target; {remedy}")
        last = layout(shapes[-1])()
        self.encoder_norm, self.decoder_norm = (last.final_norm(shape, norm) for _ in range(2))

    def forward(self, target_bt: Tensor, source_bs: Tensor, hidden_bs: Tensor) -> Tensor:  # type: ignore[override]
        """Return logits (b, t, v) of the next target tokens; hidden_bs is True for padding of the source."""
        # torch's fused attention has a slow backward pass on a CPU under autocast
        slow = target_bt.device.type == "cpu" and torch.is_autocast_enabled("cpu")
        with sdpa_kernel(SDPBackend.MATH) if slow else contextlib.nullcontext():
            return self.decode(target_bt, self.encode(source_bs, hidden_bs), hidden_bs)

    def encode(self, source_bs: Tensor, hidden_bs: Tensor) -> Tensor:
        """Encode a source for the decoder to attend to, (b, s, d)."""
        time, position = source_bs.shape[1], self.encoder_position
        mask = Mask(False, position.bias(time, time, causal=False), hidden_bs)
        x_bsd = self.dropout(self.encoder_embedding_norm(position.embed(self.embedding(source_bs))))
        for block in self.encoder:
            x_bsd = block(x_bsd, position, mask)
        return self.encoder_norm(x_bsd)

    def decode(
        self, target_bt: Tensor, memory_bsd: Tensor, hidden_bs: Tensor, caches: Sequence[Cache] | None = None
    ) -> Tensor:
        """Return logits (b, t, v) for an encoded source; with caches, tokens continue those that the caches hold."""
        start = caches[0].length if caches else 0
        time, position = target_bt.shape[1], self.decoder_position
        mask = Mask(True, position.bias(time, start + time))
        memory = Mask(False, None, hidden_bs)
        x_btd = self.dropout(self.decoder_embedding_norm(position.embed(self.embedding(target_bt), start)))
        for index, block in enumerate(self.decoder):
            x_btd = block(x_btd, position, mask, caches[index] if caches else None, memory_bsd, memory)
        return self.embedding.logits(self.decoder_norm(x_btd))


def load_weights(checkpoint: Path) -> dict[str, Tensor]:
    """Load the tensors of a model, and nothing else, from a checkpoint; raises ValueError for a damaged one."""
    if not is_intact(checkpoint):
        problem = "is damaged: its bytes are not those that were written"
        raise ValueError(f"{problem}; delete the cell, and it is trained again")
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"]
    return {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}
