"""The cost of a configuration before training: parameters, FLOPs per token, cache and activation memory.

Counts are read off the modules of a model, which may lie on the meta device. An attention layer of your own needs
`attention_flops.register`. Legend: b batch, t context, d width, h heads, g key-value heads, k head size, e experts.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from lm.config.tree import InputError
from lm.model.attention import CHUNK, Attention, LinearAttention, SoftmaxAttention
from lm.model.attention_variants import DECAY_CHUNK, Differential, GatedLinear, Latent
from lm.model.block import Block, BlockLayout
from lm.model.experts import Experts, token_shares
from lm.model.mlp import FeedForward
from lm.model.norm import Norm
from lm.model.position import Position
from lm.model.shape import Shape
from lm.model.transformer import Decoder, Embedding, EncoderDecoder, Model

KINDS: dict[type[nn.Module], str] = {
    **{Attention: "attention", FeedForward: "mlp", BlockLayout: "norm"},
    **{Norm: "norm", Position: "position", Embedding: "embedding"},
}


def parameters(model: nn.Module) -> dict[str, dict[str, int]]:
    """Count trainable parameters by part and kind: each block by its name, and the rest of the model as part "".

    A norm's part includes what a residual connection learns. A shared parameter counts once: a tied head nothing.
    """
    parts: dict[Tensor, str] = {}
    kinds: dict[Tensor, str] = {}
    for name, module in model.named_modules():  # outer modules first: a norm within attention is attention
        if isinstance(module, Embedding):
            kinds.setdefault(module.tokens.weight, "embedding")
            kinds.setdefault(module.head.weight, "head")
        kind = next((kind for cls, kind in KINDS.items() if isinstance(module, cls)), None)
        for parameter in module.parameters():
            if isinstance(module, Block):
                parts.setdefault(parameter, name)
            if kind is not None:
                kinds.setdefault(parameter, kind)
    counts: dict[str, dict[str, int]] = {"": dict.fromkeys(("embedding", "head"), 0)}
    for parameter in model.parameters():
        if parameter.requires_grad:
            part, kind = counts.setdefault(parts.get(parameter, ""), {}), kinds.get(parameter, "other")
            part[kind] = part.get(kind, 0) + parameter.numel()
    return counts


def active_parameters(model: nn.Module) -> int:
    """Count the trainable parameters that a token passes: of experts, those that it chooses."""
    idle = sum((1 - share) * p.numel() for m, share in token_shares(model).items() for p in m.parameters(recurse=False))
    return int(sum(p.numel() for p in model.parameters() if p.requires_grad) - idle)


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of matrix products, 2 m n k each, without norms, softmax and activations.

    Those of the forward pass: of linear layers, 2 per weight and token; of attention, over all pairs of query and key,
    as torch's own counter has it; and, useful of these, the pairs that causality and the window let through.
    """

    linear: float
    attention: float
    useful: float

    @property
    def forward(self) -> float:
        """Linear layers and attention in full."""
        return self.linear + self.attention

    @property
    def backward(self) -> float:
        """Two products for each of the forward pass, the gradients of both factors. Nothing is recomputed."""
        return 2 * self.forward

    @property
    def total(self) -> float:
        """A step of training, without the optimiser."""
        return self.forward + self.backward


def flops_per_token(model: Model, context: int) -> Flops:
    """Count FLOPs per token in a row of `context` tokens; with an encoder per target token of as long a source."""
    row = flops_per_row(model, context)
    return Flops(row.linear / context, row.attention / context, row.useful / context)


def flops_per_row(model: Model, context: int) -> Flops:
    """Count FLOPs of one row of `context` tokens, whole numbers."""
    biases = {layer for m in model.modules() if isinstance(m, Position) for layer in m.modules()}  # once a batch
    maps, shares = [m for m in model.modules() if isinstance(m, nn.Linear) and m not in biases], token_shares(model)
    linear = int(sum(2 * m.in_features * m.out_features * shares.get(m, 1) for m in maps))
    layers = attention_layers(model)
    if (prediction := getattr(model, "prediction", None)) is not None:  # which training alone runs
        layers = [*layers, *((block.attention, True) for block in prediction.blocks)]
        linear += len(prediction.blocks) * 2 * model.shape.width * model.shape.vocabulary
    pairs = [attention_flops(attention, context, causal) for attention, causal in layers]
    return Flops(context * linear, sum(full for full, _ in pairs), sum(useful for _, useful in pairs))


@functools.singledispatch
def attention_layers(model: Model) -> list[tuple[Attention, bool]]:
    """List the attention layers that a row passes, each with whether its queries see no later key."""
    raise InputError(f"cannot count {type(model).__name__}: register it with lm.model.flops.attention_layers")


@attention_layers.register
def _(model: Decoder) -> list[tuple[Attention, bool]]:
    return [(block.attention, model.causal) for block in model.blocks if isinstance(block, Block)]


@attention_layers.register
def _(model: EncoderDecoder) -> list[tuple[Attention, bool]]:
    stacks = model.encoder, model.decoder
    encoder, decoder = ([block for block in stack if isinstance(block, Block)] for stack in stacks)
    layers = [*((block.attention, False) for block in encoder), *((block.attention, True) for block in decoder)]
    return [*layers, *((block.cross, False) for block in decoder)]


