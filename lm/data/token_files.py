"""Token ids that others prepared: nanoGPT, modded-nanogpt, Megatron, litdata, and parquet files of token lists.

All but parquet are read where they lie; the entry of the cache holds places in these files.
"""

import hashlib
import itertools
import json
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import tokenizers

from lm.config.tree import InputError, run_id
from lm.data.corpus import SPLITS, Corpus, files_of
from lm.data.progress import TextProgress
from lm.data.shards import Segment, Sharded, ShardWriter, chunks_of, stored_shards, write_segments
from lm.data.splits import READING, TextFacts, settings_of
from lm.data.text_files import count_parquet_rows, parquet_columns
from lm.data.tokenizer import Tokenizer
from lm.data.tokens import TextStats, describe_entry, entry_folder, finish_entry, known_or_built

Kind = Literal["auto", "nanogpt", "modded_nanogpt", "megatron", "litdata", "parquet"]

HEADER = 256  # int32 at the beginning of a shard of modded-nanogpt and of llm.c: magic, version, tokens
MAGIC = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
MEGATRON = b"MMIDIDX\x00\x00"
MEGATRON_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
LITDATA_TYPES = {11: "<u1", 12: "<i1", 13: "<i2", 14: "<i2", 15: "<i4", 16: "<i4", 17: "<i8", 18: "<i8", 20: "<u2"}


class TokenFiles(Corpus):
    """Token ids that others prepared; `data.tokenizer` names the tokenizer that made them.

    Args:
        path: a file, a folder of litdata or a glob, or several: the training split.
        validation, test: those of the other splits. Without `validation`, `data.split` divides `path`, at ends of
            documents.
        kind: `nanogpt` (bare ids), `modded_nanogpt` (a header and ids), `megatron` (.bin beside .idx), `litdata` (a
            folder with index.json), `parquet` (a column of lists), or what the files say themselves.
        dtype: of bare ids.
        field: the column of parquet.
    """

    def __init__(
        self,
        path: str | list[str],
        validation: str | list[str] | None = None,
        test: str | list[str] | None = None,
        kind: Kind = "auto",
        dtype: Literal["uint16", "uint32"] = "uint16",
        field: str = "input_ids",
    ) -> None:
        if validation is None and test is not None:
            raise ValueError("test has files, so validation needs some too")
        self.paths = {"path": path, "validation": validation, "test": test}
        self.kind, self.dtype, self.field = kind, dtype, field

    def documents(self) -> NoReturn:
        """Raise InputError: there is no text."""
        raise InputError("data.corpus: TokenFiles holds tokens and no text; use it with TextData")

    def files(self) -> dict[str, list[Path]]:
        """List the files of each split, folders of litdata as they are."""
        listed = {key: [] if of is None else files_of(of, f"data.corpus.{key}", True) for key, of in self.paths.items()}
        for key, paths in listed.items():  # an index stands for the file beside it
            named = {path: path.with_suffix(".bin") if path.suffix == ".idx" else path for path in paths}
            listed[key] = list(dict.fromkeys(bare if bare.is_file() else path for path, bare in named.items()))
        return dict(zip(SPLITS, listed.values(), strict=True))

    def state(self) -> Any:
        """Return path, size and time of each file."""
        every = [path for paths in self.files().values() for path in paths]
        every += [inner for path in every if path.is_dir() for inner in sorted(path.iterdir())]
        every += [index for path in every if (index := path.with_suffix(".idx")).is_file() and index != path]
        status = {path: path.stat() for path in every if path.is_file()}
        return [[str(path.absolute()), of.st_size, of.st_mtime_ns] for path, of in status.items()]

    def kind_of(self, path: Path) -> str:
        """Return what a file is."""
        if self.kind != "auto":
            return self.kind
        if path.is_dir():
            return "litdata"
        if path.suffix == ".parquet":
            return "parquet"
        if path.with_suffix(".idx").is_file():
            return "megatron"
        with path.open("rb") as file:
            start = file.read(4)
        return "modded_nanogpt" if start in {struct.pack("<i", magic) for magic, _ in MAGIC} else "nanogpt"

    def segments(self, path: Path) -> Iterator[Segment]:
        """Yield the places of the ids in a file or folder. Raises InputError for one that is not of its kind."""
        kind = self.kind_of(path)
        try:
            if kind == "nanogpt":
                yield self._whole(path, np.dtype(self.dtype).str, 0)
            elif kind == "modded_nanogpt":
                magic, version, count = np.fromfile(path, "<i4", HEADER)[:3].tolist()
                yield self._whole(path, MAGIC[magic, version], 4 * HEADER, count)
            elif kind == "megatron":
                yield self._megatron(path)
            else:
                index = json.loads((path / "index.json").read_text(encoding="utf-8"))
                (data_format,) = index["config"]["data_format"]
                if index["config"].get("compression"):
                    raise ValueError(f"is compressed by {index['config']['compression']}")
                dtype = LITDATA_TYPES[int(data_format.partition("no_header_tensor:")[2])]
                if any(chunk["dim"] is None for chunk in index["chunks"]):
                    raise ValueError("was not written for litdata's TokensLoader")
                for chunk in index["chunks"]:  # the number of items, their ends, the items
                    yield self._whole(path / chunk["filename"], dtype, 4 * (chunk["chunk_size"] + 2), chunk["dim"])
        except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"data.corpus.path: {path} is no {kind} file of token ids ({reason})") from None

    def _whole(self, path: Path, dtype: str, offset: int, count: int | None = None) -> Segment:
        """Return the segment from an offset to the end of a file."""
        tokens, rest = divmod(os.path.getsize(path) - offset, np.dtype(dtype).itemsize)
        if rest or tokens < 0 or count not in (None, tokens):
            raise ValueError(f"{path.name} has {os.path.getsize(path)} bytes, not {count or 'whole'} ids of {dtype}")
        return Segment(str(path.absolute()), dtype, offset, tokens)

    def _megatron(self, path: Path) -> Segment:
        index = path.with_suffix(".idx").read_bytes()
        version, code, sequences, _ = struct.unpack_from("<QBQQ", index, len(MEGATRON))
        if not index.startswith(MEGATRON) or version != 1:
            raise ValueError(f"the index begins with {index[:9]!r}, version {version}")
        lengths = np.frombuffer(index, "<i4", sequences, 34)
        starts = np.frombuffer(index, "<i8", sequences, 34 + 4 * sequences)
        ends = np.cumsum(lengths, dtype=np.int64) * np.dtype(dtype := MEGATRON_TYPES[code]).itemsize
        if not np.array_equal(starts, np.concatenate([[0], ends[:-1]])):
            raise ValueError("its sequences do not follow each other")
        return self._whole(path.with_suffix(".bin"), dtype, 0, int(lengths.sum(dtype=np.int64)))


