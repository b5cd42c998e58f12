"""Actor of a Ray cluster: train cells on a node without a shared disk, and send their files with their messages.

It does not import Ray: arguments and results are plain values, and large files travel as references of their pieces.
"""

import contextlib
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lm import __version__
from lm.config.fingerprint import dotted_classes, source_files
from lm.config.imported import add_module_folder, import_object
from lm.config.tree import InputError, path_name
from lm.data.cache import DamageError, cache_folder, ensure_entry
from lm.execution.executor import Message
from lm.execution.local import RemoteWorker
from lm.store.files import PARTIAL_CHECKPOINT, temporary_folder, write_atomic
from lm.store.side_files import PROGRESS_FILE as PROGRESS
from lm.store.store import Store
from lm.training.cell import identity
from lm.training.identified import Cell
from lm.training.process import Execution

POLL_SECONDS, ANSWER_SECONDS = 0.5, 0.05  # in which messages are collected; while an answer is due

PIECE = 32 * 2**20  # bytes of a file that are sent at a time
OWN = (PARTIAL_CHECKPOINT, PROGRESS)  # files of a work folder that are not sent, as they belong to one attempt
MARKS = ("last.ckpt", "outcome.json")  # files whose change is a reason to send all changes
Files = Sequence[tuple[str, Sequence[Any]]]  # names of files below a folder, each with the references of its pieces
Letter = tuple[list[Message], dict[str, bytes]]  # messages of a cell, the last of them maybe its end; changed files


@dataclass(frozen=True)
class Order:
    """A cell with what a node needs: files of its text and an earlier attempt, and user modules by name and file."""

    cell: Cell
    execution: Execution
    name: str
    threads: int
    text: Files
    work: Files
    code: Sequence[tuple[str, str, bytes]]
    version: str = __version__


# at the sender -------------------------------------------------------------------------------------------------------


def files_below(folder: Path, put: Callable[[bytes], Any], leave: Sequence[str] = ()) -> Files:
    """Pass each piece of the files in a folder, except hidden ones, to `put`."""
    files = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not _hidden(name) and str(name) not in leave:
            with path.open("rb") as file:
                files.append((name.as_posix(), [put(piece) for piece in iter(lambda: file.read(PIECE), b"")]))
    return files


def code_of(cell: Cell) -> list[tuple[str, str, bytes]]:
    """Return the user modules of a cell by name. Raises InputError if one has changed since it was planned."""
    files: dict[str, Path] = {}
    for name in dotted_classes(cell.config):
        files |= source_files(import_object(name, name))
    return [(module, path.name, path.read_bytes()) for module, path in sorted(files.items())]


def write_files(files: dict[str, bytes], folder: Path) -> None:
    """Write received files, the outcome last but one and the record last."""
    last = ("outcome.json", "record.json")
    for name in sorted(files, key=lambda name: (name in last, name)):
        write_atomic(folder / name, files[name])


# on the node ---------------------------------------------------------------------------------------------------------


