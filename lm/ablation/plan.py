"""The cells of an experiment: planned, described in its manifest, and which of them are finished."""

import contextlib
import functools
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from lm.ablation.experiment import Experiment
from lm.ablation.registration import registration_of
from lm.analysis.claims import Claim, fingerprint, finite_claim, register
from lm.analysis.comparability import ABBREVIATED, commit_of
from lm.config.plain import is_text
from lm.config.tree import InputError, differences, nearest, override, prefix_errors
from lm.execution.machine import default_workers, threads_each
from lm.execution.scheduler import Planned
from lm.stats.tests import values_needed
from lm.store.archive import REGISTRATION, SHARED
from lm.store.files import read_json, to_json, write_atomic
from lm.store.formats import MANIFEST
from lm.store.metrics import ON_CORPUS, is_of_task, parse_average
from lm.store.record import EarlierLook, Manifest, Record, Registration
from lm.store.redaction import redacted
from lm.store.sources import canonical
from lm.store.store import Store
from lm.store.validation import check_shape
from lm.training.identified import Cell, Sizes, auto_settings_requested
from lm.training.provenance import source_hash


@dataclass(frozen=True)
class Plan:
    """Every cell of an experiment, checked; in the order in which they are trained."""

    experiment: Experiment
    cells: list[Planned]
    stored_sizes: Mapping[str, Sizes] = field(default_factory=dict)
    registered: "Plan | None" = None  # before rates were chosen: as `lm register` plans it, and with its claims

    @functools.cached_property
    def by_arm(self) -> dict[str, list[Planned]]:
        """The cells of each arm, in the order of the seeds."""
        by_arm: dict[str, list[Planned]] = {}
        for planned in self.cells:
            by_arm.setdefault(planned.arm, []).append(planned)
        return by_arm

    @functools.cached_property
    def changes(self) -> dict[str, dict[str, tuple[Any, Any]]]:
        """The values of baseline and arm for each setting in which they differ, by arm."""
        base = self.first(self.experiment.baseline).config
        return {arm: differences(base, self.first(arm).config) for arm in self.by_arm}

    @functools.cached_property
    def distinct(self) -> list[Planned]:
        """The cells, each once though two arms may contain it."""
        first = {planned.cell.id: planned for planned in reversed(self.cells)}
        return [planned for planned in self.cells if first[planned.cell.id] is planned]

    def first(self, arm: str) -> Cell:
        """Return the arm's cell of the first seed; its other cells differ in the seed alone."""
        return self.by_arm[arm][0].cell

    def sizes(self, arm: str) -> Sizes:
        """Return the sizes of the cells of an arm, without torch where they are stored."""
        if arm in self.stored_sizes:
            return self.stored_sizes[arm]
        from lm.training.cell import sizes

        return sizes(self.first(arm))

    def upto(self, seeds: int) -> "Plan":
        """Return the plan of the first seeds alone."""
        first = self.experiment.seeds[:seeds]
        cells = [planned for planned in self.cells if planned.seed in first]
        registered = None if self.registered is None else self.registered.upto(seeds)
        return Plan(replace(self.experiment, seeds=first), cells, self.stored_sizes, registered)

    def manifest(self, store: Store) -> Path:
        """Return the path of the experiment's manifest, without which there is no report."""
        return store.out / self.experiment.name / "experiment.json"

    def is_described(self, store: Store) -> bool:
        """Return True if the experiment's manifest has all arms of the plan, with its cells."""
        path = self.manifest(store)
        if not path.is_file():
            return False
        if (manifest := _previous_manifest(path)) is None:  # damaged: it will be replaced
            return False
        arms = manifest["arms"]
        cells = {arm: {str(planned.seed): planned.cell.id for planned in of_arm} for arm, of_arm in self.by_arm.items()}
        return all(arm in arms and arms[arm].get("cells") == of_arm for arm, of_arm in cells.items())

    def missing(self, store: Store) -> list[Planned]:
        """Return the cells still to be trained, each once."""
        return [planned for planned in self.distinct if not store.finished(planned.cell.id)]


def idle_arms(plan: Plan) -> dict[str, str]:
    """Return a line for each arm whose cells are those of the baseline, so that no result can differ."""
    experiment, lines = plan.experiment, {}
    base = plan.first(experiment.baseline)
    for arm, changes in experiment.arms.items():
        if arm == experiment.baseline or plan.first(arm).id != base.id:
            continue
        if differing := list(plan.changes[arm]):
            why = f"what it changes, {', '.join(differing)}, is no part of what is computed"
        else:
            why = f"it sets {', '.join(changes)} to what is there already" if changes else "it changes nothing"
        lines[arm] = f"arm {arm} trains the same cells as the baseline {experiment.baseline}: {why}"
    return lines


