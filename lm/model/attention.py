"""Attention. Legend: b batch, h heads, g key-value heads, q queries, s keys, t time, k head size, d width."""

import math
from abc import ABC, abstractmethod
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from lm.config.domain import require_positive, require_share
from lm.model.attention_impl import (
    ATTENTION_IMPLS,
    AttentionArgs,
    AttentionImpl,
    alibi_as_extra_dims,
    attend_with_sinks,
    repeat_kv,
)
from lm.model.cache import Cache
from lm.model.fused_linear import can_fuse, fused_linear
from lm.model.initializers import QueryKeyLinear, ResidualLinear
from lm.model.position import Position, relative_positions
from lm.model.shape import Shape

MaybeTensor = Tensor | None
Scale = Literal["1/sqrt(d_k)", "1/d_k", "none"] | float
QKNorm = bool | Literal["width", "LayerNorm"]
ValueResidual = Literal["fixed", "learned"] | None


def scale_factor(scale: Scale, head_size: int) -> float:
    """Return the number that multiplies q . k before the softmax, at heads of this size."""
    factors = {"1/sqrt(d_k)": 1 / math.sqrt(head_size), "1/d_k": 1 / head_size, "none": 1.0}
    return factors[scale] if isinstance(scale, str) else float(scale)


class Mask:
    """A mask over keys and a bias on scores, the same for every layer of a forward pass.

    If causal, no query sees a later key; the queries are the last of the keys' positions. No query sees a key of
    `hidden_bs`, such as padding. Where the bias is minus a slope times the distance, `slopes_h` has that of each head.
    `first_values` holds the values of the first layer that gives any, (b, g, s, k); all masks of a pass share the list.
    Layers share what `additive` makes, unless each is to make its own (`is_shared` off).
    """

    def __init__(
        self,
        causal: bool = True,
        bias_hqs: MaybeTensor = None,
        hidden_bs: MaybeTensor = None,
        slopes_h: MaybeTensor = None,
    ) -> None:
        self.causal, self.bias_hqs, self.hidden_bs, self.slopes_h = causal, bias_hqs, hidden_bs, slopes_h
        self.is_shared = True
        self.first_values: list[Tensor] = []
        self._made: dict[tuple[int, int, int | None, torch.dtype], Tensor | None] = {}

    def additive(self, queries: int, keys: int, window: int | None, like: Tensor) -> MaybeTensor:
        """Return the mask and the bias as one tensor, broadcastable to (b, h, q, s).

        None stands for plain causality over equal numbers of queries and keys, or for no mask at all.
        """
        if not self.is_shared or torch.compiler.is_compiling():  # layers share its code where nothing is kept
            return self._additive(queries, keys, window, like)
        key = queries, keys, window, like.dtype
        if key not in self._made:
            self._made[key] = self._additive(queries, keys, window, like)
        return self._made[key]

    def _additive(self, queries: int, keys: int, window: int | None, like: Tensor) -> MaybeTensor:
        windowed = window is not None and window < keys
        past = self.causal and 1 < queries < keys
        if self.bias_hqs is None and self.hidden_bs is None and not windowed and not past:
            return None
        bias = torch.zeros(1, 1, queries, keys, dtype=like.dtype, device=like.device)
        if self.bias_hqs is not None:
            bias = bias + self.bias_hqs.to(like.dtype)
        relative_qs = relative_positions(queries, keys, like.device)
        if self.causal:
            bias = bias.masked_fill(relative_qs > 0, -torch.inf)
        if windowed and window is not None:
            bias = bias.masked_fill(relative_qs.abs() >= window, -torch.inf)
        if self.hidden_bs is not None:
            bias = bias.masked_fill(self.hidden_bs[:, None, None, :], -torch.inf)
        return bias


class Attention(nn.Module, ABC):
    """A layer that mixes positions: (b, q, d) -> (b, q, d)."""

    cached = True  # true if one token at a time gives what all at once would

    @abstractmethod
    def forward(
        self, x_bqd: Tensor, position: Position, mask: Mask, memory_bsd: MaybeTensor = None, cache: Cache | None = None
    ) -> Tensor:
        """Attend to `memory_bsd`, or to `x_bqd` itself where it is None; a cache holds earlier keys and values."""


