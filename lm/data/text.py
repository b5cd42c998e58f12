"""Text as batches: fixed-length blocks of packed text, or one padded document per row."""

import itertools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lm.config.tree import InputError, is_schedule
from lm.data import IGNORED
from lm.data.batch import (
    Batch,
    Batches,
    Clusters,
    Data,
    clusters_from_documents,
    clusters_per_row,
    joined_clusters,
    tensor,
)
from lm.data.corpus import SPLITS, Corpus
from lm.data.draw import draw_documents, draw_ids
from lm.data.mixture import has_own_splits, prepare
from lm.data.order import BatchPlan, mixed_rows, rank_slice, rows_from
from lm.data.shards import chunks_of, joined, release
from lm.data.synthetic import Source
from lm.data.tokenizer import END_OF_TEXT, Bytes, Characters, Tokenizer
from lm.data.tokens import Tokens, entry_unigram_nll, token_counts, unigram_nll

MAX_BATCH_TOKENS = 2**24  # tokens of a batch on all devices; checking a configuration makes one
MAX_PASSES = 100  # passes over the training text in one batch
RELEASED_ROWS = 16  # rows that are read before their mapped pages are let go; a row may map a megabyte of the file
MAX_TABLE_TOKENS = 2**27  # tokens of rows, which are held in memory


def require_sizes(split: Sequence[float], context: int, **rows: int | None) -> None:
    """Raise ValueError for sizes below 1, batches beyond any memory, and shares of the text that do not add to 1."""
    for name, value in {"context": context, **rows}.items():
        if value is not None and value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    for name, value in rows.items():
        if value is not None and value * context > MAX_BATCH_TOKENS:
            remedy = "trainer.accumulate_grad_batches makes a step of several batches"
            raise ValueError(f"{name}={value} rows of context={context} are over {MAX_BATCH_TOKENS:,} tokens; {remedy}")
    whole = all(0 <= share <= 1 for share in split) and abs(sum(split) - 1) <= 1e-6
    if not whole or min(split[:2]) == 0:
        raise ValueError(f"split={list(split)} must be three shares that add to 1, the first two above 0")


def schedule_of(batch_size: int | Mapping[Any, int]) -> dict[float, int]:
    """Return the rows of a batch by the tokens from which they hold. Raises ValueError for a wrong schedule."""
    if isinstance(batch_size, int):
        return {0.0: batch_size}
    hint = "expected rows by tokens, such as {0: 16, 1.0e6: 32}"
    if not is_schedule(batch_size):
        raise ValueError(f"batch_size={dict(batch_size)}: {hint}")
    sizes = {float(tokens): rows for tokens, rows in batch_size.items()}
    if min(sizes) != 0:
        raise ValueError(f"batch_size={dict(batch_size)}: {hint}, the first from 0 tokens on")
    return sizes


def warmup_of(options: Mapping[str, int] | None, context: int) -> dict[str, int]:
    """Return the checked options of `context_warmup`. Raises ValueError."""
    if options is None:
        return {}
    if options.keys() != {"start", "batches"}:
        raise ValueError(f"context_warmup={dict(options)}: expected {{start: TOKENS, batches: N}}")
    if not (1 <= options["start"] <= context and options["batches"] >= 1):
        raise ValueError(f"context_warmup={dict(options)}: expected 1 or more batches, and a start from 1 to {context}")
    return dict(options)


