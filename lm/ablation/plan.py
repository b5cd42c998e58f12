"""The cells that an experiment asks for."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lm.ablation.equal import equal_steps
from lm.ablation.experiment import Experiment
from lm.analysis.claims import Claim
from lm.analysis.registration import register
from lm.config.plain import is_text
from lm.config.tree import InputError, differences, override
from lm.execution.cell_queue import Planned
from lm.store.files import read_json, to_json, write_atomic
from lm.store.formats import MANIFEST
from lm.store.metrics import parse_average
from lm.store.record import Manifest
from lm.store.redaction import redacted
from lm.store.store import Store
from lm.store.validation import check_shape
from lm.training.cell import Cell, check, seeded, sizes
from lm.training.strategies import check_strategy


@dataclass(frozen=True)
class Plan:
    """Every cell of an experiment, checked; in the order in which they are trained."""

    experiment: Experiment
    cells: list[Planned]

    @functools.cached_property
    def by_arm(self) -> dict[str, list[Planned]]:
        """The cells of each arm, in the order of the seeds."""
        found: dict[str, list[Planned]] = {}
        for planned in self.cells:
            found.setdefault(planned.arm, []).append(planned)
        return found

    @functools.cached_property
    def _changes(self) -> dict[str, dict[str, tuple[Any, Any]]]:
        base = self.first(self.experiment.baseline).config
        return {arm: differences(base, self.first(arm).config) for arm in self.by_arm}

    def first(self, arm: str) -> Cell:
        """The arm's cell of the first seed; its other cells differ in the seed alone."""
        return self.by_arm[arm][0].cell

    def changes(self, arm: str) -> dict[str, tuple[Any, Any]]:
        """Where the arm's resolved configuration differs from the baseline's."""
        return self._changes[arm]

    def upto(self, seeds: int) -> "Plan":
        """The plan of the first seeds alone."""
        kept = self.experiment.seeds[:seeds]
        cells = [planned for planned in self.cells if planned.seed in kept]
        return Plan(replace(self.experiment, seeds=kept), cells)

    @functools.cached_property
    def distinct(self) -> list[Planned]:
        """The cells, each once though two arms may ask for it."""
        first = {planned.cell.id: planned for planned in reversed(self.cells)}
        return [planned for planned in self.cells if first[planned.cell.id] is planned]

    def manifest(self, store: Store) -> Path:
        """Return where the manifest of the experiment lies, without which there is no report."""
        return store.out / self.experiment.name / "experiment.json"

    def missing(self, store: Store) -> list[Planned]:
        """The cells still to be trained, each once."""
        return [planned for planned in self.distinct if not store.finished(planned.cell.id)]


def idle_arms(plan: Plan) -> dict[str, str]:
    """Return a line for each arm whose cells are those of the baseline, which no result can tell apart from it."""
    experiment, lines = plan.experiment, {}
    base = plan.first(experiment.baseline)
    for arm, changes in experiment.arms.items():
        if arm == experiment.baseline or plan.first(arm).id != base.id:
            continue
        if differing := list(plan.changes(arm)):
            why = f"what it changes, {', '.join(differing)}, is no part of what is computed"
        else:
            why = f"it sets {', '.join(changes)} to what is there already" if changes else "it changes nothing"
        lines[arm] = f"arm {arm} trains the same cells as the baseline {experiment.baseline}: {why}"
    return lines


def untimed(cell: Cell) -> float:
    """Refuses to say how long a step of the cell takes."""
    raise InputError("equal: seconds: needs steps to be timed, which only `lm ablate` does")


def make_plan(experiment: Experiment, seconds: Callable[[Cell], float] = untimed) -> Plan:
    """Resolves, builds and checks every cell before any is trained.

    Args:
        experiment: what is asked for.
        seconds: how long a step of a cell takes, where seconds are to be held equal.

    Raises:
        InputError: naming the arm.
    """
    arms = {name: _checked(experiment, name, changes) for name, changes in experiment.arms.items()}
    steps = equal_steps(arms, experiment.baseline, experiment.inference.equal, seconds)
    for name, cell in arms.items():
        if steps[name] != cell.config["trainer"]["max_steps"]:
            arms[name] = _checked(experiment, name, {**experiment.arms[name], "trainer.max_steps": steps[name]})
    seeds = experiment.seeds
    of_arms = {name: seeded(cell, seeds) for name, cell in arms.items()}
    cells = [
        Planned(name, seed, of_arms[name][index], f"{experiment.name}/{name}/{seed}")
        for index, seed in enumerate(seeds)
        for name in arms
    ]
    return Plan(experiment, cells)


