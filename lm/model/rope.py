"""Rotary position embeddings, and the ways of stretching them over contexts longer than the trained one.

Legend: b batch, h heads, t time, k head size.
"""

import math

import torch
from torch import Tensor

from lm.config.domain import require_positive
from lm.model.position import Position
from lm.model.shape import Shape


def frequencies(head_size: int, base: float) -> Tensor:
    """base^(-2i/k) for each pair of the head, float64 of shape (k/2,)."""
    return base ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)


class Rope(Position):
    """Queries and keys turned in planes (i, i + k/2) by pos * base^(-2i/k), k the head size.

    Su et al. 2021, https://arxiv.org/abs/2104.09864; the pairing of halves is that of GPT-NeoX and Llama.
    """

    alike = True

    def __init__(self, shape: Shape, base: float = 10000.0) -> None:
        super().__init__()
        if shape.head_size % 2:
            raise ValueError(f"Rope turns pairs: head size {shape.head_size} (width / heads) must be even")
        require_positive(base=base)
        self.base = base
        self.head_size = shape.head_size
        self.trained = shape.context
        self.grow(shape.context)

    def frequency(self) -> Tensor:
        """Radians a position for each pair, float64 of shape (k/2,)."""
        return frequencies(self.head_size, self.base)

    def factor(self) -> float:
        """What turned vectors are multiplied by."""
        return 1.0

    def grow(self, time: int) -> None:
        """Makes the tables long enough for `time` positions. They stay float64 until they are used, and are no buffers,
        so that a model in half precision keeps exact positions."""
        angle = torch.arange(time, dtype=torch.float64)[:, None] * self.frequency()
        self.length = time
        self.cosine_tk = self.factor() * torch.cat([angle.cos(), angle.cos()], dim=-1)
        self.sine_tk = self.factor() * torch.cat([-angle.sin(), angle.sin()], dim=-1)
        self.cast: dict[tuple[torch.dtype, torch.device], tuple[Tensor, Tensor]] = {}

    def tables(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """cos, and sin with its sign in the turn of each half, (t, k), in the precision and on the device of `like`."""
        if torch.compiler.is_compiling():  # layers share its code where nothing is kept
            return self.cosine_tk.to(like), self.sine_tk.to(like)
        key = like.dtype, like.device
        if key not in self.cast:
            self.cast[key] = self.cosine_tk.to(like), self.sine_tk.to(like)
        return self.cast[key]

    def rotate(self, x_bhtk: Tensor, start: int = 0) -> Tensor:
        end = start + x_bhtk.shape[2]
        if end > self.length:
            self.grow(end)
        cosine_tk, sine_tk = (table[start:end] for table in self.tables(x_bhtk))
        return x_bhtk * cosine_tk + x_bhtk.roll(self.head_size // 2, dims=-1) * sine_tk


class RopeLinear(Rope):
    """Positions divided by `factor` (Chen et al. 2023, position interpolation, https://arxiv.org/abs/2306.15595).

    Args:
        stretch: how many times longer the context is to become.
    """

    def __init__(self, shape: Shape, base: float = 10000.0, stretch: float = 2.0) -> None:
        self.stretch = _stretch(stretch)
        super().__init__(shape, base)

    def frequency(self) -> Tensor:
        return frequencies(self.head_size, self.base) / self.stretch


class RopeNTK(Rope):
    """A larger base, base * stretch^(k / (k - 2)): the slowest pair is stretched whole, the fastest not at all.

    "NTK-aware" scaling, as described by Peng et al. 2024, section 3.1, https://arxiv.org/abs/2309.00071.

    Args:
        stretch: how many times longer the context is to become.
    """

    def __init__(self, shape: Shape, base: float = 10000.0, stretch: float = 2.0) -> None:
        self.stretch = _stretch(stretch)
        if shape.head_size <= 2:
            raise ValueError(f"RopeNTK needs a head size above 2, not {shape.head_size}")
        super().__init__(shape, base)

    def frequency(self) -> Tensor:
        size = self.head_size
        return frequencies(size, self.base * self.stretch ** (size / (size - 2)))


class RopeYarn(Rope):
    """YaRN: fast pairs as they are, slow pairs interpolated, a ramp between, and a factor on the turned vectors.

    Peng et al. 2024, https://arxiv.org/abs/2309.00071. The factor is 0.1 ln(stretch) + 1.

    Args:
        stretch: how many times longer the context is to become.
        fast, slow: turns in the trained context above which a pair is left alone, below which it is interpolated.
    """

    def __init__(
        self, shape: Shape, base: float = 10000.0, stretch: float = 2.0, fast: float = 32.0, slow: float = 1.0
    ) -> None:
        self.stretch = _stretch(stretch)
        require_positive(fast=fast, slow=slow)
        if not fast > slow:
            raise ValueError(f"fast={fast} must be above slow={slow}, and slow above 0")
        if base == 1:
            raise ValueError(f"base={base} turns every pair alike, and YaRN tells fast pairs from slow ones")
        self.fast, self.slow = fast, slow
        super().__init__(shape, base)

    def _pair(self, turns: float) -> float:
        """The pair, as a real number, that makes `turns` within the trained context."""
        return self.head_size * math.log(self.trained / (turns * 2 * math.pi)) / (2 * math.log(self.base))

    def frequency(self) -> Tensor:
        plain = frequencies(self.head_size, self.base)
        low = max(math.floor(self._pair(self.fast)), 0)
        high = min(math.ceil(self._pair(self.slow)), self.head_size - 1)
        pair = torch.arange(self.head_size // 2, dtype=torch.float64)
        interpolated = ((pair - low) / max(high - low, 1e-3)).clamp(0, 1)
        return plain * (1 - interpolated) + plain / self.stretch * interpolated

    def factor(self) -> float:
        return 0.1 * math.log(self.stretch) + 1 if self.stretch > 1 else 1.0


def _stretch(value: float) -> float:
    if not 1 <= value < math.inf:
        raise ValueError(f"stretch={value} must be a finite number, at least 1")
    return value
