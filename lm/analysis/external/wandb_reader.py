"""Runs of Weights & Biases in the files that it writes beside them, `run-ID.wandb`, read without its package.

Such a file is a log of LevelDB's layout: blocks of 32 KiB of chunks, each with a checksum, a length and whether it is
a whole entry or its first, middle or last part. An entry is a message of protocol buffers; the numbers of the fields
are those of `wandb_internal.proto`, which only ever adds some.
"""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lm.analysis.external.table import Row, Table, flatten
from lm.analysis.external.tabular import content
from lm.config.tree import InputError

MAGIC = b":W&B"
BLOCK, HEADER = 2**15, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4

HISTORY, SUMMARY, CONFIG, RUN, EXIT = 2, 3, 5, 17, 18
"""Fields of an entry."""

RUN_ID, RUN_CONFIG, RUN_SUMMARY, RUN_GROUP, RUN_NAME = 1, 4, 5, 6, 8
KEY, NESTED, VALUE = 1, 2, 16
"""Fields of a setting and of a measurement."""

Message = dict[int, list[Any]]
"""The values of a message by the numbers of their fields: integers, or bytes."""


def read_wandb(path: Path, files: list[Path]) -> Table:
    """Read the runs in these files, each value the last that was logged.

    Raises:
        InputError: for a file that is not W&B's.
    """
    notes = []
    rows = []
    for file in files:
        row, torn = _run(file)
        rows.append(row)
        if torn:
            notes.append(f"{file.name} ends in the middle of an entry, as that of a run that was killed does")
    return Table(path, "W&B's files of runs", rows, ("config.", "summary."), ("summary.",), last=True, notes=(*notes,))


def _run(path: Path) -> tuple[Row, bool]:
    """Read the run of a file, and whether the file is cut off."""
    data = content(path)
    if data[:4] != MAGIC:
        raise InputError(f"{path}: not a file of W&B's; expected one that begins with {MAGIC.decode()}")
    config: dict[str, Any] = {}
    measured: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    row: Row = {"state": "unfinished"}
    entries = _entries(data)
    try:
        for entry in entries:
            message = _message(entry)
            for field in map(_message, message.get(HISTORY, [])):
                measured |= _items(field.get(1, []))
            for field in map(_message, message.get(SUMMARY, [])):
                summary |= _items(field.get(1, []))
            for field in map(_message, message.get(CONFIG, [])):
                config |= _items(field.get(1, []))
            for field in map(_message, message.get(RUN, [])):
                row |= _named(field)
                for part in map(_message, field.get(RUN_CONFIG, [])):
                    config |= _items(part.get(1, []))
                for part in map(_message, field.get(RUN_SUMMARY, [])):
                    summary |= _items(part.get(1, []))
            for field in map(_message, message.get(EXIT, [])):
                row["state"] = "failed" if field.get(1, [0])[-1] else "finished"
    except _TornError:
        return {**row, **flatten({"config": config, "summary": measured | summary})}, True
    except (ValueError, IndexError, AttributeError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: is damaged, or of a W&B that writes otherwise: {error}") from None
    return {**row, **flatten({"config": config, "summary": measured | summary})}, False


def _named(run: Message) -> Row:
    """Return the id, name and group of a run."""
    fields = {"id": RUN_ID, "name": RUN_NAME, "group": RUN_GROUP}
    return {name: run[field][-1].decode() for name, field in fields.items() if run.get(field)}


def _items(items: list[bytes]) -> dict[str, Any]:
    """Decode settings or measurements by their names."""
    settings: dict[str, Any] = {}
    for item in map(_message, items):
        names = item.get(KEY) or item.get(NESTED) or [b""]
        name = ".".join(part.decode() for part in names)
        if name and not name.startswith("_"):
            settings[name] = json.loads(item.get(VALUE, [b"null"])[-1])
    return settings


# the layout ----------------------------------------------------------------------------------------------------------


class _TornError(Exception):
    """The file ends before its entry does."""


def _entries(data: bytes) -> Iterator[bytes]:
    """Yield the entries of a log.

    Raises:
        _TornError: where it ends in the middle of one.
        ValueError: where it is damaged.
    """
    offset, parts = HEADER, list[bytes]()
    while offset < len(data):
        if BLOCK - offset % BLOCK < HEADER:  # too little for a chunk is left empty
            offset += BLOCK - offset % BLOCK
            continue
        head = data[offset : offset + HEADER]
        size, kind = int.from_bytes(head[4:6], "little"), head[6] if len(head) == HEADER else FULL
        chunk = data[offset + HEADER : offset + HEADER + size]
        if len(head) < HEADER or len(chunk) < size:
            raise _TornError
        if zlib.crc32(head[6:] + chunk) != int.from_bytes(head[:4], "little"):
            raise ValueError(f"the checksum at byte {offset:,} is wrong")
        offset += HEADER + size
        parts = [chunk] if kind in (FULL, FIRST) else [*parts, chunk]
        if kind in (FULL, LAST):
            yield b"".join(parts)
    if parts and kind not in (FULL, LAST):
        raise _TornError


def _message(data: bytes) -> Message:
    """Decode the fields of a message of protocol buffers.

    Raises:
        ValueError, IndexError: where it is none.
    """
    fields: Message = {}
    offset = 0
    while offset < len(data):
        key, offset = _varint(data, offset)
        kind = key & 7
        value: int | bytes
        if kind == 0:
            value, offset = _varint(data, offset)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, offset = data[offset : offset + size], offset + size
        elif kind == 2:
            size, offset = _varint(data, offset)
            value, offset = data[offset : offset + size], offset + size
        else:
            raise ValueError(f"a field of kind {kind}")
        if offset > len(data):
            raise ValueError("a field that is longer than its entry")
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    """Decode an integer of variable length, and return where it ends."""
    number = shift = 0
    while True:
        byte = data[offset]
        offset, number, shift = offset + 1, number | (byte & 127) << shift, shift + 7
        if byte < 128:
            return number, offset
        if shift > 63:
            raise ValueError("a number without an end")
