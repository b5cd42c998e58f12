"""The text of a corpus in its splits, read as often as needed and never in memory as a whole.

CACHE/texts/<corpus and shares>.json    what was counted of a text, its fingerprint, and the state of its files
"""

import bisect
import contextlib
import functools
import hashlib
import itertools
import re
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lm.config.fingerprint import fingerprint as code_fingerprint
from lm.config.imported import OURS
from lm.config.tree import InputError, run_id
from lm.data.corpus import SPLITS, Corpus
from lm.data.public import digest
from lm.data.text_files import Piece
from lm.store.files import read_json, to_json, write_atomic
from lm.store.user_cache import cache_folder

Part = tuple[str, str, bool]  # a split, some text of it, and whether a document ends there

READING = 2  # version of how files become documents; another one makes every manifest anew
YOUNG = 10**8  # nanoseconds after which a change of a file is seen by its time
AT_ONCE = 2**16  # documents whose lengths are in memory
LINE_START = re.compile(r"(?<=[\n\v\f\x1c-\x1e\x85\u2028\u2029])(?=[\s\S])|(?<=\r)(?=[^\n])")


@dataclass(frozen=True)
class TextFacts:
    """The hash of a text in its splits, and its documents and bytes by split."""

    fingerprint: str
    documents: dict[str, int]
    bytes: dict[str, int]


def utf8_length(text: str) -> int:
    """Return the bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


class Lengths:
    """Characters and bytes of the documents of a text, which may be too many for the memory, and their splits."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115
        self.counts, self.characters = dict.fromkeys(SPLITS, 0), 0
        buffer, characters, size = array("Q"), 0, 0
        for split, text, last in parts:
            characters += len(text)
            size += utf8_length(text)
            if last and characters:
                buffer.extend((characters, size))
                self.counts[split] += 1
                self.characters += characters
                if len(buffer) >= 2 * AT_ONCE:
                    buffer.tofile(self.file)
                    del buffer[:]
            if last:
                characters = size = 0
        buffer.tofile(self.file)

    def chunks(self) -> Iterator[np.ndarray]:
        """Yield characters and bytes of some documents after the other, (documents, 2)."""
        self.file.seek(0)
        while data := self.file.read(16 * AT_ONCE):
            yield np.frombuffer(data, dtype=np.uint64).reshape(-1, 2)