class WidthNorm(nn.RMSNorm):
    """Unit root mean square over all heads of a position, (b, h, t, k), then a gain."""

    def forward(self, x_bhtk: Tensor) -> Tensor:
        """Normalise what the heads of each position hold together."""
        return super().forward(x_bhtk.transpose(1, 2).flatten(2)).unflatten(-1, (x_bhtk.shape[1], -1)).transpose(1, 2)


class HeadLayerNorm(nn.Module):
    """Zero mean and unit variance of each head, (b, h, t, k), then a gain of its own."""

    def __init__(self, heads: int, head_size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(heads * head_size))

    def forward(self, x_bhtk: Tensor) -> Tensor:
        """Normalise each head."""
        normed_bhtk = nn.functional.layer_norm(x_bhtk, x_bhtk.shape[-1:], eps=self.eps)
        return normed_bhtk * self.weight.view(-1, 1, x_bhtk.shape[-1])


def make_qk_norm(kind: QKNorm, heads: int, head_size: int) -> nn.Module:
    """Return the norm of queries or keys (b, h, t, k) that an option `qk_norm` names."""
    if kind == "width":
        return WidthNorm(heads * head_size, eps=1e-6)
    if kind == "LayerNorm":
        return HeadLayerNorm(heads, head_size)
    return nn.RMSNorm(head_size, eps=1e-6) if kind else nn.Identity()


def require_growth(shape: Shape, name: str, value: int, size: int, base: int) -> None:
    """Refuse an option whose `size`, `base` at base width, does not go with the width under a parametrisation."""
    if size * shape.base_shape.width != base * shape.width:
        sizes = f"{base} at width {shape.base_shape.width} and {size} at width {shape.width}"
        raise ValueError(f"{name}={value} must go with the width under this parametrization, but makes {sizes}")


