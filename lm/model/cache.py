"""Keys and values of the tokens read so far, so that a new token costs one row of attention.

A layer keeps 2 b g t k numbers. Legend: b batch, g key-value heads, t time, k head size.
"""

import torch
from torch import Tensor

INT8_MAX = 127  # the largest code of a row in int8; -128 stays unused, so that x and -x have opposite codes


class Rows:
    """A tensor (b, g, t, ...) that grows along time; its buffer has space for up to twice the rows held."""

    def __init__(self) -> None:
        self.length = 0
        self._buffer: Tensor | None = None

    def append(self, new: Tensor) -> Tensor:
        """Add rows; returns all of them, a view that later rows do not change."""
        end = self.length + new.shape[2]
        if self._buffer is None or end > self._buffer.shape[2]:
            time = max(end, 2 * self.length)
            buffer = new.new_empty(*new.shape[:2], time, *new.shape[3:])
            if (rows := self.held) is not None:
                buffer[:, :, : self.length] = rows
            self._buffer = buffer
        self._buffer[:, :, self.length : end] = new
        self.length = end
        return self._buffer[:, :, :end]

    @property
    def held(self) -> Tensor | None:
        """The rows added so far, or None."""
        return None if self._buffer is None else self._buffer[:, :, : self.length]

    def bytes(self) -> int:
        """Return the memory of the rows held, without the space for more."""
        rows = self.held
        return 0 if rows is None else rows.numel() * rows.element_size()


def quantise(x_bgtk: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise rows to int8 codes (b, g, t, k) and a float32 scale per row (b, g, t, 1): scale = absmax / 127.

    Each element comes back within absmax / 254, but for rounding to the precision of x (Dettmers et al. 2022, section
    2.1, https://arxiv.org/abs/2208.07339). A row that is not finite comes back as NaN, 0 times its scale.
    """
    wide_bgtk = x_bgtk.to(torch.promote_types(x_bgtk.dtype, torch.float32))
    scale_bgt1 = (wide_bgtk.abs().amax(-1, keepdim=True) / INT8_MAX).float()
    level_bgtk = (wide_bgtk / scale_bgt1).nan_to_num()  # 0 / 0 in a row of zeros
    code_bgtk = level_bgtk.round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8)
    return code_bgtk, scale_bgt1


def dequantise(code_bgtk: Tensor, scale_bgt1: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute code * scale, (b, g, t, k), in the precision `dtype`."""
    wide = torch.promote_types(dtype, torch.float32)
    return (code_bgtk.to(wide) * scale_bgt1.to(wide)).to(dtype)


class Int8Rows:
    """Rows in int8 with a scale each; a row is quantised once, when it is added."""

    def __init__(self) -> None:
        self._code, self._scale = Rows(), Rows()
        self._dtype = torch.float32

    @property
    def length(self) -> int:
        """Rows held."""
        return self._code.length

    def append(self, new: Tensor) -> Tensor:
        """Add rows; returns all of them, the new ones too, dequantised."""
        self._dtype = new.dtype
        code, scale = quantise(new)
        return dequantise(self._code.append(code), self._scale.append(scale), new.dtype)

    @property
    def held(self) -> Tensor | None:
        """The rows added so far, dequantised, or None."""
        code, scale = self._code.held, self._scale.held
        return None if code is None or scale is None else dequantise(code, scale, self._dtype)

    def bytes(self) -> int:
        """Return the memory of codes and scales, without the space for more."""
        return self._code.bytes() + self._scale.bytes()


class Cache:
    """The keys and values of one layer. For use without gradients: rows are written in place."""

    rows: type[Rows] | type[Int8Rows] = Rows

    def __init__(self) -> None:
        self._key, self._value = self.rows(), self.rows()

    @property
    def length(self) -> int:
        """Tokens held."""
        return self._key.length

    @property
    def key_bgtk(self) -> Tensor | None:
        """The keys held, or None."""
        return self._key.held

    @property
    def value_bgtk(self) -> Tensor | None:
        """The values held, or None."""
        return self._value.held

    def append(self, key_bgtk: Tensor, value_bgtk: Tensor) -> tuple[Tensor, Tensor]:
        """Add the rows of new tokens and return all keys and values."""
        return self._key.append(key_bgtk), self._value.append(value_bgtk)

    def bytes(self) -> int:
        """Return the memory of the rows held; up to as much again is reserved for tokens to come."""
        return self._key.bytes() + self._value.bytes()


class Int8Cache(Cache):
    """A cache with a byte per number and 4 bytes per row: 2 b g t (k + 4) bytes, the same however tokens are added.

    Each element is within absmax / 254 of the original, absmax being that of its key or value. A score is then off by
    at most e = scale * |q|_1 * absmax / 254, and a head's output by (exp(2e) - 1) V + V / 254, V being the largest
    value.
    """

    rows = Int8Rows
