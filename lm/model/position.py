"""Position encodings, which override one of three methods: `embed`, `apply_rotary` or `bias`.

Legend: b batch, h heads, t time, q queries, k keys (or, last, head size), d width.
"""

import copy
import functools
import math
from abc import ABC
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lm.config.domain import require_from, require_not_negative, require_positive
from lm.model.initializers import PositionTable, TableLinear
from lm.model.shape import MAX_SIZES, Shape


class Position(nn.Module, ABC):
    """A position encoding. `start` is the position of the first row, above 0 when earlier keys are cached."""

    # True if `apply_rotary` treats all heads alike, so that one call can rotate queries and keys.
    head_independent = False

    def embed(self, x_btd: Tensor, start: int = 0) -> Tensor:
        """Return token embeddings with positions added; unchanged by default."""
        return x_btd

    def apply_rotary(self, x_bhtk: Tensor, start: int = 0) -> Tensor:
        """Return queries or keys rotated by their positions; unchanged by default."""
        return x_bhtk

    def rotate_projected(self, x_bhtk: Tensor, start: int = 0) -> Tensor:
        """Return the same as `apply_rotary` for what a linear layer made, whose heads lie side by side in memory."""
        return self.apply_rotary(x_bhtk, start)

    def bias(self, queries: int, keys: int, causal: bool = True) -> Tensor | None:
        """Return what is added to the scaled scores, (h, q, k), or None; queries are the last of the keys."""
        return None

    def slopes(self) -> Tensor | None:
        """Return the slope of each head, (h,), if `bias` is minus the slope times the distance; else None."""
        return None