class RowData(Data):
    """Text as rows of one length, `batch_size` of them in a batch."""

    seed: int
    batch_size: int  # the largest, where a plan says more
    plan: BatchPlan | None = None
    evaluation_batch_size: int
    evaluate_on: Literal["train", "validation"] = "validation"
    tokens: Tokens

    @abstractmethod
    def count_rows(self, split: str) -> int:
        """Count the rows of a split."""

    @abstractmethod
    def gather(self, split: str, rows_b: np.ndarray) -> Batch:
        """Return the rows with these numbers."""

    def bytes_per_token(self) -> Tensor:
        """Return the number of bytes of each token of the vocabulary."""
        return torch.from_numpy(self.tokens.bytes_per_token)

    def check_devices(self, world: int) -> None:
        """Raise InputError if the rows of a batch cannot be shared evenly."""
        for size in [self.batch_size] if self.plan is None else (rows for _, rows in self.plan.sizes):
            if size % world:
                raise InputError(f"data.batch_size: {size} rows cannot be shared evenly among {world} devices")

    def training_rows(self, first: int, count: int) -> np.ndarray:
        """Return the numbers of `count` rows of training from position `first` of their order on."""
        return rows_from(self.seed, first, count, self.count_rows("train"))

    def evaluated_split(self, split: str) -> str:
        """Return the split whose rows are read to evaluate on a split."""
        return self.evaluate_on if split == "validation" else split

    def training_batches(self, start: int, count: int, rank: int = 0, world: int = 1) -> Batches:
        """Return training batches `start` to `count`, this process's rows of each."""
        plan = self.plan

        def rows(step: int) -> np.ndarray:
            first, size = (step * self.batch_size, self.batch_size) if plan is None else plan.rows(step)
            return self.training_rows(first, size)[rank_slice(rank, world, size)]

        length = None if plan is None or not plan.batches else plan.length
        return Batches(rows, lambda rows_b: self.gather("train", rows_b), start, count, length)

    def evaluation_batches(self, split: str, rank: int = 0, world: int = 1) -> Batches:
        """Return the batches of a split in a fixed order."""
        source = self.evaluated_split(split)
        total, size = self.count_rows(source), self.evaluation_batch_size
        batches = [np.arange(start, min(start + size, total)) for start in range(0, total, size)]
        rows = lambda step: batches[step][rank_slice(rank, world, len(batches[step]))]  # noqa: E731
        return Batches(rows, lambda rows_b: self.gather(source, rows_b), 0, len(batches))


