"""From the parts of a text to token ids, on all cores."""

import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import tokenizers

from lm.data.splits import Part, utf8_length
from lm.data.tokenizer import UNKNOWN

PART = 2**16  # characters of a part of a long document
BATCH, TABLE_BATCH = 2**21, 2**19  # characters that are encoded at once, by the library and by a table
CODE_POINTS = 0x110000
# A place where no tokenizer of this package joins what is before it with what is after it, and where its words are
# the same in both parts as in the whole: after a single end of a line, or before a single space.
SAFE = re.compile(r"(?<=\S\n)(?=\S)|(?<=\S)(?= \S)")

ANYWHERE = re.compile("")

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class EncodingBatch:
    """Parts of one split that are encoded together: those up to number `parts` of the text, after `before` bytes."""

    split: str
    texts: list[str]
    last: list[bool]
    parts: int
    before: int

    @property
    def bytes(self) -> int:
        """Bytes of all parts."""
        return sum(map(utf8_length, self.texts))


def cut_safely(parts: Iterable[Part], size: int | None, places: re.Pattern[str] = SAFE) -> Iterator[Part]:
    """Join and cut the parts of a document into parts of about `size` characters at such places; whole without."""
    rest, held, limit = list[str](), 0, 2 * (size or 0)
    for name, text, last in parts:
        rest.append(text)
        held += len(text)
        if size is not None and held > limit:
            whole, start = "".join(rest), 0
            while len(whole) - start > size and (place := places.search(whole, start + size)) is not None:
                yield name, whole[start : place.start()], False
                start = place.start()
            rest, held = [whole[start:]], len(whole) - start
            limit = 2 * max(size, held)  # without a place, look again in twice as much
        if last:
            yield name, "".join(rest), True
            rest, held, limit = [], 0, 2 * (size or 0)


def portions(parts: Iterable[Part], batch: int, skip: int = 0) -> Iterator[EncodingBatch]:
    """Gather parts to portions of about `batch` characters, without the first `skip` parts."""
    texts, ends, current, held, number, before = list[str](), list[bool](), "", 0, 0, 0
    for number, (split, text, last) in enumerate(parts, 1):
        if number <= skip:
            before += utf8_length(text)
            continue
        if texts and (split != current or held + len(text) > batch):
            portion = EncodingBatch(current, texts, ends, number - 1, before)
            yield portion
            texts, ends, held, before = [], [], 0, before + portion.bytes
        current = split
        texts.append(text)
        ends.append(last)
        held += len(text)
    if texts:
        yield EncodingBatch(current, texts, ends, number, before)


class Encoder:
    """Encodes portions of text as ids of a type, each document with the end of text if there is one.

    A tokenizer of single bytes or characters is a table, which numpy looks up.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, id_type: type[np.unsignedinteger], end: int | None) -> None:
        self.tokenizer, self.id_type, self.end = tokenizer, id_type, end
        tokenizer.encode_special_tokens = True  # as text; it is not kept in the tokenizer's file
        self.bytes_table, self.characters_table = _tables(tokenizer, id_type) if self.end is None else (None, None)

        self.is_table = self.bytes_table is not None or self.characters_table is not None
        self.batch = TABLE_BATCH if self.is_table else BATCH
        self.places = ANYWHERE if self.is_table else SAFE
        self.size = PART if self.is_table or cuts_alike(tokenizer) else None  # characters of a part of a long document
        # portions that are encoded at the same time; those of the library are each encoded on all cores
        self.threads = min(8, os.cpu_count() or 1) if self.is_table else 2

    def each(self, texts: Sequence[str], last: Sequence[bool]) -> list[np.ndarray]:
        """Return the ids of each text, with the end where it is the last of its document."""
        if self.is_table:
            return [self._look_up(text) for text in texts]
        encoded = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        tail = [] if self.end is None else [self.end]
        pairs = zip(encoded, last, strict=True)
        return [np.array(encoding.ids + tail if end else encoding.ids, dtype=self.id_type) for encoding, end in pairs]

    def _look_up(self, text: str) -> np.ndarray:
        table = self.characters_table if self.bytes_table is None else self.bytes_table
        assert table is not None
        if self.bytes_table is not None or text.isascii():
            return table.take(np.frombuffer(text.encode(), dtype=np.uint8))
        return table.take(np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32))

    def __call__(self, portion: EncodingBatch) -> np.ndarray:
        """Return the ids of a portion."""
        if self.is_table:
            return self._look_up("".join(portion.texts))
        return np.concatenate([np.zeros(0, self.id_type), *self.each(portion.texts, portion.last)])


def cuts_alike(tokenizer: tokenizers.Tokenizer) -> bool:
    """Return True if words of a text that is cut at a safe place are those of the whole text, as tried on some.

    Not so where each text gets a prefix, as by Metaspace, or where a word may go on over spaces and ends of lines.
    """
    normalizer, splitter = tokenizer.normalizer, tokenizer.pre_tokenizer
    if splitter is None:
        return False

    def words(text: str) -> list[str]:
        normal = text if normalizer is None else normalizer.normalize_str(text)
        return [word for word, _ in splitter.pre_tokenize_str(normal)]

    ends = ("ab", "Ab.", "12", "\u00e9", "\u4e2d", "'s", ")")
    cuts = [(f"{end}\n", start) for end in ends for start in ends] + [
        (end, f" {start}") for end in ends for start in ends
    ]
    return all(words(left + right) == words(left) + words(right) for left, right in cuts)


def _tables(
    tokenizer: tokenizers.Tokenizer, id_type: type[np.unsignedinteger]
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the ids by byte and by character of a tokenizer that is a table of one of them."""
    described = json.loads(tokenizer.to_str())
    model, splitter = described["model"], described["pre_tokenizer"] or {}
    if described["normalizer"] is not None:
        return None, None
    if model["type"] == "BPE" and not model["merges"] and splitter.get("type") == "ByteLevel":
        every = "".join(map(chr, [*range(0x800), *range(0x800, 0xD800, 64), *range(0xE000, CODE_POINTS, 64)]))
        table = np.zeros(256, dtype=id_type)
        ids = tokenizer.encode(every, add_special_tokens=False).ids
        data = np.frombuffer(every.encode(), dtype=np.uint8)
        if len(ids) != len(data):
            return None, None
        table[data] = ids
        return table, None
    single = {"pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
    if model["type"] == "WordLevel" and {key: splitter.get(key) for key in single} == single:
        table = np.full(CODE_POINTS, tokenizer.token_to_id(UNKNOWN), dtype=id_type)
        for token, index in model["vocab"].items():
            if len(token) == 1:
                table[ord(token)] = index
        return None, table
    return None, None


def in_order(work: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[tuple[Item, Result]]:
    """Yield each item with its result, in order, computed in so many threads a few items ahead."""
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                waiting.append((item, pool.submit(work, item)))
                if len(waiting) > threads:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()
