"""The run record and the store on disk. Imports no torch, so that reports are quick and run anywhere.

    OUT/cells/<id>/          a finished cell: config.yaml, record.json, history.csv, last.ckpt, log.txt
    OUT/cells/.<id>.work/    a cell in the making; renamed to <id> once everything in it is written
    OUT/cells/.locks/<id>    held by the process that trains the cell
    OUT/<experiment>/        experiment.json, table.md, table.csv, figures

A cell is finished or it is not: the rename is the only step that makes it so.
"""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock

from lm.config import InputError

FORMAT = 1
"""Version of the record. A store written by another version is refused, not guessed at."""

WORK_FILES = ("cell.json", "outcome.json")
"""What a work folder holds that a finished cell does not."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Quantity:
    """How a measured quantity is shown: its label, its unit, and which way is better (None: neither)."""

    label: str
    unit: str
    better: Literal["lower", "higher"] | None
    digits: int = 4


QUANTITIES: dict[str, Quantity] = {
    "nll": Quantity("validation NLL", "nats/token", "lower"),
    "perplexity": Quantity("perplexity", "", "lower", 3),
    "bits_per_byte": Quantity("bits per byte", "bits/byte", "lower"),
    "accuracy": Quantity("accuracy", "", "higher"),
    "ece": Quantity("ECE, 15 bins", "", "lower"),
    "train_loss": Quantity("training loss", "nats/token", "lower"),
    "gradient_norm": Quantity("gradient norm, mean", "", None),
    "tokens_per_second": Quantity("tokens per second", "1/s", "higher", 0),
    "train_seconds": Quantity("training time", "s", "lower", 1),
    "peak_memory": Quantity("peak memory", "MiB", "lower", 0),
    "parameters": Quantity("parameters", "", None, 0),
    "tokens": Quantity("training tokens", "", None, 0),
}
"""Every quantity a record may hold, in the order of the tables; units and directions live here alone."""


def write_atomic(path: Path, content: str | bytes) -> None:
    """Writes a file under a temporary name and renames it, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def to_json(value: Any) -> str:
    """Indented JSON with a final newline; NaN is refused, a missing number is null."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_json(path: Path) -> Any:
    """The JSON in `path`. Raises InputError naming the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON: {error}") from None


class Store:
    """The cells under one output folder, shared by every experiment that writes there."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.cells = out / "cells"

    def directory(self, cell: str) -> Path:
        """Where the finished cell with this id lies."""
        return self.cells / cell

    def work(self, cell: str) -> Path:
        """Where the cell with this id is being made."""
        return self.cells / f".{cell}.work"

    def finished(self, cell: str) -> bool:
        """Whether the cell has a record, whatever its status."""
        return (self.directory(cell) / "record.json").is_file()

    def started(self, cell: str) -> bool:
        """Whether an earlier, unfinished try left a checkpoint."""
        return (self.work(cell) / "last.ckpt").is_file()

    def record(self, cell: str) -> Record:
        """The record of a finished cell. Raises InputError where it comes from another version."""
        path = self.directory(cell) / "record.json"
        record = read_json(path)
        found = record.get("format") if isinstance(record, dict) else None
        if found != FORMAT:
            raise InputError(
                f"{path}: record format {found!r}, expected {FORMAT}; "
                "it was written by another version: use that version, or another --out"
            )
        return dict(record)

    def history(self, cell: str) -> Path:
        """Where the learning curve of a finished cell lies."""
        return self.directory(cell) / "history.csv"

    @contextlib.contextmanager
    def lock(self, cell: str) -> Iterator[None]:
        """Holds the cell against other processes, after waiting for one that holds it."""
        locks = self.cells / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        with FileLock(locks / cell):
            yield

    def finish(self, cell: str, record: Record) -> Record:
        """Writes the record into the cell's work folder and makes the folder the finished cell."""
        write_atomic(self.work(cell) / "record.json", to_json(record))
        self.complete(cell)
        return record

    def recover(self, cell: str) -> None:
        """Completes a `finish` that was cut short after the record was written; does nothing otherwise."""
        if (self.work(cell) / "record.json").is_file():
            with self.lock(cell):
                self.complete(cell)

    def complete(self, cell: str) -> None:
        """The second half of `finish`, for who holds the lock."""
        work, directory = self.work(cell), self.directory(cell)
        if not (work / "record.json").is_file():
            return
        for name in WORK_FILES:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(work / name)
        if directory.exists():  # a failed cell that was tried again
            shutil.rmtree(directory)
        os.replace(work, directory)
