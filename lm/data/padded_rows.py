"""Short texts, one a row, cut or padded to a fixed length: the way of many teaching examples, faults included."""

import itertools
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lm.config.tree import InputError
from lm.data import IGNORED
from lm.data.batch import Batch, Batches, Data, require_batch, require_split, tensor
from lm.data.clusters import Clusters, of_rows
from lm.data.corpus import SPLITS, Corpus
from lm.data.order import batch_rows, evaluation_rows, share
from lm.data.tokenizer import END_OF_TEXT, Tokenizer
from lm.data.tokens import Tokens, prepare
from lm.data.unigram import token_counts, unigram_nll

MOST_TABLE = 2**27
"""Tokens; rows are held in memory."""


class PaddedRows(Data):
    """The first `rows` documents of each split, each cut or padded with its end-of-text token to `context` + 1 tokens.

    Args:
        seed: decides the order of batches; supplied by the run.
        corpus: where the texts come from; one document a row.
        tokenizer: must have an end-of-text token, which is the padding.
        context: tokens that predict one more.
        rows: of the training split, and as many or all there are of the others.
        batch_size: rows in a batch over all devices together.
        ignore_padding: whether targets beyond the first end of text are left out of the loss and of the evaluation.
        evaluate_on: the rows to evaluate on; `train` measures what was learnt by heart.
        split: shares of the characters for train, validation and test.
    """

    def __init__(
        self,
        seed: int,
        corpus: Corpus,
        tokenizer: Tokenizer,
        context: int,
        rows: int,
        batch_size: int,
        ignore_padding: bool = True,
        evaluate_on: Literal["train", "validation"] = "validation",
        split: tuple[float, float, float] = (0.8, 0.2, 0.0),
    ) -> None:
        super().__init__()
        for name, value in (("context", context), ("rows", rows), ("batch_size", batch_size)):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        require_batch(context, batch_size=batch_size)
        if rows * (context + 1) > MOST_TABLE:
            raise ValueError(f"rows={rows} of context={context} make a table of over {MOST_TABLE:,} tokens")
        require_split(split)
        self.seed, self.corpus, self.tokenizer = seed, corpus, tokenizer
        self.context, self.rows, self.batch_size = context, rows, batch_size
        self.ignore_padding, self.evaluate_on, self.split = ignore_padding, evaluate_on, split

    def prepare_data(self) -> None:
        if self.facts is not None:
            return
        self.facts = prepare(self.corpus, self.tokenizer, self.split)
        if self.facts.end_of_text is None:
            return  # `setup` says so
        self.table = self._tables(Tokens(self.facts))
        targets = (self._all_targets(name) for name in ("train", self.evaluate_on))
        training_v, validation_v = (token_counts(targets_n, self.facts.vocabulary) for targets_n in targets)
        self.facts = replace(self.facts, unigram_nll=unigram_nll(training_v, validation_v))

    def setup(self, stage: str | None = None) -> None:
        self.prepare_data()
        assert self.facts is not None
        if self.facts.end_of_text is None:
            raise InputError(f"data.tokenizer: rows are padded with {END_OF_TEXT}, which this tokenizer does not have")
        self.tokens = Tokens(self.facts)
        self.table = self._tables(self.tokens)
        if len(self.table["train"]) < self.rows or not len(self.table["validation"]):
            raise InputError(
                f"data.rows: expected {self.rows} training rows and one or more for validation, found "
                f"{len(self.table['train'])} and {len(self.table['validation'])}; give more documents or another split"
            )

    def _tables(self, tokens: Tokens) -> dict[str, np.ndarray]:
        return {name: self._rows(tokens.split[name]) for name in SPLITS}

    def _all_targets(self, split: str) -> np.ndarray:
        """The targets of all rows of a split that count, (n,)."""
        targets_bt = self.gather(split, np.arange(len(self.table[split]))).targets_bt
        return targets_bt[targets_bt != IGNORED].numpy()

    def _rows(self, ids: np.ndarray) -> np.ndarray:
        """Documents cut or padded, int64 of shape (rows, context + 1)."""
        assert self.facts is not None
        assert self.facts.end_of_text is not None
        end = self.facts.end_of_text
        starts = np.concatenate([[0], np.flatnonzero(ids == end) + 1])[: self.rows + 1]
        found = np.full((len(starts) - 1, self.context + 1), end, dtype=np.int64)
        for row, (start, stop) in enumerate(itertools.pairwise(starts)):
            kept = ids[start : min(stop - 1, start + self.context + 1)]
            found[row, : len(kept)] = kept
        return found

    def bytes_per_token(self) -> Tensor:
        return torch.from_numpy(self.tokens.bytes_per_token)

    def check_devices(self, world: int) -> None:
        if self.batch_size % world:
            raise InputError(f"data.batch_size: {self.batch_size} rows cannot be shared evenly among {world} devices")

    def training_batches(self, start: int, count: int, rank: int = 0, world: int = 1) -> Batches:
        mine = share(rank, world, self.batch_size)
        rows = lambda step: batch_rows(self.seed, step, self.batch_size, self.rows)[mine]  # noqa: E731
        return Batches(rows, lambda rows_b: self.gather("train", rows_b), start, count)

    def evaluation_batches(self, split: str, rank: int = 0, world: int = 1) -> Batches:
        source = self.evaluate_on if split == "validation" else split
        batches = list(evaluation_rows(len(self.table[source]), self.batch_size))
        rows = lambda step: batches[step][share(rank, world, len(batches[step]))]  # noqa: E731
        return Batches(rows, lambda rows_b: self.gather(source, rows_b), 0, len(batches))

    def clusters(self, split: str) -> Clusters:
        return of_rows(len(self.table[self.evaluate_on if split == "validation" else split]))

    def gather(self, split: str, rows_b: np.ndarray) -> Batch:
        """The rows with these numbers."""
        assert self.facts is not None
        tokens_bt = self.table[split][rows_b]
        inputs_bt, targets_bt = tokens_bt[:, :-1], tokens_bt[:, 1:]
        if self.ignore_padding:  # the first end of text is a target, the padding behind it is not
            ended_bt = np.cumsum(targets_bt == self.facts.end_of_text, axis=1) > 1
            targets_bt = np.where(ended_bt | (inputs_bt == self.facts.end_of_text), IGNORED, targets_bt)
        return Batch((tensor(inputs_bt),), tensor(targets_bt), tensor(rows_b))
