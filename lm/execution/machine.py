"""Resources of this machine for training, and checks of the settings of a command."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lm.config.plain import shown
from lm.config.tree import InputError, require_place
from lm.store.files import require_own

MOST_WORKERS = 1024
"""Largest number of processes at a time on one machine."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def accelerators() -> int:
    """Return the number of CUDA devices of this machine."""
    import torch

    return torch.cuda.device_count()


def default_workers(cells: int) -> int:
    """Return one worker per accelerator, or per core if there is none, and at most one per cell."""
    return max(1, min(cells, accelerators() or cores()))


def env_threads() -> int | None:
    """Return the threads that the environment sets, by the first variable that torch heeds; None if none."""
    for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        first = os.environ.get(name, "").partition(",")[0].strip()
        if first.isdecimal() and int(first[:9]):
            return int(first[:9])
    return None


def threads_each(workers: int) -> int:
    """Return the threads of each of `workers`: those the environment sets, or else its share of the cores."""
    threads = env_threads()
    return max(1, cores() // workers) if threads is None else min(threads, cores())


def require_run_settings(
    out: Path, checkpoint_seconds: Any, workers: Any, hang_minutes: Any = 0.0, called: Callable[[str], str] = str
) -> None:
    """Check the folder, workers, checkpoint interval and time limit of a command. Raises InputError.

    Args:
        out: folder of cells and reports.
        checkpoint_seconds: seconds between checkpoints.
        workers: cells trained at a time, None for the default.
        hang_minutes: minutes without a heartbeat after which a cell is ended; 0 for never.
        called: returns the name of an argument in messages.
    """
    require_place(out, called("out"), folder=True)
    if os.path.islink(out / "cells"):  # better now than when the report is refused after training
        require_own(out, ["cells"])
    if not (_is_number(checkpoint_seconds) and 0 <= checkpoint_seconds < math.inf):
        raise InputError(f"{called('checkpoint_seconds')}: expected a number from 0, found {shown(checkpoint_seconds)}")
    if workers is not None and not (type(workers) is int and 1 <= workers <= MOST_WORKERS):
        raise InputError(f"{called('workers')}: expected 1 or more, {MOST_WORKERS} at most, found {shown(workers)}")
    if not (_is_number(hang_minutes) and 0 <= hang_minutes < math.inf):
        where = called("hang_minutes")
        raise InputError(f"{where}: expected a number from 0, 0 for never, found {shown(hang_minutes)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