class SplitText:
    """The text of a corpus in its splits; `seen` is called with the bytes of each part that is read."""

    def __init__(
        self, corpus: Corpus, fractions: Sequence[float], seen: Callable[[int], None] = lambda _: None
    ) -> None:
        self.corpus, self.fractions, self.seen = corpus, fractions, seen
        self.lengths: Lengths | None = None  # of the documents, where they were counted to divide them
        self.cuts: tuple[int, ...] | None = None  # where a text of one document is cut, in characters
        self.ends: tuple[int, ...] | None = None  # the number of the first document of each later split

    @functools.cached_property
    def own(self) -> Mapping[str, Iterable[Piece]] | None:
        """The pieces of each split of a source that has splits of its own."""
        return self.corpus.split_pieces(self.fractions)

    def _pieces(self) -> Iterator[Part]:
        """Yield all parts in order, all in the first split where shares divide the text."""
        streams = {SPLITS[0]: self.corpus.pieces()} if self.own is None else self.own
        for name in SPLITS:
            for text, last in streams.get(name, ()):
                self.seen(utf8_length(text))
                yield name, text, last

    def parts(self) -> Iterator[Part]:
        """Yield the parts of all documents, split by split; none of an empty document."""
        self._divide()
        number, has_text = 0, False
        for name, text, last in self._cut() if self.cuts is not None else self._pieces():
            if self.ends is not None:
                name = SPLITS[bisect.bisect_right(self.ends, number)]
            has_text = has_text or bool(text)
            if has_text:
                yield name, text, last
            if last:
                number, has_text = number + has_text, False

    def _divide(self) -> None:
        """Find where the splits begin, once: by shares of characters, in order, without cutting a document.

        A text that is one document is cut at the ends of lines: else no split but the first would have any of it.
        """
        if self.own is not None or self.ends is not None or self.cuts is not None:
            return
        lengths = Lengths(self._pieces())
        count, total = sum(lengths.counts.values()), lengths.characters
        if not count:
            raise InputError(f"data.corpus: {type(self.corpus).__name__} holds no text")
        bounds = [fraction * total - 1e-9 for fraction in itertools.accumulate(self.fractions[:-1])]
        if count == 1:
            self.cuts = self._line_starts(bounds, total)
            return
        before, ends = 0, [0] * len(bounds)
        for chunk in lengths.chunks():
            starts = before + np.cumsum(chunk[:, 0], dtype=np.int64) - chunk[:, 0].astype(np.int64)
            ends = [end + int((starts < bound).sum()) for end, bound in zip(ends, bounds, strict=True)]
            before += int(chunk[:, 0].sum())
        self.ends, self.lengths = tuple(ends), lengths
        lengths.counts = dict(zip(SPLITS, np.diff([0, *ends, count]).tolist(), strict=True))

    def _line_starts(self, bounds: Sequence[float], total: int) -> tuple[int, ...]:
        """Return the places of the first lines that begin at the bounds or later; the end of the text without one."""
        starts, before, previous = list[int](), 0, ""
        for _, text, _ in self._pieces():
            text, offset = previous + text, before - len(previous)
            while len(starts) < len(bounds) and offset + len(text) > bounds[len(starts)]:
                earliest = max(0, int(np.ceil(bounds[len(starts)])) - offset)
                start = LINE_START.search(text, earliest)
                if start is None:
                    break
                starts.append(offset + start.start())
            before, previous = offset + len(text), text[-1:]
        return (*starts, *[total] * (len(bounds) - len(starts)))

    def _cut(self) -> Iterator[Part]:
        """Yield the parts of a text of one document, which ends at the cuts."""
        assert self.cuts is not None
        position, split = 0, 0
        for _, text, last in self._pieces():
            while split < len(self.cuts) and self.cuts[split] <= position + len(text):
                size = self.cuts[split] - position
                yield SPLITS[split], text[:size], True
                text, position, split = text[size:], self.cuts[split], split + 1
            yield SPLITS[split], text, last
            position += len(text)

    def facts(self) -> TextFacts:
        """Read the text and return its fingerprint and counts; what `fingerprint` gives for it in memory."""
        self._divide()
        lengths, digest = self.lengths or Lengths(self.parts()), hashlib.sha256()
        sizes = (size for chunk in lengths.chunks() for size in chunk[:, 1].tolist())
        size_of, current, inside = dict.fromkeys(SPLITS, 0), 0, False
        digest.update(f"{SPLITS[0]}:{lengths.counts[SPLITS[0]]}\n".encode())
        for name, text, last in self.parts():
            while SPLITS[current] != name:
                current += 1
                digest.update(f"{SPLITS[current]}:{lengths.counts[SPLITS[current]]}\n".encode())
            if not inside:
                size = next(sizes)
                size_of[name] += size
                digest.update(f"{size}\n".encode())
            digest.update(text.encode("utf-8", "surrogatepass"))
            inside = not last
        for name in SPLITS[current + 1 :]:
            digest.update(f"{name}:{lengths.counts[name]}\n".encode())
        return TextFacts(digest.hexdigest(), lengths.counts, size_of)


def is_own(part: Any) -> bool:
    """Return True for a corpus or a tokenizer of this package."""
    return type(part).__module__.startswith(f"{OURS}.")


def settings_of(part: Any) -> dict[str, Any]:
    """Return what decides what a corpus or a tokenizer does: its class, its settings, and the code of a user's own."""
    cls = type(part)
    code = {} if is_own(part) else {"code": code_fingerprint(cls)}
    settings = {key: value for key, value in vars(part).items() if not key.startswith("_")}
    return {"class": f"{cls.__module__}.{cls.__qualname__}", **settings, **code}


def manifest_path(corpus: Corpus, fractions: Sequence[float]) -> Path:
    """Return the file that keeps what was counted of a text."""
    return cache_folder() / "texts" / f"{run_id([READING, settings_of(corpus), list(fractions)])[:32]}.json"


def text_facts(text: SplitText) -> TextFacts:
    """Return fingerprint and counts of a text, without reading it where its files are those of its manifest."""
    state = text.corpus.state()
    if state is None:
        return text.facts()
    path = manifest_path(text.corpus, text.fractions)
    with contextlib.suppress(InputError, OSError, TypeError, KeyError):
        manifest = read_json(path)
        if manifest["state"] == state:
            text.ends, text.cuts = manifest.get("ends"), manifest.get("cuts")
            return TextFacts(**manifest["text"])
    began = time.time_ns()
    facts = text.facts()
    files = state if is_own(text.corpus) else []  # a user's own state may be anything
    young = any(changed > began - YOUNG for *_, changed in files)  # a file that may change and keep its time
    if not young and text.corpus.state() == state:
        hashes = {name: digest(Path(name)) for name, *_ in files if Path(name).is_file()}
        content = {"state": state, "text": asdict(facts), "corpus": settings_of(text.corpus), "hashes": hashes}
        content |= {"ends": text.ends, "cuts": text.cuts}
        with contextlib.suppress(OSError):
            write_atomic(path, to_json(content))
    return facts
