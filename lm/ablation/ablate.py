"""`lm ablate`: plan, train what is missing, report."""

import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lm.ablation.auto import with_ways
from lm.ablation.experiment import Experiment, check_power
from lm.ablation.plan import Plan, make_plan, write_manifest
from lm.ablation.stages import settled
from lm.ablation.tune import FOLDER, check_tuning, tune, tuned
from lm.analysis.results import load
from lm.config.tree import InputError
from lm.execution.carry_out import train_cells
from lm.execution.engines import make
from lm.execution.estimate import Stopwatch, duration, seconds_per_cell, wall_seconds
from lm.execution.machine import threads_each
from lm.execution.progress import Display
from lm.execution.sharing import shared_out
from lm.execution.source import Planned
from lm.report.ways import described
from lm.report.write import write_report
from lm.runs.remeasure import measure_lengths
from lm.store.files import read_json
from lm.store.formats import TUNED
from lm.store.store import Store
from lm.training.cell import sizes
from lm.training.evaluate import missing as lacks_lengths
from lm.training.life import HANG_SECONDS
from lm.training.train import Execution

TOLERANCE = 0.01
"""Share of the baseline's cost by which an arm may differ without declaring it."""


@dataclass(frozen=True)
class Manner:
    """How experiments are carried out, whatever they are.

    Args:
        out: folder of cells and reports.
        workers: cells trained at a time; None for one a device, or as many as were measured to be best.
        retry_failed: whether to train failed cells again.
        checkpoint_seconds: between checkpoints.
        underpowered: whether to go on where the seeds cannot bear out what is to be confirmed.
        command: the arguments of `lm` that ask for it, which the manifests keep.
        hang_seconds: without a sign of life after which a cell's process is ended; 0 for never.
        loggers: that follow each run, by name.
    """

    out: Path
    workers: int | None = None
    retry_failed: bool = False
    checkpoint_seconds: float = 20.0
    underpowered: bool = False
    command: tuple[str, ...] = ()
    hang_seconds: float = HANG_SECONDS
    loggers: tuple[str, ...] = ()


def ablate(experiment: Experiment, manner: Manner, plan_only: bool = False) -> int:
    """Carries out an experiment and reports. Returns 0 if every cell has a record, 1 if some were interrupted."""
    if experiment.ladder is not None:
        raise InputError(f"{experiment.name}: is a ladder; carry it out with `lm ablate`, and lm.load each rung")
    store = Store(manner.out)
    if experiment.tuning is not None:
        check_tuning(experiment, manner.out)
    experiment = with_ways(experiment, manner.out, manner.workers)
    plan = make_plan(experiment, Stopwatch(store.out / experiment.name / "seconds.json"))
    if plan_only:
        statuses = statuses_of(plan, store)
        missing = to_train(plan, statuses, manner.retry_failed)
        show_plan(plan, store, statuses, missing, manner.workers or shared_out(missing, manner.out))
        return 0
    if experiment.tuning is not None:
        if not manner.underpowered:
            check_power(experiment)
        interrupted = tune(
            experiment, store, manner.workers, manner.checkpoint_seconds, manner.hang_seconds, manner.loggers
        )
        if interrupted:
            return 1
    folder, interrupted = carry_out(plan, store, manner)
    if experiment.tuning is not None and not interrupted:
        path = folder / FOLDER / "tuned.json"
        winners = TUNED.read(read_json(path), path)["arms"]
        twin = tuned(experiment, winners)
        watch = Stopwatch(store.out / twin.name / "seconds.json")
        print("the experiment over again, each arm with its winner", file=sys.stderr)
        other, interrupted = carry_out(make_plan(twin, watch), store, manner)
        write_report(other, Console())
    results = write_report(folder, Console())
    print(f"report: {folder / 'table.md'}", file=sys.stderr)
    return 1 if interrupted or results.damaged or results.broken else 0


