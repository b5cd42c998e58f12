"""`lm reproduce`: every experiment with claims and a table of the answers, or every ladder and a table over them."""

import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from lm.ablation.ablate import RunOptions, find_rates, train_with_rivals, warn
from lm.ablation.before_training import check_before_training
from lm.ablation.derived import expand_corpora, expand_rates, rates_around
from lm.ablation.experiment import Experiment, load_experiment, too_few
from lm.ablation.ladder.plan import merge_plans, plan_ladder
from lm.ablation.ladder.run_ladder import idle_everywhere, run_ladder
from lm.ablation.plan import Plan, idle_arms, make_plan, with_autotuned_settings
from lm.ablation.plan_tables import print_line
from lm.analysis.answers import Answer, adjust_p
from lm.analysis.claims import KINDS
from lm.analysis.ladder import load_ladder
from lm.analysis.results import is_on_a_text, load, read_manifest
from lm.config.reading import files_by_name
from lm.config.tree import InputError, load_yaml, nearest, path_name, prefix_errors
from lm.execution.estimate import advice, reduced_in, seconds_per_cell, wall_seconds
from lm.execution.machine import default_workers, threads_each
from lm.report.claims import ClaimOverTexts, claims_over_texts, claims_section, over_texts_section, show_claims
from lm.report.ladder import csv_worth, overview_section
from lm.report.pack import open_results
from lm.report.render import markdown_section, print_section
from lm.report.status import duration
from lm.report.tables import as_csv
from lm.report.tuning import claims_of, rates_of
from lm.report.write import write_report
from lm.store.files import write_atomic
from lm.store.store import Store


@dataclass(frozen=True)
class ReproductionScope:
    """The part of each experiment that is run. Raises InputError for fewer seeds than one.

    Tier C is the size for a CPU, which files have without naming it. `settings` are dotted changes to every base,
    applied before those of the arms, and `max_seeds` the first seeds to use; None for all.
    """

    tier: str
    settings: Mapping[str, Any]
    max_seeds: int | None

    def __post_init__(self) -> None:
        if self.max_seeds is not None and self.max_seeds < 1:
            raise InputError(f"--first-seeds: expected 1 or more, found {self.max_seeds}")

    def read(self, path: Path) -> Experiment:
        """Read an experiment. Raises InputError."""
        experiment = load_experiment(path, self.settings, tier="" if self.tier == "C" else self.tier)
        return replace(experiment, seeds=experiment.seeds[: self.max_seeds])


def find_experiments(folder: Path, names: Sequence[str], key: str = "claims") -> list[Path]:
    """Return the experiment files under `folder` that have the key, or those named. Raises InputError without any."""
    if not os.path.isdir(folder):
        raise InputError(f"--experiments {folder}: no such folder; expected one with experiment files")
    files = {name: path for name, path in files_by_name(folder).items() if load_yaml(path).get(key)}
    label = "a ladder" if key == "ladder" else key
    for name in names:
        if path_name(name, "NAME") not in files:
            near, listed = nearest(name, list(files)), ", ".join(files)
            raise InputError(f"{name}: no experiment with {label} in {folder}.{near} Choose from {listed}")
    if not files:
        raise InputError(f"--experiments {folder}: no experiment there has {label}")
    return [files[name] for name in names] if names else list(files.values())