def with_autotuned_settings(experiment: Experiment, out: Path, workers: int | None) -> Experiment:
    """Replace each `auto` of an experiment's base by the fastest setting of its baseline, stored under `out`.

    Raises InputError where an arm has an `auto` of its own, which could give arms different implementations.
    """
    for arm, changes in experiment.arms.items():
        for path, value in changes.items():
            section, _, name = path.partition(".")
            if value == "auto" and section == "trainer" and auto_settings_requested({section: {name: value}}):
                hint = "give it in the base or under common, or name one way here"
                raise InputError(f"arm {arm}: {path}: auto would have its arms computed in different ways; {hint}")
    if not (settings := auto_settings_requested(experiment.tree)):
        return experiment
    from lm.inference.autotune import replace_auto_settings

    baseline = override(experiment.tree, {**experiment.arms[experiment.baseline], "seed": experiment.seeds[0]})
    arms, cells = len(experiment.arms), len(experiment.arms) * len(experiment.seeds)
    workers = workers or default_workers(cells)
    steps = baseline.get("trainer", {}).get("max_steps")
    steps_in_turn = math.ceil(cells / workers) * steps if isinstance(steps, int) else None
    _, decision = replace_auto_settings(baseline, out, threads_each(workers), steps_in_turn, arms)
    if decision is None:  # the baseline sets its own
        listed = ", ".join(settings)
        raise InputError(f"{listed}: auto is decided on the baseline, and {experiment.baseline} names its own")
    chosen = {f"trainer.{name}": value for name, value in decision.chosen.items()}
    return replace(experiment, tree=override(experiment.tree, chosen), autotuned=asdict(decision))


def make_plan(experiment: Experiment, seconds: Callable[[Cell], float] | None = None) -> Plan:
    """Check every cell before any is trained, with `seconds` of a step of a cell. Raises InputError naming the arm."""
    from lm.training.cell import with_seed  # takes seconds, and finished cells may be planned without

    arms = {name: _check_arm(experiment, name, changes) for name, changes in experiment.arms.items()}
    steps = equal_steps(arms, experiment.baseline, experiment.inference.equal, seconds)
    for name, cell in arms.items():
        if steps[name] != cell.config["trainer"]["max_steps"]:
            arms[name] = _check_arm(experiment, name, {**experiment.arms[name], "trainer.max_steps": steps[name]})
    cells = [
        Planned(name, seed, with_seed(cell, seed), f"{experiment.name}/{name}/{seed}")
        for seed in experiment.seeds
        for name, cell in arms.items()
    ]
    return Plan(experiment, cells)


def _check_arm(experiment: Experiment, name: str, changes: dict[str, Any]) -> Cell:
    """Return the arm's cell of the first seed. Raises InputError naming the arm."""
    from lm.training.cell import check
    from lm.training.strategies import check_strategy

    with prefix_errors(f"arm {name}"):
        cell = check(override(experiment.tree, {**changes, "seed": experiment.seeds[0]}))
        check_strategy(cell.config["trainer"])
        for metric in (experiment.inference.metric, *experiment.inference.secondary):
            if reason := _unmeasured(cell, metric):
                raise InputError(f"metric: {metric}: {reason}")
        for claim in experiment.claims:
            parts = claim.quantities if name in claim.arms and claim.at(experiment.tier or "C") else []
            if reason := next(filter(None, (_unmeasured(cell, part) for part in parts)), ""):
                raise InputError(f"claims: {claim.claim!r}: {claim.metric}: {reason}")
        return cell


ON_TEST = ("test_", "scaled_")  # beginnings of quantities that are measured on the test split


