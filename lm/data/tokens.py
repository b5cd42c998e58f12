"""The memory-mapped cache of token ids, and the loss of a unigram model of them. Legend: v vocabulary.

CACHE/tokenizers/<corpus, split and settings>/         a trained tokenizer
CACHE/tokens/<corpus fingerprint and tokenizer hash>/  train.npy, validation.npy, test.npy, bytes.npy, facts.json,
                                                       tokenizer.json, unigram.json, sums.json
"""

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from lm.config.tree import InputError, run_id
from lm.data import cache
from lm.data.cache import DamageError, stored_array, stored_json, write_array
from lm.data.corpus import SPLITS, Corpus
from lm.data.encoding import PART, Encoder, cut_safely, in_order, portions
from lm.data.progress import TextProgress
from lm.data.public import digest
from lm.data.shards import END, ShardWriter, chunks_of, joined, stored_shards
from lm.data.splits import SplitText, TextFacts, is_own, manifest_path, settings_of, text_facts
from lm.data.tokenizer import Tokenizer, bytes_per_token, unknown_token, vocabulary_of
from lm.store.files import read_json, to_json, write_atomic
from lm.store.locks import locked

# Fields that `facts.json` does not hold: older versions read it, and take no others.
NOT_STORED = ("folder", "unigram_nll", "revision")
TOKENIZER = "tokenizer.json"
MIXTURE = "mixture.json"
UNIGRAM = "unigram.json"  # file of the loss of a unigram model; entries of older versions lack it


@dataclass(frozen=True)
class TextStats:
    """Statistics of a corpus and a tokenizer; `unigram_nll` is the loss of a unigram model on validation, or None."""

    folder: str
    fingerprint: str
    tokenizer: str
    vocabulary: int
    documents: dict[str, int]
    tokens: dict[str, int]
    bytes: dict[str, int]
    unknown: dict[str, int]
    end_of_text: int | None = None
    unigram_nll: float | None = None
    revision: str | dict[str, str] | None = (
        None  # the commit of a dataset of the hub, by corpus where there are several
    )

    @property
    def id_type(self) -> type[np.unsignedinteger]:
        """The smallest type that holds every token id."""
        return np.uint16 if self.vocabulary <= 2**16 else np.uint32

    def stored(self) -> dict[str, Any]:
        """Return the fields that `facts.json` holds, as far as they are known."""
        content = {key: value for key, value in asdict(self).items() if key not in NOT_STORED and value != {}}
        if "documents" in content:  # how many are too long depends on the context, and is counted anew each time
            content["documents"] = {key: n for key, n in self.documents.items() if not key.endswith("_too_long")}
        return content

    def identity(self) -> dict[str, Any]:
        """Return the fields that decide what is computed."""
        return {"fingerprint": self.fingerprint, "tokenizer": self.tokenizer}


class Tokens:
    """The token ids of one prepared corpus, memory-mapped. Raises OSError where they were damaged since.

    `parts` are those of each corpus of a mixture, which has `weights` by name; else there is one part.
    """

    def __init__(self, facts: TextStats) -> None:
        folder, self.weights = Path(facts.folder), {"": 1.0}
        self.facts = facts
        try:
            shards = {name: list(stored_shards(folder, name)) for name in SPLITS}
            segments = {name: [len(of)] for name, of in shards.items()}
            if (folder / MIXTURE).is_file():
                mixture = stored_json(folder / MIXTURE)
                self.weights, segments = mixture["weights"], mixture["segments"]
            self.bytes_per_token = stored_array(folder / "bytes.npy", mapped=False)
        except DamageError as damage:
            raise cache.damage_as_os_error(folder, damage) from None
        self.parts = dict[str, list[Any]]()
        for name, of in shards.items():
            ends = itertools.accumulate(segments[name])
            self.parts[name] = [joined(of[end - n : end]) for end, n in zip(ends, segments[name], strict=True)]
        self.split = {name: joined(parts) for name, parts in self.parts.items()}


def entry_folder(kind: str, text: str, tokenizer: str) -> Path:
    """Return the folder of the token ids, of `tokens` or `pairs`, of a text and a tokenizer, given by their hashes."""
    return cache.cache_folder() / kind / run_id([text, tokenizer])[:32]


def describe_entry(
    kind: str, text: TextFacts, documents: Iterable[str], tokenizer: Tokenizer
) -> tuple[tokenizers.Tokenizer, TextStats]:
    """Train a tokenizer on documents unless it is cached; returns it and the statistics of an entry with no counts."""
    trained = train_tokenizer(tokenizer, documents, text.fingerprint)
    sha256 = hashlib.sha256(trained.to_str().encode()).hexdigest()
    folder = str(entry_folder(kind, text.fingerprint, sha256).resolve())
    size, end = vocabulary_of(trained), tokenizer.end_of(trained) if kind == "tokens" else None
    return trained, TextStats(folder, text.fingerprint, sha256, size, text.documents, {}, text.bytes, {}, end)


