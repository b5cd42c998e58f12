"""`lm reproduce`: every experiment that carries claims, and one table of the answers."""

import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from lm.ablation.ablate import Manner, carry_out, warn
from lm.ablation.auto import with_ways
from lm.ablation.experiment import Experiment, load_experiment
from lm.ablation.plan import Plan, idle_arms, make_plan
from lm.analysis.answers import Answer, adjust_p
from lm.analysis.claims import KINDS
from lm.analysis.results import load
from lm.config.reading import report_name
from lm.config.tree import InputError, load_yaml, nearest, path_name
from lm.execution.estimate import advice, duration, reduced_in, seconds_per_cell, wall_seconds
from lm.execution.machine import default_workers, threads_each
from lm.report.claims import answers, claims_section, show_claims
from lm.report.render import markdown_section
from lm.report.tables import as_csv
from lm.report.write import write_report
from lm.store.files import write_atomic
from lm.store.store import Store


@dataclass(frozen=True)
class Portion:
    """What is run of each experiment.

    Args:
        tier: its size; C is that of a CPU, which files have without naming it.
        settings: dotted changes to every base, applied before those of the arms.
        first: so many of its seeds at most, the first ones; None for all.

    Raises:
        InputError: for fewer seeds than one.
    """

    tier: str
    settings: Mapping[str, Any]
    first: int | None

    def __post_init__(self) -> None:
        if self.first is not None and self.first < 1:
            raise InputError(f"--first-seeds: expected 1 or more, found {self.first}")

    @property
    def size(self) -> str:
        """The tier as experiment files know it."""
        return "" if self.tier == "C" else self.tier

    def of(self, path: Path) -> Experiment:
        """Reads an experiment. Raises InputError."""
        experiment = load_experiment(path, self.settings, tier=self.size)
        return replace(experiment, seeds=experiment.seeds[: self.first])


def find_experiments(folder: Path, names: Sequence[str], key: str = "claims") -> list[Path]:
    """The experiment files under `folder` that have claims, or another key, or those named.

    Raises:
        InputError: where there are none, and for a name without.
    """
    if not os.path.isdir(folder):
        raise InputError(f"--experiments {folder}: no such folder; expected one with experiment files")
    found = {path.stem: path for path in sorted(folder.glob("*.yaml")) if load_yaml(path).get(key)}
    for name in names:
        if path_name(name, "NAME") not in found:
            raise InputError(
                f"{name}: no experiment with {_named(key)} in {folder}.{nearest(name, list(found))} "
                f"Choose from {', '.join(found)}"
            )
    if not found:
        raise InputError(f"--experiments {folder}: no experiment there has {_named(key)}")
    return [found[name] for name in names] if names else list(found.values())


def _named(key: str) -> str:
    return "a ladder" if key == "ladder" else key


def reproduce(files: Sequence[Path], portion: Portion, manner: Manner, plan_only: bool, named: bool = False) -> int:
    """Trains what is missing of each experiment and answers its claims. Returns 1 where something was left undone.

    An experiment that cannot be planned, for want of a file perhaps, is told and left out, unless it was carried out
    at the same tier under the same folder before.

    Raises:
        InputError: at the end, where that left out one of those that are `named`, or left none.
    """
    tier, began = portion.tier, time.monotonic()
    plans, reasons = _plans(files, portion, manner)
    store = Store(manner.out)
    if plan_only:
        _show(plans, {} if named or not plans else reasons, tier, store, manner)
        _refuse(reasons, named or not plans, "cannot be run")
        return 0
    given: list[tuple[str, Answer]] = []
    interrupted, undone_before = 0, _undone(plans, store)
    for index, path in enumerate(files, 1):
        folder = manner.out / report_name(path, portion.size)
        if path in plans:
            print(f"({index}/{len(files)}) {plans[path].experiment.name}", file=sys.stderr)
            warn(idle_arms(plans[path]).values())
            folder, lost = carry_out(plans[path], store, manner)
            interrupted += lost
        elif not _was_run(folder, tier):
            continue
        else:
            del reasons[path]
        write_report(folder, Console(quiet=True))
        given += [(path.stem, one) for one in answers(load(folder), tier)]
    _refuse(reasons, len(reasons) == len(files), f"was not run at tier {tier}")
    names, found = [name for name, _ in given], adjust_p([one for _, one in given])
    given = list(zip(names, found, strict=True))
    folder = manner.out / f"reproduce.{tier}"
    undone = [f"{path.stem} was not run at tier {tier}: {reason}" for path, reason in reasons.items()]
    _write(folder, tier, manner.command, given, undone)
    console = Console()
    if given:
        show_claims(given, console, f"Claims, tier {tier}")
    for line in undone:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    trained = len(undone_before - _undone(plans, store))
    cells = f"{trained} cell{'s' * (trained != 1)} trained"
    print(f"{cells}, {duration(time.monotonic() - began)} by the clock", file=sys.stderr)
    print(f"table: {folder / 'table.md'}", file=sys.stderr)
    if not interrupted:
        _refuse(reasons, named, f"was not run at tier {tier}")
    return 1 if interrupted or not given else 0