def carry_out(plan: Plan, store: Store, manner: Manner) -> tuple[Path, int]:
    """Trains what is missing; returns the experiment's folder and how many cells were interrupted.

    Where seeds come in stages, each stage is trained whole, and the next only if a confirmatory difference is open.

    Raises:
        InputError: where its seeds cannot bear out what it is to confirm, unless `underpowered` says to go on.
    """
    if not manner.underpowered:
        check_power(plan.experiment)
    inference = plan.experiment.inference
    for seeds in inference.looks or (len(plan.experiment.seeds),):
        stage = plan.upto(seeds)
        folder = write_manifest(stage, store, manner.command)
        interrupted = train_missing(stage, store, manner)
        if interrupted or not inference.looks:
            break
        found = settled(load(folder), inference.looks, inference.confirmatory)
        open_still = [arm for arm, done in found.items() if not done]
        print(f"after {seeds} seeds: {_stage(found, open_still)}", file=sys.stderr)
        if not open_still:
            break
    return folder, interrupted


def _stage(found: dict[str, bool], open_still: list[str]) -> str:
    if not open_still:
        return "every confirmatory difference is found"
    return f"{len(found) - len(open_still)} of {len(found)} differences found, open: {', '.join(open_still)}"


def train_missing(plan: Plan, store: Store, manner: Manner) -> int:
    """Trains the cells of a plan that are missing; returns how many were interrupted."""
    statuses = statuses_of(plan, store)
    missing = to_train(plan, statuses, manner.retry_failed)
    workers = manner.workers or shared_out(missing, manner.out)
    failed = 0 if manner.retry_failed else list(statuses.values()).count("failed")
    print(_opening(plan, missing, store, failed, workers), file=sys.stderr)
    interrupted = 0
    if missing:
        execution = Execution(
            threads_each(workers), manner.retry_failed, manner.checkpoint_seconds, manner.hang_seconds, manner.loggers
        )
        with (
            Display(len(missing), workers, store) as display,
            make("local", store, workers, display.waiting) as executor,
        ):
            interrupted = train_cells(missing, executor, display, execution)
    _measure_lengths(plan, store)
    return interrupted


def statuses_of(plan: Plan, store: Store) -> dict[str, str]:
    """What became of each finished cell, by its id; every record is read once, though there may be thousands."""
    found = {}
    for planned in plan.distinct:
        store.recover(planned.cell.id)
        if store.finished(planned.cell.id):
            found[planned.cell.id] = str(store.record(planned.cell.id)["status"])
    return found


def to_train(plan: Plan, statuses: dict[str, str], again: bool) -> list[Planned]:
    """The cells to train, each once: those not finished, and with `again` those that failed."""
    wanted = (None, "failed") if again else (None,)
    return [planned for planned in plan.distinct if statuses.get(planned.cell.id) in wanted]


def _measure_lengths(plan: Plan, store: Store) -> None:
    """Measures finished cells at the lengths that the experiment asks for only now."""
    for planned in plan.distinct:
        cell = planned.cell
        if not (cell.config.get("evaluate") or {}).get("lengths") or not store.finished(cell.id):
            continue
        if not lacks_lengths(store.record(cell.id), cell.config):
            continue
        try:
            print(f"{planned.name}: measuring {cell.config['evaluate']['lengths']} tokens of context", file=sys.stderr)
            measure_lengths(cell, store)
        except InputError as error:
            print(f"{planned.name}: not measured: {error}", file=sys.stderr)


def _opening(plan: Plan, missing: list[Planned], store: Store, failed: int, workers: int) -> str:
    total = len(plan.distinct)
    resumed = sum(store.started(p.cell.id) for p in missing)
    parts = [f"{total} cells: {total - len(missing)} done, {len(missing)} to train with {workers} at a time"]
    if resumed:
        parts.append(f"{resumed} from a checkpoint")
    if failed:
        parts.append(f"{failed} failed earlier (--retry-failed trains them again)")
    return ", ".join(parts)


