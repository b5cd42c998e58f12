"""Fixed-length blocks of packed text as a LightningDataModule.

There is no DataLoader: a batch is one gather from a memory map, and a plain iterable can start at any step, which is
what makes resuming exact.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor

from lm.config import InputError
from lm.data.corpus import SPLITS, Corpus
from lm.data.order import batch_blocks, evaluation_batches, share
from lm.data.tokenizer import Tokenizer
from lm.data.tokens import Facts, Tokens, prepare


class Batch(NamedTuple):
    """Inputs and targets of shape (b, t), int64, and the block numbers of the rows, (b,)."""

    inputs_bt: Tensor
    targets_bt: Tensor
    blocks_b: Tensor


class Batches:
    """An iterable of `count` batches, of which the first `start` have been seen already."""

    def __init__(
        self, tokens: np.ndarray, context: int, rows: Callable[[int], np.ndarray], start: int, count: int
    ) -> None:
        self.tokens = tokens
        self.offsets = np.arange(context + 1)
        self.context = context
        self.rows = rows
        self.start = start
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Batch]:
        for step in range(self.start, self.count):
            blocks_b = self.rows(step)
            if len(blocks_b):
                window = self.tokens[blocks_b[:, None] * self.context + self.offsets].astype(np.int64)
                tokens_bt = torch.from_numpy(window)
                yield Batch(tokens_bt[:, :-1].contiguous(), tokens_bt[:, 1:].contiguous(), torch.from_numpy(blocks_b))


class TextData(LightningDataModule):
    """Blocks of `context` tokens, each predicting its next token; blocks do not overlap but for the one shared token.

    Args:
        seed: decides the order of batches; supplied by the run.
        corpus: where the text comes from.
        tokenizer: how it is cut into tokens.
        context: tokens in a block.
        batch_size: blocks in a batch over all devices together. Lightning's accumulate_grad_batches multiplies it.
        split: shares of the characters for train, validation and test.
        evaluation_batch_size: the same for evaluation; by default four times batch_size.
    """

    def __init__(
        self,
        seed: int,
        corpus: Corpus,
        tokenizer: Tokenizer,
        context: int,
        batch_size: int,
        split: tuple[float, float, float] = (0.9, 0.05, 0.05),
        evaluation_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        for name, value in (
            ("context", context),
            ("batch_size", batch_size),
            ("evaluation_batch_size", evaluation_batch_size),
        ):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if min(split) < 0 or abs(sum(split) - 1) > 1e-6 or min(split[:2]) == 0:
            raise ValueError(f"split={list(split)} must be three shares that add to 1, the first two above 0")
        self.seed = seed
        self.corpus = corpus
        self.tokenizer = tokenizer
        self.context = context
        self.batch_size = batch_size
        self.split = split
        self.evaluation_batch_size = evaluation_batch_size or 4 * batch_size
        self.facts: Facts | None = None
        self.tokens: Tokens | None = None

    def prepare_data(self) -> None:
        """Fills the cache unless it is filled. Raises InputError where a split is shorter than one block."""
        if self.facts is None:
            self.facts = prepare(self.corpus, self.tokenizer, self.split)
        for name, fraction in zip(SPLITS, self.split, strict=True):
            found = self.facts.tokens[name]
            if found < self.context + 1 and (fraction > 0 or name != "test"):
                counts = ", ".join(f"{split} {self.facts.tokens[split]}" for split in SPLITS)
                raise InputError(
                    f"data: the {name} split has {found} tokens, and one block needs context + 1 = {self.context + 1} "
                    f"(tokens in all: {counts}). Give more text, a smaller data.context, another data.split, or, "
                    "for one long file, data.corpus.document=line"
                )

    def setup(self, stage: str | None = None) -> None:
        self.prepare_data()
        assert self.facts is not None
        self.tokens = Tokens(self.facts)

    def blocks(self, split: str) -> int:
        """How many blocks a split holds."""
        assert self.facts is not None
        return (self.facts.tokens[split] - 1) // self.context

    def training_batches(self, start: int, count: int, rank: int = 0, world: int = 1) -> Batches:
        """Batches `start` to `count` of training, this process's rows of each."""
        assert self.tokens is not None
        blocks, mine = self.blocks("train"), share(rank, world, self.batch_size)
        rows = lambda step: batch_blocks(self.seed, step, self.batch_size, blocks)[mine]  # noqa: E731
        return Batches(self.tokens.split["train"], self.context, rows, start, count)

    def evaluation_batches(self, split: str, rank: int = 0, world: int = 1) -> Batches:
        """The whole split in order, this process's rows of each batch."""
        assert self.tokens is not None
        batches = list(evaluation_batches(self.blocks(split), self.evaluation_batch_size))
        rows = lambda step: batches[step][share(rank, world, len(batches[step]))]  # noqa: E731
        return Batches(self.tokens.split[split], self.context, rows, 0, len(batches))

    def train_dataloader(self) -> Batches:
        trainer = self.trainer
        assert trainer is not None
        every = trainer.accumulate_grad_batches
        count = trainer.max_steps * every
        return self.training_batches(trainer.global_step * every, count, trainer.global_rank, trainer.world_size)

    def val_dataloader(self) -> Batches:
        assert self.trainer is not None
        return self.evaluation_batches("validation", self.trainer.global_rank, self.trainer.world_size)