def _unmeasured(cell: Cell, metric: str) -> str:
    """Return why runs of a cell do not measure a quantity; empty where they do, or where only a run can tell."""
    trainer, evaluated = cell.config["trainer"], cell.config.get("evaluate") or {}
    mean, (base, at, length) = parse_average(metric), metric.partition("@")
    quantity = mean[0] if mean else base
    if is_of_task(metric):
        of_tasks = [measured for task in evaluated.get("tasks") or () for measured in task["quantities"]]
        if f"{base.partition('.')[0]}@{length}" not in of_tasks:
            return f"evaluate.tasks measures {', '.join(of_tasks) or 'none'}.{nearest(metric, of_tasks)}"
    elif at and int(length) not in (lengths := evaluated.get("lengths", [])):
        return f"evaluate.lengths does not hold {length}, it has {lengths or 'none'}"
    if quantity.startswith(ON_TEST) and not cell.facts.tokens.get("test"):
        return "takes a test split, and the data have none (see data.split)"
    if quantity == "clipped_share" and not trainer["gradient_clip_val"]:
        return "takes gradients that are clipped, trainer.gradient_clip_val"
    if quantity == "nll_ema" and not trainer.get("ema"):
        return "takes averaged weights, trainer.ema"
    if quantity == "excess_nll" and cell.open().data.entropy_per_token() is None:
        return "takes a text of known entropy, read by characters or bytes (see lm list Corpus)"
    if quantity.startswith(ON_CORPUS):
        corpora = cell.config["data"]["init_args"].get("corpus", {}).get("init_args", {}).get("corpora", {})
        if (corpus := quantity.removeprefix(ON_CORPUS)) not in corpora:
            listed = f"mixes {', '.join(corpora)}" if corpora else "is no mixture"
            return f"data.corpus {listed}.{nearest(corpus, [*corpora])}"
    if mean is not None:
        batches = trainer["max_steps"] * trainer["accumulate_grad_batches"]
        every = trainer["val_check_interval"]
        count = batches // (every or batches) if trainer["limit_val_batches"] else 0
        if mean[1] > count:
            return f"training has {count} validations; see trainer.val_check_interval"
    return ""


def equal_steps(
    cells: Mapping[str, Cell], baseline: str, kind: str, seconds: Callable[[Cell], float] | None
) -> dict[str, int]:
    """Return the steps with which each arm costs as much as the baseline. Raises InputError if one sets its own."""
    steps = {arm: cell.config["trainer"]["max_steps"] for arm, cell in cells.items()}
    if kind == "steps":
        return steps
    own = next((arm for arm in cells if steps[arm] != steps[baseline]), None)
    if own is not None:
        raise InputError(f"arm {own}: trainer.max_steps is set by the arm, and by equal: {kind}; leave one of them out")

    if kind == "seconds":
        if seconds is None:
            raise InputError("equal: seconds: needs steps to be timed, which only `lm ablate` does")
        for arm, cell in cells.items():
            if getattr(cell.open().data, "plan", None) is not None:
                raise InputError(f"arm {arm}: equal: seconds: its batches grow, and a few are timed; hold flops equal")
        budget = steps[baseline] * seconds(cells[baseline])
        return {arm: steps[arm] if arm == baseline else max(1, round(budget / seconds(cells[arm]))) for arm in cells}
    from lm.training.cell import sizes, steps_for

    def cost(cell: Cell) -> float:
        """Return the cost of a token."""
        flops = sizes(cell).flops_per_token if kind == "flops" else 1.0
        if flops is None:
            raise InputError("equal: flops: this model has parts without a count of FLOPs; hold tokens equal")
        return flops

    budget = steps[baseline] * sizes(cells[baseline]).tokens_per_step * cost(cells[baseline])
    return {arm: steps[arm] if arm == baseline else steps_for(cells[arm], budget / cost(cells[arm])) for arm in cells}


def axes(plan: Plan) -> dict[str, str]:
    """Return the kind of axis of each path on which arms differ, scientific unless the experiment says otherwise."""
    declared = plan.experiment.inference.axes

    def kind(path: str) -> str:
        """Return the kind declared for a resolved path or one above it, where `init_args` may be left out."""
        spellings = (path.replace(".init_args", "").replace(".class_path", "") + ".", path + ".")
        above = (name for name in declared if any(spelling.startswith(name + ".") for spelling in spellings))
        return next((declared[name] for name in above), "scientific")

    kinds = {path: kind(path) for arm in plan.experiment.arms for path in plan.changes[arm]}
    return {**kinds, **{path: kind for path, kind in declared.items() if kind == "fixed"}}