class SoftmaxAttention(Attention):
    """softmax(scale q k^T + bias) v for several heads (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762).

    Args:
        scale: what multiplies the scores: `1/sqrt(d_k)`, `1/d_k`, `none` (that is, 1), or a number.
        bias: whether the projections have offsets.
        qk_norm: whether queries and keys are brought to unit root mean square, with a gain, before they are rotated
            (Henry et al. 2020; Wortsman et al. 2023, https://arxiv.org/abs/2309.14322): each head, or over the whole
            `width` (OLMo 2, https://arxiv.org/abs/2501.00656); `LayerNorm` takes each head's mean out too (Cohere).
        softcap: bounds the scores by tanh; needs the plain form, which is slower.
        window: a query sees this many keys, itself the last (Beltagy et al. 2020).
        dropout: on the weights.
        gate: multiplies what the heads give by sigmoid(W x), one number for each head (`headwise`) or each of its
            entries (`elementwise`) (Qiu et al. 2025, https://arxiv.org/abs/2505.06708).
        sinks: whether each head has a learned logit in the softmax's denominator, 0 at first (Xiao et al. 2023,
            https://arxiv.org/abs/2309.17453; gpt-oss 2025, https://arxiv.org/abs/2508.10925). A softcap bounds it too.
        output_bias: whether the output has an offset; by default as `bias` says.
        head_size: of a head; width / heads by default.
        clip: bounds the entries of queries, keys and values (DBRX and OLMo 2024, https://arxiv.org/abs/2402.00838).
        value_residual: whether layers after the first use a v1 + b v in place of their values v, v1 those of the first
            (Zhou et al. 2024, https://arxiv.org/abs/2410.17897): a = b = 1/2, `fixed` or `learned` from there.
    """

    ADDED = ("gate", "sinks", "output_bias", "head_size", "clip", "value_residual")
    value_residual: ValueResidual = None
    impl: AttentionImpl = "sdpa"  # the implementation; a setting of training, the same for all layers

    def __init__(
        self,
        shape: Shape,
        scale: Scale = "1/sqrt(d_k)",
        bias: bool = True,
        qk_norm: QKNorm = False,
        softcap: float | None = None,
        window: int | None = None,
        dropout: float = 0.0,
        gate: Literal["headwise", "elementwise"] | None = None,
        sinks: bool = False,
        output_bias: bool | None = None,
        head_size: int | None = None,
        clip: float | None = None,
        value_residual: ValueResidual = None,
    ) -> None:
        super().__init__()
        key_value_heads = self.count_key_value_heads(shape.heads)
        if key_value_heads < 1 or shape.heads % key_value_heads:
            raise ValueError(f"key_value_heads={key_value_heads} must divide heads={shape.heads}")
        require_positive(softcap=softcap, window=window, head_size=head_size, clip=clip)
        require_share(dropout=dropout)
        if not isinstance(scale, str):
            require_positive(scale=scale)
        size, base = head_size or shape.head_size, head_size or shape.base_shape.head_size
        require_growth(shape, "head_size", size, shape.heads * size, shape.base_shape.heads * base)
        self.head_size, self.base_head_size, self.groups = size, base, shape.heads // key_value_heads
        width, kv_width = shape.heads * size, key_value_heads * size
        self.scale = scale_factor(scale, base) * (base / size)
        self.softcap, self.window, self.dropout, self.clip = softcap, window, dropout, clip
        self.query = QueryKeyLinear(shape.width, width, bias)
        self.key = QueryKeyLinear(shape.width, kv_width, bias)
        self.value = nn.Linear(shape.width, kv_width, bias)
        self.output = ResidualLinear(width, shape.width, bias if output_bias is None else output_bias)
        self.query_norm, self.key_norm = (make_qk_norm(qk_norm, n, size) for n in (shape.heads, key_value_heads))
        gates = shape.heads if gate == "headwise" else width
        self.gate = None if gate is None else nn.Linear(shape.width, gates, bias)
        self.sinks = nn.Parameter(torch.zeros(shape.heads)) if sinks else None
        self.value_residual, self.is_first = value_residual, not shape.layer
        mixes = value_residual == "learned" and not self.is_first
        self.value_shares = nn.Parameter(torch.full((2,), 0.5)) if mixes else None

    def forward(
        self, x_bqd: Tensor, position: Position, mask: Mask, memory_bsd: MaybeTensor = None, cache: Cache | None = None
    ) -> Tensor:
        """Attend to the input itself, or to a memory, (b, q, width) to (b, q, width)."""
        q_bhqk, k_bgsk, v_bgsk = self.projected(x_bqd, position, memory_bsd, cache)
        if self.value_residual is not None and memory_bsd is None:
            v_bgsk = self._mix_values(v_bgsk, mask)
        output_bhqk = self.attend(q_bhqk, k_bgsk, v_bgsk, mask)
        output_bqd = output_bhqk.transpose(1, 2).flatten(2)  # (b, h, q, k) -> (b, q, d)
        if self.gate is not None:
            gate_bqe = self.gate(x_bqd).sigmoid()
            output_bqd = output_bqd * gate_bqe.repeat_interleave(output_bqd.shape[-1] // gate_bqe.shape[-1], dim=-1)
        return self.output(output_bqd)

    def _mix_values(self, v_bgsk: Tensor, mask: Mask) -> Tensor:
        """Return the values with their share of the first layer's; the first layer gives its own to the pass."""
        if self.is_first:
            mask.first_values.append(v_bgsk)
            return v_bgsk
        first_bgsk = mask.first_values[0] if mask.first_values else None
        if first_bgsk is None or first_bgsk.shape != v_bgsk.shape:
            raise ValueError("value_residual needs a first layer with it, and as many key-value heads in all layers")
        if self.value_shares is None:
            return 0.5 * (first_bgsk + v_bgsk)
        first, own = self.value_shares.to(v_bgsk.dtype)
        return first * first_bgsk + own * v_bgsk

    def attend(self, q_bhqk: Tensor, k_bgsk: Tensor, v_bgsk: Tensor, mask: Mask) -> Tensor:
        """Mix values by the weights of their keys, (b, h, q, k), by the implementation that is set."""
        if (  # nothing is added to the scores but the penalty on distance
            (self.impl == "folded" and mask.slopes_h is not None and self.sinks is None)
            and (mask.hidden_bs is None and self.window is None and self.softcap is None)
            and (mask.causal and q_bhqk.shape[2] == k_bgsk.shape[2])
        ):
            q_bhqk, k_bgsk = alibi_as_extra_dims(q_bhqk, k_bgsk, mask.slopes_h, self.scale)
            v_bgsk, bias = repeat_kv(v_bgsk, q_bhqk.shape[1]), None
        else:
            bias = mask.additive(q_bhqk.shape[2], k_bgsk.shape[2], self.window, q_bhqk)
        dropout = self.dropout if self.training else 0.0
        args = AttentionArgs(self.scale, bias, mask.causal, self.softcap, dropout)
        if self.sinks is not None:
            return attend_with_sinks(ATTENTION_IMPLS[self.impl], q_bhqk, k_bgsk, v_bgsk, args, self.sinks)
        return ATTENTION_IMPLS[self.impl](q_bhqk, k_bgsk, v_bgsk, args)

    @abstractmethod
    def count_key_value_heads(self, heads: int) -> int:
        """Return the heads of keys and values, each shared by as many of the query heads."""

    def projected(
        self, x_bqd: Tensor, position: Position, memory_bsd: MaybeTensor = None, cache: Cache | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (b, h, q, k), keys and values (b, g, s, k), normed and rotated for the scores."""
        if memory_bsd is not None:
            k_bgsk, v_bgsk = self._split(fused_linear(memory_bsd, self.key, self.value)).chunk(2, dim=1)
            return self.query_norm(self._split(self.query(x_bqd))), self.key_norm(k_bgsk), v_bgsk
        start = 0 if cache is None else cache.length
        layers = self.query, self.key, self.value
        has_norm = not isinstance(self.query_norm, nn.Identity)
        if not has_norm and not can_fuse(x_bqd, layers):
            q_bhqk, k_bgsk, v_bgsk = (self._split(layer(x_bqd)) for layer in layers)
            q_bhqk, k_bgsk = position.rotate_projected(q_bhqk, start), position.rotate_projected(k_bgsk, start)
        else:
            qkv = self._split(fused_linear(x_bqd, *layers))
            kv_heads = qkv.shape[1] // (self.groups + 2)  # of the heads that this process computes, all or some
            heads = self.groups * kv_heads
            qk, v_bgsk = qkv.split((heads + kv_heads, kv_heads), dim=1)
            if position.head_independent and not has_norm:
                q_bhqk, k_bgsk = position.rotate_projected(qk, start).split((heads, kv_heads), dim=1)
            else:
                q_bhqk, k_bgsk = qk.split((heads, kv_heads), dim=1)
                q_bhqk = position.apply_rotary(self.query_norm(q_bhqk), start)
                k_bgsk = position.apply_rotary(self.key_norm(k_bgsk), start)
        if cache is not None:
            k_bgsk, v_bgsk = cache.append(k_bgsk, v_bgsk)
        return q_bhqk, k_bgsk, v_bgsk

    def cached_numbers(self) -> int:
        """Return how many numbers a cache holds of each token."""
        return 2 * self.key.out_features

    def _split(self, x_btd: Tensor) -> Tensor:
        x_btd = x_btd if self.clip is None else x_btd.clamp(-self.clip, self.clip)
        return x_btd.unflatten(-1, (-1, self.head_size)).transpose(1, 2)  # (b, t, d) -> (b, h, t, k)


AnyModule = TypeVar("AnyModule", bound=nn.Module)


def set_attention_impl(model: AnyModule, impl: AttentionImpl) -> AnyModule:
    """Make all attention layers of a model use an implementation; returns the model."""
    for module in model.modules():
        if isinstance(module, SoftmaxAttention):
            module.impl = impl
    return model


class MultiHead(SoftmaxAttention):
    """Multi-head attention: each query head has its own keys and values (Vaswani et al. 2017, equation 1)."""

    def count_key_value_heads(self, heads: int) -> int:
        """Return all heads."""
        return heads


class GroupedQuery(SoftmaxAttention):
    """Grouped-query attention (GQA): query heads share keys and values in groups (Ainslie et al. 2023).

    https://arxiv.org/abs/2305.13245

    Args:
        key_value_heads: must divide the heads; half of them by default.
    """

    def __init__(self, shape: Shape, key_value_heads: int | None = None, **options: Any) -> None:
        self.key_value_heads = key_value_heads
        super().__init__(shape, **options)

    def count_key_value_heads(self, heads: int) -> int:
        """Return the heads that were asked for."""
        return max(1, heads // 2) if self.key_value_heads is None else self.key_value_heads


class MultiQuery(SoftmaxAttention):
    """Multi-query attention (MQA): all query heads share one head of keys and values (Shazeer 2019).

    https://arxiv.org/abs/1911.02150
    """

    def count_key_value_heads(self, heads: int) -> int:
        """Return one."""
        return 1


def running_sum(x_nd: Tensor) -> Tensor:
    """Sum along the dimension before the last up to each index.

    On CUDA it is a product, in the input's precision: two runs of torch's cumsum may differ there.
    """
    if not x_nd.is_cuda:
        return x_nd.cumsum(dim=-2)
    with torch.autocast("cuda", enabled=False):
        return x_nd.new_ones(x_nd.shape[-2], x_nd.shape[-2]).tril() @ x_nd


CHUNK = 64  # positions in a chunk of `causal_products`


def causal_products(q_bhtk: Tensor, k_bhtk: Tensor, v_bhtv: Tensor) -> Tensor:
    """Compute sum over j <= i of (q_i . k_j) v_j, (b, h, t, v), chunk by chunk in time linear in t."""
    state_bhkv = q_bhtk.new_zeros(*q_bhtk.shape[:2], q_bhtk.shape[-1], v_bhtv.shape[-1])
    chunks = []
    for q, k, v in zip(*(x.split(CHUNK, dim=2) for x in (q_bhtk, k_bhtk, v_bhtv)), strict=True):
        within_bhcc = (q @ k.transpose(-1, -2)).tril()
        chunks.append(within_bhcc @ v + q @ state_bhkv)
        state_bhkv = state_bhkv + k.transpose(-1, -2) @ v
    return torch.cat(chunks, dim=2)


def refuse_scores(attention: Attention, mask: Mask, memory_bsd: MaybeTensor, cache: Cache | None) -> None:
    """Raise ValueError for what a causal layer without scores of pairs cannot do."""
    name = type(attention).__name__
    if mask.bias_hqs is not None:
        raise ValueError(f"{name} has no scores to bias; use Rope, Sinusoidal, Learned or NoPosition")
    if not mask.causal or memory_bsd is not None or mask.hidden_bs is not None:
        raise ValueError(f"{name} is causal self-attention without padding; use MultiHead here")
    if cache is not None:
        raise ValueError(f"{name} keeps no cache of keys and values")


class LinearAttention(Attention):
    """phi(q) . phi(k) in place of exp(q . k), phi = elu + 1 (Katharopoulos et al. 2020).

    https://arxiv.org/abs/2006.16236. Causal only. Rotations apply to the numerator alone (Su et al. 2021, section 3.3).

    Args:
        bias: whether the four projections have offsets.
    """

    cached = False

    def __init__(self, shape: Shape, bias: bool = True) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query = QueryKeyLinear(shape.width, shape.width, bias)
        self.key = QueryKeyLinear(shape.width, shape.width, bias)
        self.value = nn.Linear(shape.width, shape.width, bias)
        self.output = ResidualLinear(shape.width, shape.width, bias)

    def forward(
        self, x_bqd: Tensor, position: Position, mask: Mask, memory_bsd: MaybeTensor = None, cache: Cache | None = None
    ) -> Tensor:
        """Attend to the input itself, or to a memory, (b, q, width) to (b, q, width)."""
        refuse_scores(self, mask, memory_bsd, cache)
        q_btd, k_btd, v_btd = fused_linear(x_bqd, self.query, self.key, self.value).chunk(3, dim=-1)
        q_bhtk = nn.functional.elu(self._split(q_btd)) + 1
        k_bhtk = nn.functional.elu(self._split(k_btd)) + 1
        v_bhtv = self._split(v_btd)
        total_bht1 = (q_bhtk * running_sum(k_bhtk)).sum(-1, keepdim=True)
        mixed_bhtv = causal_products(position.apply_rotary(q_bhtk), position.apply_rotary(k_bhtk), v_bhtv) / total_bht1
        return self.output(mixed_bhtv.transpose(1, 2).flatten(2))

    def _split(self, x_btd: Tensor) -> Tensor:
        return x_btd.unflatten(-1, (self.heads, -1)).transpose(1, 2)