@functools.singledispatch
def attention_flops(attention: Attention, time: int, causal: bool) -> tuple[int, int]:
    """Count forward FLOPs of attention for `time` queries and keys: over all pairs, and over visible ones; no sinks."""
    raise InputError(f"cannot count {type(attention).__name__}: register it with lm.model.flops.attention_flops")


@attention_flops.register
def _(attention: SoftmaxAttention, time: int, causal: bool) -> tuple[int, int]:
    per_pair = 4 * attention.query.out_features  # 2 h k for the score of a pair, 2 h k for mixing its value
    if isinstance(attention, Differential):  # values of twice the size
        per_pair += 2 * attention.query.out_features
    elif isinstance(attention, Latent):  # smaller ones
        per_pair = 2 * (attention.query.out_features + attention.value.out_features)
    return per_pair * time * time, per_pair * visible_pairs(time, causal, attention.window)


def visible_pairs(time: int, causal: bool, window: int | None) -> int:
    """Count the pairs of query and key that a mask lets through."""
    reach = time if window is None else min(window, time)
    before = reach * (reach + 1) // 2 + (time - reach) * reach  # keys up to the query, itself the last
    return before if causal else 2 * before - time


@attention_flops.register
def _(attention: LinearAttention, time: int, causal: bool) -> tuple[int, int]:
    chunks = [min(CHUNK, time - start) for start in range(0, time, CHUNK)]
    width = attention.query.out_features
    state = 4 * width * (width // attention.heads) * time  # keys times values into a running sum, queries out of it
    useful = sum(visible_pairs(chunk, True, None) for chunk in chunks)
    return 4 * width * sum(c * c for c in chunks) + state, 4 * width * useful + state


@attention_flops.register
def _(attention: GatedLinear, time: int, causal: bool) -> tuple[int, int]:
    chunks, keys, values = math.ceil(time / DECAY_CHUNK), attention.query.out_features, attention.value.out_features
    per_pair = 2 * (keys + values)
    state = 4 * keys * (values // attention.heads) * DECAY_CHUNK  # keys times values into a state, queries out of it
    full, useful = per_pair * DECAY_CHUNK**2, per_pair * visible_pairs(DECAY_CHUNK, True, None)
    return chunks * (full + state), chunks * (useful + state)


DTYPES = {"float32": 4, "bfloat16": 2}


def cache_bytes(model: Model, context: int, batch: int = 1) -> dict[str, int]:
    """Compute the bytes of the keys and values of `context` tokens, 2 b t g k numbers per causal layer, by dtype.

    `Latent` keeps its small vectors in their place. Windows do not shorten it.
    """
    layers = [layer for layer, causal in attention_layers(model) if causal and isinstance(layer, SoftmaxAttention)]
    numbers = batch * context * sum(layer.cached_numbers() for layer in layers)
    return {name: size * numbers for name, size in DTYPES.items()}


def activation_bytes(make_model: Callable[[], Model], context: int, batch: int = 1) -> dict[str, int]:
    """Count what autograd keeps between the passes of a training step, by dtype, without parameters and buffers.

    The model runs on tensors without memory, as on a CPU and in one precision: CUDA kernels keep less, and autocast
    copies of weights besides. Experts have equal loads. Empty where a part of the model needs to see values.
    """
    storages: dict[torch.UntypedStorage, Tensor] = {}

    def keep(x: Tensor) -> Tensor:
        storages[x.untyped_storage()] = x
        return x

    with FakeTensorMode():
        model: Any = make_model().train()
        tokens_bt = torch.zeros(batch, context, dtype=torch.int64)
        for module in model.modules():
            if isinstance(module, Experts):
                vars(module)["forward"] = functools.partial(_with_equal_loads, module)
        more = (tokens_bt, tokens_bt.bool()) if isinstance(model, EncoderDecoder) else ()
        with saved_tensors_hooks(keep, lambda x: x):
            try:
                logits_btv, prediction = model(tokens_bt, *more), getattr(model, "prediction", None)
                states = [] if prediction is None else prediction.states
                for each_btv in (logits_btv, *map(model.embedding.logits, states)):
                    nn.functional.cross_entropy(each_btv.flatten(0, 1), tokens_bt.flatten())
            except (DataDependentOutputException, DynamicOutputShapeException):
                return {}
        for x in (*model.parameters(), *model.buffers()):
            storages.pop(x.untyped_storage(), None)
    floats = sum(storage.nbytes() for storage, x in storages.items() if x.is_floating_point())
    others = sum(storage.nbytes() for storage in storages) - floats
    return {name: others + floats * size // DTYPES["float32"] for name, size in DTYPES.items()}


def _with_equal_loads(layer: Experts, x_btd: Tensor) -> Tensor:
    """Keep as much as `layer` does: each token passes the first of its experts, whose inputs and outputs are copies."""
    p_bte = layer.router(x_btd).softmax(-1)
    y_btd = sum(p_bte[..., e, None] * layer.experts[e](x_btd.clone()).clone() for e in range(layer.active))
    return y_btd if layer.shared is None else y_btd + layer.shared(x_btd)


def shape_of(model: Model) -> Shape:
    """Return the sizes of a model. Raises InputError where it has no `shape`."""
    shape = getattr(model, "shape", None)
    if not isinstance(shape, Shape):
        raise InputError(f"cannot count {type(model).__name__}: it has no `shape`")
    return shape
