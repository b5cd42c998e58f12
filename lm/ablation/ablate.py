"""`lm ablate`: plan, train what is missing, report."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from lm.ablation.auto import with_ways
from lm.ablation.experiment import Experiment, check_power, shortage
from lm.ablation.finished import finished_of
from lm.ablation.lr_curve import gridded, write_rates
from lm.ablation.orders import ordered
from lm.ablation.plan import Plan, idle_arms, make_plan, write_manifest
from lm.ablation.show import show_plan
from lm.ablation.stages import settled
from lm.ablation.tune import FOLDER, check_tuning, tune, tuned
from lm.analysis.results import load
from lm.config.tree import InputError
from lm.execution.cell_queue import Planned
from lm.execution.estimate import Stopwatch
from lm.execution.factory import capacity, make_executor, threads
from lm.execution.progress import Display
from lm.execution.scheduler import train_cells
from lm.execution.sharing import choose_num_workers
from lm.inference.remeasure import measure_lengths
from lm.inference.ways import asked
from lm.report.write import write_report
from lm.store.files import read_json
from lm.store.formats import TUNED
from lm.store.store import Store
from lm.training.evaluate import missing as lacks_lengths
from lm.training.train import Execution


@dataclass(frozen=True)
class Manner:
    """How experiments are carried out, whatever they are.

    Args:
        out: folder of cells and reports.
        workers: cells trained at a time; None for one a device, or as many as were measured to be best.
        retry_failed: whether to train failed cells again.
        underpowered: whether to go on where the seeds cannot bear out what is to be confirmed.
        command: the arguments of `lm` that ask for it, which the manifests keep.
        execution: how each cell is trained.
        executor: what trains the cells, as in `lm ablate --executor`.
    """

    out: Path
    workers: int | None = None
    retry_failed: bool = False
    underpowered: bool = False
    command: tuple[str, ...] = ()
    execution: Execution = field(default_factory=Execution)
    executor: str = "local"


def ablate(experiment: Experiment, manner: Manner, plan_only: bool = False) -> int:
    """Carries out an experiment and reports. Returns 0 if every cell has a record, 1 if some were interrupted.

    One with a ladder is carried out by `lm.ablation.climb.climb`.
    """
    assert experiment.ladder is None
    store = Store(manner.out)
    if experiment.tuning is not None:
        check_tuning(experiment, manner.out)
    if asked(experiment.tree) and not (plan_only or manner.underpowered):
        check_power(experiment)  # before anything is measured
    experiment = with_ways(experiment, manner.out, manner.workers)
    plan = _plan(experiment, store)
    before = [] if experiment.grid is None else [_plan(gridded(experiment), store)]
    crossed = [_plan(ordered(experiment), store)] if experiment.data_seeds else []
    idle = list(idle_arms(plan).values())
    if plan_only:
        warnings = [*idle, *filter(None, [shortage(experiment)])]
        for one in (*before, plan, *crossed):
            finished = finished_of(one, store)
            missing = to_train(one, finished.statuses, manner.retry_failed)
            workers = _workers(missing, manner, measure=False)
            show_plan(one, store, finished, missing, workers, manner.executor, warnings if one is plan else ())
        return 0
    warn(idle)
    chosen = experiment.tuning is not None or experiment.grid is not None
    if chosen and not manner.underpowered:
        check_power(experiment)
    if experiment.tuning is not None and tune(
        experiment,
        store,
        manner.workers,
        manner.execution,
        manner.executor,
    ):
        return 1
    for grid in before:
        print(f"{len(grid.by_arm)} arms and rates, {len(grid.experiment.seeds)} seeds each", file=sys.stderr)
        if carry_out(grid, store, manner)[1]:
            return 1
    folder, interrupted = carry_out(plan, store, manner)
    for grid in () if interrupted else crossed:
        print(f"the baseline in {len(grid.by_arm)} orders, {len(grid.experiment.seeds)} seeds each", file=sys.stderr)
        interrupted = carry_out(grid, store, manner)[1]
    if chosen and not interrupted:
        twin = tuned(experiment, write_rates(plan, store) if before else _winners(folder / FOLDER / "tuned.json"))
        print("the experiment over again, each arm with its winner", file=sys.stderr)
        other, interrupted = carry_out(_plan(twin, store), store, manner)
        write_report(other, Console())
    results = write_report(folder, Console())
    print(f"report: {folder / 'table.md'}", file=sys.stderr)
    return 1 if interrupted or results.harmed else 0


def warn(lines: Iterable[str]) -> None:
    """Print lines that are not to be missed on stderr."""
    for line in lines:
        print(f"warning: {line}", file=sys.stderr)


def _plan(experiment: Experiment, store: Store) -> Plan:
    return make_plan(experiment, Stopwatch(store.out / experiment.name / "seconds.json"))


def _winners(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = TUNED.read(read_json(path), path)["arms"]
    return found


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
        interrupted = train_missing(stage, store, manner, stage.manifest(store))
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


def train_missing(plan: Plan, store: Store, manner: Manner, manifest: Path) -> int:
    """Trains the cells of a plan that are missing; returns how many were interrupted.

    Raises:
        LostError: where somebody takes away the `manifest`, that of the experiment or the ladder.
    """
    finished = finished_of(plan, store)
    missing = to_train(plan, finished.statuses, manner.retry_failed)
    workers = _workers(missing, manner)
    failed = 0 if manner.retry_failed else list(finished.statuses.values()).count("failed")
    for line in (_opening(plan, missing, store, failed, workers), *finished.reused({p.cell.id for p in missing})):
        print(line, file=sys.stderr)
    interrupted = 0
    if missing:
        num_threads = threads(manner.executor, workers)
        execution = replace(manner.execution, threads=num_threads, retrain=manner.retry_failed)
        with (
            Display(len(missing), workers, store) as display,
            make_executor(manner.executor, store, workers, display.on_waiting) as executor,
        ):
            interrupted = train_cells(missing, executor, display, execution, manifest)
    _measure_lengths(plan, store)
    return interrupted


def _workers(missing: list[Planned], manner: Manner, measure: bool = True) -> int:
    """How many cells to train at a time."""
    return manner.workers or capacity(manner.executor, len(missing)) or choose_num_workers(missing, manner.out, measure)


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
