"""`lm ablate`: plan, train what is missing, report."""

import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lm.cell import parameter_count
from lm.config import InputError
from lm.evaluate import missing as lacks_lengths
from lm.remeasure import measure_lengths
from lm.report.write import write_report
from lm.results import Store
from lm.sweep.estimate import duration, seconds_per_cell, wall_seconds
from lm.sweep.experiment import Experiment, check_power
from lm.sweep.plan import Plan, Planned, make_plan, write_manifest
from lm.sweep.progress import Display
from lm.sweep.run import default_workers, threads_each, train_cells
from lm.trainer import Execution


@dataclass(frozen=True)
class Manner:
    """How experiments are carried out, whatever they are.

    Args:
        out: folder of cells and reports.
        workers: cells trained at a time; None for one a device, or one a core.
        retry_failed: whether to train failed cells again.
        checkpoint_seconds: between checkpoints.
        underpowered: whether to go on where the seeds cannot bear out what is to be confirmed.
    """

    out: Path
    workers: int | None = None
    retry_failed: bool = False
    checkpoint_seconds: float = 20.0
    underpowered: bool = False


def ablate(experiment: Experiment, manner: Manner, plan_only: bool = False) -> int:
    """Carries out an experiment and reports. Returns 0 if every cell has a record, 1 if some were interrupted."""
    plan, store = make_plan(experiment), Store(manner.out)
    if plan_only:
        missing = _missing(plan, store, manner)
        show_plan(plan, store, missing, manner.workers or default_workers(len(missing)))
        return 0
    folder, interrupted = carry_out(plan, store, manner)
    write_report(folder, Console())
    print(f"report: {folder / 'table.md'}", file=sys.stderr)
    return 1 if interrupted else 0


def carry_out(plan: Plan, store: Store, manner: Manner) -> tuple[Path, int]:
    """Trains what is missing; returns the experiment's folder and how many cells were interrupted.

    Raises:
        InputError: where its seeds cannot bear out what it is to confirm, unless `underpowered` says to go on.
    """
    if not manner.underpowered:
        check_power(plan.experiment)
    missing = _missing(plan, store, manner)
    workers = manner.workers or default_workers(len(missing))
    folder = write_manifest(plan, store)
    print(_opening(plan, missing, store, manner, workers), file=sys.stderr)
    interrupted = 0
    if missing:
        with Display(len(missing), workers) as display:
            execution = Execution(threads_each(workers), manner.retry_failed, manner.checkpoint_seconds)
            interrupted = train_cells(missing, store, workers, display, execution)
    _measure_lengths(plan, store)
    return folder, interrupted


def _missing(plan: Plan, store: Store, manner: Manner) -> list[Planned]:
    for planned in plan.cells:
        store.recover(planned.cell.id)
    missing = plan.missing(store)
    return [p for p in plan.cells if p in missing or p in _failed(plan, store)] if manner.retry_failed else missing


def _failed(plan: Plan, store: Store) -> list[Planned]:
    return [p for p in plan.cells if store.finished(p.cell.id) and store.record(p.cell.id)["status"] == "failed"]


def _measure_lengths(plan: Plan, store: Store) -> None:
    """Measures finished cells at the lengths that the experiment asks for only now."""
    for planned in plan.cells:
        cell = planned.cell
        if not store.finished(cell.id) or not lacks_lengths(store.record(cell.id), cell.config):
            continue
        name = f"{planned.arm} seed {planned.seed}"
        try:
            print(f"{name}: measuring {cell.config['evaluate']['lengths']} tokens of context", file=sys.stderr)
            measure_lengths(cell, store)
        except InputError as error:
            print(f"{name}: not measured: {error}", file=sys.stderr)


def _opening(plan: Plan, missing: list[Planned], store: Store, manner: Manner, workers: int) -> str:
    total = len({p.cell.id for p in plan.cells})
    failed = 0 if manner.retry_failed else len(_failed(plan, store))
    resumed = sum(store.started(p.cell.id) for p in missing)
    parts = [f"{total} cells: {total - len(missing)} done, {len(missing)} to train with {workers} at a time"]
    if resumed:
        parts.append(f"{resumed} from a checkpoint")
    if failed:
        parts.append(f"{failed} failed earlier (--retry-failed trains them again)")
    return ", ".join(parts)


def show_plan(plan: Plan, store: Store, missing: list[Planned], workers: int) -> None:
    """Prints the cells, how arms differ, their sizes, and an estimate of the time."""
    console, experiment = Console(), plan.experiment
    ids = {p.cell.id for p in missing}
    table = Table(title=Text(experiment.title), title_justify="left", highlight=False)
    for column in ("arm", "parameters", "seeds", "differs from the baseline"):
        table.add_column(column)
    base = parameter_count(plan.first(experiment.baseline))
    for arm in experiment.arms:
        count = parameter_count(plan.first(arm))
        share = f" ({count / base - 1:+.2%})" if count != base else ""
        changes = "\n".join(f"{path}: {a} -> {b}" for path, (a, b) in plan.changes(arm).items())
        same = "baseline" if arm == experiment.baseline else "nothing: the same cells as the baseline"
        table.add_row(*map(Text, [arm, f"{count:,}{share}", _states(plan, arm, store, ids), changes or same]))
    console.print(table)
    total = len({p.cell.id for p in plan.cells})
    line = f"{total} cells: {total - len(missing)} done, {len(missing)} to train"
    if missing:
        seconds = seconds_per_cell(plan, missing, store, threads_each(workers))
        wall = wall_seconds([seconds[p.arm] for p in missing], workers)
        line += (
            f"; about {duration(wall)} with {workers} at a time, judged by finished cells of the arm or by a few steps"
        )
    console.print(line, highlight=False, soft_wrap=True)


def _states(plan: Plan, arm: str, store: Store, missing: set[str]) -> str:
    seeds: dict[str, list[str]] = {}
    for planned in plan.cells:
        if planned.arm == arm:
            seeds.setdefault(_state(planned, store, missing), []).append(str(planned.seed))
    return "\n".join(f"{state}: {', '.join(which)}" for state, which in seeds.items())


def _state(planned: Planned, store: Store, missing: set[str]) -> str:
    if store.finished(planned.cell.id):
        return str(store.record(planned.cell.id)["status"]) + (" (again)" if planned.cell.id in missing else "")
    return "started" if store.started(planned.cell.id) else "missing"
