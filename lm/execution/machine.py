"""How much of this machine the cells may have at a time, and where their results may go."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lm.config.plain import shown
from lm.config.tree import InputError, require_place
from lm.store.links import require_own

MOST_WORKERS = 1024
"""Processes at a time on one machine."""


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def accelerators() -> int:
    """CUDA devices on this machine."""
    import torch

    return torch.cuda.device_count()


def default_workers(cells: int) -> int:
    """One worker per accelerator, or per core where there is none, and no more than there are cells."""
    return max(1, min(cells, accelerators() or cores()))


def threads_said() -> int | None:
    """Threads by the environment, whose variables count in the order in which torch heeds them, of a list the first."""
    for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        first = os.environ.get(name, "").partition(",")[0].strip()
        if first.isdecimal() and int(first[:9]):
            return int(first[:9])
    return None


def threads_each(workers: int) -> int:
    """Threads that each of `workers` may use: what the environment says, up to all cores, or else its share of them."""
    said = threads_said()
    return max(1, cores() // workers) if said is None else min(said, cores())


def require_manner(
    out: Path, checkpoint_seconds: Any, workers: Any, hang_minutes: Any = 0.0, called: Callable[[str], str] = str
) -> None:
    """Raises InputError where cells cannot go, or with workers, checkpoints or patience that cannot be.

    Args:
        out: folder of cells and reports.
        checkpoint_seconds: between checkpoints.
        workers: cells trained at a time; None where that is left open.
        hang_minutes: without a sign of life after which a cell is ended; 0 for never.
        called: what the person who gave one of these calls it.
    """
    require_place(out, called("out"), folder=True)
    if os.path.islink(out / "cells"):  # rather now than when all is trained and its report is refused
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
