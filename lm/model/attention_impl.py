"""Ways of computing softmax(scale q k^T + bias) v: the same numbers up to rounding, at other costs.

Legend: b batch, h heads, g key-value heads, q queries, s keys, k head size.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from lm.model.position import relative_positions

AttentionImpl = Literal["sdpa", "folded", "plain", "blocked", "flex"]
"""`sdpa`: torch's fused call. `folded`: the same, a penalty on distance folded into queries and keys. `plain`: two
matrix products and a softmax, all weights in memory. `blocked`: the plain form for `BLOCK` queries at a time against
the keys up to their end, which leaves out what causality hides. `flex`: on CUDA torch's FlexAttention where something
is added to the scores, and `sdpa` where nothing is."""

BLOCK = 128


class AttentionArgs(NamedTuple):
    """What becomes of q k^T before it is a share of each value.

    Args:
        scale: multiplies it.
        bias: added then, broadcastable to (b, h, q, s): all that hides a key, causality too, or None.
        causal: no query sees a later key; without a bias of as many queries as keys, or of one query.
        softcap: bounds the scaled products to (-softcap, softcap) by tanh; None leaves them.
        dropout: of the shares.
    """

    scale: float
    bias: Tensor | None = None
    causal: bool = True
    softcap: float | None = None
    dropout: float = 0.0


def causal_bias(queries: int, keys: int, like: Tensor) -> Tensor:
    """0 where a query may see a key, minus infinity where the key is later, (q, s)."""
    zeros = torch.zeros(queries, keys, dtype=like.dtype, device=like.device)
    return zeros.masked_fill(relative_positions(queries, keys, like.device) > 0, -torch.inf)


def attention_weights(
    q_bhqk: Tensor, k_bhsk: Tensor, scale: float, bias: Tensor | None = None, softcap: float | None = None
) -> Tensor:
    """softmax(scale q k^T + bias), (b, h, q, s): the plain form, which shows its weights.

    Args:
        bias: added to the scaled scores; minus infinity hides a key.
        softcap: bounds the scaled scores to (-softcap, softcap) by tanh (Gemma 2, https://arxiv.org/abs/2408.00118).
    """
    scores = scale * q_bhqk @ k_bhsk.transpose(-1, -2)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    return (scores if bias is None else scores + bias).softmax(-1)


def repeat_kv(x_bgsk: Tensor, heads: int) -> Tensor:
    """Keys or values with a copy of their own for each of `heads` query heads, (b, h, s, k)."""
    groups = heads // x_bgsk.shape[1]
    return x_bgsk if groups == 1 else x_bgsk.repeat_interleave(groups, dim=1)


def sdpa(q_bhqk: Tensor, k_bgsk: Tensor, v_bgsk: Tensor, scores: AttentionArgs) -> Tensor:
    """What is mixed, (b, h, q, k), by torch's fused call; a softcap is none of its business."""
    if scores.softcap is not None:
        return plain(q_bhqk, k_bgsk, v_bgsk, scores)
    return scaled_dot_product_attention(
        q_bhqk,
        k_bgsk,
        v_bgsk,
        attn_mask=scores.bias,
        dropout_p=scores.dropout,
        is_causal=scores.bias is None and scores.causal and q_bhqk.shape[2] > 1,
        scale=scores.scale,
        enable_gqa=q_bhqk.shape[1] > k_bgsk.shape[1],
    )


BF16_EXACT_INT = 256
"""Whole numbers up to it are exact in bfloat16, and so are its own multiples up to its square."""


def alibi_as_extra_dims(q_bhqk: Tensor, k_bgsk: Tensor, slopes_h: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Queries and keys, two larger, whose scaled products are the old ones plus slope * (position of the key).

    Under causality that is ALiBi's penalty on distance: what it lacks, slope * (position of the query), is the same for
    all keys of a row, and the softmax takes no notice. The keys' heads become as many as the queries'.
    """
    place_s = torch.arange(k_bgsk.shape[2], device=k_bgsk.device)
    low_s = place_s % BF16_EXACT_INT
    place_s2 = torch.stack([place_s - low_s, low_s], dim=-1).to(k_bgsk.dtype)
    slope_h2 = (slopes_h / scale).to(q_bhqk.dtype)[:, None, None].expand(-1, 1, 2)
    k_bhsk = repeat_kv(k_bgsk, q_bhqk.shape[1])
    return (
        torch.cat([q_bhqk, slope_h2.expand(*q_bhqk.shape[:3], 2)], dim=-1),
        torch.cat([k_bhsk, place_s2.expand(*k_bhsk.shape[:3], 2)], dim=-1),
    )


def plain(q_bhqk: Tensor, k_bgsk: Tensor, v_bgsk: Tensor, scores: AttentionArgs) -> Tensor:
    """What is mixed, (b, h, q, k), from all weights at once."""
    heads = q_bhqk.shape[1]
    bias = _whole_bias(q_bhqk, k_bgsk, scores)
    weights_bhqs = attention_weights(q_bhqk, repeat_kv(k_bgsk, heads), scores.scale, bias, scores.softcap)
    return nn.functional.dropout(weights_bhqs, scores.dropout) @ repeat_kv(v_bgsk, heads)


def _whole_bias(q_bhqk: Tensor, k_bgsk: Tensor, scores: AttentionArgs) -> Tensor | None:
    """All that is added to the scores, causality too."""
    queries = q_bhqk.shape[2]
    if scores.bias is None and scores.causal and queries > 1:
        return causal_bias(queries, k_bgsk.shape[2], q_bhqk)
    return scores.bias


def blocked(q_bhqk: Tensor, k_bgsk: Tensor, v_bgsk: Tensor, scores: AttentionArgs) -> Tensor:
    """What is mixed, (b, h, q, k), a block of queries after the other. Half of the products and of the weights that
    are kept for the gradient fall away as the context grows."""
    heads, queries, keys = *q_bhqk.shape[1:3], k_bgsk.shape[2]
    if not scores.causal or queries <= BLOCK:
        return plain(q_bhqk, k_bgsk, v_bgsk, scores)
    k_bhsk, v_bhsk = repeat_kv(k_bgsk, heads), repeat_kv(v_bgsk, heads)
    bias = scores.bias
    within = None if bias is not None else causal_bias(BLOCK, BLOCK, q_bhqk)
    mixed = []
    for start in range(0, queries, BLOCK):
        stop = min(start + BLOCK, queries)
        end = stop + keys - queries  # keys that the last query of the block sees
        here = _rows(bias, start, stop, end) if within is None else _diagonal(within, stop - start, end)
        block_bhqk = q_bhqk[:, :, start:stop]
        weights = attention_weights(block_bhqk, k_bhsk[:, :, :end], scores.scale, here, scores.softcap)
        mixed.append(nn.functional.dropout(weights, scores.dropout) @ v_bhsk[:, :, :end])
    return torch.cat(mixed, dim=2)


def flex(q_bhqk: Tensor, k_bgsk: Tensor, v_bgsk: Tensor, scores: AttentionArgs) -> Tensor:
    """What is mixed, (b, h, q, k), by a kernel made for the bias and the softcap; needs torch.compile to be one.

    There is none with dropout, and on a processor none that goes back.
    """
    softcap = scores.softcap
    if scores.bias is None and softcap is None:
        return sdpa(q_bhqk, k_bgsk, v_bgsk, scores)
    if scores.dropout or (torch.is_grad_enabled() and not q_bhqk.is_cuda):
        return plain(q_bhqk, k_bgsk, v_bgsk, scores)
    bias = _whole_bias(q_bhqk, k_bgsk, scores)
    everywhere = None if bias is None else bias.expand(*q_bhqk.shape[:3], k_bgsk.shape[2])

    def scored(score: Tensor, b: Tensor, h: Tensor, q: Tensor, s: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        return score if everywhere is None else score + everywhere[b, h, q, s]

    kernel = _compiled_flex() if q_bhqk.is_cuda else flex_attention
    grouped = q_bhqk.shape[1] > k_bgsk.shape[1]
    mixed: Tensor = kernel(q_bhqk, k_bgsk, v_bgsk, scored, scale=scores.scale, enable_gqa=grouped)
    return mixed


@functools.cache
def _compiled_flex() -> Any:
    return torch.compile(flex_attention)


def _rows(bias: Tensor | None, start: int, stop: int, end: int) -> Tensor | None:
    """The part of a bias (..., q, s) for queries from `start` to `stop` and the first `end` keys."""
    if bias is None:
        return None
    rows = bias if bias.shape[-2] == 1 else bias[..., start:stop, :]
    return rows[..., :end]


def _diagonal(within: Tensor, size: int, end: int) -> Tensor:
    """A bias (size, end) that hides the later keys of a block whose own keys are the last of `end`."""
    return nn.functional.pad(within[:size, :size], (end - size, 0))


AttentionFunction = Callable[[Tensor, Tensor, Tensor, AttentionArgs], Tensor]

ATTENTION_IMPLS: dict[AttentionImpl, AttentionFunction] = {
    "sdpa": sdpa,
    "folded": sdpa,
    "plain": plain,
    "blocked": blocked,
    "flex": flex,
}