def _checked(experiment: Experiment, name: str, changes: dict[str, Any]) -> Cell:
    try:
        cell = check(override(experiment.tree, {**changes, "seed": experiment.seeds[0]}))
        check_strategy(cell.config["trainer"])
        for metric in (experiment.inference.metric, *experiment.inference.secondary):
            _check_length(metric, cell)
            _check_validations(metric, cell)
        return cell
    except InputError as error:
        raise InputError(f"arm {name}: {error}") from None


def _check_length(metric: str, cell: Cell) -> None:
    """Refuses to judge by a length that is not evaluated."""
    _, at, length = metric.partition("@")
    lengths = (cell.config.get("evaluate") or {}).get("lengths", [])
    if at and int(length) not in lengths:
        raise InputError(f"metric: {metric}: evaluate.lengths does not hold {length}, it has {lengths or 'none'}")


def _check_validations(metric: str, cell: Cell) -> None:
    """Refuses to average over more validations than training has."""
    if (mean := parse_average(metric)) is None:
        return
    settings = cell.config["trainer"]
    batches = settings["max_steps"] * settings["accumulate_grad_batches"]
    every = settings["val_check_interval"]
    between = every if isinstance(every, int) else max(1, int((every or 1.0) * batches))
    count = batches // between if settings["limit_val_batches"] else 0
    if mean[1] > count:
        raise InputError(f"metric: {metric}: training has {count} validations; see trainer.val_check_interval")


def axes(plan: Plan) -> dict[str, str]:
    """What kind of axis each path is on which arms differ: scientific unless the experiment says otherwise."""
    given = plan.experiment.inference.axes
    changed = [path for arm in plan.experiment.arms for path in plan.changes(arm)]
    kinds = {path: next((k for start, k in given.items() if _under(path, start)), "scientific") for path in changed}
    return {**kinds, **{path: kind for path, kind in given.items() if kind == "fixed"}}


def _under(path: str, start: str) -> bool:
    """Whether a resolved path lies under a dotted one, in which `init_args` may be left out."""
    plain = path.replace(".init_args", "").replace(".class_path", "")
    return (plain + ".").startswith(start + ".") or (path + ".").startswith(start + ".")


def finite_claim(claim: Claim) -> dict[str, Any]:
    """A claim as the keys it was written with; ends at infinity are left out."""
    return {key: value for key, value in asdict(claim).items() if not (isinstance(value, float) and math.isinf(value))}


def write_manifest(plan: Plan, store: Store, command: Sequence[str] = ()) -> Path:
    """Leaves `experiment.json`, all that a report needs beside the records, and returns its folder.

    Args:
        plan: of the experiment.
        store: in whose folder the report's folder lies.
        command: the arguments of `lm` that made it, as given; left out where there are none, or none UTF-8 can hold.
    """
    experiment, looks = plan.experiment, plan.experiment.inference.looks
    path = plan.manifest(store)
    manifest = {
        "name": experiment.name,
        "title": experiment.title,
        "tier": experiment.tier or "C",
        "command": [redacted(text) for text in command] if command and all(map(is_text, command)) else None,
        "notes": experiment.notes,
        "baseline": experiment.baseline,
        "metric": experiment.inference.metric,
        "secondary": experiment.inference.secondary,
        "margin": experiment.inference.margin,
        "confirmatory": experiment.inference.confirmatory,
        "declared": experiment.inference.declared,
        "axes": axes(plan),
        "equal": experiment.inference.equal,
        "adaptive": {"looks": list(looks), "maximum": looks[-1]} if looks else None,
        "design": {"kind": experiment.design.kind, "aliases": experiment.design.aliases},
        "claims": [finite_claim(claim) for claim in experiment.claims],
        "registered": register(
            experiment.claims, _previous_manifest(path), functools.partial(_trained_seeds, plan, store)
        ),
        "seeds": experiment.seeds,
        "generalise": experiment.inference.generalise,
        **({} if experiment.ways is None else {"ways": experiment.ways}),
        "arms": {
            arm: {
                "changes": {path: list(values) for path, values in plan.changes(arm).items()},
                "levels": experiment.design.levels.get(arm, {}),
                **asdict(sizes(plan.first(arm))),
                "cells": {str(p.seed): p.cell.id for p in plan.by_arm[arm]},
            }
            for arm in experiment.arms
        },
    }
    write_atomic(path, to_json(MANIFEST.stamped(manifest)))
    return path.parent


def _previous_manifest(path: Path) -> dict[str, Any] | None:
    """Return the manifest that is there; None where there is none, or it is damaged and will be replaced."""
    try:
        manifest = MANIFEST.read(read_json(path), path)
        check_shape(manifest, Manifest, path, "")
    except InputError:
        return None
    return manifest


def _trained_seeds(plan: Plan, store: Store, claim: Claim) -> list[int]:
    """Return the seeds on which all arms of a claim have a finished cell."""
    of_arms = [{p.seed for p in plan.by_arm[arm] if store.finished(p.cell.id)} for arm in claim.arms]
    return sorted(set.intersection(*of_arms))