def design_of(plan: Plan) -> dict[str, Any]:
    """Return what a registration freezes: arms with the ids of their runs, seeds, rules, claims and tuning."""
    experiment = plan.experiment
    tuning = experiment.tuning or experiment.grid or experiment.bracket
    arms = {
        arm: {
            "changes": {path: after for path, (_, after) in plan.changes[arm].items()},
            "cells": {str(planned.seed): planned.cell.id for planned in plan.by_arm[arm]},
        }
        for arm in experiment.arms
    }
    design = {
        "title": experiment.title,
        "baseline": experiment.baseline,
        "seeds": experiment.seeds,
        "rules": asdict(experiment.inference),
        "claims": {claim.claim: finite_claim(claim) for claim in experiment.claims},
        "tuning": None if tuning is None else asdict(tuning),
        "arms": arms,
        **({"budgets": experiment.budgets} if experiment.budgets else {}),
        **({"texts": experiment.texts} if experiment.texts else {}),
        "orders": {"data": experiment.data_seeds, "of_every_arm": experiment.crossed},
    }
    plain: dict[str, Any] = json.loads(json.dumps(design, default=asdict))
    return plain


def stored_command(command: Sequence[str]) -> list[str] | None:
    """Return the arguments of `lm` as a manifest has them; None where UTF-8 cannot hold them.

    They have no secrets, and paths below the working folder are relative to it, as they are of use to others.
    """
    here = f"{os.getcwd()}{os.sep}"
    return [redacted(text.removeprefix(here)) for text in command] if command and all(map(is_text, command)) else None


def write_manifest(plan: Plan, store: Store, command: Sequence[str] = ()) -> Path:
    """Write `experiment.json` for the report, with the arguments of `lm`; return the report's folder."""
    experiment, inference, path = plan.experiment, plan.experiment.inference, plan.manifest(store)
    looks, declared = inference.looks, experiment.declared_seeds
    registration = registration_of(design_of(plan.registered or plan), path.with_name(REGISTRATION))
    previous, elsewhere = _previous_manifest(path), dict[str, Registration]()
    claims = (plan.registered or plan).experiment.claims
    if plan.registered is not None and (shared := _previous_manifest(_shared_path(path))) is not None:
        elsewhere.update(shared.get("registered", {}))
    if registration is not None and not registration["finished"] and not registration["changes"]:
        written: Registration = {"written": registration["registered"], "seen": []}
        elsewhere.update({fingerprint(claim): written for claim in claims})

    def trained_seeds(claim: Claim) -> list[int]:
        """Return the seeds on which all arms of a claim have a finished cell."""
        by_arm = [{p.seed for p in plan.by_arm[arm] if store.finished(p.cell.id)} for arm in claim.arms]
        return sorted(set.intersection(*by_arm))

    manifest = {
        "name": experiment.name,
        "title": experiment.title,
        "tier": experiment.tier or "C",
        "origin": experiment.origin,
        "command": stored_command(command),
        "notes": experiment.notes,
        "baseline": experiment.baseline,
        **{name: getattr(inference, name) for name in ("metric", "secondary", "margin", "confirmatory", "declared")},
        "axes": axes(plan),
        "equal": inference.equal,
        "adaptive": {"looks": list(looks), "maximum": looks[-1]} if looks else None,
        "design": {"kind": experiment.design.kind, "aliases": experiment.design.aliases},
        "claims": [finite_claim(claim) for claim in experiment.claims],
        "registered": register(claims, previous, trained_seeds, elsewhere),
        "seeds": experiment.seeds,
        **({"declared_seeds": list(declared)} if {*experiment.seeds} < {*declared} else {}),
        **({"earlier_looks": looks_before} if (looks_before := _earlier_looks(plan, previous, store)) else {}),
        "generalise": inference.generalise,
        **({} if registration is None else {"registration": registration}),
        **({"rates": experiment.rates} if experiment.rates else {}),
        **({"budgets": experiment.budgets} if experiment.budgets else {}),
        **({} if experiment.autotuned is None else {"ways": experiment.autotuned}),
        "arms": {
            arm: {
                "changes": {path: list(values) for path, values in plan.changes[arm].items()},
                "levels": experiment.design.levels.get(arm, {}),
                **asdict(plan.sizes(arm)),
                "cells": {str(p.seed): p.cell.id for p in plan.by_arm[arm]},
            }
            for arm in experiment.arms
        },
    }
    write_atomic(path, to_json(MANIFEST.stamped(manifest)))
    return path.parent


def _previous_manifest(path: Path) -> Manifest | None:
    with contextlib.suppress(InputError):  # there is none, or it is damaged and will be replaced
        content = MANIFEST.read(read_json(path), path)
        check_shape(content, Manifest, path, "")
        return cast(Manifest, content)
    return None