def _undone(plans: Mapping[Path, Plan], store: Store) -> set[str]:
    """The ids of the cells that are missing."""
    return {planned.cell.id for plan in plans.values() for planned in plan.missing(store)}


def _plans(files: Sequence[Path], portion: Portion, manner: Manner) -> tuple[dict[Path, Plan], dict[Path, str]]:
    """The plans, and why there is none for the others."""
    plans: dict[Path, Plan] = {}
    reasons: dict[Path, str] = {}
    for path in files:
        try:
            experiment = with_ways(portion.of(path), manner.out, manner.workers)
            plans[path] = make_plan(experiment)
        except InputError as error:
            reasons[path] = str(error)
    return plans, reasons


def _refuse(reasons: dict[Path, str], fault: bool, what: str) -> None:
    """Raises InputError with the reasons, if there are any, where it is a fault that there are."""
    if reasons and fault:
        raise InputError("; ".join(f"{path.stem}: {what}: {reason}" for path, reason in reasons.items()))


def _was_run(folder: Path, tier: str) -> bool:
    """Whether an experiment was carried out at this tier before, with its report in `folder`."""
    return (folder / "experiment.json").is_file() and load(folder).manifest.get("tier", "C") == tier


def _show(plans: dict[Path, Plan], reasons: dict[Path, str], tier: str, store: Store, manner: Manner) -> None:
    total, kinds, asked = 0.0, Counter[str](), set[str]()
    for path, plan in plans.items():
        train, wall = to_come(plan, store, manner.workers, asked)
        total += wall
        claims = [claim.kind for claim in plan.experiment.claims if claim.at(tier)]
        kinds.update(claims)
        print(f"{path.stem}: {len(claims)} claim{'s' * (len(claims) != 1)}, {train}, {duration(wall)}")
    for path, reason in reasons.items():
        print(f"{path.stem}: cannot be run: {reason}")
    if plans:
        counts = ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS)
        print(f"claims at tier {tier}: {counts}; {kinds.total()} over {len(plans)} experiments")
        if remark := precision_remark(list(plans.values()), store, manner.workers):
            print(remark)
        print(f"about {duration(total)} in all, judged by finished cells of each arm or by a few steps")


def precision_remark(plans: Sequence[Plan], store: Store, workers: int | None) -> str | None:
    """Return a line where the precision of what is to train does not pay on this machine; None otherwise.

    The first plan whose cells all ask for the same reduced precision stands for the others.
    """
    for plan in plans:
        cells = [planned.cell for planned in plan.missing(store)]
        if reduced_in(cells):
            return advice(cells, threads_each(workers or default_workers(len(cells))))
    return None


def to_come(plan: Plan, store: Store, workers: int | None, asked: set[str]) -> tuple[str, float]:
    """How many cells are to train that nothing before asked for, in words, and about the seconds that takes.

    Args:
        plan: of an experiment, or of all rungs of a ladder.
        store: where finished cells lie.
        workers: cells trained at a time; None for as many as there are by default.
        asked: ids of what was asked for before, to which those of this plan are added.
    """
    undone = plan.missing(store)
    missing = [planned for planned in undone if planned.cell.id not in asked]
    asked.update(planned.cell.id for planned in missing)
    workers = workers or default_workers(len(missing))
    seconds = seconds_per_cell(plan.by_arm, missing, store, threads_each(workers))
    wall = wall_seconds([seconds[planned.arm] for planned in missing], workers) if missing else 0.0
    shared = len(undone) - len(missing)
    more = f" and {shared} that stand above" if shared else ""
    return f"{len(missing)} of {len(plan.distinct)} cells to train{more}", wall


def _write(
    folder: Path, tier: str, command: Sequence[str], given: Sequence[tuple[str, Answer]], undone: Sequence[str]
) -> None:
    """The table as Markdown and as CSV."""
    lines = [f"# Claims, tier {tier}", "", f"Made by `lm {shlex.join(command)}`.", ""]
    lines += [*markdown_section(claims_section(given, title="", several=True)), *(f"- {line}" for line in undone)]
    write_atomic(folder / "table.md", "\n".join(lines).rstrip() + "\n")
    frame = pd.DataFrame(
        {
            "experiment": name,
            "kind": one.claim.kind,
            "claim": one.claim.claim,
            "source": one.claim.source,
            "metric": one.claim.metric,
            "expected": one.claim.expected(),
            "estimate": one.estimate,
            "low": one.low,
            "high": one.high,
            "seeds": one.seeds,
            "p": one.p,
            "q": one.q,
            "p_holm": one.p_holm,
            "post_hoc": one.post_hoc,
            "over": one.generalises_over,
            "verdict": one.verdict,
            "note": one.note,
        }
        for name, one in given
    )
    write_atomic(folder / "table.csv", as_csv(frame))