class TrainingText:
    """The documents of the training split for a tokenizer, in parts that give the same words, again at each pass.

    A user's own tokenizer, which may join any parts, gets them whole.
    """

    def __init__(self, text: SplitText, tokenizer: Tokenizer) -> None:
        self.text, self.tokenizer = text, tokenizer

    def __iter__(self) -> Iterator[str]:
        parts = itertools.takewhile(lambda part: part[0] == SPLITS[0], self.text.parts())
        return (text for _, text, _ in cut_safely(parts, PART if is_own(self.tokenizer) else None))


def prepare(corpus: Corpus, tokenizer: Tokenizer, fractions: Sequence[float]) -> TextStats:
    """Read the corpus, train the tokenizer and encode the text, each unless it is cached."""
    size = corpus.count_bytes()
    with TextProgress("reading the text", size and 2 * size) as progress:  # to divide it and to hash it
        text = SplitText(corpus, fractions, progress.advance)
        counted = text_facts(text)
    with TextProgress("training the tokenizer", counted.bytes[SPLITS[0]]) as progress:
        text.seen = progress.advance
        trained, facts = describe_entry("tokens", counted, TrainingText(text, tokenizer), tokenizer)
    text.seen = lambda _: None
    cache.ensure_entry(Path(facts.folder), facts.stored(), lambda entry: _write_entry(entry, text, trained, facts))
    stored = stored_json(Path(facts.folder) / cache.FACTS)
    return replace(facts, tokens=stored["tokens"], unknown=stored["unknown"])


def write_stats(folder: Path, tokenizer: tokenizers.Tokenizer, facts: TextStats, counted: Mapping[str, Any]) -> None:
    """Write the tokenizer and the statistics of an entry, with those that were counted as it was written."""
    write_array(folder / "bytes.npy", bytes_per_token(tokenizer))
    write_atomic(folder / TOKENIZER, tokenizer.to_str())
    (folder / cache.FACTS).write_text(to_json(replace(facts, **counted).stored()), encoding="utf-8")


def entry_unigram_nll(facts: TextStats) -> float | None:
    """Return the loss of the unigram model of an entry, computed anew where an older version made the entry."""
    with contextlib.suppress(DamageError):
        return stored_json(Path(facts.folder) / UNIGRAM)["nll"]
    ids = Tokens(facts).split
    return unigram_nll(*(token_counts(ids[name], facts.vocabulary) for name in ("train", "validation")))


def is_usable(facts: TextStats) -> bool:
    """Return True if the entry of a text and a tokenizer is there and sound."""
    with cache.cache_io_errors():
        return cache.find_damage(Path(facts.folder), facts.stored()) is None


def train_tokenizer(tokenizer: Tokenizer, documents: Iterable[str], text: str) -> tokenizers.Tokenizer:
    """Train a tokenizer on documents of a text with this hash, or read it from the cache; build one that is not."""
    if not tokenizer.learns:
        return tokenizer.train(())
    settings = settings_of(tokenizer)
    for key, value in settings.items():  # a vocabulary file is known by what it holds
        if isinstance(value, str) and Path(value).is_file():
            settings[key] = hashlib.sha256(Path(value).read_bytes()).hexdigest()
    folder = cache.cache_folder() / "tokenizers" / run_id([text, settings])[:32]

    def write(entry: Path) -> None:
        try:
            trained = tokenizers.Tokenizer.from_file(str(folder.with_suffix(".json")))  # of an older version
        except Exception:  # the Rust side raises bare Exception, also where there is none
            trained = tokenizer.train(documents if is_own(tokenizer) else list(documents))
        write_atomic(entry / TOKENIZER, trained.to_str())

    cache.ensure_entry(folder, {}, write)
    return tokenizers.Tokenizer.from_file(str(folder / TOKENIZER))


def _write_entry(folder: Path, text: SplitText, tokenizer: tokenizers.Tokenizer, facts: TextStats) -> None:
    """Write an entry, from where a killed process left it."""
    encoder = Encoder(tokenizer, facts.id_type, facts.end_of_text)
    state, source = text.corpus.state(), type(text.corpus).__qualname__  # other files come in other parts
    name = source if state is None else manifest_path(text.corpus, text.fractions).name
    writer = ShardWriter(folder, facts.id_type, [encoder.size, encoder.batch, name, state])
    if writer.done != END:
        parts = portions(cut_safely(text.parts(), encoder.size, encoder.places), encoder.batch, writer.done or 0)
        with TextProgress("encoding the text", sum(facts.bytes.values())) as progress:
            for portion, ids in in_order(encoder, parts, encoder.threads):
                progress.reach(portion.before + portion.bytes, len(ids), portion.before)
                writer.add(portion.split, ids)
                if writer.full:
                    writer.commit(portion.parts)
        writer.commit(END, last=True)
    finish_entry(folder, tokenizer, facts)