def reproduce(
    files: Sequence[Path], scope: ReproductionScope, options: RunOptions, plan_only: bool, named: bool = False
) -> int:
    """Train what is missing of each experiment and answer its claims; return 0, or 1 if something was left undone.

    An experiment that cannot be planned, perhaps for want of a file, is reported and left out. Raises InputError for
    one of those that are `named`, or where none is left.
    """
    tier, start, store = scope.tier, time.monotonic(), Store(options.out)
    plans, left_out = list[tuple[str, Plan]](), list[str]()
    for number, path in enumerate(files, 1):
        if len(files) > 1 and not named:  # takes minutes, the first time
            print(f"planning {path.stem} ({number}/{len(files)})", file=sys.stderr)
        try:
            experiment = scope.read(path)
            parts = [with_autotuned_settings(p, options.out, options.workers) for p in expand_corpora(experiment)]
            of_parts = list(map(make_plan, parts))
            for plan in of_parts:
                check_before_training(plan, store)
            plans += [(path.stem + plan.experiment.name.removeprefix(experiment.name), plan) for plan in of_parts]
        except InputError as error:
            left_out.append(f"{path.stem}: cannot be run at tier {tier}: {error}")
    if left_out and (named or not plans):
        raise InputError("; ".join(left_out))
    if plan_only:
        _show(plans, left_out, tier, store, options)
        return 0
    answered, on_a_text = list[tuple[str, Answer]](), set[str]()
    interrupted, missing = 0, {planned.cell.id for _, plan in plans for planned in plan.missing(store)}
    for index, (name, plan) in enumerate(plans, 1):
        print(f"({index}/{len(plans)}) {plan.experiment.name}", file=sys.stderr)
        warn(idle_arms(plan).values())
        if plan.experiment.bracket is not None:
            at_own_rates = find_rates(plan, store, options)
            if isinstance(at_own_rates, int):
                interrupted += 1
                continue
            plan = at_own_rates
        folder, count = train_with_rivals(plan, store, options)
        interrupted += count
        write_report(folder, Console(quiet=True))
        answered += _answers(name, folder, tier, on_a_text)
    trained = sum(map(store.finished, missing))
    clock = duration(time.monotonic() - start)
    _show_answers(answered, on_a_text, left_out, tier, options.command, options.out / f"reproduce.{tier}")
    print(f"{trained} cell{'s' * (trained != 1)} trained, {clock} by the clock", file=sys.stderr)
    return 1 if interrupted or not answered else 0


def answer_trained(folders: Sequence[Path], tier: str, options: RunOptions) -> int:
    """Answer the claims of finished experiments, folders or packs, in OUT/claims.TIER and train nothing; return 0.

    Those without claims and those of another tier are left out. Raises InputError where that leaves none, and for what
    is no experiment.
    """
    answered, without, elsewhere = list[tuple[str, Answer]](), list[str](), list[str]()
    on_a_text = set[str]()
    for source in folders:
        with open_results(source) as opened:
            manifest = read_manifest(opened.folder) if (opened.folder / "experiment.json").is_file() else None
            if manifest is None or not manifest.get("claims"):
                without.append(opened.folder.name)
            elif (manifest.get("tier") or "C") != tier:
                elsewhere.append(opened.folder.name)
            else:
                answered += _answers(opened.folder.name, opened.folder, tier, on_a_text)
    left_out = [f"without claims: {', '.join(without)}"] * bool(without)
    left_out += [f"of another tier than {tier}: {', '.join(elsewhere)}"] * bool(elsewhere)
    if not answered:
        raise InputError(f"nothing to answer: {'; '.join(left_out)}")
    _show_answers(answered, on_a_text, left_out, tier, options.command, options.out / f"claims.{tier}")
    return 0


def _answers(name: str, folder: Path, tier: str, on_a_text: set[str]) -> list[tuple[str, Answer]]:
    """Return the answers of an experiment, whose name is added where it is on one of several texts."""
    results = load(folder)
    if is_on_a_text(results.manifest):
        on_a_text.add(name)
    return [(name, answer) for answer in claims_of(results, rates_of(results, folder), tier)]


def _show_answers(
    answered: Sequence[tuple[str, Answer]],
    on_a_text: Collection[str],
    left_out: Sequence[str],
    tier: str,
    command: Sequence[str],
    folder: Path,
) -> None:
    """Write the answers of all experiments into a folder and print them, with p corrected over all."""
    names, judged = [name for name, _ in answered], adjust_p([answer for _, answer in answered])
    named_answers = list(zip(names, judged, strict=True))
    over_texts = claims_over_texts(named_answers, on_a_text)
    _write(folder, tier, command, named_answers, over_texts, left_out)
    if named_answers:
        show_claims(named_answers, Console(), f"Claims, tier {tier}")
    if over_texts:
        console = Console()
        print_section(over_texts_section(over_texts, console.width), console)
    for line in left_out:
        print_line(line)
    print(f"table: {folder / 'table.md'}", file=sys.stderr)


