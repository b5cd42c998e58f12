"""The body of a process that trains one cell after another, and stays for as long as nothing speaks against it.

It imports nothing heavy: what trains a cell comes as a function.
"""

import multiprocessing
import os
import resource
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lm.store.holders import WORKS_FOR
from lm.store.store import Store

MOST_CELLS = 100
"""Trained by one process: the start of another then costs each a hundredth of it, and a leak too small to be seen, of
memory or of anything else, has an end."""

GROWTH, MARGIN = 2, 500 * 2**20
"""Bytes that a process may hold: so many times what it held after its first cell, and so many more."""

OPEN = 64
"""Files that a process may have open beyond those after its first cell."""

Body = Callable[[Any, Store, Any, Connection, int | None], bool | None]
"""Trains a cell; returns whether something of it was left behind, with which no other cell is to be trained."""


def run_worker(body: Body, store: Store, pipe: Connection) -> None:
    """Takes cells from a pipe until it is closed, or until this process is to take no more; says when each is `over`.

    A process that ends after a cell says nothing of it: that is how one ends that trains a single cell.
    """
    threading.Thread(target=_die_with_parent, daemon=True).start()
    if (parent := multiprocessing.parent_process()) is not None:
        os.environ[WORKS_FOR] = str(parent.pid)
    bounds: tuple[int, int] | None = None
    for _ in range(MOST_CELLS):
        try:
            cell, execution, slot = pipe.recv()
        except (EOFError, OSError):  # the parent needs this process no longer, or is gone
            return
        if body(cell, store, execution, pipe, slot):
            return
        del cell, execution
        held, files = resident(), opened()
        bounds = bounds or (GROWTH * held + MARGIN, files + OPEN)
        if held > bounds[0] or files > bounds[1]:
            return
        try:
            pipe.send(("over",))
        except OSError:
            return


def resident() -> int:
    """Bytes of memory that this process holds; where nobody says, the most that it has held."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def opened() -> int:
    """How many files this process has open; 0 where nobody says."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def _die_with_parent() -> None:
    """Ends this process once the parent is gone: an orphan would hold the cell's lock.

    The parent is the process that gave the command. The fork server between the two may die without harm.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
