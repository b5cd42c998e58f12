"""Pairs of texts, such as sentences and their translations, as token ids, and in batches of similar lengths.

CACHE/pairs/<fingerprint of both sides and tokenizer hash>/
    train.source.npy, train.source.ends.npy, ...    token ids end to end, and where each text ends
    tokenizer.json, bytes.npy, facts.json, sums.json
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import tokenizers
import torch
from torch import Tensor

from lm.config.tree import InputError, nearest, require_regular
from lm.data import IGNORED, cache, tokens
from lm.data.batch import Batch, Batches, Clusters, Data, clusters_per_row, tensor
from lm.data.cache import DamageError, stored_array, stored_json, write_array
from lm.data.corpus import SPLITS, expand_user, fingerprint
from lm.data.draw import draw_documents
from lm.data.order import permutation, rank_slice
from lm.data.public import download_hint
from lm.data.splits import TextFacts
from lm.data.text_files import UNREADABLE, read_unzipped
from lm.data.tokenizer import UNKNOWN, Tokenizer, special_ids
from lm.data.tokens import TextStats

SIDES = ("source", "target")

Pairs = dict[str, list[tuple[str, str]]]  # source and target of each pair, by split


class LocalPairs:
    """Two aligned text files a split, line i of one belonging to line i of the other; plain or .gz, in UTF-8.

    Args:
        train_source, train_target: to learn from.
        validation_source, validation_target: to evaluate on.
        test_source, test_target: what `lm translate` translates; may be left out.
    """

    def __init__(
        self,
        train_source: str,
        train_target: str,
        validation_source: str,
        validation_target: str,
        test_source: str | None = None,
        test_target: str | None = None,
    ) -> None:
        if (test_source is None) != (test_target is None):
            raise ValueError("test_source and test_target belong together: give both or neither")
        validation, test = (validation_source, validation_target), (test_source, test_target)
        self.paths = {"train": (train_source, train_target), "validation": validation, "test": test}

    def lines(self, split: str) -> tuple[list[str], list[str]]:
        """Read all lines of both sides of a split, stripped, in order; none for a split without files.

        Raises InputError for files that cannot be read or differ in their number of lines.
        """
        source, target = self.paths[split]
        if source is None or target is None:
            return [], []
        sides = read_lines(source, f"data.corpus.{split}_source"), read_lines(target, f"data.corpus.{split}_target")
        if len(sides[0]) != len(sides[1]):
            problem = f"{source} has {len(sides[0])} lines and {target} {len(sides[1])}"
            raise InputError(f"data.corpus: {problem}; line i of one must belong to line i of the other")
        return sides


def read_lines(path: str, name: str) -> list[str]:
    """Read the stripped lines of a text file, plain or .gz, that the setting `name` names; raises InputError."""
    file = expand_user(path)
    try:
        require_regular(file)
        text = read_unzipped(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: {path} is not UTF-8 text (byte {error.start})") from None
    except UNREADABLE as error:
        siblings = [str(p) for p in file.parent.iterdir()] if os.path.isdir(file.parent) else []
        hint = "" if os.path.exists(file) else download_hint(path) or nearest(path, siblings)
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name}: {path} cannot be read ({reason}).{hint}") from None
    lines = [line.strip() for line in text.split("\n")]  # not splitlines, which also cuts at rarer marks
    return lines[:-1] if lines[-1] == "" else lines


class PairTokens:
    """The token ids of prepared pairs, memory-mapped, and their tokenizer. Raises OSError where they were damaged."""

    def __init__(self, facts: TextStats) -> None:
        folder = Path(facts.folder)
        names = [f"{split}.{side}" for split in SPLITS for side in SIDES]
        try:
            self.ids = {name: stored_array(folder / f"{name}.npy") for name in names}
            self.ends = {name: stored_array(folder / f"{name}.ends.npy", mapped=False) for name in names}
            self.bytes_per_token = stored_array(folder / "bytes.npy", mapped=False)
            self.tokenizer = cache.stored_tokenizer(folder / "tokenizer.json", facts.tokenizer)
        except DamageError as damage:
            raise cache.damage_as_os_error(folder, damage) from None
        self.begin, self.end, self.padding = special_ids(self.tokenizer)

    def lengths(self, split: str, side: str) -> np.ndarray:
        """Return the tokens of each text, without begin and end."""
        return np.diff(self.ends[f"{split}.{side}"], prepend=0)

    def text(self, split: str, side: str, row: int) -> np.ndarray:
        """Return the token ids of one text."""
        ends = self.ends[f"{split}.{side}"]
        return self.ids[f"{split}.{side}"][ends[row - 1] if row else 0 : ends[row]]


def prepare_pairs(corpus: LocalPairs, tokenizer: Tokenizer) -> TextStats:
    """Read the files, train one tokenizer on both sides and encode them, each unless it is cached.

    Tokens and bytes of the statistics are those of the targets, with an end each; documents are pairs.
    """
    pairs, empty = Pairs(), dict[str, int]()
    for split in SPLITS:
        lines = list(zip(*corpus.lines(split), strict=True))
        pairs[split] = [pair for pair in lines if all(pair)]
        empty[f"{split}_empty"] = len(lines) - len(pairs[split])
    flat = {split: [text for pair in of_split for text in pair] for split, of_split in pairs.items()}
    text = TextFacts(fingerprint(flat), empty, {})
    trained, facts = tokens.describe_entry("pairs", text, flat["train"], tokenizer.with_specials())
    for split, of_split in pairs.items():
        facts.documents[split] = len(of_split)
        facts.bytes[split] = sum(len(target.encode()) for _, target in of_split)
    cache.ensure_entry(Path(facts.folder), facts.stored(), lambda entry: _write(entry, pairs, trained, facts))
    return TextStats(folder=facts.folder, **stored_json(Path(facts.folder) / cache.FACTS))


def _write(folder: Path, pairs: Pairs, tokenizer: tokenizers.Tokenizer, facts: TextStats) -> None:
    counted: dict[str, dict[str, int]] = {"tokens": {}, "unknown": dict.fromkeys(pairs, 0)}
    unknown = tokenizer.token_to_id(UNKNOWN)
    unknown = -1 if unknown is None else unknown
    for split, of_split in pairs.items():
        for side, texts in zip(SIDES, zip(*of_split, strict=True) if of_split else ((), ()), strict=True):
            encoded = encode_lines(tokenizer, texts)
            ids = np.concatenate([np.zeros(0, np.int64), *encoded])
            write_array(folder / f"{split}.{side}.npy", ids.astype(facts.id_type))
            ends = np.cumsum([len(row) for row in encoded], dtype=np.int64)
            write_array(folder / f"{split}.{side}.ends.npy", ends)
            counted["unknown"][split] += int((ids == unknown).sum())
        counted["tokens"][split] = len(ids) + len(of_split)  # the side written last is the target
    tokens.write_stats(folder, tokenizer, facts, counted)


def encode_lines(tokenizer: tokenizers.Tokenizer, lines: Sequence[str]) -> list[np.ndarray]:
    """Return the token ids of each line, int64; a special token's name in a line is text like any other."""
    tokenizer.encode_special_tokens = True
    encoded = tokenizer.encode_batch_fast(list(lines), add_special_tokens=False)
    return [np.asarray(encoding.ids, dtype=np.int64) for encoding in encoded]