def _shared_path(path: Path) -> Path:
    """Return the manifest of the arms at one shared rate, which are trained before those at rates of their own."""
    return path.parent.with_name(f"{path.parent.name}{SHARED}") / path.name


def _earlier_looks(plan: Plan, previous: Manifest | None, store: Store) -> list[EarlierLook]:
    """Return the sets of seeds whose results could be known before others were asked for, in the order of time.

    A run that is taken up again with the same seeds has not looked. Nor has one that goes on from so few that none of
    their tests finds anything to those that the file declared by then, or to a stage that was planned. Looks are
    forgotten where the baseline computes something else.
    """
    if previous is None or previous["baseline"] not in previous["arms"]:
        return []
    seeds, before = plan.experiment.seeds, previous["arms"][previous["baseline"]]["cells"]
    now = {(str(planned.seed), planned.cell.id) for planned in plan.cells}
    if any((seed, cell) not in now for seed, cell in before.items() if int(seed) in seeds):
        return []
    looks = list(previous.get("earlier_looks", ()))
    look = sorted(int(seed) for seed, cell in before.items() if store.finished(cell))
    stages = plan.experiment.inference.looks
    is_stage = stages and previous["adaptive"] == {"looks": list(stages), "maximum": stages[-1]}
    is_declared = len(look) < values_needed() and {*previous.get("declared_seeds", ())} == {*seeds}
    is_known = look in [entry["seeds"] for entry in looks] or {*previous["seeds"]} == {*seeds}
    if not look or is_stage or is_declared or is_known:
        return looks
    comparisons = len(previous["confirmatory"]) * len({previous["metric"], *previous["secondary"]})
    return [*looks, {"seeds": look, "comparisons": max(1, comparisons)}]


MAX_VERSIONS_NAMED = 3  # versions of the code that a line names


@dataclass(frozen=True)
class RemainingWork:
    """Cells of a plan to train, statuses of finished ones, and the version of other code that trained some; by id."""

    plan: Plan
    missing: list[Planned]
    statuses: dict[str, str]
    other_code: dict[str, str]

    @property
    def counts(self) -> str:
        """Numbers of cells, in words."""
        total, missing = len(self.plan.distinct), len(self.missing)
        return f"{total} cells: {total - missing} done, {missing} to train"

    def reused(self) -> list[str]:
        """Return a line on the cells that other code trained, if any are used without training them again."""
        missing = {planned.cell.id for planned in self.missing}
        versions = [version for cell, version in self.other_code.items() if cell not in missing]
        if not versions:
            return []
        names, count = list(dict.fromkeys(versions)), len(versions)
        more = f" and {len(names) - MAX_VERSIONS_NAMED} more" if len(names) > MAX_VERSIONS_NAMED else ""
        cells, are = ("finished cell was", "it is") if count == 1 else ("finished cells were", "they are")
        return [
            f"{count} {cells} trained by other code: {', '.join(names[:MAX_VERSIONS_NAMED])}{more}; {are} used without "
            "training again. To train all cells by this code, give another --out"
        ]


def remaining_work(plan: Plan, store: Store, retry_failed: bool = False) -> RemainingWork:
    """Read the record of each finished cell of a plan once. Raises InputError for a damaged or newer record."""
    statuses, other_code = dict[str, str](), dict[str, str]()
    for planned in plan.distinct:
        cell = planned.cell.id
        store.recover(cell)
        if store.finished(cell):
            record = store.record(cell)
            statuses[cell] = str(record["status"])
            if version := _other_version(record):
                other_code[cell] = version
    untrained = (None, "failed") if retry_failed else (None,)
    missing = [planned for planned in plan.distinct if statuses.get(planned.cell.id) in untrained]
    return RemainingWork(plan, missing, statuses, other_code)


def _other_version(record: Record) -> str:
    """Return the version of other code that trained a cell, by commit; empty if this code did."""
    origin: Mapping[str, Any] = record.get("provenance") or {}
    source, git = origin.get("source"), origin.get("git") or {}
    if source is not None and canonical(source) == canonical(source_hash()):
        return ""
    if git.get("commit") is None:
        return f"lm {origin.get('lm', 'of an unknown version')}"
    return f"commit {commit_of({'commit': git['commit'], 'dirty': git.get('dirty')}, ABBREVIATED)}"
