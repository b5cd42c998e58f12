"""Small cells trained in this process, some of them killed on the way."""

import csv
import itertools
from pathlib import Path
from typing import Any

import pytest
from helpers import RUN, Patch

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


_NUMBERS = itertools.count()


def own_module(folder: Path, monkeypatch: Patch, source: str) -> str:
    """Write a module of a user's own into a folder and put that on the path; return a name that no other has."""
    name = f"own_module_{next(_NUMBERS)}"
    (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    return name


def curve(folder: Path) -> list[dict[str, str]]:
    """Return the rows of the learning curve of the cell in a folder."""
    with (folder / "history.csv").open() as file:
        return list(csv.DictReader(file))


def train_cell(
    out: Path, changes: Tree | None = None, report: Report = silent, **settings: Any
) -> tuple[Cell, Record, Path]:
    """Train RUN with changes, in one thread; return the cell, its record and its folder."""
    cell, store = check(override(RUN, changes or {})), Store(out)
    train(cell, store, report, Execution(threads=1, **settings))
    return cell, store.record(cell.id), store.directory(cell.id)


def resume_cell(out: Path, changes: Tree | None = None, killed_at: int = 7) -> tuple[Cell, Record, Path]:
    """Train RUN with changes, killed at a step and resumed from a checkpoint of a step before."""
    with pytest.raises(Killed):
        train_cell(out, changes, kill_at(killed_at), checkpoint_seconds=0.0)
    return train_cell(out, changes, checkpoint_seconds=0.0)
