"""Small cells trained in this process, some of them killed on the way."""

from pathlib import Path
from typing import Any

from helpers import RUN

from lm.config.tree import Tree, override
from lm.store.record import Record
from lm.store.store import Store
from lm.training.cell import check
from lm.training.identified import Cell
from lm.training.process import Execution
from lm.training.recorder import Report
from lm.training.train import train


class Killed(BaseException):
    """Ends a run as a signal would: not an Exception, so nothing is recorded."""


def silent(step: int, steps: int, loss: float) -> None:
    """Ignore progress."""


def kill_at(killed_at: int | None) -> Report:
    """Return a report of progress that kills the run at a step, if any."""

    def report(step: int, steps: int, loss: float) -> None:
        if step == killed_at:
            raise Killed

    return report


def train_cell(
    out: Path, changes: Tree | None = None, report: Report = silent, **settings: Any
) -> tuple[Cell, Record, Path]:
    """Train RUN with changes, in one thread; return the cell, its record and its folder."""
    cell, store = check(override(RUN, changes or {})), Store(out)
    train(cell, store, report, Execution(threads=1, **settings))
    return cell, store.record(cell.id), store.directory(cell.id)
