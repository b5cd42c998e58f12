"""The order of batches: a pure function of (seed, step), the same in every arm and on any number of devices."""

import functools
import hashlib

import numpy as np

from lm.config.tree import canonical


def derive_seed(*parts: object) -> int:
    """Derive a 63-bit seed for the random stream that `parts` name: independent streams, equal on all machines."""
    return int.from_bytes(hashlib.sha256(canonical(parts).encode()).digest()[:8], "big") >> 1


@functools.lru_cache(maxsize=4)
def permutation(seed: int, epoch: int, rows: int) -> np.ndarray:
    """Return the order of the rows in one pass, int64 (rows,); numpy keeps the stream of RandomState frozen."""
    random = np.random.RandomState(derive_seed("order", seed, epoch) % 2**32)
    return random.permutation(rows)


def batch_rows(seed: int, step: int, batch_size: int, rows: int) -> np.ndarray:
    """Return the row numbers of batch `step`, int64 of shape (batch_size,), over as many passes as it takes."""
    positions = np.arange(step * batch_size, (step + 1) * batch_size)
    epochs, indices = np.divmod(positions, rows)
    return np.concatenate([permutation(seed, int(e), rows)[indices[epochs == e]] for e in np.unique(epochs)])


def update_order_hash(digest: str, rows_b: np.ndarray) -> str:
    """Update the hash of an order with the next batch's row numbers."""
    return hashlib.sha256(digest.encode() + np.ascontiguousarray(rows_b, dtype="<i8").tobytes()).hexdigest()


def rank_slice(rank: int, world: int, size: int) -> slice:
    """Return the contiguous part of `size` rows that process `rank` of `world` takes."""
    return slice(rank * size // world, (rank + 1) * size // world)
