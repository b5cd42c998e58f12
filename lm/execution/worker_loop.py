"""Worker main loop: train cells from a pipe until it is closed or a limit forces a restart.

Limits are the growth of memory, open files and 100 cells. It imports nothing heavy: the function that trains a cell is
an argument.
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

from lm.store.lease_holder import PARENT_VARIABLE
from lm.store.store import Store

MOST_CELLS = 100
"""Cells trained by one process. A restart then costs each cell 1 % of its time, and bounds leaks too small to be
measured."""

GROWTH, MARGIN_BYTES = 2, 500 * 2**20
"""Bounds on memory: GROWTH times the bytes used after the first cell, plus MARGIN_BYTES."""

MOST_OPEN_FILES = 64
"""Files that a process may have open beyond those open after its first cell."""

Body = Callable[[Any, Store, Any, Connection, int | None], bool | None]
"""Function that trains a cell; returns True if it left state behind that makes the process unfit for another cell."""


def run_worker(body: Body, store: Store, pipe: Connection) -> None:
    """Train cells from a pipe until it is closed or a limit is reached; send `over` after each cell.

    A process that exits after a cell sends no `over`; one that trains a single cell ends this way.
    """
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    if (parent := multiprocessing.parent_process()) is not None:
        os.environ[PARENT_VARIABLE] = str(parent.pid)
    bounds: tuple[int, int] | None = None
    for _ in range(MOST_CELLS):
        try:
            cell, execution, slot = pipe.recv()
        except (EOFError, OSError):  # the parent closed its end, or has exited
            return
        if body(cell, store, execution, pipe, slot):
            return
        del cell, execution
        used_bytes, open_files = resident_bytes(), count_open_files()
        bounds = bounds or (GROWTH * used_bytes + MARGIN_BYTES, open_files + MOST_OPEN_FILES)
        if used_bytes > bounds[0] or open_files > bounds[1]:
            return
        try:
            pipe.send(("over",))
        except OSError:
            return


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes, or its peak where the current value is not available."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def count_open_files() -> int:
    """Return the number of open files of this process; 0 where it is not available."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def _exit_with_parent() -> None:
    """Exit once the parent has exited: an orphan would keep the cell's lock.

    The parent is the process of the command. The fork server between the two may die without harm.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
