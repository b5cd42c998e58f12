"""Attention, the feed-forward layer and their norm, with weights and inputs of the texts' examples."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from lm.model.attention import Attention, GroupedQuery, Mask, MultiHead, MultiQuery, Scale, scale_factor
from lm.model.attention_impl import attention_weights
from lm.model.cache import Cache
from lm.model.mlp import ReLU
from lm.model.norm import LayerNorm
from lm.model.position import NoPosition
from worked_examples.tensors import Given, Numbers, fill, largest, real, shape_of

SCALED: Scale = "1/sqrt(d_k)"


def output_of(q_tk: Tensor, k_tk: Tensor, v_tk: Tensor) -> Tensor:
    """One head's output, scaled and unmasked, by the fused call that the layers make."""
    return scaled_dot_product_attention(q_tk, k_tk, v_tk, scale=scale_factor(SCALED, q_tk.shape[-1]))


def attend(given: Given) -> Numbers:
    """Weights and output of one head, and how far the layers' plain form is from their fused call."""
    q, k, v = (real(given[name]) for name in ("q", "k", "v"))
    weights, output = attention_weights(q, k, scale_factor(SCALED, q.shape[-1])), output_of(q, k, v)
    return {"weights": weights, "output": output, "plain form from fused": largest(weights @ v - output)}


def attend_back(given: Given) -> Numbers:
    """Gradients of one head's inputs for a given gradient of its output."""
    q, k, v = (real(given[name]).requires_grad_() for name in ("q", "k", "v"))
    by_v, by_q, by_k = torch.autograd.grad(output_of(q, k, v), (v, q, k), real(given["dO"]))
    return {"dV": by_v, "dQ": by_q, "dK": by_k}


def project(given: Given) -> Numbers:
    """Queries of an attention layer whose query map is given."""
    x = real(given["x"])
    layer = MultiHead(shape_of(x.shape[-1]), bias=False)
    fill(layer.query, real(given["w_q"]))
    return {"q": layer.query(x)}


def two_heads(given: Given) -> Tensor:
    """The outputs of two heads side by side, mapped by W_O: (t, columns of W_O).

    Each row enters a two-headed layer as a sequence of its own, in which attention returns the one value there is.
    """
    x_t1d = torch.cat([real(given["head 1"]), real(given["head 2"])], -1)[:, None]
    shape, w_o = shape_of(x_t1d.shape[-1], heads=2), real(given["w_o"])
    layer = MultiHead(shape, bias=False)
    fill(layer.value, torch.eye(shape.width))
    fill(layer.output, nn.functional.pad(w_o, (0, shape.width - w_o.shape[1])))
    return layer(x_t1d, NoPosition(shape), Mask())[:, 0, : w_o.shape[1]]


def concatenated(given: Given) -> Numbers:
    """The output of the two heads."""
    return {"output": two_heads(given)}


def normed(given: Given) -> Numbers:
    """LayerNorm over the rows that the two heads give."""
    rows = two_heads(given)
    return {"rows": LayerNorm(shape_of(rows.shape[-1]), eps=given["eps"])(rows)}


def feed_forward(given: Given) -> Numbers:
    """The ReLU layer of the normed rows, its weights counted up."""
    rows = torch.as_tensor(normed(given)["rows"])
    width, hidden = rows.shape[-1], given["hidden"]
    layer = ReLU(shape_of(width), expansion=hidden / width)
    w_1 = torch.arange(1.0, width * hidden + 1).reshape(width, hidden) / 10
    fill(layer.up, w_1, torch.arange(1.0, hidden + 1) / 100)
    fill(layer.down, w_1.T, torch.arange(1.0, width + 1) / 100)
    return {"output": layer(rows)}


def decoder_attention(given: Given) -> Numbers:
    """A whole layer with the text's seeded weights: as described, and as its figures were really made."""
    y_btd = real(given["y"])[None]
    shape, stream = shape_of(y_btd.shape[-1]), np.random.RandomState(given["numpy seed"])
    weights = [real(stream.rand(shape.width, shape.width)) for _ in range(4)]

    def run(scale: Scale, mask: Mask) -> Tensor:
        layer = MultiHead(shape, scale=scale, bias=False)
        for linear, weight in zip((layer.query, layer.key, layer.value, layer.output), weights, strict=True):
            fill(linear, weight)
        return layer(y_btd, NoPosition(shape), mask)[0]

    described, printed = run(SCALED, Mask(causal=True)), run("none", Mask(causal=False))
    return {
        "scaled, causal, position 0": described[0],
        "scaled, causal, positions 1-2": described[1:],
        "unscaled, unmasked, position 0": printed[0],
    }


def scores_variance(given: Given) -> Numbers:
    """How far the variance of q . k is from d_k, and that of the scaled scores from 1, as shares.

    Drawn in float32, which is five times as quick; a smaller head is the start of a larger one.
    """
    sizes, draws = given["head sizes"], []
    for _ in range(given["draws"] // 1000):
        products = torch.mul(*torch.randn(2, 1000, max(sizes), dtype=torch.float32))
        draws.append(torch.stack([products[:, :size].sum(-1, dtype=torch.float64) for size in sizes]))
    found: Numbers = {}
    for size, scores in zip(sizes, torch.cat(draws, -1), strict=True):
        found[f"d_k={size}, plain"] = largest(scores.var() / size - 1)
        found[f"d_k={size}, scaled"] = largest((scores * scale_factor(SCALED, size)).var() - 1)
    return found


def mix(given: Given) -> Numbers:
    """Values mixed with given weights, whose logarithms are the scores."""
    bias, values = real([given["weights"]]).log(), real(given["values"])
    query, keys = torch.zeros(1, 1), torch.zeros(len(values), 1)
    return {"output": (attention_weights(query, keys, 1.0, bias) @ values)[0]}


def attention_parameters(given: Given) -> Numbers:
    """Parameters of attention layers without offsets."""
    layers = [MultiHead(shape_of(width, heads=4), bias=False) for width in given["widths"]]
    return {"parameters": real([sum(p.numel() for p in layer.parameters()) for layer in layers])}


def cache_elements(given: Given) -> Numbers:
    """Elements of keys and values that are kept for a batch of sequences read token by token."""
    heads, size, groups = given["H"], given["d_k"], given["G"]
    shape = shape_of(heads * size, heads)
    layers: dict[str, Attention] = {
        "MHA": MultiHead(shape),
        "MQA": MultiQuery(shape),
        "GQA": GroupedQuery(shape, key_value_heads=groups),
    }
    found: Numbers = {}
    for name, layer in layers.items():
        cache = Cache()
        for x_b1d in torch.randn(given["B"], given["n"], shape.width).split(1, dim=1):
            layer(x_b1d, NoPosition(shape), Mask(), cache=cache)
        kept = tuple(cache.held)
        found[name] = float(sum(tensor.numel() for tensor in kept if tensor is not None))
    return found
