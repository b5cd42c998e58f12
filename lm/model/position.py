"""How a model knows the order of its tokens: by what is added to the embeddings, by turning queries and keys, or by a
bias on the scores. An encoding overrides the one of the three that it uses.

Legend: b batch, h heads, t time, q queries, k keys (or, last, head size), d width.
"""

import math
from abc import ABC

import torch
from torch import Tensor, nn

from lm.config.domain import require_not_negative, require_positive
from lm.model.initial import PositionTable
from lm.model.shape import Shape


class Position(nn.Module, ABC):
    """A position encoding. `start` is the position of the first row, above 0 when earlier keys are cached."""

    alike = False
    """Whether `rotate` turns any number of heads, all alike, so that queries and keys may be turned at once."""

    def embed(self, x_btd: Tensor, start: int = 0) -> Tensor:
        """Token embeddings with positions added; unchanged by default."""
        return x_btd

    def rotate(self, x_bhtk: Tensor, start: int = 0) -> Tensor:
        """Queries or keys turned by their positions; unchanged by default."""
        return x_bhtk

    def bias(self, queries: int, keys: int, causal: bool = True) -> Tensor | None:
        """What is added to the scaled scores, (h, q, k), or None. The queries are the last of the keys' positions."""
        return None

    def slopes(self) -> Tensor | None:
        """The slope of each head, (h,), where `bias` is minus the slope times the distance; else None."""
        return None


class NoPosition(Position):
    """No encoding: a causal model still tells positions apart by what it can see (Haviv et al. 2022)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()


def sinusoids(time: int, width: int, base: float = 10000.0) -> Tensor:
    """sin and cos of pos / base^(2i/d) in turn along the width, (t, d) (Vaswani et al. 2017, section 3.5)."""
    frequency = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(time, dtype=torch.float64)[:, None] * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :width]


class Sinusoidal(Position):
    """Fixed sinusoids added to the embeddings (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762).

    Args:
        base: wavelengths run from 2 pi to base * 2 pi.
        amplitude: of the sinusoids. 1 is the paper's, for embeddings of unit variance.
    """

    def __init__(self, shape: Shape, base: float = 10000.0, amplitude: float = 1.0) -> None:
        super().__init__()
        require_positive(base=base)
        require_not_negative(amplitude=amplitude)
        self.base = base
        self.amplitude = amplitude
        self.width = shape.width
        self.register_buffer("table_td", self._table(shape.context), persistent=False)
        self.table_td: Tensor

    def _table(self, time: int) -> Tensor:
        return (self.amplitude * sinusoids(time, self.width, self.base)).to(torch.get_default_dtype())

    def embed(self, x_btd: Tensor, start: int = 0) -> Tensor:
        end = start + x_btd.shape[1]
        if end > len(self.table_td):
            self.table_td = self._table(end).to(self.table_td)
        return x_btd + self.table_td[start:end].to(x_btd.dtype)


class Learned(Position):
    """One learned vector per position, added to the embeddings; there is none beyond the trained length."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.table = PositionTable(shape.context, shape.width)

    def embed(self, x_btd: Tensor, start: int = 0) -> Tensor:
        end, longest = start + x_btd.shape[1], self.table.num_embeddings
        if end > longest:
            raise ValueError(
                f"context={end} is longer than the {longest} learned positions; "
                "use a position encoding that extrapolates, such as Alibi or Rope"
            )
        return x_btd + self.table.weight[start:end]


def alibi_slopes(heads: int) -> Tensor:
    """One slope a head, (h,): 2^(-8i/h) for a power of two, else filled up from the next power's odd slopes.

    Press et al. 2022, https://arxiv.org/abs/2108.12409.
    """
    power = 2 ** math.floor(math.log2(heads))
    slopes = 2.0 ** (-8 * torch.arange(1, power + 1, dtype=torch.float64) / power)
    if power == heads:
        return slopes
    return torch.cat([slopes, alibi_slopes(2 * power)[0::2][: heads - power]])


def relative(queries: int, keys: int, device: torch.device) -> Tensor:
    """Position of each key less that of each query, (q, k), the queries being the last of the keys' positions."""
    key_k = torch.arange(keys, device=device)
    return key_k - key_k[keys - queries :, None]


class Alibi(Position):
    """A penalty of slope * distance on the scaled scores, one fixed slope a head (Press et al. 2022)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.register_buffer("slopes_h", alibi_slopes(shape.heads).to(torch.get_default_dtype()), persistent=False)
        self.slopes_h: Tensor

    def bias(self, queries: int, keys: int, causal: bool = True) -> Tensor:
        distance_qk = relative(queries, keys, self.slopes_h.device).abs()
        return -self.slopes_h[:, None, None] * distance_qk

    def slopes(self) -> Tensor:
        return self.slopes_h


def relative_buckets(relative_qk: Tensor, buckets: int, longest: int, causal: bool) -> Tensor:
    """T5's bucket of each relative position: exact for near keys, logarithmic up to `longest`, one beyond.

    Args:
        relative_qk: key position less query position, int64.
        buckets: how many there are; without causality half of them are for keys that come later.
    """
    offset_qk = torch.zeros_like(relative_qk)
    if causal:
        distance_qk = (-relative_qk).clamp(min=0)
    else:
        buckets //= 2
        offset_qk = (relative_qk > 0) * buckets
        distance_qk = relative_qk.abs()
    exact = buckets // 2
    ratio_qk = (distance_qk.clamp(min=1).float() / exact).log() / math.log(longest / exact)
    far_qk = (exact + (ratio_qk * (buckets - exact)).long()).clamp(max=buckets - 1)
    return offset_qk + torch.where(distance_qk < exact, distance_qk, far_qk)


class T5Bias(Position):
    """A learned bias on the scores for each head and bucket of distance (Raffel et al. 2020, section 2.1).

    https://arxiv.org/abs/1910.10683

    Args:
        buckets: of distance.
        longest: distance from which all keys share one bucket.
    """

    def __init__(self, shape: Shape, buckets: int = 32, longest: int = 128) -> None:
        super().__init__()
        if buckets < 4 or buckets % 4:
            raise ValueError(f"buckets={buckets} must be a multiple of 4")
        if longest <= buckets // 2:
            raise ValueError(f"longest={longest} must be above half of buckets={buckets}")
        self.buckets = buckets
        self.longest = longest
        self.table = nn.Embedding(buckets, shape.heads)

    def bias(self, queries: int, keys: int, causal: bool = True) -> Tensor:
        between_qk = relative(queries, keys, self.table.weight.device)
        bucket_qk = relative_buckets(between_qk, self.buckets, self.longest, causal)
        return self.table(bucket_qk).permute(2, 0, 1)  # (q, k, h) -> (h, q, k)
