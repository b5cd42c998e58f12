"""Attention without a softmax. Legend: b batch, h heads, t time, c chunk, k head size, v value size, d width."""

import torch
from torch import Tensor, nn

from lm.model.attention import Attention, Mask
from lm.model.cache import Cache
from lm.model.initial import QueryKeyLinear, ResidualLinear
from lm.model.joined import in_one
from lm.model.position import Position
from lm.model.shape import Shape

CHUNK = 64


def causal_products(q_bhtk: Tensor, k_bhtk: Tensor, v_bhtv: Tensor) -> Tensor:
    """sum over j <= i of (q_i . k_j) v_j, (b, h, t, v), in time linear in t: chunk by chunk, a running sum between."""
    state_bhkv = q_bhtk.new_zeros(*q_bhtk.shape[:2], q_bhtk.shape[-1], v_bhtv.shape[-1])
    mixed = []
    for q, k, v in zip(*(x.split(CHUNK, dim=2) for x in (q_bhtk, k_bhtk, v_bhtv)), strict=True):
        within_bhcc = (q @ k.transpose(-1, -2)).tril()
        mixed.append(within_bhcc @ v + q @ state_bhkv)
        state_bhkv = state_bhkv + k.transpose(-1, -2) @ v
    return torch.cat(mixed, dim=2)


class LinearAttention(Attention):
    """phi(q) . phi(k) in place of exp(q . k), phi = elu + 1 (Katharopoulos et al. 2020).

    https://arxiv.org/abs/2006.16236. Causal only. Rotations turn the numerator alone (Su et al. 2021, section 3.3).

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
        self,
        x_bqd: Tensor,
        position: Position,
        mask: Mask,
        memory_bsd: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        if mask.bias_hqs is not None:
            raise ValueError("LinearAttention has no scores to bias; use Rope, Sinusoidal, Learned or NoPosition")
        if not mask.causal or memory_bsd is not None or mask.hidden_bs is not None:
            raise ValueError("LinearAttention is causal self-attention without padding; use MultiHead here")
        if cache is not None:
            raise ValueError("LinearAttention keeps no cache of keys and values")
        q_btd, k_btd, v_btd = in_one(x_bqd, self.query, self.key, self.value).chunk(3, dim=-1)
        q_bhtk = nn.functional.elu(self._split(q_btd)) + 1
        k_bhtk = nn.functional.elu(self._split(k_btd)) + 1
        v_bhtv = self._split(v_btd)
        total_bht1 = (q_bhtk * k_bhtk.cumsum(dim=2)).sum(-1, keepdim=True)
        mixed_bhtv = causal_products(position.rotate(q_bhtk), position.rotate(k_bhtk), v_bhtv) / total_bht1
        return self.output(mixed_bhtv.transpose(1, 2).flatten(2))

    def _split(self, x_btd: Tensor) -> Tensor:
        return x_btd.unflatten(-1, (self.heads, -1)).transpose(1, 2)