class CellTrainer:
    """Actor that trains one cell after the other, each in a folder of its own; user modules stay importable."""

    def __init__(self) -> None:
        self.own = tempfile.TemporaryDirectory(prefix="lm-ray-", dir=temporary_folder(), ignore_cleanup_errors=True)

    def start(self, order: Order, get: Callable[[Any], Any]) -> Letter:
        """Start a cell and return an empty letter. Raises InputError if it cannot be trained here."""
        host = socket.gethostname()
        if order.version != __version__:
            hint = f"has lm {__version__}, and cells come from {order.version}; install the same there"
            raise InputError(f"{host}: {hint}")
        os.environ["OMP_NUM_THREADS"] = str(order.threads)
        sys.modules["__main__"].__file__ = None  # training processes would run it, and it is Ray's
        self.folder = tempfile.TemporaryDirectory(dir=self.own.name, ignore_cleanup_errors=True)
        self.store = Store(Path(self.folder.name))
        self.cell = unpack_cell(order, get, Path(self.own.name, "code"))
        if isinstance(self.cell, Cell) and identity(self.cell.config, self.cell.facts) != self.cell.id:
            raise InputError(
                f"{host}: would compute another cell than was planned; install there the version of lm that is "
                "installed here, and none of the modules that the configuration names"
            )
        work = self.store.work(self.cell.id)
        unpack(order.work, get, work)
        self.changes, self.worker = Changes(work), RemoteWorker(self.store, 1)
        self.worker.submit(self.cell, order.execution, order.name)
        return [], {}

    def take(self) -> Letter:
        """Return the messages of the next moment with the changed files."""
        messages = self.worker.take_messages(ANSWER_SECONDS if self.worker.awaits_answer else POLL_SECONDS)
        work = self.store.work(self.cell.id)
        if self.worker.jobs:
            return messages, self.changes.take(work, whole=False)
        finished = self.store.directory(self.cell.id) if self.store.finished(self.cell.id) else work
        files = self.changes.take(finished, whole=True)
        self.close()
        return messages, files

    def answer(self, goes_on: bool) -> None:
        """Answer the last validation."""
        self.worker.answer_last(goes_on)

    def close(self) -> None:
        """End the training, if any, and delete the folder of the cell."""
        self.worker.close()
        self.folder.cleanup()


def unpack_cell(order: Order, get: Callable[[Any], bytes], code: Path) -> Cell:
    """Write the files of an order, user modules into `code`, and return the cell with the paths of this machine."""
    for module, name, content in order.code:
        parts = module.split(".")
        path = code.joinpath(*(parts if name == "__init__.py" else parts[:-1]), name)
        if not path.is_file() or path.read_bytes() != content:  # a file written again would count as changed
            write_atomic(path, content)
    if order.code:
        add_module_folder(code)
    cell = order.cell
    if cell.facts is not None and order.text:
        source = Path(cell.facts.folder)
        folder = cache_folder() / path_name(source.parent.name, "text") / path_name(source.name, "text")

        def check(entry: Path) -> None:
            if not entry.is_dir():
                raise DamageError("missing")

        ensure_entry(folder, check, lambda staging: unpack(order.text, get, staging))
        cell = replace(cell, facts=replace(cell.facts, folder=str(folder.resolve())))
    return cell


def unpack(files: Files, get: Callable[[Any], bytes], folder: Path) -> None:
    """Write files below a folder."""
    for name, parts in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.writelines(map(get, parts))


def _hidden(path: Path) -> bool:
    """Return True if a part of the path begins with a dot."""
    return any(part.startswith(".") for part in path.parts)


class Changes:
    """Changes in the folder of a cell since the last call; the other side has the files that it starts with."""

    def __init__(self, folder: Path) -> None:
        self.sent = _stamps(folder)

    def take(self, folder: Path, whole: bool) -> dict[str, bytes]:
        """Return the changed files: the progress alone, unless there is a new checkpoint or `whole` is set."""
        stamps = _stamps(folder)
        changed = {name for name, stamp in stamps.items() if self.sent.get(name) != stamp}
        if not (whole or changed & set(MARKS)):
            changed &= {PROGRESS}
        contents: dict[str, bytes] = {}
        for name in sorted(changed):
            with contextlib.suppress(FileNotFoundError):  # replaced or renamed meanwhile; the next call sends it
                contents[name] = (folder / name).read_bytes()
                self.sent[name] = stamps[name]
        return contents


def _stamps(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return time, size and number of each file below a folder that is sent."""
    stamps = {}
    for parent, _, files in os.walk(folder):
        for path in (Path(parent, name) for name in files):
            name = path.relative_to(folder)
            if not _hidden(name) and PARTIAL_CHECKPOINT not in name.parts:
                with contextlib.suppress(FileNotFoundError):
                    stat = path.stat()
                    stamps[name.as_posix()] = stat.st_mtime_ns, stat.st_size, stat.st_ino
    return stamps