class NoPosition(Position):
    """No encoding (NoPE): a causal model still distinguishes positions by what it can see (Haviv et al. 2022)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()


def sinusoids(time: int, width: int, base: float = 10000.0) -> Tensor:
    """Compute sin and cos of pos / base^(2i/d) in turn, (t, d) (Vaswani et al. 2017, section 3.5)."""
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
        self.base, self.amplitude, self.width = base, amplitude, shape.width
        self.register_buffer("table_td", self._table(shape.context), persistent=False)
        self.table_td: Tensor

    def _table(self, time: int) -> Tensor:
        return (self.amplitude * sinusoids(time, self.width, self.base)).to(torch.get_default_dtype())

    def embed(self, x_btd: Tensor, start: int = 0) -> Tensor:
        """Add sines and cosines of the positions from `start` on."""
        end = start + x_btd.shape[1]
        if end > len(self.table_td):
            self.table_td = self._table(end).to(self.table_td)
        return x_btd + self.table_td[start:end].to(x_btd.dtype)


class Learned(Position):
    """One learned vector per position, added to the embeddings (Gehring et al. 2017, https://arxiv.org/abs/1705.03122).

    There is none beyond the trained length.

    Args:
        offset: rows of the table before that of the first position, which nothing reads: 2 in OPT and BART.
    """

    ADDED: ClassVar = ("offset",)

    def __init__(self, shape: Shape, offset: int = 0) -> None:
        super().__init__()
        require_from(0, MAX_SIZES["context"], offset=offset)
        self.offset, self.table = offset, PositionTable(shape.context + offset, shape.width)

    def embed(self, x_btd: Tensor, start: int = 0) -> Tensor:
        """Add learned vectors of the positions from `start` on."""
        end, longest = start + x_btd.shape[1], self.table.num_embeddings - self.offset
        if end > longest:
            remedy = "use a position encoding that extrapolates, such as Alibi or Rope"
            raise ValueError(f"context={end} is longer than the {longest} learned positions; {remedy}")
        return x_btd + self.table.weight[self.offset + start : self.offset + end]


def alibi_slopes(heads: int) -> Tensor:
    """Compute one slope per head, (h,): 2^(-8i/h), filled up from the next power of two where h is none (ALiBi)."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = 2.0 ** (-8 * torch.arange(1, power + 1, dtype=torch.float64) / power)
    if power == heads:
        return slopes
    return torch.cat([slopes, alibi_slopes(2 * power)[0::2][: heads - power]])


def relative_positions(queries: int, keys: int, device: torch.device) -> Tensor:
    """Subtract each query's position from each key's, (q, k); queries are at the last of the keys' positions."""
    key_k = torch.arange(keys, device=device)
    return key_k - key_k[keys - queries :, None]


class Alibi(Position):
    """A penalty of slope * distance on the scaled scores, one fixed slope a head (Press et al. 2022)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.register_buffer("slopes_h", alibi_slopes(shape.heads).to(torch.get_default_dtype()), persistent=False)
        self.slopes_h: Tensor

    def bias(self, queries: int, keys: int, causal: bool = True) -> Tensor:
        """Return the linear penalty on distance, (h, q, k)."""
        distance_qk = relative_positions(queries, keys, self.slopes_h.device).abs()
        return -self.slopes_h[:, None, None] * distance_qk

    def slopes(self) -> Tensor:
        """Return the slope of each head."""
        return self.slopes_h


def relative_buckets(relative_qk: Tensor, buckets: int, longest: int, causal: bool) -> Tensor:
    """Map relative positions to T5's buckets, exact for near keys; half are for later keys without causality."""
    offset_qk, distance_qk = torch.zeros_like(relative_qk), (-relative_qk).clamp(min=0)
    if not causal:
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
        self.buckets, self.longest = buckets, longest
        self.table = nn.Embedding(buckets, shape.heads)

    def bias(self, queries: int, keys: int, causal: bool = True) -> Tensor:
        """Return the learned bias of each bucket of distances, (h, q, k)."""
        relative_qk = relative_positions(queries, keys, self.table.weight.device)
        bucket_qk = relative_buckets(relative_qk, self.buckets, self.longest, causal)
        return self.table(bucket_qk).permute(2, 0, 1)  # (q, k, h) -> (h, q, k)


class Kerple(Position):
    """A penalty a log(1 + b distance) on the scaled scores, a and b > 0 learned for each head (Chi et al. 2022).

    https://arxiv.org/abs/2205.09921, the logarithmic kernel. Logarithms of a and b are learned, which keeps both above
    0; a starts evenly over (0, 2) and b over (0, 1), the ranges that the paper draws from.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        start_h = ((torch.arange(shape.heads) + 0.5) / shape.heads).to(torch.get_default_dtype())
        self.log_size, self.log_rate = nn.Parameter((2 * start_h).log()), nn.Parameter(start_h.log())

    def bias(self, queries: int, keys: int, causal: bool = True) -> Tensor:
        """Return the logarithmic penalty on distance, (h, q, k)."""
        distance_qk = relative_positions(queries, keys, self.log_size.device).abs()
        size_h11, rate_h11 = self.log_size.exp()[:, None, None], self.log_rate.exp()[:, None, None]
        return -size_h11 * torch.log1p(rate_h11 * distance_qk)


class Fire(Position):
    """A learned function of log(1 + c distance) / log(1 + c max(query, L)) on the scaled scores (Li et al. 2023).

    FIRE, https://arxiv.org/abs/2310.04418: the function is an MLP with an output for each head, without an offset
    there, which softmax would ignore; c and L are learned. Its products, once a batch, are not among the counted FLOPs.

    Args:
        hidden: hidden units of the MLP.
        rate: first value of c.
        threshold: first value of L: up to this query the distance alone counts.
    """

    def __init__(self, shape: Shape, hidden: int = 32, rate: float = 0.1, threshold: float = 512.0) -> None:
        super().__init__()
        require_from(1, MAX_SIZES["width"], hidden=hidden)
        require_positive(rate=rate, threshold=threshold)
        self.rate, self.scale = nn.Parameter(torch.full((), rate)), nn.Parameter(torch.ones(()))
        self.threshold = threshold
        self.inner, self.outer = TableLinear(1, hidden), TableLinear(hidden, shape.heads, bias=False)

    def bias(self, queries: int, keys: int, causal: bool = True) -> Tensor:
        """Return the function of relative distance, (h, q, k)."""
        distance_qk = relative_positions(queries, keys, self.rate.device).abs()
        query_q1 = torch.arange(keys - queries, keys, device=self.rate.device)[:, None]
        longest_q1 = torch.maximum(query_q1, (self.scale * self.threshold).abs())
        log_qk, log_q1 = (torch.log1p((self.rate * x).abs()) for x in (distance_qk, longest_q1))
        ratio_qk1 = (log_qk / (log_q1 + 1e-6)).unsqueeze(-1)
        return self.outer(nn.functional.relu(self.inner(ratio_qk1))).permute(2, 0, 1)  # (q, k, h) -> (h, q, k)


def rope_frequencies(size: int, base: float) -> Tensor:
    """Compute base^(-2i/k) for each pair of k dimensions, float64 of shape (k/2,)."""
    return base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)


class Rope(Position):
    """Queries and keys rotated in planes (i, i + k/2) by pos * base^(-2i/k), k the head size (Su et al. 2021).

    https://arxiv.org/abs/2104.09864; the pairing of halves is that of GPT-NeoX and Llama.

    Args:
        base: radians of the pairs go from 1 down to almost 1 / base.
        share: part of each head that is rotated, its first dimensions (GPT-NeoX, Phi, GPT-J).
        interleaved: whether planes are (2i, 2i + 1), as in the paper, GPT-J and Cohere.
    """

    ADDED: ClassVar = ("share", "interleaved")
    head_independent = True

    def __init__(self, shape: Shape, base: float = 10000.0, share: float = 1.0, interleaved: bool = False) -> None:
        super().__init__()
        if not 0 < share <= 1:
            raise ValueError(f"share={share} must lie in (0, 1]")
        require_positive(base=base)
        self.base, self.share, self.trained, self.interleaved = base, share, shape.context, interleaved
        self.resize(shape.head_size, shape.context)

    def resize(self, head_size: int, time: int) -> None:
        """Make tables for heads of this size and `time` positions."""
        self.head_size, self.rotated = head_size, round(self.share * head_size)
        if self.rotated % 2 or not self.rotated:
            of = f"{self.rotated} of the " if self.share < 1 else ""
            default = "by default width / heads"
            raise ValueError(f"Rope rotates pairs of features: {of}head size {head_size}, {default}, must be even")
        self.other_sizes: dict[int, Rope] = {}
        self.grow(time)

    def frequency(self) -> Tensor:
        """Return radians per position for each pair, float64 of shape (k/2,)."""
        return rope_frequencies(self.rotated, self.base)

    def factor(self) -> float:
        """Return the factor on rotated vectors."""
        return 1.0

    def grow(self, time: int) -> None:
        """Make tables for `time` positions, float64 and no buffers: a model in half precision keeps exact positions."""
        angle = torch.arange(time, dtype=torch.float64)[:, None] * self.frequency()
        self.length = time
        join = functools.partial(torch.stack, dim=-1) if self.interleaved else functools.partial(torch.cat, dim=-1)
        self.cosine_tk = self.factor() * join([angle.cos(), angle.cos()]).flatten(1)
        self.sine_tk = self.factor() * join([-angle.sin(), angle.sin()]).flatten(1)
        self.cast: dict[tuple[torch.dtype, torch.device, int], tuple[Tensor, Tensor]] = {}

    def resized(self, head_size: int) -> "Rope":
        """Return these rotations for vectors of another size than width / heads."""
        if head_size not in self.other_sizes:
            other = copy.copy(self)
            other.resize(head_size, self.length)
            self.other_sizes[head_size] = other
        return self.other_sizes[head_size]

    def tables(self, like: Tensor, heads: int = 1) -> tuple[Tensor, Tensor]:
        """Return cos and signed sin, (t, heads * k), in the precision and on the device of `like`."""
        if torch.compiler.is_compiling():  # layers share its code where nothing is kept
            return self.cosine_tk.to(like), self.sine_tk.to(like)
        key = like.dtype, like.device, heads
        if key not in self.cast:
            self.cast[key] = self.cosine_tk.to(like).repeat(1, heads), self.sine_tk.to(like).repeat(1, heads)
        return self.cast[key]

    def apply_rotary(self, x_bhtk: Tensor, start: int = 0) -> Tensor:
        """Rotate queries or keys (b, h, t, k) by their positions from `start` on."""
        if (size := x_bhtk.shape[-1]) != self.head_size:
            return self.resized(size).apply_rotary(x_bhtk, start)
        end = start + x_bhtk.shape[2]
        if end > self.length:
            self.grow(end)
        cosine_tk, sine_tk = (table[start:end] for table in self.tables(x_bhtk))
        turned = x_bhtk[..., : self.rotated] if self.rotated < size else x_bhtk
        partner = self.partners(turned)  # first: the order of these two decides how gradients lie in memory
        turned = turned * cosine_tk + partner * sine_tk
        return turned if self.rotated == size else torch.cat([turned, x_bhtk[..., self.rotated :]], dim=-1)

    def rotate_projected(self, x_bhtk: Tensor, start: int = 0) -> Tensor:
        """Rotate all heads of a position as one long row, which is faster where they lie side by side."""
        size, heads, end = x_bhtk.shape[-1], x_bhtk.shape[1], start + x_bhtk.shape[2]
        is_row = x_bhtk.stride(1) == size == self.rotated == self.head_size
        if not is_row or end > self.length or torch.compiler.is_compiling():
            return self.apply_rotary(x_bhtk, start)
        x_bthk = x_bhtk.transpose(1, 2)
        cosine_td, sine_td = (table[start:end] for table in self.tables(x_bhtk, heads))
        turned_btd = x_bthk.flatten(2) * cosine_td + self.partners(x_bthk).flatten(2) * sine_td
        return turned_btd.unflatten(2, (heads, size)).transpose(1, 2)

    def partners(self, x: Tensor) -> Tensor:
        """Return for each of the rotated features (..., k) the other one of its plane."""
        if self.interleaved:
            return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        return x.roll(self.rotated // 2, dims=-1)


class _Stretched(Rope):
    """Rotations for longer contexts.

    Args:
        stretch: how many times longer the context is to become.
    """

    def __init__(self, shape: Shape, base: float = 10000.0, stretch: float = 2.0, **options: Any) -> None:
        if not 1 <= stretch < math.inf:
            raise ValueError(f"stretch={stretch} must be a finite number, at least 1")
        self.stretch = stretch
        super().__init__(shape, base, **options)


class RopeLinear(_Stretched):
    """Positions divided by `stretch` (Chen et al. 2023, position interpolation, https://arxiv.org/abs/2306.15595)."""

    def frequency(self) -> Tensor:
        """Return the frequencies divided by the stretch."""
        return super().frequency() / self.stretch


class RopeNTK(_Stretched):
    """A larger base, base * stretch^(k / (k - 2)) (Peng et al. 2024, section 3.1, https://arxiv.org/abs/2309.00071).

    "NTK-aware" scaling: the slowest pair is stretched whole, the fastest not at all.
    """

    def frequency(self) -> Tensor:
        """Return the frequencies of a larger base."""
        size = self.rotated
        if size <= 2:
            raise ValueError(f"RopeNTK needs a head size above 2, not {size}")
        return rope_frequencies(size, self.base * self.stretch ** (size / (size - 2)))


def require_ramp(fast: float, slow: float) -> None:
    """Raise ValueError unless both are positive and `fast` is above `slow`."""
    require_positive(fast=fast, slow=slow)
    if not fast > slow:
        raise ValueError(f"fast={fast} must be above slow={slow}, and slow above 0")


class RopeYarn(_Stretched):
    """YaRN: fast pairs unchanged, slow ones interpolated, a ramp between, and a factor on vectors (Peng et al. 2024).

    https://arxiv.org/abs/2309.00071. The factor is 0.1 ln(stretch) + 1.

    Args:
        fast, slow: rotations in the trained context above which a pair is left alone, below which it is interpolated.
    """

    def __init__(
        self,
        shape: Shape,
        base: float = 10000.0,
        stretch: float = 2.0,
        fast: float = 32.0,
        slow: float = 1.0,
        **options: Any,
    ) -> None:
        require_ramp(fast, slow)
        if base == 1:
            raise ValueError(f"base={base} turns every pair alike, and YaRN tells fast pairs from slow ones")
        self.fast, self.slow = fast, slow
        super().__init__(shape, base, stretch, **options)

    def frequency(self) -> Tensor:
        """Return frequencies of which only the low ones are divided by the stretch."""
        unscaled = super().frequency()
        fastest, slowest = (  # pairs, as real numbers, that make so many rotations within the trained context
            self.rotated * math.log(self.trained / (turns * 2 * math.pi)) / (2 * math.log(self.base))
            for turns in (self.fast, self.slow)
        )
        low, high = max(math.floor(fastest), 0), min(math.ceil(slowest), self.rotated - 1)
        pair = torch.arange(self.rotated // 2, dtype=torch.float64)
        interpolated = ((pair - low) / max(high - low, 1e-3)).clamp(0, 1)
        return unscaled * (1 - interpolated) + unscaled / self.stretch * interpolated

    def factor(self) -> float:
        """Return the factor of queries and keys, which sets the temperature of attention."""
        return 0.1 * math.log(self.stretch) + 1 if self.stretch > 1 else 1.0


class RopeLlama3(_Stretched):
    """Fast pairs unchanged, slow pairs interpolated, and a ramp over rotations between (Llama 3.1, 2024).

    https://arxiv.org/abs/2407.21783. A pair that makes r rotations in the original context has its frequency times
    s + (1 - s) / stretch, s = (r - slow) / (fast - slow) within [0, 1].

    Args:
        fast, slow: `high_freq_factor` and `low_freq_factor` of other libraries.
        original: context before it was stretched; the model's by default.
    """

    def __init__(
        self,
        shape: Shape,
        base: float = 500000.0,
        stretch: float = 8.0,
        fast: float = 4.0,
        slow: float = 1.0,
        original: int | None = None,
        **options: Any,
    ) -> None:
        require_ramp(fast, slow)
        if original is not None:
            require_from(1, MAX_SIZES["context"], original=original)
        self.fast, self.slow, self.original = fast, slow, original or shape.context
        super().__init__(shape, base, stretch, **options)

    def frequency(self) -> Tensor:
        """Return frequencies of which only the low ones are divided by the stretch."""
        unscaled = super().frequency()
        rotations = self.original * unscaled / (2 * math.pi)
        share = ((rotations - self.slow) / (self.fast - self.slow)).clamp(0, 1)
        return unscaled * (share + (1 - share) / self.stretch)
