"""Ways of computing softmax(scale q k^T + bias) v: the same numbers up to rounding, at other costs.

Legend: b batch, h heads, g key-value heads, q queries, s keys, k head size.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from lm.model.position import relative

Way = Literal["sdpa", "plain", "blocked"]
"""`sdpa`: torch's fused call. `plain`: two matrix products and a softmax, all weights in memory. `blocked`: the plain
form for `BLOCK` queries at a time against the keys up to their end, which leaves out what causality hides."""

BLOCK = 128


def causal_bias(queries: int, keys: int, like: Tensor) -> Tensor:
    """0 where a query may see a key, minus infinity where the key is later, (q, s)."""
    zeros = torch.zeros(queries, keys, dtype=like.dtype, device=like.device)
    return zeros.masked_fill(relative(queries, keys, like.device) > 0, -torch.inf)


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


def shared_out(x_bgsk: Tensor, heads: int) -> Tensor:
    """Keys or values with a copy of their own for each of `heads` query heads, (b, h, s, k)."""
    groups = heads // x_bgsk.shape[1]
    return x_bgsk if groups == 1 else x_bgsk.repeat_interleave(groups, dim=1)


def sdpa(
    q_bhqk: Tensor,
    k_bgsk: Tensor,
    v_bgsk: Tensor,
    bias: Tensor | None,
    causal: bool,
    scale: float,
    softcap: float | None,
    dropout: float,
) -> Tensor:
    """What is mixed, (b, h, q, k), by torch's fused call; a softcap is none of its business."""
    if softcap is not None:
        return plain(q_bhqk, k_bgsk, v_bgsk, bias, causal, scale, softcap, dropout)
    return scaled_dot_product_attention(
        q_bhqk,
        k_bgsk,
        v_bgsk,
        attn_mask=bias,
        dropout_p=dropout,
        is_causal=bias is None and causal and q_bhqk.shape[2] > 1,
        scale=scale,
        enable_gqa=q_bhqk.shape[1] > k_bgsk.shape[1],
    )


def plain(
    q_bhqk: Tensor,
    k_bgsk: Tensor,
    v_bgsk: Tensor,
    bias: Tensor | None,
    causal: bool,
    scale: float,
    softcap: float | None,
    dropout: float,
) -> Tensor:
    """What is mixed, (b, h, q, k), from all weights at once."""
    heads, queries = q_bhqk.shape[1:3]
    if bias is None and causal and queries > 1:
        bias = causal_bias(queries, k_bgsk.shape[2], q_bhqk)
    weights_bhqs = attention_weights(q_bhqk, shared_out(k_bgsk, heads), scale, bias, softcap)
    return nn.functional.dropout(weights_bhqs, dropout) @ shared_out(v_bgsk, heads)


def blocked(
    q_bhqk: Tensor,
    k_bgsk: Tensor,
    v_bgsk: Tensor,
    bias: Tensor | None,
    causal: bool,
    scale: float,
    softcap: float | None,
    dropout: float,
) -> Tensor:
    """What is mixed, (b, h, q, k), a block of queries after the other. Half of the products and of the weights that
    are kept for the gradient fall away as the context grows."""
    heads, queries, keys = *q_bhqk.shape[1:3], k_bgsk.shape[2]
    if not causal or queries <= BLOCK:
        return plain(q_bhqk, k_bgsk, v_bgsk, bias, causal, scale, softcap, dropout)
    k_bhsk, v_bhsk = shared_out(k_bgsk, heads), shared_out(v_bgsk, heads)
    within = None if bias is not None else causal_bias(BLOCK, BLOCK, q_bhqk)
    mixed = []
    for start in range(0, queries, BLOCK):
        stop = min(start + BLOCK, queries)
        end = stop + keys - queries  # keys that the last query of the block sees
        here = _rows(bias, start, stop, end) if within is None else _diagonal(within, stop - start, end)
        weights = attention_weights(q_bhqk[:, :, start:stop], k_bhsk[:, :, :end], scale, here, softcap)
        mixed.append(nn.functional.dropout(weights, dropout) @ v_bhsk[:, :, :end])
    return torch.cat(mixed, dim=2)


def _rows(bias: Tensor | None, start: int, stop: int, end: int) -> Tensor | None:
    """The part of a bias (..., q, s) for queries from `start` to `stop` and the first `end` keys."""
    if bias is None:
        return None
    rows = bias if bias.shape[-2] == 1 else bias[..., start:stop, :]
    return rows[..., :end]


def _diagonal(within: Tensor, size: int, end: int) -> Tensor:
    """A bias (size, end) that hides the later keys of a block whose own keys are the last of `end`."""
    return nn.functional.pad(within[:size, :size], (end - size, 0))


Mix = Callable[[Tensor, Tensor, Tensor, Tensor | None, bool, float, float | None, float], Tensor]

WAYS: dict[Way, Mix] = {"sdpa": sdpa, "plain": plain, "blocked": blocked}
