"""The store of cells on disk. It imports no torch, so that reports are quick and run anywhere.

    OUT/cells/<id>/          a finished cell: config.yaml, record.json, history.csv, documents.npz,
                             last.ckpt, log.txt
    OUT/cells/.<id>.work/    an unfinished cell; renamed to <id> once all its files are written
    OUT/cells/.branches/<id>/ a checkpoint of a longer run, from which the cell begins
    OUT/cells/.leases/<id>/  the lease of the process that trains the cell, which alone writes into the work folder
    OUT/<experiment>/        experiment.json, table.md, table.csv, report.html, figures

Only the rename makes a cell finished.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from lm.config.plain import shown
from lm.config.tree import InputError, path_name
from lm.store import leases, validation
from lm.store.documents import file_of
from lm.store.files import PARTIAL_CHECKPOINT, finite, holds_mapping, read_json, remove, write_atomic
from lm.store.formats import RECORD
from lm.store.leases import STAGING_PREFIX, LeaseMonitor, guarding_lease
from lm.store.locks import UNKNOWN_HOLDER, Holder, LogLine, to_stderr
from lm.store.record import Record
from lm.store.redaction import redact_file, redacted_tree
from lm.store.side_files import PROGRESS_FILE as PROGRESS
from lm.store.thin_curves import THIN_NAME

EARLIER, STACK, RANKS = "tries.json", "stack.txt", "ranks"
"""Results of earlier attempts, the stack of one that hung, and the errors of processes beside the first."""

LOGGED = "logged.json"  # rows that the loggers of a run have received

_PROCESS_FILES = (EARLIER, STACK, RANKS, LOGGED)
WORK_FILES = ("cell.json", "outcome.json", PROGRESS, PARTIAL_CHECKPOINT, *_PROCESS_FILES)
"""Files of a work folder that a finished cell does not have."""

GONE = "gone"  # folder in the staging directory for files that are about to be removed
REPLACED = ".replaced"  # folder of the failed cell in that of the cell which replaces it, about to be removed
LOG = "log.txt"  # output of the process that trained a cell, with its traceback if it failed

MESSAGES = ("error", "traceback", "flags")
"""Parts of a record with text of a run or of its libraries, which may hold secrets."""


def branch_checkpoint(cells: Path, cell: str) -> Path:
    """Return the path of the checkpoint that a longer run leaves for a cell."""
    return cells / ".branches" / path_name(cell, "id of a cell") / "last.ckpt"


class DamagedError(InputError):
    """A record that is not what training wrote."""

    def __init__(self, problem: str, path: Path) -> None:
        super().__init__(f"{path}: damaged: {problem}; delete its folder, and lm ablate trains the cell again")
        self.problem = problem


class Store:
    """The cells of one output folder, which all its experiments share."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.cells = out / "cells"

    def directory(self, cell: str) -> Path:
        """Return the folder of a finished cell."""
        return self.cells / path_name(cell, "id of a cell")

    def work(self, cell: str) -> Path:
        """Return the work folder of an unfinished cell."""
        return self.cells / f".{path_name(cell, 'id of a cell')}.work"

    def finished(self, cell: str) -> bool:
        """Return True if a cell has a record, whatever its status."""
        return (self.directory(cell) / "record.json").is_file()

    def started(self, cell: str) -> bool:
        """Return True if an earlier, unfinished attempt left a checkpoint."""
        return (self.work(cell) / "last.ckpt").exists()

    def record(self, cell: str, needed: bool = False) -> Record:
        """Read a finished cell's record, if `needed` with all parts of reports; raise InputError for a damaged one."""
        path = self.directory(cell) / "record.json"
        try:
            record = read_json(path)
        except InputError as error:
            raise DamagedError(str(error).removeprefix(f"{path}: "), path) from None
        if not isinstance(record, dict) or "format" not in record:
            raise DamagedError(f"expected a mapping with its format, found {shown(record)}", path)
        content, record = record, RECORD.read(record, path)
        problem = validation.validate_record(record, needed)
        if not problem and record.get("id") != cell:
            problem = f"id: is of another cell, {shown(record.get('id'))}, expected {cell}, the name of its folder"
        if not problem:
            problems = validation.validate_numbers(record), validation.validate_checksum(content)
            problem = "; ".join(filter(None, problems))
        if problem:
            raise DamagedError(problem, path)
        return cast(Record, validation.without_checksum(record))

    def rewrite(self, cell: str, record: Record) -> None:
        """Write a record of a finished cell, which the caller holds; numbers that JSON cannot hold become null."""
        write_atomic(self.directory(cell) / "record.json", validation.with_checksum(RECORD.stamped(finite(record))))

    def history(self, cell: str) -> Path:
        """Return the file of a finished cell's learning curve: the thin one if there is no other."""
        whole, thin = (self.directory(cell) / name for name in ("history.csv", THIN_NAME))
        return thin if thin.is_file() and not whole.is_file() else whole

    def documents(self, cell: str, quantity: str = "nll") -> Path:
        """Return the file of a finished cell's losses by document, those behind a metric."""
        return self.directory(cell) / file_of(quantity)

    def pending(self, cell: str, again: bool = False) -> bool:
        """Return True if a cell must be trained: it has no record, or with `again` the record of a failure."""
        return not self.finished(cell) or (again and self.record(cell)["status"] == "failed")

    @contextlib.contextmanager
    def lock(self, cell: str, say: LogLine = to_stderr, wait: bool = True) -> Iterator[None]:
        """Hold a cell in the block, after waiting for it, which `say` reports; raise HeldError without `wait`.

        A process that sends no heartbeat for a minute loses the cell. Its next write there raises LostError.
        """
        with leases.acquire(self._lease(cell), f"cell {cell[:8]}", self._guarded(cell), say, wait):
            yield

    @contextlib.contextmanager
    def claim(self, cell: str) -> Iterator[bool]:
        """Hold a cell in the block unless another process does; yield True if it is held."""
        lease = leases.try_acquire(self._lease(cell), self._guarded(cell))
        try:
            yield lease is not None
        finally:
            if lease is not None:
                lease.release()

    def holder(self, cell: str) -> str:
        """Describe the process that holds a cell, for a message."""
        return str(self.held_by(cell) or UNKNOWN_HOLDER)

    def held_by(self, cell: str) -> Holder | None:
        """Return the process that holds a cell; None if no process does, or its lease is damaged."""
        return leases.current_holder(self._lease(cell))

    def watched(self, cell: str, watch: LeaseMonitor) -> Holder | str | None:
        """Return the process that holds a cell; release its lease and return None if it has expired by its monitor."""
        return leases.release_if_expired(self._lease(cell), watch, self._guarded(cell))

    def _lease(self, cell: str) -> Path:
        return self.cells / ".leases" / path_name(cell, "id of a cell")

    def _guarded(self, cell: str) -> tuple[Path, Path]:
        return self.work(cell), self.directory(cell)

    def finish(self, cell: str, record: Record) -> Record:
        """Write the record of a cell, rename its work folder to the finished cell and return the record.

        The hash of the last checkpoint is added to the record, and secrets are removed from it and from the log.
        """
        messages = {name: redacted_tree(record.get(name)) for name in MESSAGES if name in record}
        written = cast(Record, RECORD.stamped({**record, **messages}))
        if (weights := validation.checkpoint_checksum(self.work(cell) / "final.ckpt")) is not None:
            written["provenance"] = {**written["provenance"], "checkpoint": weights}
        redact_file(self.work(cell) / LOG)
        write_atomic(self.work(cell) / "record.json", validation.with_checksum(written))
        self.complete(cell)
        remove(branch_checkpoint(self.cells, cell).parent)
        return written

    def recover(self, cell: str) -> None:
        """Complete a `finish` that was interrupted after the record was written, unless another process does."""
        if (self.work(cell) / "record.json").is_file() or (self.directory(cell) / REPLACED).exists():
            with self.claim(cell) as held:
                if held:
                    self.complete(cell)

    def complete(self, cell: str) -> None:
        """Rename the work folder of a held cell to the finished cell; raise LostError after a takeover.

        A failed cell that was trained again moves into the work folder first: a process that was killed between the two
        steps is followed by one that completes them, and one that lost the cell to a faster one finds no work folder.
        """
        work, directory = self.work(cell), self.directory(cell)
        if holds_mapping(work / "record.json"):
            if (lease := guarding_lease(work)) is not None:
                lease.check()
            if (work / "final.ckpt").is_file():  # not before there is a record, to which it gives its evaluations
                os.replace(work / "final.ckpt", work / "last.ckpt")
            for path in (*(work / name for name in WORK_FILES), *work.glob(f"{STAGING_PREFIX}*")):
                remove(path)
            try:
                if directory.exists():
                    os.replace(directory, work / REPLACED)
                os.replace(work, directory)
            except FileNotFoundError:
                if lease is not None:
                    lease.check()
                raise
        remove(work / "record.json")  # damaged by the disk, if it is there
        remove(directory / REPLACED)

    def drop(self, cell: str) -> None:
        """Remove the work folder of a held cell; raise LostError after a takeover.

        Each file is moved into the staging directory of this process first, which a new holder deletes: a process that
        stalled and lost the cell cannot move the files of the new holder.
        """
        work = self.work(cell)
        if (lease := guarding_lease(work)) is None:
            shutil.rmtree(work, ignore_errors=True)
            return
        if not work.is_dir():
            lease.check()
            return
        staging = lease.staging_dir(work)
        try:
            (staging / GONE).mkdir(exist_ok=True)
            for path in work.iterdir():
                if not path.name.startswith(STAGING_PREFIX):
                    os.replace(path, staging / GONE / path.name)
        except FileNotFoundError:
            lease.check()
            raise
        shutil.rmtree(staging, ignore_errors=True)
        with contextlib.suppress(OSError):  # a new holder writes there
            work.rmdir()