def _show(plans: list[tuple[str, Plan]], left_out: list[str], tier: str, store: Store, options: RunOptions) -> None:
    total, kinds, counted = 0.0, Counter[str](), set[str]()
    for name, plan in plans:
        cells, wall = _describe_missing(plan, store, options.workers, counted)
        if plan.experiment.bracket is not None:
            of_rates = make_plan(expand_rates(plan.experiment, rates_around(plan, -1, 1)))
            for_rates, more = _describe_missing(of_rates, store, options.workers, counted)
            cells, wall = f"{cells}, before them {for_rates} at three rates", wall + more
        total += wall
        claims = [claim.kind for claim in plan.experiment.claims if claim.at(tier)]
        kinds.update(claims)
        print(f"{name}: {len(claims)} claim{'s' * (len(claims) != 1)}, {cells}, {duration(wall)}")
        tested = any(not claim.exact for claim in plan.experiment.claims if claim.at(tier))
        for line in filter(None, (*idle_arms(plan).values(), too_few(len(plan.experiment.seeds), int(tested)))):
            print(f"! {line}")
    if searched := sum(plan.experiment.bracket is not None for _, plan in plans):
        of = f"{searched} experiments search" if searched > 1 else "1 experiment searches"
        print(f"{of} learning rates: further ones, arms at their own and at those that may be as good come on top")
    for line in left_out:
        print(line)
    counts = ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS)
    experiments = f"{len(plans)} experiment{'s' * (len(plans) != 1)}"
    print(f"claims at tier {tier}: {counts}; {kinds.total()} in {experiments}")
    _show_total([plan for _, plan in plans], total, store, options)


def _show_total(plans: Iterable[Plan], seconds: float, store: Store, options: RunOptions) -> None:
    """Print the time of all plans, and if the precision of the first with one reduced precision does not pay."""
    of_plans = ([planned.cell for planned in plan.missing(store)] for plan in plans)
    cells = next(filter(reduced_in, of_plans), [])
    if cells and (remark := advice(cells, threads_each(options.workers or default_workers(len(cells))))):
        print(remark)
    print(f"about {duration(seconds)} in all, estimated from finished cells or a few steps")


def _describe_missing(plan: Plan, store: Store, workers: int | None, counted: set[str]) -> tuple[str, float]:
    """Return in words how many cells, not yet `counted`, are to train, and their seconds; add them there."""
    undone = plan.missing(store)
    missing = [planned for planned in undone if planned.cell.id not in counted]
    counted.update(planned.cell.id for planned in missing)
    workers = workers or default_workers(len(missing))
    seconds = seconds_per_cell(plan.by_arm, missing, store, threads_each(workers))
    wall = wall_seconds([seconds[planned.arm] for planned in missing], workers) if missing else 0.0
    shared = len(undone) - len(missing)
    more = f" and {shared} listed above" if shared else ""
    return f"{len(missing)} of {len(plan.distinct)} cells to train{more}", wall


