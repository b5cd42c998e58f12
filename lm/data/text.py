"""Fixed-length blocks of packed text."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lm.config.tree import InputError
from lm.data.batch import MOST_PASSES, Batch, Batches, Data, require_batch, require_split, tensor
from lm.data.clusters import Clusters, of_text
from lm.data.corpus import SPLITS, Corpus
from lm.data.order import batch_rows, evaluation_rows, share
from lm.data.synthetic import Source
from lm.data.tokenizer import Bytes, Characters, Tokenizer
from lm.data.tokens import Tokens, entry_unigram_nll, prepare


class TextData(Data):
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
        require_batch(context, batch_size=batch_size, evaluation_batch_size=evaluation_batch_size)
        require_split(split)
        self.seed = seed
        self.corpus = corpus
        self.tokenizer = tokenizer
        self.context = context
        self.batch_size = batch_size
        self.split = split
        self.evaluation_batch_size = evaluation_batch_size or 4 * batch_size
        self.tokens: Tokens | None = None

    def prepare_data(self) -> None:
        """Fills the cache unless it is filled. Raises InputError where a split is shorter than one block."""
        if self.facts is None:
            facts = prepare(self.corpus, self.tokenizer, self.split)
            self.facts = replace(facts, unigram_nll=entry_unigram_nll(facts))
        for name, fraction in zip(SPLITS, self.split, strict=True):
            found = self.facts.tokens[name]
            if found < self.context + 1 and (fraction > 0 or name != "test"):
                counts = ", ".join(f"{split} {self.facts.tokens[split]}" for split in SPLITS)
                raise InputError(
                    f"data: the {name} split has {found} tokens, and one block needs context + 1 = {self.context + 1} "
                    f"(tokens in all: {counts}). Give more text, a smaller data.context, another data.split, or, "
                    "for one long file, data.corpus.document=line"
                )

        blocks = self.blocks("train")
        if self.batch_size > MOST_PASSES * blocks:
            raise InputError(
                f"data.batch_size: {self.batch_size} blocks are more than {MOST_PASSES} times the {blocks} of the "
                "training split; give more text or a smaller batch"
            )

    def setup(self, stage: str | None = None) -> None:
        self.prepare_data()
        assert self.facts is not None
        self.tokens = Tokens(self.facts)

    def blocks(self, split: str) -> int:
        """How many blocks a split holds."""
        assert self.facts is not None
        return (self.facts.tokens[split] - 1) // self.context

    def bytes_per_token(self) -> Tensor:
        assert self.tokens is not None
        return torch.from_numpy(self.tokens.bytes_per_token)

    def entropy_per_token(self) -> float | None:
        """Nats per token of the best possible predictor, or None where it is unknown.

        It is the corpus's entropy rate where a token is a character. A block begins without what came before, so that a
        model of blocks may stay a little above it. The data must be prepared.
        """
        assert self.facts is not None
        characters = isinstance(self.tokenizer, Characters) and not any(self.facts.unknown.values())
        one_byte = isinstance(self.tokenizer, Bytes) and isinstance(self.corpus, Source)
        return self.corpus.entropy_rate() if characters or one_byte else None

    def check_devices(self, world: int) -> None:
        if self.batch_size % world:
            raise InputError(f"data.batch_size: {self.batch_size} rows cannot be shared evenly among {world} devices")

    def training_batches(self, start: int, count: int, rank: int = 0, world: int = 1) -> Batches:
        blocks, mine = self.blocks("train"), share(rank, world, self.batch_size)
        rows = lambda step: batch_rows(self.seed, step, self.batch_size, blocks)[mine]  # noqa: E731
        return Batches(rows, lambda rows_b: self.gather("train", rows_b), start, count)

    def evaluation_batches(self, split: str, rank: int = 0, world: int = 1) -> Batches:
        batches = list(evaluation_rows(self.blocks(split), self.evaluation_batch_size))
        rows = lambda step: batches[step][share(rank, world, len(batches[step]))]  # noqa: E731
        return Batches(rows, lambda rows_b: self.gather(split, rows_b), 0, len(batches))

    def clusters(self, split: str) -> Clusters:
        assert self.tokens is not None
        return of_text(self.tokens.split[split], self.tokens.facts.end_of_text, self.context)

    def gather(self, split: str, rows_b: np.ndarray) -> Batch:
        """The blocks with these numbers."""
        assert self.tokens is not None
        places = rows_b[:, None] * self.context + np.arange(self.context + 1)
        tokens_bt = tensor(self.tokens.split[split][places])
        return Batch((tokens_bt[:, :-1].contiguous(),), tokens_bt[:, 1:].contiguous(), tensor(rows_b))