def show_plan(plan: Plan, store: Store, statuses: dict[str, str], missing: list[Planned], workers: int) -> None:
    """Prints the cells, how arms differ, what they cost, and an estimate of the time.

    `statuses` says what became of the cells that are finished, by their ids. A cost that differs from the baseline's by
    over 1 % without the experiment saying so is marked with `!`.
    """
    console, experiment = Console(), plan.experiment
    ids = {p.cell.id for p in missing}
    table = Table(title=Text(experiment.title), title_justify="left", highlight=False)
    for column in ("arm", "parameters", "FLOPs/token", "tokens", "steps", "seeds"):
        table.add_column(column)
    base = _costs(plan, experiment.baseline)
    for arm in experiment.arms:
        declared = experiment.inference.declared.get(arm, [])
        costs = [_against(name, cost, base[name], name in declared) for name, cost in _costs(plan, arm).items()]
        table.add_row(*map(Text, [arm, *costs, _states(plan, arm, store, statuses, ids)]))
    console.print(table)
    say = lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True)  # noqa: E731
    for arm in experiment.arms:
        changes = [f"{path}: {before} -> {after}" for path, (before, after) in plan.changes(arm).items()]
        same = "the baseline" if arm == experiment.baseline else "nothing: the same cells as the baseline"
        say(f"{arm}: {'; '.join(changes) or same}")
    for line in _remarks(experiment):
        say(line)
    total = len(plan.distinct)
    line = f"{total} cells: {total - len(missing)} done, {len(missing)} to train"
    if missing:
        seconds = seconds_per_cell(plan.by_arm, missing, store, threads_each(workers))
        wall = wall_seconds([seconds[p.arm] for p in missing], workers)
        line += (
            f"; about {duration(wall)} with {workers} at a time, judged by finished cells of the arm or by a few steps"
        )
    console.print(line, highlight=False, soft_wrap=True)


def _remarks(experiment: Experiment) -> list[str]:
    """What a plan has besides cells: costs held equal, tuning, stages."""
    found = [] if experiment.ways is None else [described(experiment.ways)]
    if experiment.inference.equal != "steps":
        found.append(f"Steps are such that {experiment.inference.equal} are equal.")
    if tuning := experiment.tuning:
        found.append(
            f"Before that every arm is tuned: {tuning.trials} trials of {len(tuning.seeds)} seeds, over "
            f"{', '.join(tuning.space.described())}; then all is trained again with the winners."
        )
    if looks := experiment.inference.looks:
        found.append(
            f"Seeds come in stages of {', '.join(map(str, looks))}; after each, training stops where every "
            "confirmatory difference is found."
        )
    return found


def _costs(plan: Plan, arm: str) -> dict[str, float | None]:
    cell = plan.first(arm)
    of, steps = sizes(cell), cell.config["trainer"]["max_steps"]
    return {
        "parameters": of.parameters,
        "flops_per_token": of.flops_per_token,
        "tokens": of.tokens_per_step * steps,
        "steps": steps,
    }


def _against(name: str, cost: float | None, base: float | None, declared: bool) -> str:
    """A cost, how far it is from the baseline's, and a mark where that was not declared."""
    if cost is None or not base:
        return "-" if cost is None else f"{cost:z,.0f}"
    share = cost / base - 1
    marked = " !" if abs(share) > TOLERANCE and not declared else ""
    return f"{cost:z,.0f}" + (f" ({share:+z.2%}){marked}" if share else "")


def _states(plan: Plan, arm: str, store: Store, statuses: dict[str, str], missing: set[str]) -> str:
    seeds: dict[str, list[str]] = {}
    for planned in plan.by_arm[arm]:
        seeds.setdefault(_state(planned, store, statuses, missing), []).append(str(planned.seed))
    return "\n".join(f"{state}: {', '.join(which)}" for state, which in seeds.items())


def _state(planned: Planned, store: Store, statuses: dict[str, str], missing: set[str]) -> str:
    if status := statuses.get(planned.cell.id):
        return status + (" (again)" if planned.cell.id in missing else "")
    return "started" if store.started(planned.cell.id) else "missing"
