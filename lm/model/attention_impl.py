"""Implementations of softmax(scale q k^T + bias) v: the same numbers up to rounding, at other costs.

Legend: b batch, h heads, g key-value heads, q queries, s keys, k head size.
"""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from lm.model.position import relative_positions

AttentionImpl = Literal["sdpa", "folded", "plain", "blocked", "flex"]
"""Names of the implementations.

`sdpa`: torch's fused call. `folded`: the same, with a penalty on distance folded into queries and keys. `plain`: two
matrix products and a softmax, all weights in memory. `blocked`: the plain form for `BLOCK` queries at a time against
the keys up to their end, which leaves out what causality hides. `flex`: on CUDA torch's FlexAttention where something
is added to the scores, and `sdpa` where nothing is.
"""

BLOCK = 128  # queries in a block of `blocked`


class AttentionArgs(NamedTuple):
    """The options that turn q k^T into the weight of each value, as in `attention_weights`, and the dropout of weights.

    The bias is all that hides a key, causality too. Without it, `causal` is for as many queries as keys, or for one
    query.
    """

    scale: float
    bias: Tensor | None = None
    causal: bool = True
    softcap: float | None = None
    dropout: float = 0.0


def causal_bias(queries: int, keys: int, like: Tensor) -> Tensor:
    """Return a bias of 0 where a query may see a key and minus infinity where the key is later, (q, s)."""
    zeros = torch.zeros(queries, keys, dtype=like.dtype, device=like.device)
    return zeros.masked_fill(relative_positions(queries, keys, like.device) > 0, -torch.inf)


def attention_weights(
    q_bhqk: Tensor,
    k_bhsk: Tensor,
    scale: float,
    bias: Tensor | None = None,
    softcap: float | None = None,
    sinks_h: Tensor | None = None,
) -> Tensor:
    """Compute softmax(scale q k^T + bias), (b, h, q, s); minus infinity in the bias hides a key.

    `softcap` bounds the scaled scores to (-softcap, softcap) by tanh (Gemma 2, https://arxiv.org/abs/2408.00118). With
    `sinks_h`, one more score of each head, weights sum to less than 1: the rest is the sink's.
    """
    scores = scale * q_bhqk @ k_bhsk.transpose(-1, -2)
    if sinks_h is not None:
        sinks = sinks_h.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
        scores, bias = torch.cat([sinks, scores], dim=-1), bias if bias is None else nn.functional.pad(bias, (1, 0))
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    weights = (scores if bias is None else scores + bias).softmax(-1)
    return weights if sinks_h is None else weights[..., 1:]


def repeat_kv(x_bgsk: Tensor, heads: int) -> Tensor:
    """Repeat keys or values so that each of `heads` query heads has its own, (b, h, s, k)."""
    groups = heads // x_bgsk.shape[1]
    return x_bgsk if groups == 1 else x_bgsk.repeat_interleave(groups, dim=1)


def sdpa(q_bhqk: Tensor, k_bgsk: Tensor, v_bgsk: Tensor, args: AttentionArgs) -> Tensor:
    """Attend by `fused`, with zeros that bring keys and values to one size, as fast kernels need it."""
    key_size, size = k_bgsk.shape[-1], v_bgsk.shape[-1]
    if key_size == size or args.softcap is not None:
        return fused(q_bhqk, k_bgsk, v_bgsk, args)
    q_bhqk, k_bgsk = (nn.functional.pad(x, (0, max(0, size - key_size))) for x in (q_bhqk, k_bgsk))
    return fused(q_bhqk, k_bgsk, nn.functional.pad(v_bgsk, (0, max(0, key_size - size))), args)[..., :size]


def fused(q_bhqk: Tensor, k_bgsk: Tensor, v_bgsk: Tensor, args: AttentionArgs) -> Tensor:
    """Attend by torch's fused call; with a softcap, which it does not support, by `plain`. Returns (b, h, q, k)."""
    if args.softcap is not None:
        return plain(q_bhqk, k_bgsk, v_bgsk, args)
    causal, grouped = args.bias is None and args.causal and q_bhqk.shape[2] > 1, q_bhqk.shape[1] > k_bgsk.shape[1]
    return scaled_dot_product_attention(
        q_bhqk, k_bgsk, v_bgsk, args.bias, args.dropout, causal, scale=args.scale, enable_gqa=grouped
    )


# A whole number up to which all others, and its own multiples up to its square, are exact in bfloat16.
BF16_EXACT_INT = 256


