"""Position encodings: sinusoids, rotations, and slopes of biases."""

import torch
from torch import Tensor

from lm.model.attention_impl import attention_weights
from lm.model.position import Alibi, Rope, alibi_slopes, sinusoids
from worked_examples.tensors import Given, Numbers, largest, shape_of


def uneven(gram_tt: Tensor) -> Tensor:
    """How far the entries of a matrix are from depending on the difference of their indices only."""
    return largest(gram_tt[1:, 1:] - gram_tt[:-1, :-1])


def sinusoid(given: Given) -> Numbers:
    """The encodings of the first positions."""
    table_td = sinusoids(given["positions"], given["width"])
    return {f"position {place}": row for place, row in enumerate(table_td)}


def sinusoid_shift(given: Given) -> Numbers:
    """PE(pos + k) against PE(pos) turned, plane by plane, by the angles that PE(k) is made of."""
    table_td, shift = sinusoids(given["time"], given["width"]), given["shift"]
    sine, cosine = table_td[shift, 0::2], table_td[shift, 1::2]
    sines, cosines = table_td[:-shift, 0::2], table_td[:-shift, 1::2]
    turned = torch.stack([sines * cosine + cosines * sine, cosines * cosine - sines * sine], -1).flatten(1)
    return {
        "error of the rotation": largest(turned - table_td[shift:]),
        "error of relative dots": uneven(table_td @ table_td.T),
    }


def rope_relative(given: Given) -> Numbers:
    """Dots of one query and one key turned to every pair of positions, their norms, and the angles at position 1."""
    time, shape = given["time"], shape_of(given["width"], given["heads"])
    rope, size = Rope(shape), shape.head_size
    q_k, k_k = torch.randn(2, size)
    turned_q, turned_k = (rope.apply_rotary(x.expand(1, 1, time, size))[0, 0] for x in (q_k, k_k))
    axes_k1tk = rope.apply_rotary(torch.eye(size)[:, None, None].expand(size, 1, 2, size))  # axes at 0 and 1
    cosines = axes_k1tk[:, 0, 1].diagonal()[: size // 2]
    pair = torch.arange(0, size, 2)
    return {
        "error of relative dots": uneven(turned_q @ turned_k.T),
        "error of norms": largest(turned_q.norm(dim=-1) - q_k.norm()),
        "error of angles": largest(cosines - (10000.0 ** (-pair / size)).cos()),
        "from d_model's angles": largest(cosines - (10000.0 ** (-pair / shape.width)).cos()),
    }


def slopes(given: Given) -> Numbers:
    """ALiBi's slopes for numbers of heads."""
    found: Numbers = {}
    for heads in given["heads"]:
        most = 1 << (heads.bit_length() - 1)
        found[f"n={heads}"] = alibi_slopes(heads)[:most]
        if most < heads:
            found[f"n={heads}, filled up"] = alibi_slopes(heads)[most:]
    return {**found, **bias_of_slopes(given["time"], given["heads"][-1])}


def bias_of_slopes(time: int, heads: int) -> Numbers:
    """What the bias is, and what the logarithms of the weights gain by it: all of it, less a constant a row."""
    bias_htt = Alibi(shape_of(4 * heads, heads)).bias(time, time)
    place = torch.arange(time)
    penalty_htt = -alibi_slopes(heads)[:, None, None] * (place[:, None] - place).abs()
    q_htk, k_htk = torch.randn(2, heads, time, 4)
    scale = 0.5
    biased, plain = (attention_weights(q_htk, k_htk, scale, bias).log() for bias in (bias_htt, None))
    rest_htt = biased - plain - penalty_htt
    return {
        "error of the bias": largest(bias_htt - penalty_htt),
        "error of what the scores gain": largest(rest_htt - rest_htt[..., :1]),
    }