class Layout:
    """The ids of one or several corpora in rows of `context` that follow each other; no row has ids of two of them."""

    def __init__(self, parts: Sequence[Any], context: int) -> None:
        self.parts, self.ids, self.context = parts, joined(parts), context
        self.read = 0  # rows since their pages were let go
        self.rows = [max(0, (len(ids) - 1) // context) for ids in parts]
        self.row_ends = np.cumsum(self.rows)
        self.starts = np.cumsum([0, *map(len, parts[:-1])]) - np.array([0, *self.row_ends[:-1]]) * context

    def places(self, rows_b: np.ndarray) -> np.ndarray:
        """Return the places in the ids at which rows begin."""
        return self.starts[np.searchsorted(self.row_ends, rows_b, side="right")] + rows_b * self.context


class TextData(RowData):
    """Blocks of `context` tokens, each predicting its next token; neighbours share one token.

    Args:
        seed: decides the order of batches; supplied by the run.
        corpus: where the text comes from.
        tokenizer: how it is cut into tokens.
        context: tokens in a block.
        batch_size: blocks in a batch over all devices together, or a schedule by training tokens, `{0: 16, 1.0e6: 32}`.
            Lightning's accumulate_grad_batches multiplies it.
        split: shares of the characters for train, validation and test.
        evaluation_batch_size: the same for evaluation; by default four times the largest batch_size.
        context_warmup: `{start: 64, batches: 1000}`: blocks are cut to 64 tokens at first, whole from batch 1000 on.
    """

    ADDED = ("context_warmup",)

    def __init__(
        self,
        seed: int,
        corpus: Corpus,
        tokenizer: Tokenizer,
        context: int,
        batch_size: int | dict[str, int],
        split: tuple[float, float, float] = (0.9, 0.05, 0.05),
        evaluation_batch_size: int | None = None,
        context_warmup: dict[str, int] | None = None,
    ) -> None:
        super().__init__()
        sizes = schedule_of(batch_size)
        self.batch_size = max(sizes.values())
        for size in sizes.values():
            require_sizes(split, context, batch_size=size, evaluation_batch_size=evaluation_batch_size)
        if len(sizes) > 1 or context_warmup is not None:
            self.plan = BatchPlan(sizes, context, **warmup_of(context_warmup, context))
        self.seed, self.corpus, self.tokenizer = seed, corpus, tokenizer
        self.context, self.split = context, split
        self.evaluation_batch_size = evaluation_batch_size or 4 * self.batch_size

    def prepare_data(self) -> None:
        """Fill the cache unless it is filled. Raises InputError where a split is shorter than one block."""
        has_test = self.facts is None and self.split[2] > 0  # facts that are given were looked at before
        if self.facts is None:
            facts = prepare(self.corpus, self.tokenizer, self.split)
            self.facts = replace(facts, unigram_nll=entry_unigram_nll(facts))
            has_test = has_test and not (facts.tokens["test"] == 0 and has_own_splits(self.corpus, self.split))
        for name in SPLITS:
            tokens = self.facts.tokens[name]
            if tokens < self.context + 1 and (has_test or name != "test"):
                counts = ", ".join(f"{split} {self.facts.tokens[split]}" for split in SPLITS)
                needed = f"one block needs context + 1 = {self.context + 1} (tokens in all: {counts})"
                remedy = "Give more text, a smaller data.context or another data.split"
                if getattr(self.corpus, "document", None) == "file":
                    remedy += "; for one long file, data.corpus.document=line"
                raise InputError(f"data: the {name} split has {tokens} tokens, and {needed}. {remedy}")
        self.tokens, self.layouts = Tokens(self.facts), dict[str, Layout]()
        blocks = self.count_rows("train")
        if self.batch_size > MAX_PASSES * blocks:
            most = f"{MAX_PASSES} times the {blocks} of the training split; give more text or a smaller batch"
            raise InputError(f"data.batch_size: {self.batch_size} blocks are more than {most}")
        if short := [name for name, rows in self.rows_by_corpus("train").items() if not rows]:
            raise InputError(f"data.corpus.corpora.{short[0]}: has no block of {self.context} tokens to train on")

    def setup(self, stage: str | None = None) -> None:
        """Open the tokens."""
        self.prepare_data()
        if self.evaluation_tokens <= self.context:
            expected = f"expected {self.context + 1} or more, a block and the token after it"
            raise InputError(f"evaluate.tokens: {expected}, found {self.evaluation_tokens}")
        assert self.facts is not None
        for split in SPLITS[1:]:
            if self.facts.tokens[split] > self.context and not self.count_rows(split):
                problem = f"{self.evaluation_tokens} draw documents of the {split} split that are shorter than a block"
                raise InputError(f"evaluate.tokens: {problem} of {self.context} tokens and one more; give more")

    def layout(self, split: str) -> Layout:
        """Return the ids of a split by corpus; of validation and test, those that are evaluated."""
        if split not in self.layouts:
            facts, parts = self.tokens.facts, self.tokens.parts[split]
            if split != "train" and facts.tokens[split] > self.evaluation_tokens:
                parts = [
                    draw_ids(ids, facts.end_of_text, max(1, round(share * self.evaluation_tokens)), (*key, split))
                    for ids, share, key in zip(parts, self.tokens.weights.values(), self._keys(), strict=True)
                ]
            self.layouts[split] = Layout(parts, self.context)
        return self.layouts[split]

    def _keys(self) -> list[tuple[str, ...]]:
        """Return what decides the draw of each corpus."""
        return [(self.tokens.facts.fingerprint, *([name] if name else [])) for name in self.tokens.weights]

    def count_rows(self, split: str) -> int:
        """Return the number of whole rows in a split, or in what is evaluated of it."""
        return int(self.layout(split).row_ends[-1])

    def rows_by_corpus(self, split: str) -> dict[str, int]:
        """Return the number of rows of each corpus of a mixture; of the only one by an empty name."""
        return dict(zip(self.tokens.weights, self.layout(split).rows, strict=True))

    def training_rows(self, first: int, count: int) -> np.ndarray:
        """Return the numbers of `count` rows of training from position `first` of their order on."""
        if len(self.tokens.weights) == 1:
            return super().training_rows(first, count)
        return mixed_rows(self.seed, first, count, self.tokens.weights, self.layout("train").rows)

    def entropy_per_token(self) -> float | None:
        """Return the nats per token of the best predictor of long text; None unless tokens are known characters."""
        assert self.facts is not None
        characters = isinstance(self.tokenizer, Characters) and not any(self.facts.unknown.values())
        one_byte = isinstance(self.tokenizer, Bytes) and isinstance(self.corpus, Source)
        return self.corpus.entropy_rate() if characters or one_byte else None

    def clusters(self, split: str) -> Clusters:
        """Return the clusters of a split's targets, from its documents; those of each corpus after the other."""
        layout, end = self.layout(split), self.tokens.facts.end_of_text
        parts = [clusters_from_documents(ids, end, self.context) for ids in layout.parts]
        return joined_clusters(dict(zip(self.tokens.weights, parts, strict=True)), layout.rows)

    def gather(self, split: str, rows_b: np.ndarray) -> Batch:
        """Return the batch of some rows of a split."""
        layout = self.layout(split)
        tokens_bt = tensor(layout.ids[layout.places(rows_b)[:, None] + np.arange(self.context + 1)])
        layout.read += len(rows_b)
        if layout.read >= RELEASED_ROWS:
            release(layout.ids)
            layout.read = 0
        return Batch((tokens_bt[:, :-1].contiguous(),), tokens_bt[:, 1:].contiguous(), tensor(rows_b))


class PaddedRows(RowData):
    """The first `rows` documents of each split, each cut or padded with its end-of-text token to `context` + 1 tokens.

    This is the format of many teaching examples, faults included.

    Args:
        seed: decides the order of batches; supplied by the run.
        corpus: where the texts come from; one document per row.
        tokenizer: must have an end-of-text token, which is the padding.
        context: tokens that predict one more.
        rows: of the training split, and as many or all there are of the others.
        batch_size: rows in a batch over all devices together.
        ignore_padding: whether targets beyond the first end of text are left out of the loss and of the evaluation.
        evaluate_on: the rows to evaluate on; `train` measures what was memorised.
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
        require_sizes(split, context, batch_size=batch_size)
        if rows < 1:
            raise ValueError(f"rows={rows} must be at least 1")
        if rows * (context + 1) > MAX_TABLE_TOKENS:
            raise ValueError(f"rows={rows} of context={context} make a table of over {MAX_TABLE_TOKENS:,} tokens")
        self.seed, self.corpus, self.tokenizer = seed, corpus, tokenizer
        self.context, self.rows, self.batch_size = context, rows, batch_size
        self.evaluation_batch_size = batch_size
        self.ignore_padding, self.evaluate_on, self.split = ignore_padding, evaluate_on, split

    def prepare_data(self) -> None:
        """Tokenise the corpus into the cache and pad its rows, once."""
        if self.facts is not None:
            return
        self.facts = prepare(self.corpus, self.tokenizer, self.split)
        if self.facts.end_of_text is None:
            return  # `setup` raises InputError
        self._pad(Tokens(self.facts))
        counts = []
        for name in ("train", self.evaluate_on):
            targets_bt = self.gather(name, np.arange(self.count_rows(name))).targets_bt
            counts.append(token_counts(targets_bt[targets_bt != IGNORED].numpy(), self.facts.vocabulary))
        self.facts = replace(self.facts, unigram_nll=unigram_nll(*counts))

    def setup(self, stage: str | None = None) -> None:
        """Open the tokens and pad the rows of all splits."""
        self.prepare_data()
        assert self.facts is not None
        if self.facts.end_of_text is None:
            raise InputError(f"data.tokenizer: rows are padded with {END_OF_TEXT}, which this tokenizer does not have")
        self.tokens = Tokens(self.facts)
        self._pad(self.tokens)
        train, validation = self.count_rows("train"), self.count_rows("validation")
        if train < self.rows or not validation:
            problem = f"found {train} and {validation}; give more documents or another split"
            raise InputError(f"data.rows: expected {self.rows} training rows and one or more for validation, {problem}")

    def _pad(self, tokens: Tokens) -> None:
        """Cut or pad the documents of each split to a table, int64 of shape (rows, context + 1)."""
        assert self.facts is not None
        assert self.facts.end_of_text is not None
        end, self.table = self.facts.end_of_text, dict[str, np.ndarray]()
        for name, ids in tokens.split.items():
            starts = [0]
            for place, chunk in chunks_of(ids):
                starts += (np.flatnonzero(chunk == end) + place + 1)[: self.rows + 1 - len(starts)].tolist()
                if len(starts) > self.rows:
                    break
            self.table[name] = np.full((len(starts) - 1, self.context + 1), end, dtype=np.int64)
            for row, (start, stop) in enumerate(itertools.pairwise(starts)):
                document = ids[start : min(stop - 1, start + self.context + 1)]
                self.table[name][row, : len(document)] = document
            if name != "train":
                budget, lengths = self.evaluation_tokens, np.full(len(starts) - 1, self.context)
                chosen = draw_documents(lengths, budget, (self.facts.fingerprint, name))
                self.table[name] = self.table[name][chosen]

    def clusters(self, split: str) -> Clusters:
        """Return one cluster for each row of a split."""
        return clusters_per_row(self.count_rows(self.evaluated_split(split)))

    def count_rows(self, split: str) -> int:
        """Return the number of rows in a split."""
        return len(self.table[split])

    def gather(self, split: str, rows_b: np.ndarray) -> Batch:
        """Return the batch of some rows of a split."""
        assert self.facts is not None
        tokens_bt = self.table[split][rows_b]
        inputs_bt, targets_bt = tokens_bt[:, :-1], tokens_bt[:, 1:]
        if self.ignore_padding:  # the first end of text is a target, the padding behind it is not
            ended_bt = np.cumsum(targets_bt == self.facts.end_of_text, axis=1) > 1
            targets_bt = np.where(ended_bt | (inputs_bt == self.facts.end_of_text), IGNORED, targets_bt)
        return Batch((tensor(inputs_bt),), tensor(targets_bt), tensor(rows_b))
