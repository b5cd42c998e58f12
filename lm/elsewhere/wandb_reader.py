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

from lm.config.tree import InputError
from lm.elsewhere.table import Row, Table, flatten
from lm.elsewhere.tabular import content

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
    """The runs in these files, each value the last that was logged. Raises InputError for a file that is none."""
    notes = []
    rows = []
    for file in files:
        row, torn = _run(file)
        rows.append(row)
        if torn:
            notes.append(f"{file.name} ends in the middle of an entry, as that of a run that was killed does")
    return Table(path, "W&B's files of runs", rows, ("config.", "summary."), ("summary.",), last=True, notes=(*notes,))


def _run(path: Path) -> tuple[Row, bool]:
    """What a file says of its run, and whether it is torn."""
    found = content(path)
    if found[:4] != MAGIC:
        raise InputError(f"{path}: not a file of W&B's; expected one that begins with {MAGIC.decode()}")
    config: dict[str, Any] = {}
    measured: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    told: Row = {"state": "unfinished"}
    entries = _entries(found)
    try:
        for entry in entries:
            message = _message(entry)
            for one in map(_message, message.get(HISTORY, [])):
                measured |= _items(one.get(1, []))
            for one in map(_message, message.get(SUMMARY, [])):
                summary |= _items(one.get(1, []))
            for one in map(_message, message.get(CONFIG, [])):
                config |= _items(one.get(1, []))
            for one in map(_message, message.get(RUN, [])):
                told |= _named(one)
                for part in map(_message, one.get(RUN_CONFIG, [])):
                    config |= _items(part.get(1, []))
                for part in map(_message, one.get(RUN_SUMMARY, [])):
                    summary |= _items(part.get(1, []))
            for one in map(_message, message.get(EXIT, [])):
                told["state"] = "failed" if one.get(1, [0])[-1] else "finished"
    except _TornError:
        return {**told, **flatten({"config": config, "summary": measured | summary})}, True
    except (ValueError, IndexError, AttributeError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: is damaged, or of a W&B that writes otherwise: {error}") from None
    return {**told, **flatten({"config": config, "summary": measured | summary})}, False


def _named(run: Message) -> Row:
    """By what a run is called."""
    fields = {"id": RUN_ID, "name": RUN_NAME, "group": RUN_GROUP}
    return {name: run[field][-1].decode() for name, field in fields.items() if run.get(field)}


def _items(items: list[bytes]) -> dict[str, Any]:
    """Settings or measurements by their names."""
    found: dict[str, Any] = {}
    for item in map(_message, items):
        names = item.get(KEY) or item.get(NESTED) or [b""]
        name = ".".join(part.decode() for part in names)
        if name and not name.startswith("_"):
            found[name] = json.loads(item.get(VALUE, [b"null"])[-1])
    return found


# the layout ----------------------------------------------------------------------------------------------------------


class _TornError(Exception):
    """The file ends before its entry does."""


def _entries(data: bytes) -> Iterator[bytes]:
    """The entries of a log. Raises _TornError where it ends in the middle of one, ValueError where it is damaged."""
    place, parts = HEADER, list[bytes]()
    while place < len(data):
        if BLOCK - place % BLOCK < HEADER:  # too little for a chunk is left empty
            place += BLOCK - place % BLOCK
            continue
        head = data[place : place + HEADER]
        size, kind = int.from_bytes(head[4:6], "little"), head[6] if len(head) == HEADER else FULL
        chunk = data[place + HEADER : place + HEADER + size]
        if len(head) < HEADER or len(chunk) < size:
            raise _TornError
        if zlib.crc32(head[6:] + chunk) != int.from_bytes(head[:4], "little"):
            raise ValueError(f"the checksum at byte {place:,} is wrong")
        place += HEADER + size
        parts = [chunk] if kind in (FULL, FIRST) else [*parts, chunk]
        if kind in (FULL, LAST):
            yield b"".join(parts)
    if parts and kind not in (FULL, LAST):
        raise _TornError


def _message(data: bytes) -> Message:
    """The fields of a message of protocol buffers. Raises ValueError or IndexError where it is none."""
    found: Message = {}
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        value: int | bytes
        if kind == 0:
            value, place = _varint(data, place)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, place = data[place : place + size], place + size
        elif kind == 2:
            size, place = _varint(data, place)
            value, place = data[place : place + size], place + size
        else:
            raise ValueError(f"a field of kind {kind}")
        if place > len(data):
            raise ValueError("a field that is longer than its entry")
        found.setdefault(key >> 3, []).append(value)
    return found


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """An integer of variable length, and where it ends."""
    found = shift = 0
    while True:
        byte = data[place]
        place, found, shift = place + 1, found | (byte & 127) << shift, shift + 7
        if byte < 128:
            return found, place
        if shift > 63:
            raise ValueError("a number without an end")
