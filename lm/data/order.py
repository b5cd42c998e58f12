"""The order of batches: a pure function of (seed, step), the same in every arm and on any number of devices."""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lm.config.tree import canonical


def derive_seed(*parts: object) -> int:
    """Derive a 63-bit seed for the random stream that `parts` name: independent streams, equal on all machines."""
    return int.from_bytes(hashlib.sha256(canonical(parts).encode()).digest()[:8], "big") >> 1


MIXED = 1024  # rows of a mixture in which every corpus has its share


@functools.lru_cache(maxsize=8)  # one of each corpus of a mixture
def _passes(seed: int, rows: int) -> Callable[[int], np.ndarray]:
    """Return the function of the order of the rows in a pass, which keeps two: a batch may be of both."""

    @functools.lru_cache(maxsize=2)
    def order(epoch: int) -> np.ndarray:
        random = np.random.RandomState(derive_seed("order", seed, epoch) % 2**32)
        rows_of_pass = np.arange(rows, dtype=np.min_scalar_type(rows))
        random.shuffle(rows_of_pass)  # what `permutation` does, in fewer bytes
        return rows_of_pass

    return order


def permutation(seed: int, epoch: int, rows: int) -> np.ndarray:
    """Return the order of the rows in one pass, (rows,); numpy keeps the stream of RandomState frozen."""
    return _passes(seed, rows)(epoch)


def batch_rows(seed: int, step: int, batch_size: int, rows: int) -> np.ndarray:
    """Return the row numbers of batch `step`, int64 of shape (batch_size,), over as many passes as it takes."""
    return rows_from(seed, step * batch_size, batch_size, rows)


def rows_from(seed: int, first: int, count: int, rows: int) -> np.ndarray:
    """Return the numbers of `count` rows from position `first` of the order on, over as many passes as it takes."""
    return rows_at(seed, np.arange(first, first + count), rows)


def rows_at(seed: int, positions: np.ndarray, rows: int) -> np.ndarray:
    """Return the numbers of the rows at rising positions of the order."""
    epochs, indices = np.divmod(positions, rows)
    every = [permutation(seed, int(e), rows)[indices[epochs == e]].astype(np.int64) for e in np.unique(epochs)]
    return np.concatenate([np.zeros(0, np.int64), *every])


def mixed_rows(seed: int, first: int, count: int, weights: Mapping[str, float], rows: Sequence[int]) -> np.ndarray:
    """Return the numbers of `count` rows from position `first` on, of corpora whose rows follow each other.

    Of each MIXED positions every corpus has its share of the weights, in an order drawn by the seed; its own rows are
    in an order of their own.
    """
    names, largest = list(weights), int(np.argmax(list(weights.values())))
    offsets, chosen = np.cumsum([0, *rows[:-1]]), list[np.ndarray]()
    for block in range(first // MIXED, (first + count - 1) // MIXED + 1):
        before, after = ([int(number * MIXED * share) for share in weights.values()] for number in (block, block + 1))
        for numbers, number in ((before, block), (after, block + 1)):  # the largest has what rounding leaves
            numbers[largest] = number * MIXED - sum(numbers) + numbers[largest]
        counts = np.subtract(after, before)
        random = np.random.RandomState(derive_seed("mixture", seed, block) % 2**32)
        corpus_of = random.permutation(np.repeat(np.arange(len(names)), counts))
        part = np.empty(MIXED, dtype=np.int64)
        for index, name in enumerate(names):
            positions = np.arange(before[index], after[index])
            part[corpus_of == index] = offsets[index] + rows_at(
                derive_seed("mixture", seed, name), positions, rows[index]
            )
        low, high = max(first - block * MIXED, 0), min(first + count - block * MIXED, MIXED)
        chosen.append(part[low:high])
    return np.concatenate(chosen)


class BatchPlan:
    """The number and the length of the rows of each batch of training: a pure function of the number of the batch.

    A schedule gives the rows of a batch from so many tokens on. A warm-up of the length (Li et al. 2022,
    https://arxiv.org/abs/2108.06084) cuts rows to start + (context - start) t / batches tokens in batch t, down to a
    multiple of 8.
    """

    def __init__(self, sizes: Mapping[float, int], context: int, start: int | None = None, batches: int = 0) -> None:
        self.sizes, self.context = sorted(sizes.items()), context
        self.start, self.batches = context if start is None else start, batches
        self._rows, self._tokens = [0], [0]  # before each batch, as far as counted

    def length(self, step: int) -> int:
        """Return the tokens of a row in batch `step`."""
        if step >= self.batches:
            return self.context
        grown = self.start + (self.context - self.start) * step // self.batches
        return max(self.start, grown // 8 * 8)

    def rows(self, step: int) -> tuple[int, int]:
        """Return the rows before batch `step`, and in it."""
        tokens = self.tokens(step)
        return self._rows[step], next(size for threshold, size in reversed(self.sizes) if threshold <= tokens)

    def tokens(self, step: int) -> int:
        """Return the tokens in rows before batch `step`."""
        while len(self._tokens) <= step:
            last = len(self._tokens) - 1
            before, size = self.rows(last)
            self._rows.append(before + size)
            self._tokens.append(self._tokens[last] + size * self.length(last))
        return self._tokens[step]


def update_order_hash(digest: str, rows_b: np.ndarray) -> str:
    """Update the hash of an order with the next batch's row numbers."""
    return hashlib.sha256(digest.encode() + np.ascontiguousarray(rows_b, dtype="<i8").tobytes()).hexdigest()


def rank_slice(rank: int, world: int, size: int) -> slice:
    """Return the contiguous part of `size` rows that process `rank` of `world` takes."""
    return slice(rank * size // world, (rank + 1) * size // world)
