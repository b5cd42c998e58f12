"""Batches, clusters of their targets, and the LightningDataModule that every kind of data is.

There is no DataLoader: a batch is one gather from a memory map, and a plain iterable can start at any step, which makes
resuming exact. Legend: b batch, t time, d clusters.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor

from lm.data import IGNORED
from lm.data.tokens import TextStats

EVALUATION_TOKENS = 2**21  # tokens of a split that are evaluated, by default
MAX_CLUSTERS = 2**14  # clusters of a split; above it, neighbouring documents are pooled, so that no text is left out
MIN_DOCUMENTS = 20  # documents from which on they are the clusters
MAX_SEGMENTS = 128  # clusters of a text with fewer documents


@dataclass(frozen=True)
class Clusters:
    """The clusters of a split, `document` or `stretch`: losses within a document are no independent sample of text.

    A stretch is an equal segment of a text of few documents. `each` are documents pooled in one, at most. `of` maps
    numbers of rows (b,) to the clusters of their targets, int64 (b, t) or (b, 1). `corpora` counts the clusters of each
    corpus of a mixture, which follow each other.
    """

    kind: str
    count: int
    each: int
    of: Callable[[Tensor], Tensor]
    corpora: Mapping[str, int] = field(default_factory=dict)


def clusters_per_row(rows: int) -> Clusters:
    """Make a document of each row."""
    pooled = -(-rows // MAX_CLUSTERS)
    return Clusters("document", -(-rows // pooled), pooled, lambda rows_b: (rows_b // pooled)[:, None])


def clusters_from_documents(ids: np.ndarray, end: int | None, context: int) -> Clusters:
    """Assign each target of packed text, in rows of `context`, to the document that ends with the token `end`."""
    blocks = (len(ids) - 1) // context
    last = blocks * context
    ends = np.zeros(0, dtype=np.int64) if end is None else np.flatnonzero(ids[: last + 1] == end)
    documents = len(ends) + (len(ends) == 0 or int(ends[-1]) < last)
    if documents < MIN_DOCUMENTS:
        count = max(1, min(MAX_SEGMENTS, blocks))
        return Clusters("stretch", count, 1, lambda rows_b: (rows_b * count // max(1, blocks))[:, None])
    pooled = -(-documents // MAX_CLUSTERS)
    ends_d = torch.from_numpy(ends)

    def cluster_of(rows_b: Tensor) -> Tensor:
        index_bt = rows_b[:, None] * context + torch.arange(1, context + 1, device=rows_b.device)
        return torch.searchsorted(ends_d.to(rows_b.device), index_bt) // pooled

    return Clusters("document", -(-documents // pooled), pooled, cluster_of)


def joined_clusters(parts: Mapping[str, Clusters], rows: Sequence[int]) -> Clusters:
    """Return the clusters of corpora whose rows follow each other; those of one as they are."""
    every = list(parts.values())
    if len(every) == 1:
        return every[0]
    row_ends, starts = np.cumsum(rows), np.cumsum([0, *(part.count for part in every)])

    def cluster_of(rows_b: Tensor) -> Tensor:
        corpus_b = torch.from_numpy(np.searchsorted(row_ends, rows_b.cpu().numpy(), side="right")).to(rows_b.device)
        chosen = {index: corpus_b == index for index in corpus_b.unique().tolist()}
        parts = {
            index: every[index].of(rows_b[own_b] - int(row_ends[index] - rows[index])) + int(starts[index])
            for index, own_b in chosen.items()
        }
        clusters_bt = rows_b.new_empty(len(rows_b), max(part.shape[1] for part in parts.values()))
        for index, own_b in chosen.items():
            clusters_bt[own_b] = parts[index].to(clusters_bt.dtype)
        return clusters_bt

    kind = "document" if all(part.kind == "document" for part in every) else "stretch"
    counts = {name: part.count for name, part in parts.items()}
    return Clusters(kind, int(starts[-1]), max(part.each for part in every), cluster_of, counts)


def nll_by_corpus(clusters: Clusters, nll_d: np.ndarray, tokens_d: np.ndarray) -> dict[str, float]:
    """Return the NLL on each corpus of a mixture, from the sums by cluster, by name of the metric."""
    ends = np.cumsum([*clusters.corpora.values()], dtype=np.int64)[:-1]
    sums = zip(clusters.corpora, np.split(nll_d, ends), np.split(tokens_d, ends), strict=False)
    return {f"nll_on_{name}": float(nll.sum() / tokens.sum()) for name, nll, tokens in sums if tokens.sum()}


class Batch(NamedTuple):
    """The inputs of a model, int64; the targets (b, t); and the numbers of the rows in their split, (b,)."""

    inputs: tuple[Tensor, ...]
    targets_bt: Tensor
    rows_b: Tensor


def cut(batch: Batch, length: int) -> Batch:
    """Return the first `length` tokens of each row."""
    inputs = tuple(x_bt[:, :length].contiguous() for x_bt in batch.inputs)
    return Batch(inputs, batch.targets_bt[:, :length].contiguous(), batch.rows_b)


@dataclass(eq=False)
class Batches:
    """An iterable of `count` batches, of which the first `start` have been used already.

    `rows` returns the row numbers of a step's batch that this process takes, perhaps none; `gather` makes the batch,
    and `length` gives the tokens that its rows are cut to.
    """

    rows: Callable[[int], np.ndarray]
    gather: Callable[[np.ndarray], Batch]
    start: int
    count: int
    length: Callable[[int], int] | None = None
    seconds: float = 0.0  # time spent on making batches, for which training waits

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Batch]:
        for step in range(self.start, self.count):
            began = time.perf_counter()
            rows_b = self.rows(step)
            batch = self.gather(rows_b) if len(rows_b) else None
            if batch is not None and self.length is not None:
                batch = cut(batch, self.length(step))
            self.seconds += time.perf_counter() - began
            if batch is not None:
                yield batch


class Data(LightningDataModule, ABC):
    """Text as batches. A subclass's first argument is the seed of the order, supplied by the run.

    `context` is the longest target of a row, in tokens; `facts` are the statistics of the text, once it is prepared;
    `evaluation_tokens` is the most tokens of validation and of test that are read, as drawn.
    """

    REASONS: ClassVar = {"seed": "the order of batches has its seed beside that of the run, as data_seed"}

    context: int
    facts: TextStats | None = None
    evaluation_tokens: int = EVALUATION_TOKENS

    @abstractmethod
    def prepare_data(self) -> None:
        """Fill the cache unless it is filled. Raises InputError where there is too little text."""

    @abstractmethod
    def bytes_per_token(self) -> Tensor:
        """Return the UTF-8 bytes of each target token, int64 of shape (vocabulary,)."""

    def entropy_per_token(self) -> float | None:
        """Return the lowest possible nats per token, where the source of the text is known."""
        return None

    @abstractmethod
    def check_devices(self, world: int) -> None:
        """Raise InputError where batches cannot be divided among `world` processes."""

    @abstractmethod
    def training_batches(self, start: int, count: int, rank: int = 0, world: int = 1) -> Batches:
        """Return batches `start` to `count` of training, this process's rows of each."""

    @abstractmethod
    def evaluation_batches(self, split: str, rank: int = 0, world: int = 1) -> Batches:
        """Return what is evaluated of a split in order, this process's rows of each batch."""

    def clusters(self, split: str) -> Clusters | None:
        """Return the clusters of a split's targets; None where they are unknown."""
        return None

    def frequent(self, split: str, count: int) -> Tensor:
        """Return the ids of the `count` most frequent targets of a split, (count,) or as many as there are."""
        counts = torch.zeros(len(self.bytes_per_token()), dtype=torch.int64)
        for batch in self.evaluation_batches(split):
            counts += torch.bincount(batch.targets_bt[batch.targets_bt != IGNORED], minlength=len(counts))
        most_frequent = counts.argsort(descending=True, stable=True)[:count]
        return most_frequent[counts[most_frequent] > 0]

    def train_dataloader(self) -> Batches:
        """Return the training batches from the trainer's step on."""
        assert self.trainer is not None
        every = self.trainer.accumulate_grad_batches
        start, count = self.trainer.global_step * every, self.trainer.max_steps * every
        return self.training_batches(start, count, *rank_and_world_size(self.trainer))

    def val_dataloader(self) -> Batches:
        """Return the validation batches of this device."""
        assert self.trainer is not None
        return self.evaluation_batches("validation", *rank_and_world_size(self.trainer))

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Pin the memory of a batch for CUDA, which otherwise fetches it only after all that it was asked before."""
        if self.trainer is None or self.trainer.strategy.root_device.type != "cuda":
            return batch
        return Batch(
            tuple(x_bt.pin_memory() for x_bt in batch.inputs), batch.targets_bt.pin_memory(), batch.rows_b.pin_memory()
        )


def rank_and_world_size(trainer: Any) -> tuple[int, int]:
    """Return this process's number, from 0, among those that divide the rows of each batch, and their count.

    Under tensor parallelism several processes read the same rows.
    """
    sampler = trainer.distributed_sampler_kwargs or {"rank": 0, "num_replicas": 1}
    return sampler["rank"], sampler["num_replicas"]


def tensor(array: np.ndarray) -> Tensor:
    """Convert an array to an int64 tensor."""
    return torch.from_numpy(array.astype(np.int64))
