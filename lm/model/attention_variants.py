"""Attention layers that compute something else than one softmax of q k^T.

Legend: b batch, h heads, g key-value heads, q queries, s keys, t time, k head size, d width, n chunks of c positions.
"""

import math
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lm.config.domain import require_positive
from lm.model.attention import (
    Attention,
    GroupedQuery,
    Mask,
    MaybeTensor,
    MultiHead,
    Scale,
    refuse_scores,
    require_growth,
    running_sum,
    scale_factor,
)
from lm.model.cache import Cache
from lm.model.fused_linear import fused_linear
from lm.model.initializers import NormalVectors, QueryKeyLinear, ResidualLinear, TableLinear
from lm.model.position import Position
from lm.model.shape import Shape


class Differential(GroupedQuery):
    """(softmax(q1 k1^T) - lambda softmax(q2 k2^T)) v for pairs of heads, then a norm (Ye et al. 2024).

    https://arxiv.org/abs/2410.05258. Heads i and i + h/2 are a pair with values of twice the size. With four learned
    vectors lambda = exp(a . b) - exp(c . d) + l, where l = 0.8 - 0.6 exp(-0.3 i) in layer i from 0; what a pair gives
    is brought to unit root mean square, with a gain, and multiplied by 1 - l.

    Args:
        key_value_heads: even, must divide the heads; all of them by default.
    """

    def __init__(self, shape: Shape, key_value_heads: int | None = None, **options: Any) -> None:
        key_value_heads = shape.heads if key_value_heads is None else key_value_heads
        if key_value_heads % 2:
            raise ValueError(f"key_value_heads={key_value_heads} must be even: pairs of heads share their values")
        super().__init__(shape, key_value_heads, **options)
        self.initial_share = 0.8 - 0.6 * math.exp(-0.3 * (shape.layer or 0))
        self.share_scale = self.base_head_size / self.head_size
        self.share_vectors = NormalVectors(4, self.head_size, 0.1)
        self.pair_norm = nn.RMSNorm(2 * self.head_size, eps=1e-6)

    def attend(self, q_bhqk: Tensor, k_bgsk: Tensor, v_bgsk: Tensor, mask: Mask) -> Tensor:
        """Subtract what the second heads of the pairs mix from what the first do, (b, h/2, q, 2k)."""
        pair_bgsk = torch.cat(v_bgsk.chunk(2, dim=1), dim=-1).repeat(1, 2, 1, 1)
        first_bhqk, second_bhqk = super().attend(q_bhqk, k_bgsk, pair_bgsk, mask).chunk(2, dim=1)
        a, b, c, d = self.share_vectors
        plus, minus = ((self.share_scale * (x * y).sum()).exp() for x, y in ((a, b), (c, d)))
        share = plus - minus + self.initial_share
        return self.pair_norm(first_bhqk - share.to(q_bhqk.dtype) * second_bhqk) * (1 - self.initial_share)


