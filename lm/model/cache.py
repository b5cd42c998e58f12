"""Keys and values of the tokens read so far, so that a new token costs one row of attention.

A layer keeps 2 b g t k numbers. Legend: b batch, g key-value heads, t time, k head size.
"""

from torch import Tensor


class Cache:
    """The keys and values of one layer, in buffers with space for up to twice the rows held.

    For use without gradients: rows are written in place.
    """

    def __init__(self) -> None:
        self.length = 0  # tokens held
        self._buffers: list[Tensor] = []

    @property
    def held(self) -> list[Tensor]:
        """The keys and the values held, (b, g, t, k) each; none before the first are added."""
        return [buffer[:, :, : self.length] for buffer in self._buffers]

    def append(self, *new: Tensor) -> list[Tensor]:
        """Add the keys and values of new tokens; returns all of them, views that later ones do not change."""
        end = self.length + new[0].shape[2]
        if not self._buffers or end > self._buffers[0].shape[2]:
            held, time = self.held, max(end, 2 * self.length)
            self._buffers = [x.new_empty(*x.shape[:2], time, *x.shape[3:]) for x in new]
            for buffer, rows in zip(self._buffers, held, strict=False):
                buffer[:, :, : self.length] = rows
        for buffer, x in zip(self._buffers, new, strict=True):
            buffer[:, :, self.length : end] = x
        self.length = end
        return self.held

    def bytes(self) -> int:
        """Return the memory of the rows held; up to as much again is reserved for tokens to come."""
        return sum(rows.nbytes for rows in self.held)
