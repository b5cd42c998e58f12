"""Batches, and the LightningDataModule that every kind of data is.

There is no DataLoader: a batch is one gather from a memory map, and a plain iterable can start at any step, which is
what makes resuming exact.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor

from lm.data import IGNORED
from lm.data.tokens import TextStats

MAX_BATCH_TOKENS = 2**24
"""Of a batch on all devices; a check of a configuration makes one."""

MAX_PASSES = 100
"""Over the training text in one batch."""

MAX_CLUSTERS = 2**14
"""Clusters of a split; beyond, neighbouring documents are pooled, which leaves no text out."""

MIN_DOCUMENTS = 20
"""Documents from which on they are the clusters."""

MAX_SEGMENTS = 128
"""Clusters, at most, of a text of fewer documents."""

# clusters -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clusters:
    """The clusters of a split.

    Args:
        kind: `document`, or `stretch` for equal parts of a text of few documents or of unknown ones.
        count: how many there are.
        each: documents pooled in one, at most.
        of: for the numbers of rows (b,) the clusters of their targets, int64 (b, t) or (b, 1).
    """

    kind: str
    count: int
    each: int
    of: Callable[[Tensor], Tensor]


def clusters_per_row(rows: int) -> Clusters:
    """Each row is a document."""
    each = -(-rows // MAX_CLUSTERS)
    return Clusters("document", -(-rows // each), each, lambda rows_b: (rows_b // each)[:, None])


def clusters_from_documents(ids: np.ndarray, end: int | None, context: int) -> Clusters:
    """Blocks of packed text, each of whose targets belongs to the document that its place lies in.

    Args:
        ids: tokens of the split, of which row r predicts those from r * context + 1 on.
        end: the token that ends a document, and is part of it; None where the tokenizer has none.
        context: tokens of a block.
    """
    blocks = (len(ids) - 1) // context
    last = blocks * context
    ends = np.zeros(0, dtype=np.int64) if end is None else np.flatnonzero(ids[: last + 1] == end)
    documents = len(ends) + (len(ends) == 0 or int(ends[-1]) < last)
    if documents < MIN_DOCUMENTS:
        count = max(1, min(MAX_SEGMENTS, blocks))
        return Clusters("stretch", count, 1, lambda rows_b: (rows_b * count // max(1, blocks))[:, None])
    each = -(-documents // MAX_CLUSTERS)
    ends_d = torch.from_numpy(ends)

    def of(rows_b: Tensor) -> Tensor:
        places_bt = rows_b[:, None] * context + torch.arange(1, context + 1, device=rows_b.device)
        return torch.searchsorted(ends_d.to(rows_b.device), places_bt) // each

    return Clusters("document", -(-documents // each), each, of)


# batches --------------------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """What a model reads, int64; the targets (b, t); and the numbers of the rows in their split, (b,)."""

    inputs: tuple[Tensor, ...]
    targets_bt: Tensor
    rows_b: Tensor


class Batches:
    """An iterable of `count` batches, of which the first `start` have been seen already.

    Args:
        rows: the row numbers of batch `step` that this process takes; it may be none.
        gather: makes the batch of these rows.
    """

    def __init__(
        self, rows: Callable[[int], np.ndarray], gather: Callable[[np.ndarray], Batch], start: int, count: int
    ) -> None:
        self.rows = rows
        self.gather = gather
        self.start = start
        self.count = count
        self.seconds = 0.0
        """Spent on making batches: what training waits for, as there is no other process that makes them."""

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Batch]:
        for step in range(self.start, self.count):
            begun = time.perf_counter()
            rows_b = self.rows(step)
            batch = self.gather(rows_b) if len(rows_b) else None
            self.seconds += time.perf_counter() - begun
            if batch is not None:
                yield batch


class Data(LightningDataModule, ABC):
    """Text as batches. A subclass's first argument is the seed of the order, supplied by the run.

    `context` is the longest target of a row, in tokens; `facts` is what the text came to, once it is prepared.
    """

    REASONS: ClassVar = {"seed": "the order of batches has its seed beside that of the run, as data_seed"}

    context: int
    facts: TextStats | None = None

    @abstractmethod
    def prepare_data(self) -> None:
        """Fills the cache unless it is filled. Raises InputError where there is too little text."""

    @abstractmethod
    def bytes_per_token(self) -> Tensor:
        """UTF-8 bytes behind each target token, int64 of shape (vocabulary,)."""

    def entropy_per_token(self) -> float | None:
        """Nats a token that no predictor can do without, where the source of the text is known."""
        return None

    @abstractmethod
    def check_devices(self, world: int) -> None:
        """Raises InputError where batches cannot be shared among `world` processes."""

    @abstractmethod
    def training_batches(self, start: int, count: int, rank: int = 0, world: int = 1) -> Batches:
        """Batches `start` to `count` of training, this process's rows of each."""

    @abstractmethod
    def evaluation_batches(self, split: str, rank: int = 0, world: int = 1) -> Batches:
        """The whole split in order, this process's rows of each batch."""

    def clusters(self, split: str) -> Clusters | None:
        """Which targets of a split belong together; None where no one knows."""
        return None

    def frequent(self, split: str, count: int) -> Tensor:
        """The ids of the `count` most frequent targets of a split, (count,) or as many as there are."""
        ids = torch.zeros(len(self.bytes_per_token()), dtype=torch.int64)
        for batch in self.evaluation_batches(split):
            ids += torch.bincount(batch.targets_bt[batch.targets_bt != IGNORED], minlength=len(ids))
        found = ids.argsort(descending=True, stable=True)[:count]
        return found[ids[found] > 0]

    def train_dataloader(self) -> Batches:
        trainer = self.trainer
        assert trainer is not None
        every = trainer.accumulate_grad_batches
        return self.training_batches(
            trainer.global_step * every, trainer.max_steps * every, *rank_and_world_size(trainer)
        )

    def val_dataloader(self) -> Batches:
        assert self.trainer is not None
        return self.evaluation_batches("validation", *rank_and_world_size(self.trainer))


def rank_and_world_size(trainer: Any) -> tuple[int, int]:
    """The number of this process among those that share out the rows of each batch, from 0, and how many they are.

    They are all processes of a run, but under tensor parallelism, where several read the same rows.
    """
    found = trainer.distributed_sampler_kwargs or {"rank": 0, "num_replicas": 1}
    return found["rank"], found["num_replicas"]


def require_batch(context: int, **rows: int | None) -> None:
    """Raises ValueError for batches that fit into no memory."""
    for name, value in rows.items():
        if value is not None and value * context > MAX_BATCH_TOKENS:
            raise ValueError(
                f"{name}={value} rows of context={context} are over {MAX_BATCH_TOKENS:,} tokens; "
                "trainer.accumulate_grad_batches makes a step of several batches"
            )


def require_split(shares: Sequence[float]) -> None:
    """Raises ValueError for shares of the text that are none."""
    whole = all(0 <= share <= 1 for share in shares) and abs(sum(shares) - 1) <= 1e-6
    if not whole or min(shares[:2]) == 0:
        raise ValueError(f"split={list(shares)} must be three shares that add to 1, the first two above 0")


def tensor(array: np.ndarray) -> Tensor:
    """An int64 tensor with the values of `array`."""
    return torch.from_numpy(array.astype(np.int64))
