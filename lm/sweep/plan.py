"""An experiment file, and the cells it asks for."""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lm.analysis import HEADLINE
from lm.cell import Cell, check, identity, parameter_count
from lm.config import InputError, Tree, differences, load_yaml, nearest, override
from lm.results import FORMAT, QUANTITIES, Store, to_json, write_atomic

KEYS = ("title", "base", "baseline", "arms", "seeds", "common", "metric", "notes")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


@dataclass(frozen=True)
class Experiment:
    """One ablation: a baseline and the arms that differ from it.

    Args:
        name: of the file, and of the folder its report goes to.
        title: what the report is headed with.
        tree: the configuration that every arm starts from.
        baseline: the arm the others are compared with.
        arms: for each arm, dotted paths and what to put there.
        seeds: every arm is trained with each.
        notes: printed under the table.
        metric: the quantity that the table leads with and that arms are judged by.
    """

    name: str
    title: str
    tree: Tree
    baseline: str
    arms: dict[str, dict[str, Any]]
    seeds: list[int]
    notes: str = ""
    metric: str = HEADLINE


@dataclass(frozen=True)
class Planned:
    """A cell and its place in the experiment."""

    arm: str
    seed: int
    cell: Cell


@dataclass(frozen=True)
class Plan:
    """Every cell of an experiment, checked; in the order in which they are trained."""

    experiment: Experiment
    cells: list[Planned]

    def first(self, arm: str) -> Cell:
        """The arm's cell of the first seed; its other cells differ in the seed alone."""
        return next(planned.cell for planned in self.cells if planned.arm == arm)

    def changes(self, arm: str) -> dict[str, tuple[Any, Any]]:
        """Where the arm's resolved configuration differs from the baseline's."""
        return differences(self.first(self.experiment.baseline).config, self.first(arm).config)

    def missing(self, store: Store) -> list[Planned]:
        """The cells still to be trained, each once though two arms may ask for it."""
        wanted = {planned.cell.id: planned for planned in reversed(self.cells)}
        return [p for p in self.cells if wanted.get(p.cell.id) is p and not store.finished(p.cell.id)]


def _mapping(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{path}: expected a mapping of dotted paths to values, found {value!r}")
    return {str(key): inner for key, inner in value.items()}


def _seeds(value: Any, path: str) -> list[int]:
    seeds = list(range(value)) if isinstance(value, int) and not isinstance(value, bool) else value
    valid = isinstance(seeds, list) and seeds and all(type(seed) is int and seed >= 0 for seed in seeds)
    if not valid:
        raise InputError(f"{path}: expected a number of seeds or a list of whole numbers from 0, found {value!r}")
    if len(set(seeds)) != len(seeds):
        raise InputError(f"{path}: a seed is given twice in {value!r}")
    return list(seeds)


def load_experiment(path: Path, settings: Mapping[str, Any], seeds: Sequence[int] | None = None) -> Experiment:
    """Reads an experiment file.

    Args:
        path: the YAML file; `base` in it is relative to it.
        settings: dotted changes to the base, applied to every arm before its own.
        seeds: instead of the file's.
    """
    tree = load_yaml(path)
    for key in tree:
        if key not in KEYS:
            raise InputError(f"{path}: no key {key!r} in an experiment.{nearest(key, KEYS)} It takes {', '.join(KEYS)}")
    for key in ("base", "baseline", "arms", "seeds"):
        if key not in tree:
            raise InputError(f"{path}: {key} is missing; an experiment needs base, baseline, arms and seeds")
    if not NAME.fullmatch(path.stem):
        raise InputError(f"{path}: the file's name names the report's folder; use letters, digits, '_', '-' and '.'")
    arms = {
        name: _mapping(changes or {}, f"{path}: arms.{name}")
        for name, changes in _mapping(tree["arms"], f"{path}: arms").items()
    }
    for name, changes in arms.items():
        if not NAME.fullmatch(name):
            raise InputError(f"{path}: arm {name!r}: use letters, digits, '_', '-', '+' and '.'")
        if "seed" in changes:
            raise InputError(
                f"{path}: arms.{name}.seed: seeds belong to the experiment, so that arms are paired; use seeds"
            )
    if tree["baseline"] not in arms:
        raise InputError(
            f"{path}: baseline: no arm {tree['baseline']!r}.{nearest(tree['baseline'], list(arms))} "
            f"Choose from {', '.join(arms)}"
        )
    metric = str(tree.get("metric", HEADLINE))
    if metric not in QUANTITIES:
        listed = ", ".join(QUANTITIES)
        raise InputError(f"{path}: metric: no {metric!r}.{nearest(metric, list(QUANTITIES))} Choose from {listed}")
    base = override(load_yaml(path.parent / str(tree["base"])), _mapping(tree.get("common") or {}, f"{path}: common"))
    return Experiment(
        name=path.stem,
        title=str(tree.get("title") or path.stem),
        tree=override(base, settings),
        baseline=tree["baseline"],
        arms=arms,
        seeds=_seeds(
            list(seeds) if seeds is not None else tree["seeds"], "--seeds" if seeds is not None else f"{path}: seeds"
        ),
        notes=str(tree.get("notes") or ""),
        metric=metric,
    )


def make_plan(experiment: Experiment) -> Plan:
    """Resolves, builds and checks every cell before any is trained. Raises InputError naming the arm."""
    arms: dict[str, Cell] = {}
    for name, changes in experiment.arms.items():
        try:
            arms[name] = check(override(experiment.tree, {**changes, "seed": experiment.seeds[0]}))
        except InputError as error:
            raise InputError(f"arm {name}: {error}") from None
    cells = [Planned(name, seed, with_seed(cell, seed)) for seed in experiment.seeds for name, cell in arms.items()]
    return Plan(experiment, cells)


def with_seed(cell: Cell, seed: int) -> Cell:
    """The same cell with another seed."""
    config = {**copy.deepcopy(cell.config), "seed": seed}
    return replace(cell, config=config, id=identity(config, cell.facts))


def write_manifest(plan: Plan, store: Store) -> Path:
    """Leaves `experiment.json`, all that a report needs beside the records, and returns its folder."""
    experiment = plan.experiment
    folder = store.out / experiment.name
    manifest = {
        "format": FORMAT,
        "name": experiment.name,
        "title": experiment.title,
        "notes": experiment.notes,
        "baseline": experiment.baseline,
        "metric": experiment.metric,
        "seeds": experiment.seeds,
        "arms": {
            arm: {
                "changes": {path: list(values) for path, values in plan.changes(arm).items()},
                "parameters": parameter_count(plan.first(arm)),
                "cells": {str(p.seed): p.cell.id for p in plan.cells if p.arm == arm},
            }
            for arm in experiment.arms
        },
    }
    write_atomic(folder / "experiment.json", to_json(manifest))
    return folder
