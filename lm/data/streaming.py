"""A stream of the hub as an entry of the cache: documents are encoded as they arrive, up to a number of tokens.

CACHE/texts/<corpus, shares and tokenizer>.json    what was read, once it has been read
CACHE/tokens/.<the same>.building/                 its shards, while they are written
"""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lm.config.tree import run_id
from lm.data.corpus import SPLITS
from lm.data.encoding import BATCH, Encoder, cut_safely, in_order
from lm.data.hub import HubStream, HubText
from lm.data.progress import TextProgress
from lm.data.shards import ShardWriter
from lm.data.splits import READING, TextFacts, settings_of, utf8_length
from lm.data.tokenizer import Tokenizer
from lm.data.tokens import TextStats, describe_entry, entry_folder, finish_entry, known_or_built

LEARNT_BYTES = 2**26  # bytes at the beginning of a stream from which a tokenizer learns


def split_of(digest: bytes, fractions: Sequence[float]) -> str:
    """Return the split of a document by the hash of its content: equal documents are in one split."""
    share = int.from_bytes(digest[:8], "big") / 2**64
    return SPLITS[sum(share >= bound for bound in itertools.accumulate(fractions[:-1]))]


class _Beginning:
    """The training documents at the beginning of a stream, read once."""

    def __init__(self, corpus: HubText, fractions: Sequence[float]) -> None:
        self.corpus, self.fractions, self.texts = corpus, fractions, list[str]()

    def __iter__(self) -> Iterator[str]:
        held = 0
        for documents, _ in HubStream(self.corpus, None, BATCH) if not self.texts else ():
            for text in documents:
                if split_of(hashlib.sha256(text.encode()).digest(), self.fractions) == SPLITS[0]:
                    self.texts.append(text)
                    held += utf8_length(text)
            if held >= LEARNT_BYTES:
                break
        return iter(self.texts)


@dataclass
class _Reader:
    """The place that a stream has been read to: its state, the hash of its documents so far, their number and bytes."""

    writer: ShardWriter
    fractions: Sequence[float]
    limit: float
    state: Any = None
    digest: str = ""
    documents: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    ended: bool = False
    whole: bool = True  # whether all documents before the state have been taken

    def __post_init__(self) -> None:
        for name, value in (self.writer.done or {}).items():
            setattr(self, name, value)

    @property
    def tokens(self) -> int:
        """Tokens so far."""
        return sum(self.writer.tokens.values())

    def commit(self) -> None:
        """Write what has been read."""
        names = ("state", "digest", "documents", "bytes", "ended")
        self.writer.commit({name: getattr(self, name) for name in names}, last=self.ended)

    def take(self, documents: Iterable[str], ids: Iterable[np.ndarray], state: Any) -> None:
        """Add documents with their ids, up to the number of tokens that ends the stream; `state` is that after them."""
        self.whole = False
        for text, encoded in zip(documents, ids, strict=True):
            data = text.encode("utf-8", "surrogatepass")
            content = hashlib.sha256(data).digest()
            split = split_of(content, self.fractions)
            self.digest = hashlib.sha256(f"{self.digest} {split} ".encode() + content).hexdigest()
            self.documents[split] += 1
            self.bytes[split] += len(data)
            self.writer.add(split, encoded)
            if self.tokens >= self.limit:
                self.ended = True
                break
        self.state, self.whole = state, True


def beginning(corpus: HubText, fractions: Sequence[float]) -> tuple[str, Iterable[str]]:
    """Return the documents from which a tokenizer learns, and a name of them."""
    settings = {**settings_of(corpus), "tokens": None}
    return run_id([READING, settings, list(fractions), *local_state(corpus)]), _Beginning(corpus, fractions)


def local_state(corpus: HubText) -> list[list[Any]]:
    """Return path, size and time of each file of a dataset that is a folder or a file; none of one on the hub."""
    root = Path(corpus.path)
    every = sorted(root.rglob("*")) if root.is_dir() else [root]
    return [
        [str(path.absolute()), of.st_size, of.st_mtime_ns] for path in every if path.is_file() and (of := path.stat())
    ]


def prepare_stream(corpus: HubText, tokenizer: Tokenizer, fractions: Sequence[float]) -> TextStats:
    """Encode a stream up to its number of tokens, unless that is cached."""
    name, documents = beginning(corpus, fractions)
    trained, described = describe_entry("tokens", TextFacts(name, {}, {}), documents, tokenizer)
    state = local_state(corpus)
    key = run_id([READING, settings_of(corpus), list(fractions), described.tokenizer, *state])[:32]

    def build(building: Path) -> TextStats:
        reader = _Reader(ShardWriter(building, described.id_type, key), fractions, corpus.tokens or float("inf"))
        _read(corpus, reader, Encoder(trained, described.id_type, described.end_of_text))
        fingerprint = hashlib.sha256(f"stream {reader.digest}".encode()).hexdigest()
        folder = str(entry_folder("tokens", fingerprint, described.tokenizer).resolve())
        facts = replace(described, folder=folder, fingerprint=fingerprint)
        return finish_entry(building, trained, replace(facts, documents=reader.documents, bytes=reader.bytes))

    return known_or_built(key, state or None, corpus.revision, build)


def _read(corpus: HubText, reader: _Reader, encoder: Encoder) -> None:
    """Read and encode a stream, from where a killed process left it, up to its number of tokens."""

    def encode(rows: tuple[list[str], Any]) -> list[np.ndarray]:
        parts = list(cut_safely(((SPLITS[0], text, True) for text in rows[0]), encoder.size, encoder.places))
        encoded = encoder.each([text for _, text, _ in parts], [last for *_, last in parts])
        ends = np.flatnonzero([last for *_, last in parts]) + 1
        starts = [0, *ends[:-1]]
        return [np.concatenate(encoded[start:end]) for start, end in zip(starts, ends, strict=True)]

    if reader.ended:
        return
    with TextProgress(f"streaming {corpus.path}", corpus.tokens, "tokens") as progress:
        try:
            for (documents, state), ids in in_order(encode, HubStream(corpus, reader.state, BATCH), encoder.threads):
                before = reader.tokens
                reader.take(documents, ids, state)
                progress.reach(reader.tokens, reader.tokens - before, before)
                if reader.ended:
                    break
                if reader.writer.full:
                    reader.commit()
            reader.ended = True
        finally:
            if reader.whole:
                reader.commit()