def cut_segments(segments: Sequence[Segment], start: int, stop: int) -> list[Segment]:
    """Return the segments of the ids from one place of a text to another."""
    parts, before = [], 0
    for segment in segments:
        low, high = max(start - before, 0), min(stop - before, segment.tokens)
        if low < high:
            offset = segment.offset + low * np.dtype(segment.dtype).itemsize
            parts.append(segment._replace(offset=offset, tokens=high - low))
        before += segment.tokens
    return parts or [Segment("", "<u2", 0, 0)]


def divide(segments: Sequence[Segment], fractions: Sequence[float], end: int | None) -> dict[str, list[Segment]]:
    """Divide segments by shares of their tokens, after ends of documents if these are marked."""
    ids = Sharded([segment.mapped(Path()) for segment in segments])
    places = [0]
    for share in itertools.accumulate(fractions[:-1]):
        place = max(places[-1], min(len(ids), round(share * len(ids))))
        while end is not None and 0 < place < len(ids):
            chunk = ids[place - 1 : place + 2**16]
            if len(end_places := np.flatnonzero(chunk == end)):
                place += int(end_places[0])
                break
            place += len(chunk) - 1
        places.append(min(place, len(ids)))
    return {
        name: cut_segments(segments, start, stop)
        for name, (start, stop) in zip(SPLITS, itertools.pairwise([*places, len(ids)]), strict=True)
    }


