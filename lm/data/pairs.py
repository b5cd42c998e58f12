"""Pairs of texts as token ids, and in batches of similar lengths.

CACHE/pairs/<fingerprint of both sides and tokenizer hash>/
    train.source.npy, train.source.ends.npy, ...    token ids end to end, and where each text ends
    tokenizer.json, bytes.npy, facts.json, sums.json
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import tokenizers
import torch
from torch import Tensor

from lm.config.tree import InputError, run_id
from lm.data import IGNORED
from lm.data.aligned import LocalPairs, Pairs
from lm.data.batch import Batch, Batches, Data, tensor
from lm.data.cache import (
    DamageError,
    cache_folder,
    check_ids,
    filled,
    stored_array,
    stored_json,
    stored_tokenizer,
    unreadable,
    write_array,
)
from lm.data.clusters import Clusters, of_rows
from lm.data.corpus import SPLITS, fingerprint
from lm.data.order import permutation, share
from lm.data.tokenizer import SPECIALS, UNKNOWN, Tokenizer, bytes_per_token
from lm.data.tokens import NOT_STORED, Facts, _trained
from lm.data.unigram import row_counts, unigram_nll
from lm.store.files import to_json

SIDES = ("source", "target")

# token ids -----------------------------------------------------------------------------------------------------------


class PairTokens:
    """The token ids of prepared pairs, memory-mapped, and the tokenizer that made them.

    Raises OSError where they were damaged since.
    """

    def __init__(self, facts: Facts) -> None:
        folder = Path(facts.folder)
        names = [f"{split}.{side}" for split in SPLITS for side in SIDES]
        try:
            self.ids = {name: stored_array(folder / f"{name}.npy") for name in names}
            self.ends = {name: stored_array(folder / f"{name}.ends.npy", mapped=False) for name in names}
            self.bytes_per_token = stored_array(folder / "bytes.npy", mapped=False)
            self.tokenizer = stored_tokenizer(folder / "tokenizer.json", facts.tokenizer)
        except DamageError as damage:
            raise unreadable(folder, damage) from None
        vocabulary = self.tokenizer.get_vocab()
        self.begin, self.end, self.padding = (vocabulary[name] for name in SPECIALS)

    def lengths(self, split: str, side: str) -> np.ndarray:
        """Tokens of each text, without begin and end."""
        return np.diff(self.ends[f"{split}.{side}"], prepend=0)

    def text(self, split: str, side: str, row: int) -> np.ndarray:
        """The token ids of one text."""
        ends = self.ends[f"{split}.{side}"]
        return self.ids[f"{split}.{side}"][ends[row - 1] if row else 0 : ends[row]]


def pairs_folder(text: str, tokenizer: str) -> Path:
    """Where the ids of pairs with this fingerprint, cut by the tokenizer with this hash, lie or would lie."""
    return cache_folder() / "pairs" / run_id([text, tokenizer])[:32]


def prepare_pairs(corpus: LocalPairs, tokenizer: Tokenizer) -> Facts:
    """Reads the files, trains one tokenizer on both sides and encodes them, each only if no one has before.

    Tokens and bytes of the facts are those of the targets, with an end each; documents are pairs.
    """
    pairs, empty = corpus.pairs()
    flat = {split: [text for pair in found for text in pair] for split, found in pairs.items()}
    text = fingerprint(flat)
    trained = _trained(tokenizer.with_specials(), flat["train"], text)
    tokenizer_hash = hashlib.sha256(trained.to_str().encode()).hexdigest()
    folder = pairs_folder(text, tokenizer_hash)
    facts = Facts(str(folder.resolve()), text, tokenizer_hash, trained.get_vocab_size(), {}, {}, {}, {})
    facts.documents.update({f"{split}_empty": count for split, count in empty.items()})
    for split, found in pairs.items():
        facts.documents[split] = len(found)
        facts.bytes[split] = sum(len(target.encode()) for _, target in found)
    filled(folder, lambda entry: check_pairs(entry, facts), lambda entry: _write(entry, pairs, trained, facts))
    return Facts(folder=facts.folder, **stored_json(folder / "facts.json"))


def check_pairs(folder: Path, facts: Facts) -> None:
    """Raises DamageError for an entry without the pairs and the tokenizer of `facts`, or whose parts disagree."""
    stored = stored_json(folder / "facts.json")
    expected = {key: getattr(facts, key) for key in ("fingerprint", "tokenizer", "vocabulary", "documents", "bytes")}
    # How many are too long depends on the context, and is counted anew each time.
    expected["documents"] = {key: n for key, n in facts.documents.items() if not key.endswith("_too_long")}
    for key, value in expected.items():
        if stored.get(key) != value:
            raise DamageError(f"facts.json has {key}: {stored.get(key)!r}, expected {value!r}")
    trained = stored_tokenizer(folder / "tokenizer.json", facts.tokenizer)
    if not np.array_equal(stored_array(folder / "bytes.npy", mapped=False), bytes_per_token(trained)):
        raise DamageError("bytes.npy is not that of the tokenizer")
    for split in SPLITS:
        for side in SIDES:
            ids = stored_array(folder / f"{split}.{side}.npy")
            check_ids(ids, f"{split}.{side}.npy", facts.vocabulary)
            _check_ends(stored_array(folder / f"{split}.{side}.ends.npy", mapped=False), len(ids), facts, split)
    targets = {split: stored_array(folder / f"{split}.{SIDES[-1]}.npy") for split in SPLITS}
    told = {split: len(ids) + facts.documents[split] for split, ids in targets.items()}
    if stored.get("tokens") != told or set(stored.get("unknown") or {}) != set(SPLITS):
        raise DamageError(f"facts.json has tokens: {stored.get('tokens')!r}, found {told!r}")


def _check_ends(ends: np.ndarray, ids: int, facts: Facts, split: str) -> None:
    last = int(ends[-1]) if ends.ndim == 1 and len(ends) else 0
    if ends.ndim != 1 or len(ends) != facts.documents[split] or last != ids or np.any(np.diff(ends, prepend=0) < 0):
        raise DamageError(f"the ends of the {split} texts are not those of {ids} ids")


def _write(folder: Path, pairs: Pairs, tokenizer: tokenizers.Tokenizer, facts: Facts) -> None:
    kind = np.uint16 if facts.vocabulary <= 2**16 else np.uint32
    unknown = tokenizer.token_to_id(UNKNOWN)
    counted: dict[str, dict[str, int]] = {"tokens": {}, "unknown": dict.fromkeys(pairs, 0)}
    for split, found in pairs.items():
        for side, texts in zip(SIDES, zip(*found, strict=True) if found else ((), ()), strict=True):
            encoded = encode_lines(tokenizer, texts)
            ids = np.concatenate([np.zeros(0, np.int64), *encoded])
            write_array(folder / f"{split}.{side}.npy", ids.astype(kind))
            ends = np.cumsum([len(row) for row in encoded], dtype=np.int64)
            write_array(folder / f"{split}.{side}.ends.npy", ends)
            counted["unknown"][split] += 0 if unknown is None else int((ids == unknown).sum())
        counted["tokens"][split] = len(ids) + len(found)  # the side written last is the target
    write_array(folder / "bytes.npy", bytes_per_token(tokenizer))
    tokenizer.save(str(folder / "tokenizer.json"))
    stored = {key: value for key, value in {**asdict(facts), **counted}.items() if key not in NOT_STORED}
    (folder / "facts.json").write_text(to_json(stored), encoding="utf-8")


def encode_lines(tokenizer: tokenizers.Tokenizer, lines: Sequence[str]) -> list[np.ndarray]:
    """The token ids of each line, int64; a special token's name in a line is text like any other."""
    tokenizer.encode_special_tokens = True
    encoded = tokenizer.encode_batch_fast(list(lines), add_special_tokens=False)
    return [np.asarray(encoding.ids, dtype=np.int64) for encoding in encoded]


