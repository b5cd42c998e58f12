"""Searches without processes: cells that are their changes and their seed, trained in a fixed order."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import known
from records import blank, text

from lm.config.tree import InputError, Tree, run_id
from lm.data.tokens import TextStats
from lm.execution.scheduler import Planned
from lm.search import trials
from lm.search.space import Space, read_space
from lm.search.spec import SweepSpec
from lm.search.study import open_study
from lm.search.trials import Search, Searches
from lm.store.record import Record
from lm.store.store import Store
from lm.training.identified import Cell

SETTINGS = {"max_steps": 40, "val_check_interval": 10, "limit_val_batches": 2, "accumulate_grad_batches": 1}
LINE: dict[str, Any] = {"x": {"low": -4.0, "high": 4.0}, "y": {"low": -4.0, "high": 4.0}}
MIXED: dict[str, Any] = {
    "x": {"low": 0.01, "high": 10, "log": True},
    "kind": {"choices": ["a", {"class_path": "b", "space": {"n": {"low": 1, "high": 4, "int": True}}}]},
}
GRID: dict[str, Any] = {"x": {"choices": [1, 2, 3]}, "y": {"low": 0, "high": 2, "int": True}}
Answer = Callable[[Tree], Record]


def spec(space: Any = LINE, **changes: Any) -> SweepSpec:
    read = space if isinstance(space, Space) else read_space(space, "space")
    defaults: dict[str, Any] = {"objectives": {"nll": "lower"}, "trials": 8, "seeds": [0]}
    return SweepSpec(**{"name": "s", "title": "S", "tree": {}, "space": read, **defaults, **changes})


def well(tree: Tree) -> Record:
    """A record whose NLL is the distance to a point, plus a little for the seed."""
    value = (tree.get("x", 0) - 1) ** 2 + (tree.get("y", 0) + 2) ** 2 + 0.1 * tree["seed"]
    return {**blank(), "metrics": {"nll": value}, "cost": {"parameters": 1 + abs(tree.get("x", 0))}}


class World:
    """Trains the cells of searches with several workers at a time, in a fixed order, without processes."""

    def __init__(self, answer: Answer = well, workers: int = 1, validations: int = 0) -> None:
        self.answer, self.workers, self.validations = answer, workers, validations
        self.trained: list[Tree] = []
        self.pruned: list[Tree] = []
        self.said: list[tuple[str, str, int]] = []
        self.store: Store | None = None

    def keep(self, cell: str, record: Record) -> None:
        assert self.store is not None
        self.store.work(cell).mkdir(parents=True)
        self.store.finish(cell, {**record, "id": cell})

    def say(self, name: str, outcome: str, cells: int) -> None:
        self.said.append((name, outcome, cells))

    def run(self, source: Searches, limit: int = 10**6) -> None:
        running: list[Planned] = []
        while limit:
            while len(running) < self.workers and (planned := source.pop()):
                running.append(planned)
            if not running:
                return
            planned, limit = running.pop(0), limit - 1
            tree = planned.cell.config
            record = self.answer(tree)
            for step in range(10, 10 * self.validations + 1, 10):
                if not source.judge(planned, step, {"nll": known(record["metrics"]["nll"]) + 100 / step}):
                    self.pruned.append(tree)
                    source.ended(planned, {"status": "pruned", "error": "stopped"})
                    break
            else:
                self.trained.append(tree)
                self.keep(planned.cell.id, record)
                source.ended(planned, record)


@contextlib.contextmanager
def searching(folder: Path, world: World, *specs: SweepSpec) -> Iterator[Searches]:
    with contextlib.ExitStack() as stack:
        store, found = Store(folder), []
        world.store = store
        for one in specs:
            shared = stack.enter_context(open_study(one, folder / one.name, SETTINGS, world.workers > 1))
            found.append(Search(one, shared, store, world.say, f"{one.name} "))
        yield Searches(found, store)


def carry_out(folder: Path, world: World, *specs: SweepSpec) -> list[Any]:
    """Runs searches to their end; returns the trials of the last."""
    with searching(folder, world, *specs) as source:
        world.run(source)
        return source.searches[-1].study.get_trials()


def cells_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell is its changes and its seed; `x` above 100 cannot be built."""

    def made(tree: Tree) -> Cell:
        if isinstance(tree.get("x"), float) and tree["x"] > 100:
            raise InputError("x: too large")
        facts = TextStats(folder="", **text())
        return Cell(tree, facts, run_id(tree))

    monkeypatch.setattr(trials, "check", made)
    monkeypatch.setattr(trials, "with_seed", lambda cell, seed: made({**cell.config, "seed": seed}))