def _write(
    folder: Path,
    tier: str,
    command: Sequence[str],
    answered: Sequence[tuple[str, Answer]],
    over_texts: Sequence[ClaimOverTexts],
    left_out: Sequence[str],
) -> None:
    lines = [f"# Claims, tier {tier}", "", f"Made by `lm {shlex.join(command)}`.", ""]
    lines += [*markdown_section(claims_section(answered, title="", several=True)), *(f"- {line}" for line in left_out)]
    write_atomic(folder / "table.md", "\n".join(lines).rstrip() + "\n")
    measured = ("estimate", "low", "high", "seeds", "p", "q", "p_holm", "post_hoc")
    of_answer = (*measured, "generalises_over", "verdict", "note")
    rows = []
    for name, answer in answered:
        of_claim = {column: getattr(answer.claim, column) for column in ("kind", "claim", "source", "metric")}
        row = {"experiment": name, **of_claim, "expected": answer.claim.expected()}
        beside = answer.at_one_rate
        at_one_rate = {"verdict_at_one_rate": beside.verdict, "estimate_at_one_rate": beside.estimate} if beside else {}
        rows.append({**row, **{column: getattr(answer, column) for column in of_answer}, **at_one_rate})
    write_atomic(folder / "table.csv", as_csv(pd.DataFrame(rows).rename(columns={"generalises_over": "over"})))
    if not over_texts:
        return
    lines = ["# Claims on several texts", "", f"Made by `lm {shlex.join(command)}`.", ""]
    section = replace(over_texts_section(over_texts), title="")
    write_atomic(folder / "over_texts.md", "\n".join([*lines, *markdown_section(section)]).rstrip() + "\n")
    rows = []
    for claim_over in over_texts:
        claim = next(iter(claim_over.by_text.values())).claim
        first = {"one_text_one_rate": claim_over.first_at_one_rate, "one_text_own_rates": claim_over.first}
        before = {column: answer.verdict if answer else "" for column, answer in first.items()}
        on_texts = {text: answer.verdict for text, answer in claim_over.by_text.items()}
        over = (
            {"over_texts": claim_over.over.verdict, **asdict(claim_over.over.summary)}
            if claim_over.over
            else {"over_texts": "no verdict"}
        )
        row = {"experiment": claim_over.experiment, "kind": claim.kind, "claim": claim.claim, **before, **on_texts}
        rows.append({**row, "on_each_text": claim_over.on_each(), **over})
    write_atomic(folder / "over_texts.csv", as_csv(pd.DataFrame(rows)))


TITLE = "What the arms of the ladders are worth"


def reproduce_ladders(
    files: Sequence[Path], settings: Mapping[str, Any], options: RunOptions, plan_only: bool = False
) -> int:
    """Run each ladder and write one table over all; return 0, or 1 if interrupted. Raises InputError before."""
    experiments, plans, store = [], list[Plan](), Store(options.out)
    idle = dict[str, list[str]]()
    for path in files:
        with prefix_errors(f"{path.stem}: cannot be run"):
            experiments.append(load_experiment(path, settings))
    for experiment in experiments:
        with prefix_errors(f"{experiment.name}: cannot be run"):
            of_rungs = plan_ladder(experiment, options.out, options.workers)
            for plan in of_rungs:
                check_before_training(plan, store)
            plans.append(merge_plans(experiment, of_rungs))
            idle[experiment.name] = idle_everywhere(of_rungs)
    if plan_only:
        counted, total = set[str](), 0.0
        for plan in plans:
            cells, wall = _describe_missing(plan, store, options.workers, counted)
            total += wall
            assert plan.experiment.ladder is not None
            print(f"{plan.experiment.name}: {len(plan.experiment.ladder.rungs)} rungs, {cells}, {duration(wall)}")
            for line in idle[plan.experiment.name]:
                print(f"! {line}")
        _show_total(plans, total, store, options)
        return 0
    exit_code, folders = 0, list[Path]()
    for index, plan in enumerate(plans, 1):
        print(f"({index}/{len(plans)}) {plan.experiment.name}", file=sys.stderr)
        exit_code |= run_ladder(plan.experiment, options, console=Console(quiet=True))
        folders.append(options.out / plan.experiment.name)
    ladders, console = [load_ladder(folder) for folder in folders], Console()
    folder = options.out / "reproduce.L"
    lines = [f"# {TITLE}", "", "Made by `lm reproduce --tier L`.", "", *markdown_section(overview_section(ladders))]
    write_atomic(folder / "table.md", "\n".join(lines).rstrip() + "\n")
    write_atomic(folder / "table.csv", csv_worth(ladders))
    console.print()
    print_section(overview_section(ladders, TITLE), console)
    print(f"table: {folder / 'table.md'}", file=sys.stderr)
    return exit_code