def finish_entry(folder: Path, tokenizer: tokenizers.Tokenizer, facts: TextStats) -> TextStats:
    """Write all files of an entry but its shards; return the statistics with what was counted in these.

    Documents and bytes are counted where the text is not known.
    """
    tokens, unknown, documents, bytes_of = (dict[str, int]() for _ in range(4))
    sizes, unknown_id, counts = bytes_per_token(tokenizer), unknown_token(tokenizer), []
    for name in SPLITS:
        counts.append(np.zeros(facts.vocabulary, dtype=np.int64))
        last = facts.end_of_text
        for ids in stored_shards(folder, name):
            counts[-1] += token_counts(ids, facts.vocabulary)
            last = int(ids[-1]) if len(ids) else last
        tokens[name], bytes_of[name] = int(counts[-1].sum()), int(counts[-1] @ sizes)
        unknown[name] = 0 if unknown_id is None else int(counts[-1][unknown_id])
        ended = 0 if facts.end_of_text is None else int(counts[-1][facts.end_of_text])
        documents[name] = ended + (tokens[name] > 0 and (last != facts.end_of_text or not ended))
    if not facts.bytes:
        facts = replace(facts, documents=documents, bytes=bytes_of)
    (folder / UNIGRAM).write_text(to_json({"nll": unigram_nll(*counts[:2])}), encoding="utf-8")
    write_stats(folder, tokenizer, facts, {"tokens": tokens, "unknown": unknown})
    return replace(facts, tokens=tokens, unknown=unknown)


def known_or_built(key: str, state: Any, revision: Any, build: Callable[[Path], TextStats]) -> TextStats:
    """Return the statistics of an entry that only its building names; it is built unless `key` is known in a state.

    `build` fills a folder and returns the statistics, with the folder that it is to become.
    """
    manifest = cache.cache_folder() / "texts" / f"{key}.json"

    def known() -> TextStats | None:
        with contextlib.suppress(InputError, KeyError, TypeError):
            content = read_json(manifest)
            stored = TextStats(folder="", **content["facts"], revision=revision)
            stored = replace(stored, folder=str(entry_folder("tokens", stored.fingerprint, stored.tokenizer).resolve()))
            if content["state"] == state and is_usable(stored):
                return stored
        return None

    if (facts := known()) is not None:
        return facts
    building = cache.cache_folder() / "tokens" / f".{key}.building"
    with cache.cache_io_errors():
        building.parent.mkdir(parents=True, exist_ok=True)
        with locked(Path(f"{building}.lock"), f"{building}, which another process fills"):
            if (facts := known()) is not None:
                return facts
            with cache.being_built(building):
                facts = build(building)
                with locked(Path(f"{facts.folder}.lock"), f"{facts.folder}, which another process prepares"):
                    cache.move_entry(building, Path(facts.folder))
            hashes = {name: digest(Path(name)) for name, *_ in state or () if Path(name).is_file()}
            write_atomic(manifest, to_json({"state": state, "facts": facts.stored(), "hashes": hashes}))
    return replace(facts, revision=revision)


def token_counts(ids: Any, vocabulary: int) -> np.ndarray:
    """Count the occurrences of each token, int64 of shape (vocabulary,)."""
    counts_v = np.zeros(vocabulary, dtype=np.int64)
    for _, chunk in chunks_of(ids):
        counts_v += np.bincount(chunk, minlength=vocabulary)
    return counts_v


def row_counts(ids: np.ndarray, lengths: np.ndarray, rows: np.ndarray, vocabulary: int) -> np.ndarray:
    """Count the occurrences of each token in rows with these numbers, which lie end to end in `ids`, (vocabulary,)."""
    chosen = np.zeros(len(lengths), dtype=bool)
    chosen[rows] = True
    return token_counts(ids[np.repeat(chosen, lengths)], vocabulary)


def unigram_nll(training_v: np.ndarray, validation_v: np.ndarray) -> float | None:
    """Compute the loss of the training text's unigram model on the validation text, in nats per token, or None.

    A token that occurs c times among n has the probability (c + 1) / (n + v). The arguments count targets by token,
    (v,).
    """
    if not validation_v.sum():
        return None
    probability_v = (training_v + 1) / (training_v.sum() + len(training_v))
    return float(-(validation_v @ np.log(probability_v)) / validation_v.sum())
