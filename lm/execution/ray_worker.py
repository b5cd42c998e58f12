"""Process on a node of a Ray cluster that trains cells one after another on a disk of its own.

It does not import Ray: its arguments and results are plain values.
"""

import atexit
import contextlib
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lm import __version__
from lm.config.tree import InputError
from lm.execution.cell_transfer import OWN, CellPackage, Changes, check_same, unpack, unpack_cell
from lm.execution.remote_worker import Message, RemoteWorker
from lm.store.locks import ENDED, process_status
from lm.store.store import Store
from lm.training.cell import Cell

PREFIX = "lm-post-"

Answer = tuple[list[Message], dict[str, bytes], list[str] | None]
"""What has happened, files that have changed, and after the end the names of all there are."""


class RayWorker:
    """Worker of one cell at a time in a private folder, which sends its files along with messages.

    Args:
        threads: of a cell.
        version: of lm where the cells come from.
        get: returns a piece of a file from its reference.
    """

    def __init__(self, threads: int, version: str, get: Callable[[Any], bytes]) -> None:
        self.host, self.get = socket.gethostname(), get
        if version != __version__:
            raise InputError(
                f"{self.host}: has lm {__version__}, and cells come from {version}; install the same there"
            )
        os.environ["OMP_NUM_THREADS"] = str(threads)
        sys.modules["__main__"].__file__ = None  # training processes would run it, and it is Ray's
        remove_stale_folders(PREFIX)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        atexit.register(self.close)
        self.store = Store(self.folder)
        self.worker = RemoteWorker(self.store)
        self.cell = ""
        self.changes = Changes()

    def begin(self, package: CellPackage) -> str:
        """Start a cell and return the name of this machine. Raises InputError if it cannot be trained here."""
        cell, self.changes = unpack_cell(package, self.get, self.folder / "code"), Changes()
        if isinstance(cell, Cell):
            check_same(cell, self.host)
        unpack(package.work, self.get, self.store.work(cell.id))
        self.changes.mark_sent(self.store.work(cell.id))
        self.cell = cell.id
        self.worker.submit(cell, package.execution, package.name)
        return self.host

    def poll(self, seconds: float) -> Answer:
        """Return the messages of `RemoteWorker.poll` with the files that belong to them."""
        messages = self.worker.poll(seconds)
        if not any(kind == "ended" for kind, *_ in messages):
            return messages, self.changes.take(self.store.work(self.cell), whole=False), None
        folder = self.store.directory(self.cell) if self.store.finished(self.cell) else self.store.work(self.cell)
        files = self.changes.take(folder, whole=True)
        names = [name for name in self.changes.sent if (folder / name).is_file() and name not in OWN]
        for folder_left in (self.store.directory(self.cell), self.store.work(self.cell)):
            shutil.rmtree(folder_left, ignore_errors=True)
        return messages, files, names

    def answer(self, goes_on: bool) -> None:
        """Answer the last validation: whether the cell goes on."""
        self.worker.answer(goes_on)

    def cancel(self) -> None:
        """Ask for the cell to end."""
        self.worker.cancel()

    def close(self) -> None:
        """End training and delete the folder."""
        self.worker.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def remove_stale_folders(prefix: str) -> None:
    """Delete temporary folders of killed processes, whose numbers follow the prefix."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        number = folder.name.removeprefix(prefix).partition("-")[0]
        with contextlib.suppress(OSError, ValueError):
            gone = Path("/proc").is_dir() and (
                process_status(int(number)) is None or process_status(int(number)) in ENDED
            )
            if gone and folder.stat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)
