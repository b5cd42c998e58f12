"""The memory-mapped cache of token ids, and the loss of a unigram model of them. Legend: v vocabulary.

CACHE/tokenizers/<corpus, split and settings>.json     a trained tokenizer, and a .sha256 of it
CACHE/tokens/<corpus fingerprint and tokenizer hash>/  train.npy, validation.npy, test.npy, bytes.npy, facts.json,
                                                       tokenizer.json, unigram.json, sums.json
"""

import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from lm.config.fingerprint import fingerprint as code_fingerprint
from lm.config.imported import OURS
from lm.config.tree import run_id
from lm.data import cache
from lm.data.cache import DamageError, stored_array, stored_json, write_array
from lm.data.corpus import SPLITS, Corpus, Splits, fingerprint
from lm.data.tokenizer import END_OF_TEXT, UNKNOWN, Tokenizer, bytes_per_token, encode
from lm.store.files import to_json, write_atomic
from lm.store.locks import locked

DOCUMENTS_AT_ONCE = 1000
# Fields that `facts.json` does not hold: older versions read it, and take no others.
NOT_STORED = ("folder", "unigram_nll")
UNIGRAM = "unigram.json"  # file of the loss of a unigram model; entries of older versions lack it
COUNT_CHUNK = 2**22  # token ids that are counted at once, so that a memory-mapped text is never in memory as a whole


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

    @property
    def id_type(self) -> type[np.unsignedinteger]:
        """The smallest type that holds every token id."""
        return np.uint16 if self.vocabulary <= 2**16 else np.uint32

    def identity(self) -> dict[str, Any]:
        """Return the fields that decide what is computed."""
        return {"fingerprint": self.fingerprint, "tokenizer": self.tokenizer}


class Tokens:
    """The token ids of one prepared corpus, memory-mapped. Raises OSError where they were damaged since."""

    def __init__(self, facts: TextStats) -> None:
        folder = Path(facts.folder)
        self.facts = facts
        try:
            self.split = {name: stored_array(folder / f"{name}.npy") for name in SPLITS}
            self.bytes_per_token = stored_array(folder / "bytes.npy", mapped=False)
        except DamageError as damage:
            raise cache.damage_as_os_error(folder, damage) from None


def entry_folder(kind: str, text: str, tokenizer: str) -> Path:
    """Return the folder of the token ids, of `tokens` or `pairs`, of a text and a tokenizer, given by their hashes."""
    return cache.cache_folder() / kind / run_id([text, tokenizer])[:32]


def describe_entry(kind: str, splits: Splits, tokenizer: Tokenizer) -> tuple[tokenizers.Tokenizer, TextStats]:
    """Train a tokenizer on texts unless it is cached; returns it and the statistics of an entry with no counts yet."""
    trained = train_tokenizer(tokenizer, splits["train"], text := fingerprint(splits))
    sha256 = hashlib.sha256(trained.to_str().encode()).hexdigest()
    folder = str(entry_folder(kind, text, sha256).resolve())
    return trained, TextStats(folder, text, sha256, trained.get_vocab_size(), {}, {}, {}, {})


def prepare(corpus: Corpus, tokenizer: Tokenizer, fractions: Sequence[float]) -> TextStats:
    """Read the corpus, train the tokenizer and encode the text, each unless it is cached."""
    splits = corpus.splits(fractions)
    trained, facts = describe_entry("tokens", splits, tokenizer)
    facts = replace(facts, end_of_text=trained.token_to_id(END_OF_TEXT))
    for name, documents in splits.items():
        facts.documents[name] = len(documents)
        facts.bytes[name] = sum(len(document.encode("utf-8", "surrogatepass")) for document in documents)
    folder = entry_folder("tokens", facts.fingerprint, facts.tokenizer)
    write = lambda entry: _write_entry(entry, splits, trained, facts)  # noqa: E731
    cache.ensure_entry(folder, lambda entry: check_entry(entry, facts), write)
    for name, ids in Tokens(facts).split.items():
        facts.tokens[name], facts.unknown[name] = len(ids), count_unknown(ids, trained)
    return facts


def check_entry(folder: Path, facts: TextStats) -> None:
    """Raise DamageError for an entry without the text and the tokenizer of `facts`, or whose parts disagree."""
    stored = stored_json(folder / "facts.json")
    for key, value in asdict(facts).items():
        if key not in NOT_STORED and value != {} and stored.get(key) != value:
            raise DamageError(f"facts.json has {key}: {stored.get(key)!r}, expected {value!r}")
    trained = check_tokenizer(folder, facts)
    for name in SPLITS:
        ids = stored_array(folder / f"{name}.npy")
        cache.check_ids(ids, f"{name}.npy", facts.vocabulary)
        for key, expected in (("tokens", len(ids)), ("unknown", count_unknown(ids, trained))):
            counts = stored.get(key)
            if (stored_count := counts.get(name) if isinstance(counts, dict) else None) != expected:
                raise DamageError(f"facts.json has {key} of {name}: {stored_count!r}, found {expected}")


def check_tokenizer(folder: Path, facts: TextStats) -> tokenizers.Tokenizer:
    """Read the tokenizer of an entry. Raises DamageError for another one, or where the bytes of its tokens differ."""
    trained = cache.stored_tokenizer(folder / "tokenizer.json", facts.tokenizer)
    if not np.array_equal(stored_array(folder / "bytes.npy", mapped=False), bytes_per_token(trained)):
        raise DamageError("bytes.npy is not that of the tokenizer")
    return trained


