"""The run record and the store on disk. Imports no torch, so that reports are quick and run anywhere.

    OUT/cells/<id>/          a finished cell: config.yaml, record.json, history.csv, documents.npz,
                             last.ckpt, log.txt
    OUT/cells/.<id>.work/    a cell in the making; renamed to <id> once everything in it is written
    OUT/cells/.leases/<id>/  held by the process that trains the cell, which alone writes into the work folder
    OUT/<experiment>/        experiment.json, table.md, table.csv, report.html, figures

A cell is finished or it is not: the rename is the only step that makes it so.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from lm.config.plain import shown
from lm.config.tree import InputError, path_name
from lm.store.documents import KEPT
from lm.store.files import BACKUP_CHECKPOINT, PARTIAL_CHECKPOINT, finite, holds_mapping, read_json, remove, write_atomic
from lm.store.formats import RECORD
from lm.store.lease_holder import Holder, LeaseMonitor, current_holder, describe_holder
from lm.store.leases import STAGING_PREFIX, acquire, guarding_lease, release_if_expired, try_lease
from lm.store.locks import LogLine, to_stderr
from lm.store.record import Record
from lm.store.redaction import redact_file, redacted_tree
from lm.store.side_files import PROGRESS_FILE as PROGRESS
from lm.store.validation import (
    checkpoint_checksum,
    validate_checksum,
    validate_id,
    validate_numbers,
    validate_record,
    with_checksum,
    without_checksum,
)

EARLIER, STACK, RANKS = "tries.json", "stack.txt", "ranks"
"""What earlier tries came to, where one was that hung, and what further processes died of."""

LOGGED = "logged.json"
"""What the loggers of a run have been told of it."""

WORK_FILES = (
    "cell.json",
    "outcome.json",
    PROGRESS,
    PARTIAL_CHECKPOINT,
    BACKUP_CHECKPOINT,
    EARLIER,
    STACK,
    RANKS,
    LOGGED,
)
"""What a work folder holds that a finished cell does not."""


GONE = "gone"
"""In the room of who drops a cell, what is about to be removed."""

LOG = "log.txt"
"""What the process that trained a cell printed, and its traceback if it failed."""


SAID = ("error", "traceback", "flags")
"""The parts of a record that are words of a run or of its libraries."""


class DamagedError(InputError):
    """A record that is no longer what training wrote."""

    def __init__(self, wrong: str, path: Path) -> None:
        super().__init__(f"{path}: damaged: {wrong}; delete its folder, and lm ablate trains the cell again")
        self.wrong = wrong


class Store:
    """The cells under one output folder, shared by every experiment that writes there."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.cells = out / "cells"

    def directory(self, cell: str) -> Path:
        """Where the finished cell with this id lies."""
        return self.cells / path_name(cell, "id of a cell")

    def work(self, cell: str) -> Path:
        """Where the cell with this id is being made."""
        return self.cells / f".{path_name(cell, 'id of a cell')}.work"

    def finished(self, cell: str) -> bool:
        """Whether the cell has a record, whatever its status."""
        return (self.directory(cell) / "record.json").is_file()

    def started(self, cell: str) -> bool:
        """Whether an earlier, unfinished try left a checkpoint."""
        return (self.work(cell) / "last.ckpt").exists()

    def record(self, cell: str, needed: bool = False) -> Record:
        """The record of a finished cell, as this version writes it; with `needed` one that holds all that reports need.

        Raises:
            InputError: where a newer version wrote it.
            DamagedError: where it is no longer what training wrote, or the record of another cell.
        """
        path = self.directory(cell) / "record.json"
        try:
            record = read_json(path)
        except InputError as error:
            raise DamagedError(str(error).removeprefix(f"{path}: "), path) from None
        if not isinstance(record, dict) or "format" not in record:
            raise DamagedError(f"expected a mapping with its format, found {shown(record)}", path)
        content, record = record, RECORD.read(record, path)
        wrong = validate_record(record, needed) or validate_id(record, cell)
        wrong = wrong or "; ".join(filter(None, (validate_numbers(record), validate_checksum(content))))
        if wrong:
            raise DamagedError(wrong, path)
        return cast(Record, without_checksum(record))

    def rewrite(self, cell: str, record: Record) -> None:
        """Write the record of a finished cell anew with its checksum, for who holds the cell and measured more of it.

        Args:
            cell: its id.
            record: all of it; numbers that JSON cannot hold become nothing.
        """
        write_atomic(self.directory(cell) / "record.json", with_checksum(RECORD.stamped(finite(record))))

    def history(self, cell: str) -> Path:
        """Where the learning curve of a finished cell lies."""
        return self.directory(cell) / "history.csv"

    def documents(self, cell: str, quantity: str = "nll") -> Path:
        """Where the losses by document of a finished cell lie, those behind a quantity."""
        return self.directory(cell) / KEPT[quantity][1]

    def pending(self, cell: str, again: bool = False) -> bool:
        """Whether the cell is to be trained: it has no record, or with `again` one of a failure."""
        return not self.finished(cell) or (again and self.record(cell)["status"] == "failed")

    @contextlib.contextmanager
    def lock(self, cell: str, say: LogLine = to_stderr, wait: bool = True) -> Iterator[None]:
        """Holds the cell against other processes, after waiting for one that holds it; says so where that lasts.

        Whoever shows no life for long has lost the cell, and can write nothing into its folders any more: LostError.

        Raises:
            HeldError: where another process holds it, and there is to be no waiting.
        """
        with acquire(self._lease(cell), f"cell {cell[:8]}", self._guarded(cell), say, wait):
            yield

    @contextlib.contextmanager
    def claim(self, cell: str) -> Iterator[bool]:
        """Holds the cell if no other process does; yields whether it is held."""
        with try_lease(self._lease(cell), self._guarded(cell)) as lease:
            yield lease is not None

    def holder(self, cell: str) -> str:
        """Who holds the cell, as far as it said so."""
        return describe_holder(self._lease(cell))

    def held_by(self, cell: str) -> Holder | None:
        """Who holds the cell; None where nobody does, as far as can be told at once."""
        return current_holder(self._lease(cell))

    def watched(self, cell: str, watch: LeaseMonitor) -> Holder | str | None:
        """Who holds the cell, asked again and again; None once it is free. Who showed no life meanwhile loses it."""
        return release_if_expired(self._lease(cell), watch, self._guarded(cell))

    def _lease(self, cell: str) -> Path:
        return self.cells / ".leases" / path_name(cell, "id of a cell")

    def _guarded(self, cell: str) -> tuple[Path, Path]:
        return self.work(cell), self.directory(cell)

    def finish(self, cell: str, record: Record) -> Record:
        """Writes the record into the cell's work folder and makes the folder the finished cell; returns it.

        The record is given the hash of the checkpoint of the end of training, where there is one. What a run or its
        libraries said may hold secrets: they are taken out of the record and of the log.
        """
        said = {name: redacted_tree(record[name]) for name in SAID if name in record}  # type: ignore[literal-required]
        written = cast(Record, RECORD.stamped({**record, **said}))
        if (weights := checkpoint_checksum(self.work(cell) / "final.ckpt")) is not None:
            written["provenance"] = {**written["provenance"], "checkpoint": weights}
        redact_file(self.work(cell) / LOG)
        write_atomic(self.work(cell) / "record.json", with_checksum(written))
        self.complete(cell)
        return written

    def recover(self, cell: str) -> None:
        """Completes a `finish` that was cut short after the record was written; does nothing otherwise.

        A cell that another process holds is left to it: it completes what it has begun.
        """
        if (self.work(cell) / "record.json").is_file() or self._before(cell).exists():
            with self.claim(cell) as ours:
                if ours:
                    self.complete(cell)

    def complete(self, cell: str) -> None:
        """The second half of `finish`, for who holds the lock. Raises LostError where that is another by now."""
        work, directory, before = self.work(cell), self.directory(cell), self._before(cell)
        if not holds_mapping(work / "record.json"):
            remove(work / "record.json")  # that the disk did not keep
            if before.is_dir() and directory.exists():  # of one that was killed between the two
                shutil.rmtree(before)
            elif before.is_dir():
                os.replace(before, directory)
            return
        if (lease := guarding_lease(work)) is not None:
            lease.check()
        if (work / "final.ckpt").is_file():  # not before there is a record, to which it gives its evaluations
            if (work / "last.ckpt").is_dir():  # of a sharding strategy
                remove(work / "last.ckpt")
            os.replace(work / "final.ckpt", work / "last.ckpt")
        for name in WORK_FILES:
            remove(work / name)
        for room in work.glob(f"{STAGING_PREFIX}*"):
            shutil.rmtree(room, ignore_errors=True)
        if directory.exists():  # a failed cell that was tried again
            os.replace(directory, before)
        try:
            os.replace(work, directory)
        except FileNotFoundError:  # whoever took this cell over was faster, and its cell is not to be lost
            if before.is_dir() and not directory.exists():
                os.replace(before, directory)
            if lease is not None:
                lease.check()
            raise
        if before.is_dir():
            shutil.rmtree(before)

    def _before(self, cell: str) -> Path:
        """Where the cell lies that a second try at it is about to replace."""
        return self.work(cell).with_suffix(".before")

    def drop(self, cell: str) -> None:
        """Leaves nothing of the cell in the making, for who holds the lock. Raises LostError where that is another.

        Every file is moved into this process's own room first, which its successor takes away: a process that was
        stopped in the middle and lost the cell finds nowhere to move the next one to, and leaves it to its successor.
        """
        work = self.work(cell)
        if (lease := guarding_lease(work)) is None:
            shutil.rmtree(work, ignore_errors=True)
            return
        if not work.is_dir():
            lease.check()
            return
        room = lease.staging_dir(work)
        try:
            (room / GONE).mkdir(exist_ok=True)
            for path in work.iterdir():
                if not path.name.startswith(STAGING_PREFIX):
                    os.replace(path, room / GONE / path.name)
        except FileNotFoundError:
            lease.check()
            raise
        shutil.rmtree(room, ignore_errors=True)
        with contextlib.suppress(OSError):  # its successor has begun to write there
            work.rmdir()
