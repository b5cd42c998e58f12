"""The memory-mapped cache of token ids, built once whoever asks first.

CACHE/tokenizers/<corpus, split and settings>.json    a trained tokenizer
CACHE/tokens/<corpus fingerprint and tokenizer hash>/  train.npy, validation.npy, test.npy, bytes.npy, facts.json,
                                                       tokenizer.json
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from filelock import FileLock

from lm.config import run_id
from lm.data.corpus import SPLITS, Corpus, fingerprint
from lm.data.tokenizer import END_OF_TEXT, UNKNOWN, Tokenizer, bytes_per_token, encode
from lm.results import read_json, to_json, write_atomic

DOCUMENTS_AT_ONCE = 1000


def cache_folder() -> Path:
    """`$LM_CACHE`, or `lm` in the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lm"
    return Path(os.environ.get("LM_CACHE") or default)


@dataclass(frozen=True)
class Facts:
    """What a corpus and a tokenizer came to; all that a cell's identity needs to know of the text."""

    folder: str
    fingerprint: str
    tokenizer: str
    vocabulary: int
    documents: dict[str, int]
    tokens: dict[str, int]
    bytes: dict[str, int]
    unknown: dict[str, int]
    end_of_text: int | None = None

    def identity(self) -> dict[str, Any]:
        """The part that decides what is computed."""
        return {"fingerprint": self.fingerprint, "tokenizer": self.tokenizer}


class Tokens:
    """The token ids of one prepared corpus, memory-mapped."""

    def __init__(self, facts: Facts) -> None:
        folder = Path(facts.folder)
        self.facts = facts
        self.split = {name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in SPLITS}
        self.bytes_per_token = np.load(folder / "bytes.npy", allow_pickle=False)


def tokens_folder(text: str, tokenizer: str) -> Path:
    """Where the token ids of a text lie, with the tokenizer that made them; both are known by their hashes."""
    return cache_folder() / "tokens" / run_id([text, tokenizer])[:32]


def prepare(corpus: Corpus, tokenizer: Tokenizer, fractions: Sequence[float]) -> Facts:
    """Reads the corpus, trains the tokenizer and encodes the text, each only if no one has before."""
    splits = corpus.splits(fractions)
    text = fingerprint(splits)
    trained = _trained(tokenizer, splits["train"], text)
    tokenizer_hash = hashlib.sha256(trained.to_str().encode()).hexdigest()
    folder = tokens_folder(text, tokenizer_hash)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / "facts.json").is_file():
            _write(folder, splits, trained, {"fingerprint": text, "tokenizer": tokenizer_hash})
        if not (folder / "tokenizer.json").is_file():
            write_atomic(folder / "tokenizer.json", trained.to_str())
    return Facts(folder=str(folder.resolve()), **read_json(folder / "facts.json"))


def _trained(tokenizer: Tokenizer, documents: Sequence[str], text: str) -> tokenizers.Tokenizer:
    settings = {"class": f"{type(tokenizer).__module__}.{type(tokenizer).__qualname__}", **vars(tokenizer)}
    for key, value in settings.items():  # a vocabulary file is known by what it holds
        if isinstance(value, str) and Path(value).is_file():
            settings[key] = hashlib.sha256(Path(value).read_bytes()).hexdigest()
    path = cache_folder() / "tokenizers" / f"{run_id([text, settings])[:32]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        if not path.is_file():
            write_atomic(path, tokenizer.train(documents).to_str())
    return tokenizers.Tokenizer.from_file(str(path))


def _write(folder: Path, splits: dict[str, list[str]], tokenizer: tokenizers.Tokenizer, names: dict[str, str]) -> None:
    kind = np.uint16 if tokenizer.get_vocab_size() <= 2**16 else np.uint32
    unknown = tokenizer.token_to_id(UNKNOWN)
    facts = Facts(
        "",
        **names,
        vocabulary=tokenizer.get_vocab_size(),
        documents={},
        tokens={},
        bytes={},
        unknown={},
        end_of_text=tokenizer.token_to_id(END_OF_TEXT),
    )
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        for name in SPLITS:
            ids = np.concatenate([np.zeros(0, np.int64), *_encoded(tokenizer, splits[name])]).astype(kind)
            np.save(temporary / f"{name}.npy", ids, allow_pickle=False)
            facts.documents[name] = len(splits[name])
            facts.tokens[name] = len(ids)
            facts.bytes[name] = sum(len(document.encode("utf-8", "surrogatepass")) for document in splits[name])
            facts.unknown[name] = 0 if unknown is None else int((ids == unknown).sum())
        np.save(temporary / "bytes.npy", bytes_per_token(tokenizer), allow_pickle=False)
        stored = {key: value for key, value in asdict(facts).items() if key != "folder"}
        (temporary / "facts.json").write_text(to_json(stored), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _encoded(tokenizer: tokenizers.Tokenizer, documents: Sequence[str]) -> Iterator[np.ndarray]:
    for start in range(0, len(documents), DOCUMENTS_AT_ONCE):
        yield encode(tokenizer, documents[start : start + DOCUMENTS_AT_ONCE])
