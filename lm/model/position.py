"""How a model knows the order of its tokens: by what is added to the embeddings, by turning queries and keys, or by a
bias on the scores. An encoding overrides the one of the three that it uses.

Legend: b batch, h heads, t time, k head size, d width.
"""

import math
from abc import ABC

import torch
from torch import Tensor, nn

from lm.model.shape import Shape


class Position(nn.Module, ABC):
    """A position encoding."""

    def embed(self, x_btd: Tensor) -> Tensor:
        """Token embeddings with positions added; unchanged by default."""
        return x_btd

    def rotate(self, x_bhtk: Tensor) -> Tensor:
        """Queries or keys turned by their positions; unchanged by default."""
        return x_bhtk

    def bias(self, time: int) -> Tensor | None:
        """What is added to the scaled scores, (h, t, t), or None."""
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
        self.base = base
        self.amplitude = amplitude
        self.width = shape.width
        self.register_buffer("table_td", self._table(shape.context), persistent=False)
        self.table_td: Tensor

    def _table(self, time: int) -> Tensor:
        return (self.amplitude * sinusoids(time, self.width, self.base)).to(torch.get_default_dtype())

    def embed(self, x_btd: Tensor) -> Tensor:
        time = x_btd.shape[1]
        if time > len(self.table_td):
            self.table_td = self._table(time).to(self.table_td)
        return x_btd + self.table_td[:time].to(x_btd.dtype)


class Learned(Position):
    """One learned vector per position, added to the embeddings; there is none beyond the trained length."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.table = nn.Embedding(shape.context, shape.width)

    def embed(self, x_btd: Tensor) -> Tensor:
        time, longest = x_btd.shape[1], self.table.num_embeddings
        if time > longest:
            raise ValueError(
                f"context={time} is longer than the {longest} learned positions; "
                "use a position encoding that extrapolates, such as Alibi or Rope"
            )
        return x_btd + self.table.weight[:time]


class Rope(Position):
    """Queries and keys turned in planes (i, i + k/2) by pos * base^(-2i/k), k the head size.

    Su et al. 2021, https://arxiv.org/abs/2104.09864; the pairing of halves is that of GPT-NeoX and Llama.
    """

    def __init__(self, shape: Shape, base: float = 10000.0) -> None:
        super().__init__()
        if shape.head_size % 2:
            raise ValueError(f"Rope turns pairs: head size {shape.head_size} (width / heads) must be even")
        self.base = base
        self.head_size = shape.head_size
        cosine, sine = self._tables(shape.context)
        self.register_buffer("cosine_tk", cosine, persistent=False)
        self.register_buffer("sine_tk", sine, persistent=False)
        self.cosine_tk: Tensor
        self.sine_tk: Tensor

    def _tables(self, time: int) -> tuple[Tensor, Tensor]:
        frequency = self.base ** (-torch.arange(0, self.head_size, 2, dtype=torch.float64) / self.head_size)
        angle = torch.arange(time, dtype=torch.float64)[:, None] * frequency
        angle = torch.cat([angle, angle], dim=-1)
        dtype = torch.get_default_dtype()
        return angle.cos().to(dtype), angle.sin().to(dtype)

    def rotate(self, x_bhtk: Tensor) -> Tensor:
        time = x_bhtk.shape[2]
        if time > len(self.cosine_tk):
            cosine, sine = self._tables(time)
            self.cosine_tk, self.sine_tk = cosine.to(self.cosine_tk), sine.to(self.sine_tk)
        first, second = x_bhtk.chunk(2, dim=-1)
        turned = torch.cat([-second, first], dim=-1)
        return x_bhtk * self.cosine_tk[:time].to(x_bhtk.dtype) + turned * self.sine_tk[:time].to(x_bhtk.dtype)


def alibi_slopes(heads: int) -> Tensor:
    """One slope a head, (h,): 2^(-8i/h) for a power of two, else filled up from the next power's odd slopes.

    Press et al. 2022, https://arxiv.org/abs/2108.12409.
    """
    power = 2 ** math.floor(math.log2(heads))
    slopes = 2.0 ** (-8 * torch.arange(1, power + 1, dtype=torch.float64) / power)
    if power == heads:
        return slopes
    return torch.cat([slopes, alibi_slopes(2 * power)[0::2][: heads - power]])


class Alibi(Position):
    """A penalty of slope * distance on the scaled scores, one fixed slope a head (Press et al. 2022)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.register_buffer("slopes_h", alibi_slopes(shape.heads).to(torch.get_default_dtype()), persistent=False)
        self.slopes_h: Tensor

    def bias(self, time: int) -> Tensor:
        place_t = torch.arange(time, device=self.slopes_h.device, dtype=self.slopes_h.dtype)
        return -self.slopes_h[:, None, None] * (place_t[:, None] - place_t).abs()