class Latent(MultiHead):
    """Multi-head latent attention (MLA): keys and values are maps of one small vector a token (DeepSeek-V2 2024).

    https://arxiv.org/abs/2405.04434, section 2.1. Keys and queries have `rope_size` more entries, which alone are
    rotated, and those of keys are the same for all heads. A cache holds the small vectors and the rotated entries.

    Args:
        kv_rank: size of the vector; 4 times the head size by default.
        query_rank: size of a vector that queries are a map of; the input itself by default.
        rope_size: entries of queries and keys that are rotated; half the head size by default.
        head_size: of values and of queries and keys without the rotated entries; width / heads by default.
    """

    def __init__(
        self,
        shape: Shape,
        kv_rank: int | None = None,
        query_rank: int | None = None,
        rope_size: int | None = None,
        head_size: int | None = None,
        scale: Scale = "1/sqrt(d_k)",
        window: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        require_positive(kv_rank=kv_rank, query_rank=query_rank, rope_size=rope_size)
        super().__init__(shape, scale, bias=False, window=window, dropout=dropout, head_size=head_size)
        size, base = self.head_size, self.base_head_size
        rank, self.rope_size = kv_rank or 4 * size, rope_size or max(1, size // 2)
        require_growth(shape, "kv_rank", rank, rank, kv_rank or 4 * base)
        if query_rank:
            require_growth(shape, "query_rank", query_rank, query_rank, query_rank)
        base_score_size, score_size = base + (rope_size or max(1, base // 2)), size + self.rope_size
        self.scale = scale_factor(scale, base_score_size) * (base_score_size / score_size)
        self.query_down = nn.Linear(shape.width, query_rank, bias=False) if query_rank else nn.Identity()
        self.query_norm = nn.RMSNorm(query_rank, eps=1e-6) if query_rank else nn.Identity()
        self.query = QueryKeyLinear(query_rank or shape.width, shape.heads * score_size, bias=False)
        self.down, self.key_norm = nn.Linear(shape.width, rank + self.rope_size, bias=False), nn.RMSNorm(rank, eps=1e-6)
        self.key = QueryKeyLinear(rank, shape.heads * size, bias=False)
        self.value = nn.Linear(rank, shape.heads * size, bias=False)

    def projected(
        self, x_bqd: Tensor, position: Position, memory_bsd: MaybeTensor = None, cache: Cache | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys, (b, h, t, k + rotated entries), and values (b, h, t, k)."""
        start = 0 if cache is None else cache.length
        turned = partial(position.apply_rotary, start=start) if memory_bsd is None else nn.Identity()
        q_bhqk = self.query(self.query_norm(self.query_down(x_bqd)))
        q_bhqk = q_bhqk.unflatten(-1, (-1, self.head_size + self.rope_size)).transpose(1, 2)
        still_bhqk, rotary_bhqk = q_bhqk.split((self.head_size, self.rope_size), dim=-1)
        down_b1sr = self.down(x_bqd if memory_bsd is None else memory_bsd)[:, None]
        latent_b1sr, rotary_b1sk = down_b1sr.split((self.key.in_features, self.rope_size), dim=-1)
        latent_b1sr, rotary_b1sk = self.key_norm(latent_b1sr), turned(rotary_b1sk)
        if cache is not None:
            latent_b1sr, rotary_b1sk = cache.append(latent_b1sr, rotary_b1sk)
        k_bhsk, v_bhsk = self._split(fused_linear(latent_b1sr[:, 0], self.key, self.value)).chunk(2, dim=1)
        k_bhsk = torch.cat([k_bhsk, rotary_b1sk.expand(-1, k_bhsk.shape[1], -1, -1)], dim=-1)
        return torch.cat([still_bhqk, turned(rotary_bhqk)], dim=-1), k_bhsk, v_bhsk

    def cached_numbers(self) -> int:
        """Return how many numbers a cache holds of each token."""
        return self.key.in_features + self.rope_size


DECAY_CHUNK = 16  # positions in a chunk of `decayed_products`, few enough for inverse decays to stay in range
LEAST_LOG_DECAY = -5.0  # exp(5 * 16) can be written in float32 and bfloat16


def decayed_products(q_bhtk: Tensor, k_bhtk: Tensor, v_bhtv: Tensor, log_decay_bhtk: Tensor) -> Tensor:
    """Compute sum over j <= i of (q_i . exp(log decays of j + 1 to i) k_j) v_j, (b, h, t, v), in time linear in t."""
    time = q_bhtk.shape[2]
    padding = 0, 0, 0, -time % DECAY_CHUNK
    q, k, v, log_decay = (
        nn.functional.pad(x, padding).unflatten(2, (-1, DECAY_CHUNK)) for x in (q_bhtk, k_bhtk, v_bhtv, log_decay_bhtk)
    )  # (b, h, n, c, k)
    total = running_sum(log_decay)
    last = total[..., -1:, :]
    q = q * total.exp()
    within = (q @ (k * (-total).exp()).transpose(-1, -2)).tril() @ v
    added, carried = (k * (last - total).exp()).transpose(-1, -2) @ v, last.exp().transpose(-1, -2)
    states_bhkv = [torch.zeros_like(added[:, :, 0])]
    for chunk in range(added.shape[2] - 1):
        states_bhkv.append(states_bhkv[-1] * carried[:, :, chunk] + added[:, :, chunk])
    return (within + q @ torch.stack(states_bhkv, dim=2)).flatten(2, 3)[:, :, :time]


class GatedLinear(Attention):
    """A sum over earlier tokens of (q . decays k) v, by default with learned decays (Yang et al. 2023).

    https://arxiv.org/abs/2312.06635. A token's decays are sigmoid(W2 W1 x + b)^(1/16); keys have half the size of
    values; what a head gives is brought to unit root mean square and multiplied by SiLU(W x). In plain torch, by
    chunks: the package `fla` is faster, but needs Triton and a GPU. Causal only.

    Args:
        rank: of W2 W1.
        decay: of each entry of a key; or one of each head, as in Mamba-2 (Dao and Gu 2024,
            https://arxiv.org/abs/2405.21060); or fixed, 1 - 2^(-5 - h) in head h from 0 (RetNet: Sun et al. 2023,
            https://arxiv.org/abs/2307.08621).
    """

    cached = False

    def __init__(self, shape: Shape, rank: int = 16, decay: Literal["entry", "head", "fixed"] = "entry") -> None:
        super().__init__()
        require_positive(rank=rank)
        if shape.head_size % 2:
            raise ValueError(f"GatedLinear halves heads: head size {shape.head_size} (width / heads) must be even")
        self.heads, half = shape.heads, shape.width // 2
        self.scale = (shape.head_size // 2) ** -0.5
        self.query = QueryKeyLinear(shape.width, half, bias=False)
        self.key = QueryKeyLinear(shape.width, half, bias=False)
        self.value, self.gate = (nn.Linear(shape.width, shape.width, bias=False) for _ in range(2))
        self.decay = None
        if decay != "fixed":
            decays = TableLinear(rank, half if decay == "entry" else shape.heads)
            self.decay = nn.Sequential(nn.Linear(shape.width, rank, bias=False), decays)
        self.head_norm = nn.RMSNorm(shape.head_size, eps=1e-6)
        self.output = ResidualLinear(shape.width, shape.width, bias=False)

    def forward(
        self, x_bqd: Tensor, position: Position, mask: Mask, memory_bsd: MaybeTensor = None, cache: Cache | None = None
    ) -> Tensor:
        """Attend to the input itself, (b, t, width) to (b, t, width)."""
        refuse_scores(self, mask, memory_bsd, cache)
        layers = self.query, self.key, self.value, self.gate
        sizes = [layer.out_features for layer in layers]
        q_btd, k_btd, v_btd, gate_btd = fused_linear(x_bqd, *layers).split(sizes, dim=-1)
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (q_btd, k_btd, v_btd))
        if self.decay is None:
            head_h = torch.arange(self.heads, dtype=q.dtype, device=q.device)
            log_decay = (-(2.0 ** (-5 - head_h))).log1p()[:, None, None].expand(len(q), -1, q.shape[2], 1)
        else:
            log_decay_btd = (nn.functional.logsigmoid(self.decay(x_bqd)) / 16).clamp(min=LEAST_LOG_DECAY)
            log_decay = log_decay_btd.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q, k = position.apply_rotary(self.scale * q), position.apply_rotary(k)
        mixed_bthv = self.head_norm(decayed_products(q, k, v, log_decay).transpose(1, 2))
        return self.output(mixed_bthv.flatten(2) * nn.functional.silu(gate_btd))
