"""Token ids of splits in memory-mapped shards, written as they come and taken up where a kill left them.

FOLDER/train.npy, train.1.npy, train.2.npy, ...    the shards of a split, in order
FOLDER/segments.json                               instead of shards, where the ids lie elsewhere
FOLDER/progress.json                               while they are written: the shards that are whole, and how far
"""

import contextlib
import itertools
import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lm.data.cache import PROGRESS, TARGETS, DamageError, check_sum, stored_array, stored_json, write_array
from lm.data.corpus import SPLITS
from lm.store.files import to_json, write_atomic

SEGMENTS = "segments.json"
END = "end"  # of the text
SHARD_TOKENS = 2**25  # tokens that are in memory before they are written
COUNT_CHUNK = 2**22  # token ids that are counted at once, so that a memory-mapped text is never in memory as a whole


class Sharded:
    """Arrays of ids one after the other, read as one array of one dimension."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts
        self.ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
        self.dtype = np.result_type(*(part.dtype for part in parts))

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: Any) -> np.ndarray:
        """Return the ids at a slice or an array of places, which must be in the text."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            sources = list(self.within(start, stop))
            whole = np.concatenate([np.zeros(0, self.dtype), *(part[low:high] for part, low, high in sources)])
            return whole.astype(self.dtype, copy=False)[::step]
        places = np.asarray(index)
        shard_of = np.searchsorted(self.ends, places, side="right")
        ids = np.empty(places.shape, dtype=self.dtype)
        for number in np.unique(shard_of):
            chosen = shard_of == number
            ids[chosen] = self.parts[number][places[chosen] - (self.ends[number - 1] if number else 0)]
        return ids

    def within(self, start: int, stop: int) -> Iterator[tuple[Any, int, int]]:
        """Yield the parts that hold the places from `start` to `stop`, with the places within each."""
        before = 0
        for part, end in zip(self.parts, self.ends.tolist(), strict=True):
            if start < end and stop > before:
                yield part, max(0, start - before), min(len(part), stop - before)
            before = end


def release(ids: Any) -> None:
    """Let go of the pages of memory-mapped ids that were read; the system keeps them while there is memory."""
    for part in ids.parts if isinstance(ids, Sharded) else [ids]:
        if isinstance(part, Sharded):
            release(part)
        elif (mapped := getattr(part, "_mmap", None)) is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)


def joined(parts: Sequence[Any]) -> Any:
    """Return arrays as one; a single one as it is."""
    return parts[0] if len(parts) == 1 else Sharded(parts)


def chunks_of(ids: Any) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the ids of a text in chunks, each with its place."""
    for start in range(0, len(ids), COUNT_CHUNK):
        yield start, ids[start : start + COUNT_CHUNK]


def shard_name(split: str, number: int) -> str:
    """Return the name of a shard; the first has that of its split alone."""
    return f"{split}.{number}.npy" if number else f"{split}.npy"


class Segment(NamedTuple):
    """Ids in a file, of any format: its path, from the entry's folder on, their type, place in bytes, and number."""

    path: str
    dtype: str
    offset: int
    tokens: int

    def mapped(self, folder: Path) -> np.ndarray:
        """Return the ids, memory-mapped. Raises DamageError where the file does not hold them."""
        if not self.tokens:
            return np.zeros(0, self.dtype)
        try:
            return np.memmap(folder / self.path, self.dtype, "r", self.offset, (self.tokens,))
        except (OSError, ValueError) as error:
            raise DamageError(f"{folder / self.path}: {' '.join(str(error).split())}") from None


def stored_shards(folder: Path, split: str) -> Iterator[np.ndarray]:
    """Yield the shards of a split, memory-mapped. Raises DamageError where the first is missing or one is damaged."""
    if (folder / SEGMENTS).is_file():
        for segment in stored_json(folder / SEGMENTS)[split]:
            yield Segment(*segment).mapped(folder)
        return
    yield stored_array(folder / shard_name(split, 0))
    for number in itertools.count(1):
        if not (path := folder / shard_name(split, number)).exists():
            return
        yield stored_array(path)


def write_segments(folder: Path, segments: Mapping[str, Sequence[Segment]]) -> None:
    """Write the places of the ids of an entry, with size and time of each file that holds them."""
    paths = {segment.path for of in segments.values() for segment in of if segment.tokens}
    status = {path: (folder / path).stat() for path in sorted(paths)}
    (folder / TARGETS).write_text(to_json({path: [of.st_size, of.st_mtime_ns] for path, of in status.items()}))
    (folder / SEGMENTS).write_text(to_json(segments), encoding="utf-8")


def segments_of(folder: Path, split: str) -> list[Segment]:
    """Return the segments of a split of an entry, as another entry beside it names them."""
    if (folder / SEGMENTS).is_file():
        return [Segment(*segment) for segment in stored_json(folder / SEGMENTS)[split]]
    shards = enumerate(stored_shards(folder, split))
    names = ((f"../{folder.name}/{shard_name(split, number)}", ids) for number, ids in shards)
    return [Segment(name, ids.dtype.str, ids.offset, len(ids)) for name, ids in names if isinstance(ids, np.memmap)]


class ShardWriter:
    """Writes ids of splits into a folder; `done` is what its user said last of how far it had come, None at first."""

    def __init__(self, folder: Path, id_type: type[np.unsignedinteger], key: Any) -> None:
        self.folder, self.id_type, self.key = folder, id_type, key
        self.done: Any = None
        self.lengths: dict[str, list[int]] = {name: [] for name in SPLITS}
        self.sums: dict[str, int] = {}
        self.waiting: dict[str, list[np.ndarray]] = {name: [] for name in SPLITS}
        self.held = 0  # tokens that wait
        self.tokens = dict.fromkeys(SPLITS, 0)  # of each split, those that wait included
        with contextlib.suppress(DamageError, KeyError, OSError):
            stored = stored_json(folder / PROGRESS)
            if stored["key"] == key and all(check_sum(folder / name) == sum for name, sum in stored["sums"].items()):
                self.done, self.lengths, self.sums = stored["done"], stored["lengths"], stored["sums"]
                self.tokens = {name: sum(lengths) for name, lengths in self.lengths.items()}
        for path in folder.iterdir():
            if path.name not in (*self.sums, PROGRESS):
                path.unlink()

    @property
    def full(self) -> bool:
        """True if there is enough for a shard."""
        return self.held >= SHARD_TOKENS

    def add(self, split: str, ids: np.ndarray) -> None:
        """Add ids to the end of a split."""
        self.waiting[split].append(ids)
        self.held += len(ids)
        self.tokens[split] += len(ids)

    def commit(self, done: Any, last: bool = False) -> None:
        """Write what waits as a shard of each split, each of which has one at last; a later writer begins here."""
        for split, waiting in self.waiting.items():
            if waiting or (last and not self.lengths[split]):
                ids = np.concatenate([np.zeros(0, self.id_type), *waiting])
                path = self.folder / shard_name(split, len(self.lengths[split]))
                write_array(path, ids)
                self.sums[path.name] = check_sum(path)
                self.lengths[split].append(len(ids))
                waiting.clear()
        self.held, self.done = 0, done
        content = {"key": self.key, "done": done, "lengths": self.lengths, "sums": self.sums}
        write_atomic(self.folder / PROGRESS, to_json(content))
