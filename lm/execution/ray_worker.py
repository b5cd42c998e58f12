"""The process on a node of a Ray cluster that trains cells there, one after another, on a disk of its own.

It imports no Ray: what it is asked and what it answers are plain values.
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
from lm.store.locks import ENDED, state
from lm.store.store import Store
from lm.training.cell import Cell

PREFIX = "lm-post-"

Answer = tuple[list[Message], dict[str, bytes], list[str] | None]
"""What has happened, files that have changed, and after the end the names of all there are."""


class RayWorker:
    """Trains a cell at a time in a folder that nobody else sees, and sends its files along with what happens.

    Args:
        threads: that a cell may use.
        version: of lm where the cells come from.
        get: a piece of a file, for what it can be had for.
    """

    def __init__(self, threads: int, version: str, get: Callable[[Any], bytes]) -> None:
        self.host, self.get = socket.gethostname(), get
        if version != __version__:
            raise InputError(
                f"{self.host}: has lm {__version__}, and cells come from {version}; install the same there"
            )
        os.environ["OMP_NUM_THREADS"] = str(threads)
        sys.modules["__main__"].__file__ = None  # which the processes that train would run, and it is Ray's
        remove_stale_folders(PREFIX)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        atexit.register(self.close)
        self.store = Store(self.folder)
        self.worker = RemoteWorker(self.store)
        self.cell = ""
        self.changes = Changes()

    def begin(self, parcel: CellPackage) -> str:
        """Takes a cell; returns the name of this machine. Raises InputError where it cannot be trained here."""
        cell, self.changes = unpack_cell(parcel, self.get, self.folder / "code"), Changes()
        if isinstance(cell, Cell):
            check_same(cell, self.host)
        unpack(parcel.work, self.get, self.store.work(cell.id))
        self.changes.sent_already(self.store.work(cell.id))
        self.cell = cell.id
        self.worker.submit(cell, parcel.execution, parcel.name)
        return self.host

    def poll(self, seconds: float) -> Answer:
        """What has happened, see `RemoteWorker.poll`, with the files that go with it."""
        messages = self.worker.poll(seconds)
        if not any(kind == "ended" for kind, *_ in messages):
            return messages, self.changes.take(self.store.work(self.cell), whole=False), None
        folder = self.store.directory(self.cell) if self.store.finished(self.cell) else self.store.work(self.cell)
        files = self.changes.take(folder, whole=True)
        names = [name for name in self.changes.sent if (folder / name).is_file() and name not in OWN]
        for left in (self.store.directory(self.cell), self.store.work(self.cell)):
            shutil.rmtree(left, ignore_errors=True)
        return messages, files, names

    def answer(self, goes_on: bool) -> None:
        """Says whether the cell goes on."""
        self.worker.answer(goes_on)

    def cancel(self) -> None:
        """Asks for the cell to end."""
        self.worker.cancel()

    def close(self) -> None:
        """Ends what trains and leaves nothing behind."""
        self.worker.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def remove_stale_folders(prefix: str) -> None:
    """Deletes temporary folders of processes that were killed: after the prefix comes the number of each."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        number = folder.name.removeprefix(prefix).partition("-")[0]
        with contextlib.suppress(OSError, ValueError):
            gone = Path("/proc").is_dir() and (state(int(number)) is None or state(int(number)) in ENDED)
            if gone and folder.stat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)