def write_stats(folder: Path, tokenizer: tokenizers.Tokenizer, facts: TextStats, counted: Mapping[str, Any]) -> None:
    """Write the tokenizer and the statistics of an entry, with those that were counted as it was written."""
    write_array(folder / "bytes.npy", bytes_per_token(tokenizer))
    write_atomic(folder / "tokenizer.json", tokenizer.to_str())
    stored = {key: value for key, value in {**asdict(facts), **counted}.items() if key not in NOT_STORED}
    (folder / "facts.json").write_text(to_json(stored), encoding="utf-8")


def entry_unigram_nll(facts: TextStats) -> float | None:
    """Return the loss of the unigram model of an entry, computed anew where an older version made the entry."""
    with contextlib.suppress(DamageError):
        return stored_json(Path(facts.folder) / UNIGRAM)["nll"]
    ids = Tokens(facts).split
    return unigram_nll(*(token_counts(ids[name], facts.vocabulary) for name in ("train", "validation")))


def is_usable(folder: Path, facts: TextStats, check: Callable[[Path, TextStats], None] = check_entry) -> bool:
    """Return True if an entry can be used for `facts`."""
    with cache.cache_io_errors():
        return folder.is_dir() and cache.find_damage(folder, lambda entry: check(entry, facts)) is None


def count_unknown(ids: np.ndarray, tokenizer: tokenizers.Tokenizer) -> int:
    """Count the unknown tokens among ids."""
    unknown = tokenizer.token_to_id(UNKNOWN)
    return 0 if unknown is None else int((ids == unknown).sum())


def train_tokenizer(tokenizer: Tokenizer, documents: Sequence[str], text: str) -> tokenizers.Tokenizer:
    """Train a tokenizer on documents, or read it from the cache."""
    settings = {"class": f"{type(tokenizer).__module__}.{type(tokenizer).__qualname__}", **vars(tokenizer)}
    for key, value in settings.items():  # a vocabulary file is known by what it holds
        if isinstance(value, str) and Path(value).is_file():
            settings[key] = hashlib.sha256(Path(value).read_bytes()).hexdigest()
    if not type(tokenizer).__module__.startswith(f"{OURS}."):
        settings["code"] = code_fingerprint(type(tokenizer))
    path = cache.cache_folder() / "tokenizers" / f"{run_id([text, settings])[:32]}.json"
    with cache.cache_io_errors():
        with contextlib.suppress(DamageError):
            return _read_tokenizer(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(Path(f"{path}.lock"), f"{path}, which another process trains"):
            try:
                return _read_tokenizer(path)
            except DamageError as damage:
                if path.is_file():
                    cache.warn_rebuilt(path, str(damage))
            trained = tokenizer.train(documents).to_str()
            checksum = path.with_suffix(".sha256")
            checksum.unlink(missing_ok=True)  # a tokenizer without one is believed if it can be read
            write_atomic(path, trained)
            write_atomic(checksum, hashlib.sha256(trained.encode()).hexdigest() + "\n")
            return tokenizers.Tokenizer.from_str(trained)


def _read_tokenizer(path: Path) -> tokenizers.Tokenizer:
    """Read a trained tokenizer. Raises DamageError where there is none, or it is not what was written."""
    beside = path.with_suffix(".sha256")
    try:
        text = path.read_text(encoding="utf-8")
        expected = beside.read_text(encoding="utf-8").strip() if beside.is_file() else None
        if expected not in (None, hashlib.sha256(text.encode()).hexdigest()):
            raise DamageError("not what was written")
        return tokenizers.Tokenizer.from_str(text)
    except FileNotFoundError:
        raise DamageError("missing") from None
    except (OSError, DamageError):
        raise
    except Exception as error:  # the Rust side raises bare Exception
        raise DamageError(" ".join(str(error).split())) from None


def _write_entry(folder: Path, splits: Splits, tokenizer: tokenizers.Tokenizer, facts: TextStats) -> None:
    counted, counts = {"tokens": dict[str, int](), "unknown": dict[str, int]()}, []
    for name in SPLITS:
        starts = range(0, len(splits[name]), DOCUMENTS_AT_ONCE)
        encoded = (encode(tokenizer, splits[name][start : start + DOCUMENTS_AT_ONCE]) for start in starts)
        ids = np.concatenate([np.zeros(0, np.int64), *encoded]).astype(facts.id_type)
        write_array(folder / f"{name}.npy", ids)
        counted["tokens"][name], counted["unknown"][name] = len(ids), count_unknown(ids, tokenizer)
        counts.append(token_counts(ids, facts.vocabulary))
    (folder / UNIGRAM).write_text(to_json({"nll": unigram_nll(*counts[:2])}), encoding="utf-8")
    write_stats(folder, tokenizer, facts, counted)


def token_counts(ids: np.ndarray, vocabulary: int) -> np.ndarray:
    """Count the occurrences of each token, int64 of shape (vocabulary,)."""
    counts_v = np.zeros(vocabulary, dtype=np.int64)
    for start in range(0, len(ids), COUNT_CHUNK):
        counts_v += np.bincount(ids[start : start + COUNT_CHUNK], minlength=vocabulary)
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