def convert(
    corpus: TokenFiles,
    files: dict[str, list[Path]],
    writer: ShardWriter,
    shares: Sequence[float],
    end: int | None,
    vocabulary: int,
) -> None:
    """Write the lists of parquet files as shards, each with the end of text; shares are of their number."""
    total, number = sum(map(count_parquet_rows, files[SPLITS[0]])), 0
    bounds, done = [share * total for share in itertools.accumulate(shares[:-1])], writer.done or 0
    with TextProgress("reading tokens", total, "documents") as progress:
        for split, path in ((split, path) for split, paths in files.items() for path in paths):
            with path.open("rb") as file:
                for column in parquet_columns(path, file, corpus.field):
                    for row in column:
                        own = split if files[SPLITS[1]] else SPLITS[sum(number >= bound for bound in bounds)]
                        number += 1
                        if number > done and row.is_valid:
                            writer.add(own, _checked(row, path, corpus.field, end, vocabulary, writer.id_type))
                    progress.advance(len(column))
                    if writer.full:
                        writer.commit(number)
    writer.commit(number, last=True)


def _checked(row: Any, path: Path, field: str, end: int | None, vocabulary: int, id_type: type) -> np.ndarray:
    """Return the ids of a row of parquet, with the end of text behind them. Raises InputError where it has no ids."""
    ids = row.values.to_numpy(zero_copy_only=False) if hasattr(row, "values") else np.zeros(0)
    if ids.dtype.kind not in "iu":
        raise InputError(f"data.corpus.field: {field!r} of {path} holds {row.type}; expected lists of whole numbers")
    require_known(ids, vocabulary, path)
    tail = [] if end is None or (len(ids) and ids[-1] == end) else [end]
    return np.concatenate([ids.astype(id_type), np.array(tail, dtype=id_type)])


def require_known(ids: np.ndarray, vocabulary: int, files: object) -> None:
    """Raise InputError for an id beyond the vocabulary."""
    if len(ids) and not 0 <= ids.min() <= ids.max() < vocabulary:
        wrong = ids.max() if ids.max() >= vocabulary else ids.min()
        problem = f"{files} hold token {wrong}, and the tokenizer has {vocabulary}"
        raise InputError(f"data.tokenizer: {problem}; name the tokenizer that made them")


def prepare_tokens(corpus: TokenFiles, tokenizer: Tokenizer, fractions: Sequence[float]) -> TextStats:
    """Make an entry of ids that exist; raise InputError where they are not those of the tokenizer."""
    if tokenizer.learns:
        hint = "learns from text; name the tokenizer that made the tokens, such as Pretrained"
        raise InputError(f"data.tokenizer: {type(tokenizer).__name__} {hint}")
    trained, described = describe_entry("tokens", TextFacts("", {}, {}), (), tokenizer)
    files, end = corpus.files(), described.end_of_text
    is_table = {corpus.kind_of(path) == "parquet" for paths in files.values() for path in paths}
    if len(is_table) > 1:
        raise InputError("data.corpus.path: names parquet and other files; convert one of them")

    def build(building: Path) -> TextStats:
        if is_table == {True}:
            writer = ShardWriter(building, described.id_type, corpus.state())
            convert(corpus, files, writer, fractions, end, described.vocabulary)
        else:
            segments = lambda paths: [part for path in paths for part in corpus.segments(path)]  # noqa: E731
            places = {split: segments(paths) for split, paths in files.items()}
            if not places[SPLITS[1]]:
                places = divide(places[SPLITS[0]], fractions, end)
            write_segments(building, {name: of or [Segment("", "<u2", 0, 0)] for name, of in places.items()})
        fingerprint = _fingerprint(building, trained, described.vocabulary, corpus)
        folder = str(entry_folder("tokens", fingerprint, described.tokenizer).resolve())
        return finish_entry(building, trained, replace(described, folder=folder, fingerprint=fingerprint))

    key = run_id([READING, settings_of(corpus), list(fractions), described.tokenizer, end])[:32]
    return known_or_built(key, corpus.state(), None, build)


def _fingerprint(building: Path, trained: tokenizers.Tokenizer, vocabulary: int, corpus: TokenFiles) -> str:
    """Hash the ids of all splits. Raises InputError for one beyond the vocabulary."""
    digest = hashlib.sha256(b"tokens\n")
    with TextProgress("hashing tokens", unit="tokens") as progress:
        for name in SPLITS:
            digest.update(f"{name}:{sum(map(len, stored_shards(building, name)))}\n".encode())
            for _, chunk in (part for ids in stored_shards(building, name) for part in chunks_of(ids)):
                require_known(chunk, vocabulary, corpus.paths["path"])
                digest.update(chunk.astype("<u4").tobytes())
                progress.advance(len(chunk))
    return digest.hexdigest()
