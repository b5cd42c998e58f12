"""The cost of a configuration before training: parameters, FLOPs per token, cache and activation memory.

All of it is read off the modules of a model, which may lie on the meta device. A module of your own needs one line for
what it adds: `attention_flops.register` and `activation_numel.register`. Legend: b batch, t context, d width, h heads,
g key-value heads, k head size, f hidden width of an MLP.
"""

import functools
import math
from dataclasses import dataclass

from torch import Tensor, nn

from lm.config.tree import InputError
from lm.model.attention import CHUNK, Attention, LinearAttention, SoftmaxAttention
from lm.model.attention_variants import DECAY_CHUNK, Differential, GatedLinear, Latent
from lm.model.block import (
    Block,
    BlockLayout,
    HyperConnections,
    LayerScale,
    ParallelResidual,
    ResidualConnection,
    ReZero,
)
from lm.model.experts import Experts, token_shares
from lm.model.fused_linear import MIN_ROWS_TO_FUSE
from lm.model.mlp import GLU, MLP, FeedForward, GatedMLP, ReGLU, ReLU, Sigmoid
from lm.model.norm import DyT, NoNorm, Norm, RMSNorm
from lm.model.position import Position
from lm.model.prediction import Prediction
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


def activation_bytes(model: Model, context: int, batch: int = 1) -> dict[str, int]:
    """Estimate what one training step keeps for the backward pass, by dtype, without weights and gradients.

    These are b t (sum of `activation_numel` over all modules) numbers; masks, made once per pass: h t^2 for an encoding
    that biases scores, t^2 for a window; and below float32 copies of weights. CUDA kernels keep less, autocast more.
    """
    shape = shape_of(model)
    shares = token_shares(model)
    token = sum(activation_numel(module, shape, context) * float(shares.get(module, 1)) for module in model.modules())
    token += sum(shape.width for child in model.children() if isinstance(child, nn.Dropout) and child.p)
    biases = [position.bias(1, 1) for position in model.modules() if isinstance(position, Position)]
    shared = [child for child in model.children() if isinstance(child, Position)]
    for block in model.modules():  # no fused kernel where a bias is learned: the weights are kept
        if isinstance(block, Block):
            own = [part.bias(1, 1) for part in (shared if block.position is None else [block.position])]
            token += shape.heads * context * any(bias is not None and bias.requires_grad for bias in own)
    windows = {getattr(attention, "window", None) for attention, _ in attention_layers(model)}
    bounded = sum(window is not None and window < context for window in windows)
    masks = shape.heads * sum(bias is not None for bias in biases) or bounded
    copies = 0
    for module in model.modules() if batch * context >= MIN_ROWS_TO_FUSE else ():  # weights copied into one matrix
        if isinstance(module, SoftmaxAttention | LinearAttention | GatedLinear):
            copies += sum(layer.weight.numel() for layer in (module.query, module.key, module.value))
        elif isinstance(module, GatedMLP):
            copies += module.gate.weight.numel() + module.up.weight.numel()
    numbers = batch * context * token + context**2 * masks
    return {name: round(size * (numbers + copies * (name != "float32"))) for name, size in DTYPES.items()}


def shape_of(model: Model) -> Shape:
    """Return the sizes of a model. Raises InputError where it has no `shape`."""
    shape = getattr(model, "shape", None)
    if not isinstance(shape, Shape):
        raise InputError(f"cannot count {type(model).__name__}: it has no `shape`")
    return shape


@functools.singledispatch
def activation_numel(module: nn.Module, shape: Shape, time: int) -> float:
    """Count the numbers per token that a module keeps for the backward pass, without its submodules."""
    return 0


@activation_numel.register
def _(module: Norm, shape: Shape, time: int) -> float:
    # what it reads, and for RMSNorm that over its root mean square, for DyT its tanh; what it gives is kept by the maps
    # that read it
    return shape.width * (0 if isinstance(module, NoNorm) else 2 if isinstance(module, RMSNorm | DyT) else 1)


@activation_numel.register
def _(module: ResidualConnection, shape: Shape, time: int) -> float:
    # the dropout mask; what the learned share multiplies
    return shape.width * (bool(module.dropout.p) + isinstance(module, ReZero | LayerScale))


@activation_numel.register
def _(module: ParallelResidual, shape: Shape, time: int) -> float:
    # two dropout masks; attention and MLP count what they read, which a shared norm gives once
    return shape.width * (2 * bool(module.dropout.p) - (module.mlp_norm is None))


@activation_numel.register
def _(module: HyperConnections, shape: Shape, time: int) -> float:
    # for each sublayer the streams, what it adds and its dropout mask
    return 2 * shape.width * (module.streams + 1 + bool(module.dropout.p))


@activation_numel.register
def _(module: SoftmaxAttention, shape: Shape, time: int) -> float:
    queries, keys = module.query.out_features, module.key.out_features
    more = 0 if isinstance(module.query_norm, nn.Identity) else 2 * (queries + keys)
    more += 0 if module.clip is None else queries + 2 * keys
    more += 0 if module.gate is None else 2 * queries + module.gate.out_features
    more += 0 if module.value_shares is None else keys
    more += 7 * queries * isinstance(module, Differential)  # values and outputs of pairs, twice the size
    squares = 2 * (module.softcap is not None) or 3 * bool(module.dropout)  # the plain form: scores of every pair
    return shape.width + 2 * queries + 2 * keys + more + squares * shape.heads * time


@activation_numel.register
def _(module: LinearAttention, shape: Shape, time: int) -> float:
    products = shape.heads * min(CHUNK, time) + shape.width * shape.head_size / CHUNK
    return 12 * shape.width + products


@activation_numel.register
def _(module: GatedLinear, shape: Shape, time: int) -> float:
    padded = math.ceil(time / DECAY_CHUNK) * DECAY_CHUNK / time
    chunk = 8 * shape.width + 2 * shape.heads * DECAY_CHUNK + shape.width * shape.head_size / DECAY_CHUNK
    return 8 * shape.width + padded * chunk


@activation_numel.register
def _(module: MLP, shape: Shape, time: int) -> float:
    hidden = module.up.out_features
    # An activation whose slope follows from its value keeps that alone; a gated layer keeps both factors besides.
    once = isinstance(module, (ReLU, Sigmoid, ReGLU, GLU))
    return shape.width + hidden * (2 - once + 2 * isinstance(module, GatedMLP) + bool(module.dropout.p))


@activation_numel.register
def _(module: Experts, shape: Shape, time: int) -> float:
    return shape.width * (1 + module.active) + 2 * len(module.experts)  # without what experts keep themselves


@activation_numel.register
def _(module: Prediction, shape: Shape, time: int) -> float:
    return len(module.blocks) * (shape.width + shape.vocabulary)


@activation_numel.register
def _(module: Embedding, shape: Shape, time: int) -> float:
    # what the head reads, the logarithms of probabilities, and logits between -1 and 1
    return shape.width + shape.vocabulary * (1 + (module.softcap is not None))