def pad_rows(rows: Sequence[Sequence[int] | np.ndarray], filler: int) -> np.ndarray:
    """Stack rows, filled up to the longest, int64."""
    table = np.full((len(rows), max(map(len, rows))), filler, dtype=np.int64)
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    return table


def bucket_rows(order: np.ndarray, source: np.ndarray, target: np.ndarray, budget: int) -> Iterator[np.ndarray]:
    """Yield batches of rows in this order, whose padded source and target tokens are `budget` together at most."""
    start, longest_source, longest_target = 0, 0, 0
    for index, row in enumerate(order):
        sides = max(longest_source, source[row]), max(longest_target, target[row])
        if index > start and (index + 1 - start) * sum(sides) > budget:
            yield order[start:index]
            start, sides = index, (source[row], target[row])
        longest_source, longest_target = sides
    if start < len(order):
        yield order[start:]


class PairData(Data):
    """Pairs as inputs (target, source, padding of the source), teacher-forced, in batches of similar lengths.

    A batch of training is always made of the same pairs; each pass over them takes the batches in a new order. Pairs
    with an empty side, or a side longer than `context` with its end token, are left out and counted in the record.

    Args:
        seed: decides the order of batches; supplied by the run.
        corpus: the files.
        tokenizer: trained on both sides of the training split together.
        context: tokens of the longest source and of the longest target, the end included.
        batch_tokens: source and target tokens in a batch, padding included, at most, over all devices together.
        evaluation_batch_tokens: the same for evaluation; by default four times batch_tokens.
    """

    def __init__(
        self,
        seed: int,
        corpus: LocalPairs,
        tokenizer: Tokenizer,
        context: int,
        batch_tokens: int,
        evaluation_batch_tokens: int | None = None,
    ) -> None:
        super().__init__()
        evaluation = 4 * batch_tokens if evaluation_batch_tokens is None else evaluation_batch_tokens
        if context < 2:
            raise ValueError(f"context={context} must be at least 2: one token and the end")
        for name, value in (("batch_tokens", batch_tokens), ("evaluation_batch_tokens", evaluation)):
            if value < 2 * context:
                raise ValueError(f"{name}={value} must hold one pair, 2 context = {2 * context}")
        self.seed, self.corpus, self.tokenizer = seed, corpus, tokenizer
        self.context, self.batch_tokens, self.evaluation_batch_tokens = context, batch_tokens, evaluation

    def prepare_data(self) -> None:
        """Tokenise the pairs into the cache, once, and count those that are too long."""
        if self.facts is not None:
            return
        facts = prepare_pairs(self.corpus, self.tokenizer)
        encoded, targets = PairTokens(facts), dict[str, np.ndarray]()
        for split in SPLITS:
            count = len(rows := self._fitting(encoded, split))
            ids, lengths = encoded.ids[f"{split}.{SIDES[-1]}"], encoded.lengths(split, SIDES[-1])
            targets[split] = tokens.row_counts(ids, lengths, rows, facts.vocabulary)
            targets[split][encoded.end] += count
            facts.documents[f"{split}_too_long"] = facts.documents[split] - count
            if not count and split != "test":
                problem = f"of {facts.documents[split]} {split} pairs none fits into context={self.context}"
                raise InputError(f"data: {problem}; give more text or a larger data.context")
        self.facts = replace(facts, unigram_nll=tokens.unigram_nll(targets["train"], targets["validation"]))

    def _fitting(self, encoded: PairTokens, split: str) -> np.ndarray:
        sides = [encoded.lengths(split, side) + 1 <= self.context for side in SIDES]
        return np.flatnonzero(sides[0] & sides[1])

    def setup(self, stage: str | None = None) -> None:
        """Open the tokens and form the batches of all splits."""
        self.prepare_data()
        assert self.facts is not None
        self.tokens = PairTokens(self.facts)
        self.batches: dict[str, list[np.ndarray]] = {}
        for split in SPLITS:
            source, target = (self.tokens.lengths(split, side) + 1 for side in SIDES)
            rows, budget = self._fitting(self.tokens, split), self.evaluation_batch_tokens
            if split == "train":
                rows, budget = rows[np.lexsort((rows, source[rows], target[rows]))], self.batch_tokens
            else:
                key = (self.facts.fingerprint, split)
                rows = rows[draw_documents(target[rows], self.evaluation_tokens, key)]
            self.batches[split] = list(bucket_rows(rows, source, target, budget))

    def bytes_per_token(self) -> Tensor:
        """Return the number of bytes of each token of the vocabulary."""
        return torch.from_numpy(self.tokens.bytes_per_token)

    def check_devices(self, world: int) -> None:
        """Raise InputError if a batch has fewer pairs than there are devices."""
        fewest = min(map(len, self.batches["train"]))
        if fewest < world:
            expected = f"expected more than {self.batch_tokens} tokens, or fewer devices"
            problem = f"a batch of {fewest} pairs cannot be shared among {world} devices"
            raise InputError(f"data.batch_tokens: {problem}; {expected}")

    def training_batches(self, start: int, count: int, rank: int = 0, world: int = 1) -> Batches:
        """Return training batches `start` to `count`, this process's rows of each."""
        batches = self.batches["train"]

        def rows(step: int) -> np.ndarray:
            epoch, index = divmod(step, len(batches))
            rows_b = batches[permutation(self.seed, epoch, len(batches))[index]]
            return rows_b[rank_slice(rank, world, len(rows_b))]

        return Batches(rows, lambda rows_b: self.gather("train", rows_b), start, count)

    def evaluation_batches(self, split: str, rank: int = 0, world: int = 1) -> Batches:
        """Return the batches of a split in a fixed order."""
        batches = self.batches[split]
        rows = lambda step: batches[step][rank_slice(rank, world, len(batches[step]))]  # noqa: E731
        return Batches(rows, lambda rows_b: self.gather(split, rows_b), 0, len(batches))

    def clusters(self, split: str) -> Clusters:
        """Return one cluster for each pair of a split."""
        return clusters_per_row(len(self.tokens.lengths(split, SIDES[-1])))

    def gather(self, split: str, rows_b: np.ndarray) -> Batch:
        """Return the pairs with these numbers."""
        source, target = ([self.tokens.text(split, side, row) for row in rows_b] for side in SIDES)
        inputs_bt = pad_rows([[self.tokens.begin, *ids] for ids in target], self.tokens.padding)
        targets_bt = pad_rows([[*ids, self.tokens.end] for ids in target], IGNORED)
        return Batch((tensor(inputs_bt), *self.sources(source)), tensor(targets_bt), tensor(rows_b))

    def sources(self, texts: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """Return the encoder's input (b, s), cut to the context with its end, and True for its padding, (b, s)."""
        rows = [[*ids[: self.context - 1], self.tokens.end] for ids in texts]
        hidden_bs = np.arange(max(map(len, rows))) >= np.asarray([[len(row)] for row in rows])
        return tensor(pad_rows(rows, self.tokens.padding)), torch.from_numpy(hidden_bs)
