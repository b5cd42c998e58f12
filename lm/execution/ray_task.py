"""Task of a Ray cluster: train a cell on a node without a shared disk, and send its files with its messages.

It does not import Ray: arguments and results are plain values, and large files travel as references of their pieces.
"""

import asyncio
import atexit
import contextlib
import functools
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lm import __version__
from lm.config.fingerprint import dotted_classes, source_files
from lm.config.imported import add_module_folder, import_object
from lm.config.tree import InputError, path_name
from lm.data.cache import cache_folder, ensure_entry
from lm.execution.executor import Message
from lm.execution.fork_server import make_tempdir
from lm.execution.local import RemoteWorker
from lm.store.files import PARTIAL_CHECKPOINT, write_atomic
from lm.store.side_files import PROGRESS_FILE as PROGRESS
from lm.store.store import Store
from lm.training.cell import identity
from lm.training.identified import Cell
from lm.training.process import Execution

POLL_SECONDS, ANSWER_SECONDS = 0.5, 0.05  # between two exchanges with the executor; while an answer is due

PIECE = 32 * 2**20  # bytes of a file that are sent at a time
OWN = (PARTIAL_CHECKPOINT, PROGRESS)  # files of a work folder that are not sent, as they belong to one attempt
MARKS = ("last.ckpt", "outcome.json")  # files whose change is a reason to send all changes
Files = Sequence[tuple[str, Sequence[Any]]]  # names of files below a folder, each with the references of its pieces
# attempt at a cell, its messages, the files that have changed, and after the end the names of all files
Letter = tuple[int, list[Message], dict[str, bytes], list[str] | None]


@dataclass(frozen=True)
class Order:
    """A cell with what a node needs: files of its text and an earlier attempt, and user modules by name and file."""

    attempt: int
    cell: Cell
    execution: Execution
    name: str
    threads: int
    text: Files
    work: Files
    code: Sequence[tuple[str, str, bytes]]
    version: str = __version__


class Mailbox:
    """Actor that passes letters of tasks to the executor, and its answers to the tasks."""

    def __init__(self) -> None:
        self.letters: list[Letter] = []
        self.answers: dict[int, list[bool | str]] = {}
        self.arrived = asyncio.Event()

    async def exchange(self, letter: Letter) -> list[bool | str]:
        """Add a letter of a task, and return the answers to it."""
        self.letters.append(letter)
        self.arrived.set()
        return self.answers.pop(letter[0], [])

    async def take(self, seconds: float) -> list[Letter]:
        """Return the letters that have arrived; wait at most so many seconds for one."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.arrived.wait(), seconds)
        self.arrived.clear()
        letters, self.letters = self.letters, []
        return letters

    async def answer(self, attempt: int, answer: bool | str) -> None:
        """Add an answer to a task."""
        self.answers.setdefault(attempt, []).append(answer)


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
        write_atomic(below(folder, name), files[name])


def delete_other_files(folder: Path, names: Iterable[str]) -> None:
    """Delete all files but those of these names."""
    expected = set(names)
    for path in sorted(folder.rglob("*"), reverse=True):
        name = path.relative_to(folder)
        if path.is_file() and not _hidden(name) and name.as_posix() not in expected:
            path.unlink()


# on the node ---------------------------------------------------------------------------------------------------------


def train_on_node(order: Order, mailbox: Any, get: Callable[[Any], Any]) -> None:
    """Train a cell in a private folder, and exchange letters until it has ended. Raises InputError if it cannot."""
    host = socket.gethostname()
    if order.version != __version__:
        raise InputError(f"{host}: has lm {__version__}, and cells come from {order.version}; install the same there")
    os.environ["OMP_NUM_THREADS"] = str(order.threads)
    sys.modules["__main__"].__file__ = None  # training processes would run it, and it is Ray's
    with (
        tempfile.TemporaryDirectory(dir=process_folder(), ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(1) as thread,  # Ray gives the cores of a task away while its main thread waits for a result
    ):
        fetch = lambda reference: thread.submit(get, reference).result()  # noqa: E731
        send = lambda *letter: fetch(mailbox.exchange.remote((order.attempt, *letter)))  # noqa: E731
        store = Store(Path(folder))
        cell = unpack_cell(order, fetch, process_folder() / "code")
        if isinstance(cell, Cell) and identity(cell.config, cell.facts) != cell.id:
            raise InputError(
                f"{host}: would compute another cell than was planned; install there the version of lm that is "
                "installed here, and none of the modules that the configuration names"
            )
        work = store.work(cell.id)
        unpack(order.work, fetch, work)
        changes = Changes(work)
        with RemoteWorker(store, order.name) as worker:
            send([], {}, None)
            worker.submit(cell, order.execution, order.name)
            while worker.jobs:
                messages = worker.take_messages(ANSWER_SECONDS if worker.awaits_answer else POLL_SECONDS)
                if not worker.jobs:  # it has ended
                    finished = store.directory(cell.id) if store.finished(cell.id) else work
                    files = changes.take(finished, whole=True)
                    names = [name for name in changes.sent if (finished / name).is_file() and name not in OWN]
                    send(messages, files, names)
                else:
                    for answer in send(messages, changes.take(work, whole=False), None):
                        worker.answer(answer)


@functools.cache
def process_folder() -> Path:
    """Return the private folder of this process, whose user modules stay importable from cell to cell."""
    folder = make_tempdir("ray-task")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


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
        ensure_entry(folder, {}, lambda staging: unpack(order.text, get, staging))
        cell = replace(cell, facts=replace(cell.facts, folder=str(folder.resolve())))
    return cell


def unpack(files: Files, get: Callable[[Any], bytes], folder: Path) -> None:
    """Write files below a folder."""
    for name, parts in files:
        path = below(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.writelines(map(get, parts))


def below(folder: Path, name: str) -> Path:
    """Return the path of a file in a folder. Raises InputError for a name that leads elsewhere."""
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise InputError(f"file of a cell: {name!r} leads out of its folder")
    return folder.joinpath(*parts)


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
