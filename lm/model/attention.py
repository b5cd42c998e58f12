"""Attention. Legend: b batch, h heads, t time, k head size, d width."""

import math
from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from lm.model.initial import ResidualLinear
from lm.model.position import Position
from lm.model.shape import Shape

Scale = Literal["1/sqrt(d_k)", "1/d_k", "none"] | float


def scale_factor(scale: Scale, head_size: int) -> float:
    """The number that multiplies q . k before the softmax."""
    named = {"1/sqrt(d_k)": 1 / math.sqrt(head_size), "1/d_k": 1 / head_size, "none": 1.0}
    return named[scale] if isinstance(scale, str) else float(scale)


def causal(bias_htt: Tensor) -> Tensor:
    """A bias with minus infinity where the key lies after the query."""
    time = bias_htt.shape[-1]
    future_tt = torch.ones(time, time, dtype=torch.bool, device=bias_htt.device).triu(1)
    return bias_htt.masked_fill(future_tt, -torch.inf)


class Attention(nn.Module, ABC):
    """Mixes positions: (b, t, d) -> (b, t, d), no position reading a later one."""

    @abstractmethod
    def forward(self, x_btd: Tensor, position: Position, mask_htt: Tensor | None) -> Tensor:
        """`mask_htt` is the position's bias made causal, or None for a plain causal mask."""


class MultiHead(Attention):
    """Causal multi-head self-attention: softmax(scale q k^T + bias) v (Vaswani et al. 2017, equation 1).

    Args:
        scale: what multiplies the scores: `1/sqrt(d_k)`, `1/d_k`, `none` (that is, 1), or a number.
        bias: whether the four projections have offsets.
    """

    def __init__(self, shape: Shape, scale: Scale = "1/sqrt(d_k)", bias: bool = True) -> None:
        super().__init__()
        self.heads = shape.heads
        self.scale = scale_factor(scale, shape.head_size)
        self.query = nn.Linear(shape.width, shape.width, bias)
        self.key = nn.Linear(shape.width, shape.width, bias)
        self.value = nn.Linear(shape.width, shape.width, bias)
        self.output = ResidualLinear(shape.width, shape.width, bias)

    def forward(self, x_btd: Tensor, position: Position, mask_htt: Tensor | None) -> Tensor:
        q_bhtk = position.rotate(self._split(self.query(x_btd)))
        k_bhtk = position.rotate(self._split(self.key(x_btd)))
        v_bhtk = self._split(self.value(x_btd))
        mask_bhtt = None if mask_htt is None else mask_htt.to(q_bhtk.dtype)[None]
        mixed_bhtk = scaled_dot_product_attention(
            q_bhtk, k_bhtk, v_bhtk, attn_mask=mask_bhtt, is_causal=mask_bhtt is None, scale=self.scale
        )
        return self.output(mixed_bhtk.transpose(1, 2).flatten(2))  # (b, h, t, k) -> (b, t, d)

    def _split(self, x_btd: Tensor) -> Tensor:
        return x_btd.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (b, t, d) -> (b, h, t, k)