# batches -------------------------------------------------------------------------------------------------------------


def padded(rows: Sequence[Sequence[int] | np.ndarray], filler: int) -> np.ndarray:
    """The rows one under another, filled up to the longest, int64."""
    table = np.full((len(rows), max(map(len, rows))), filler, dtype=np.int64)
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    return table


def bucketed(order: np.ndarray, source: np.ndarray, target: np.ndarray, budget: int) -> Iterator[np.ndarray]:
    """Cuts the rows of `order` into batches whose padded source and target tokens are `budget` together at most.

    Args:
        order: row numbers.
        source, target: tokens of each row's two sides.
    """
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
        if self.facts is None:
            self.facts = self._counted(prepare_pairs(self.corpus, self.tokenizer))

    def _counted(self, facts: Facts) -> Facts:
        """The facts with the number of pairs that are too long, and the loss of a unigram model on the others."""
        tokens, targets = PairTokens(facts), dict[str, np.ndarray]()
        for split in SPLITS:
            kept = len(rows := self._fitting(tokens, split))
            ids, lengths = tokens.ids[f"{split}.{SIDES[-1]}"], tokens.lengths(split, SIDES[-1])
            targets[split] = row_counts(ids, lengths, rows, facts.vocabulary)
            targets[split][tokens.end] += kept
            facts.documents[f"{split}_too_long"] = facts.documents[split] - kept
            if not kept and split != "test":
                raise InputError(
                    f"data: of {facts.documents[split]} {split} pairs none fits into context={self.context}; "
                    "give more text or a larger data.context"
                )
        return replace(facts, unigram_nll=unigram_nll(targets["train"], targets["validation"]))

    def _fitting(self, tokens: PairTokens, split: str) -> np.ndarray:
        sides = [tokens.lengths(split, side) + 1 <= self.context for side in SIDES]
        return np.flatnonzero(sides[0] & sides[1])

    def setup(self, stage: str | None = None) -> None:
        self.prepare_data()
        assert self.facts is not None
        self.tokens = PairTokens(self.facts)
        self.batches = {
            split: self._batches(split, self.batch_tokens if split == "train" else self.evaluation_batch_tokens)
            for split in SPLITS
        }

    def _batches(self, split: str, budget: int) -> list[np.ndarray]:
        source, target = (self.tokens.lengths(split, side) + 1 for side in SIDES)
        rows = self._fitting(self.tokens, split)
        if split == "train":
            rows = rows[np.lexsort((rows, source[rows], target[rows]))]
        return list(bucketed(rows, source, target, budget))

    def bytes_per_token(self) -> Tensor:
        return torch.from_numpy(self.tokens.bytes_per_token)

    def check_devices(self, world: int) -> None:
        fewest = min(map(len, self.batches["train"]))
        if fewest < world:
            raise InputError(
                f"data.batch_tokens: a batch of {fewest} pairs cannot be shared among {world} devices; "
                f"expected more than {self.batch_tokens} tokens, or fewer devices"
            )

    def training_batches(self, start: int, count: int, rank: int = 0, world: int = 1) -> Batches:
        batches = self.batches["train"]

        def rows(step: int) -> np.ndarray:
            epoch, place = divmod(step, len(batches))
            rows_b = batches[permutation(self.seed, epoch, len(batches))[place]]
            return rows_b[share(rank, world, len(rows_b))]

        return Batches(rows, lambda rows_b: self.gather("train", rows_b), start, count)

    def evaluation_batches(self, split: str, rank: int = 0, world: int = 1) -> Batches:
        batches = self.batches[split]
        rows = lambda step: batches[step][share(rank, world, len(batches[step]))]  # noqa: E731
        return Batches(rows, lambda rows_b: self.gather(split, rows_b), 0, len(batches))

    def clusters(self, split: str) -> Clusters:
        return of_rows(len(self.tokens.lengths(split, SIDES[-1])))

    def gather(self, split: str, rows_b: np.ndarray) -> Batch:
        """The pairs with these numbers."""
        source, target = ([self.tokens.text(split, side, row) for row in rows_b] for side in SIDES)
        inputs_bt = padded([[self.tokens.begin, *ids] for ids in target], self.tokens.padding)
        targets_bt = padded([[*ids, self.tokens.end] for ids in target], IGNORED)
        return Batch((tensor(inputs_bt), *self.sources(source)), tensor(targets_bt), tensor(rows_b))

    def sources(self, texts: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """What the encoder reads of these token ids, (b, s), cut to the context with its end; and what of it is
        padding, (b, s)."""
        rows = [[*ids[: self.context - 1], self.tokens.end] for ids in texts]
        hidden_bs = np.arange(max(map(len, rows))) >= np.asarray([[len(row)] for row in rows])
        return tensor(padded(rows, self.tokens.padding)), torch.from_numpy(hidden_bs)