def alibi_as_extra_dims(q_bhqk: Tensor, k_bgsk: Tensor, slopes_h: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Extend queries and keys by two dimensions whose scaled product adds slope * (position of the key).

    Under causality this is ALiBi's penalty: what is missing is the same for all keys of a row, and softmax ignores it.
    """
    position_s = torch.arange(k_bgsk.shape[2], device=k_bgsk.device)
    low_s = position_s % BF16_EXACT_INT
    position_s2 = torch.stack([position_s - low_s, low_s], dim=-1).to(k_bgsk.dtype)
    slope_h2 = (slopes_h / scale).to(q_bhqk.dtype)[:, None, None].expand(-1, 1, 2)
    k_bhsk = repeat_kv(k_bgsk, q_bhqk.shape[1])
    extended_bhqk = torch.cat([q_bhqk, slope_h2.expand(*q_bhqk.shape[:3], 2)], dim=-1)
    return extended_bhqk, torch.cat([k_bhsk, position_s2.expand(*k_bhsk.shape[:3], 2)], dim=-1)


def plain(q_bhqk: Tensor, k_bgsk: Tensor, v_bgsk: Tensor, args: AttentionArgs) -> Tensor:
    """Attend with all weights in memory at once, (b, h, q, k)."""
    heads = q_bhqk.shape[1]
    bias = _whole_bias(q_bhqk, k_bgsk, args)
    weights_bhqs = attention_weights(q_bhqk, repeat_kv(k_bgsk, heads), args.scale, bias, args.softcap)
    return nn.functional.dropout(weights_bhqs, args.dropout) @ repeat_kv(v_bgsk, heads)


def _whole_bias(q_bhqk: Tensor, k_bgsk: Tensor, args: AttentionArgs) -> Tensor | None:
    """Return all that is added to the scores, causality too."""
    queries = q_bhqk.shape[2]
    if args.bias is None and args.causal and queries > 1:
        return causal_bias(queries, k_bgsk.shape[2], q_bhqk)
    return args.bias


def blocked(q_bhqk: Tensor, k_bgsk: Tensor, v_bgsk: Tensor, args: AttentionArgs) -> Tensor:
    """Attend one block of queries after the other, (b, h, q, k), which saves half of the products and weights."""
    heads, queries, keys = *q_bhqk.shape[1:3], k_bgsk.shape[2]
    if not args.causal or queries <= BLOCK:
        return plain(q_bhqk, k_bgsk, v_bgsk, args)
    k_bhsk, v_bhsk = repeat_kv(k_bgsk, heads), repeat_kv(v_bgsk, heads)
    bias = args.bias
    diagonal_bias = causal_bias(BLOCK, BLOCK, q_bhqk)
    outputs = []
    for start in range(0, queries, BLOCK):
        stop = min(start + BLOCK, queries)
        end = stop + keys - queries  # keys that the last query of the block sees
        if bias is None:  # hides later keys of the block, whose own keys are the last of `end`
            block_bias = nn.functional.pad(diagonal_bias[: stop - start, : stop - start], (end - (stop - start), 0))
        else:
            block_bias = (bias if bias.shape[-2] == 1 else bias[..., start:stop, :])[..., :end]
        block_bhqk = q_bhqk[:, :, start:stop]
        weights = attention_weights(block_bhqk, k_bhsk[:, :, :end], args.scale, block_bias, args.softcap)
        outputs.append(nn.functional.dropout(weights, args.dropout) @ v_bhsk[:, :, :end])
    return torch.cat(outputs, dim=2)


def flex(q_bhqk: Tensor, k_bgsk: Tensor, v_bgsk: Tensor, args: AttentionArgs) -> Tensor:
    """Attend by a kernel generated for the bias and the softcap, (b, h, q, k); needs torch.compile.

    There is no such kernel with dropout, and on a processor none with a backward pass; then `plain` is used.
    """
    softcap = args.softcap
    if args.bias is None and softcap is None:
        return sdpa(q_bhqk, k_bgsk, v_bgsk, args)
    if args.dropout or (torch.is_grad_enabled() and not q_bhqk.is_cuda):
        return plain(q_bhqk, k_bgsk, v_bgsk, args)
    bias = _whole_bias(q_bhqk, k_bgsk, args)
    bias_bhqs = None if bias is None else bias.expand(*q_bhqk.shape[:3], k_bgsk.shape[2])

    def modify_score(score: Tensor, b: Tensor, h: Tensor, q: Tensor, s: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        return score if bias_bhqs is None else score + bias_bhqs[b, h, q, s]

    kernel = compiled_flex() if q_bhqk.is_cuda else flex_attention
    grouped = q_bhqk.shape[1] > k_bgsk.shape[1]
    output_bhqk: Tensor = kernel(q_bhqk, k_bgsk, v_bgsk, modify_score, scale=args.scale, enable_gqa=grouped)
    return output_bhqk


AttentionFunction = Callable[[Tensor, Tensor, Tensor, AttentionArgs], Tensor]


def attend_with_sinks(
    attend: AttentionFunction, q_bhqk: Tensor, k_bgsk: Tensor, v_bgsk: Tensor, args: AttentionArgs, sinks_h: Tensor
) -> Tensor:
    """Attend with one more logit of each head in the softmax's denominator, (b, h, q, k).

    It is the score of a first key of value 0, in one more dimension of queries and keys. Where no bias hides later
    keys, a first query keeps as many queries as keys.
    """
    size, queries = q_bhqk.shape[-1], q_bhqk.shape[2]
    logit_h11 = (sinks_h / args.scale).to(q_bhqk.dtype)[:, None, None]
    q_bhqk = torch.cat([q_bhqk, logit_h11.expand(*q_bhqk.shape[:3], 1)], dim=-1)
    sink_k = (torch.arange(size + 1, device=k_bgsk.device) == size).to(k_bgsk.dtype)
    k_bgsk = torch.cat([sink_k.expand(*k_bgsk.shape[:2], 1, -1), nn.functional.pad(k_bgsk, (0, 1))], dim=2)
    v_bgsk = nn.functional.pad(v_bgsk, (0, 0, 1, 0))
    if args.bias is not None:
        args = args._replace(bias=nn.functional.pad(args.bias, (1, 0)))
    elif args.causal and queries > 1:
        q_bhqk = nn.functional.pad(q_bhqk, (0, 0, 1, 0))
    return attend(q_bhqk, k_bgsk, v_bgsk, args)[:, :, -queries:]


compiled_flex = functools.cache(lambda: torch.compile(flex_attention))
ATTENTION_IMPLS: dict[AttentionImpl, AttentionFunction] = {
    **{"sdpa": sdpa, "folded": fused, "plain": plain, "blocked": blocked, "flex": flex}
}
