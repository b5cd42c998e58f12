"""`lm ablate` of a ladder: plan, train the cells of all rungs from the smallest on, report on each and on all."""

import sys
from collections.abc import Sequence

import numpy as np
from rich.console import Console

from lm.ablation.ablate import RunOptions, train_missing, warn
from lm.ablation.before_training import check_before_training
from lm.ablation.experiment import Experiment, shortage
from lm.ablation.ladder.plan import describe_rung, merge_plans, plan_ladder, write_ladder_manifest
from lm.ablation.plan import Plan, RemainingWork, idle_arms, remaining_work
from lm.ablation.plan_tables import print_estimate, print_line
from lm.analysis.ladder import FILE, lines_of
from lm.config.tree import InputError
from lm.execution.estimate import seconds_per_cell, wall_seconds
from lm.execution.machine import default_workers, threads_each
from lm.report.render import print_table
from lm.report.run import describe_autotune
from lm.report.status import duration
from lm.report.write import update_report
from lm.stats.scaling import MIN_RUNGS
from lm.stats.size_length import unidentified
from lm.store.store import Store

MIN_SEEDS = 2  # seeds of a rung; one alone has no estimate of the noise, and no interval

COLUMNS = ("rung", "parameters", "tokens", "steps", "FLOPs a cell", "seeds", "cells", "done", "time")


def run_ladder(
    experiment: Experiment, options: RunOptions, plan_only: bool = False, console: Console | None = None
) -> int:
    """Train what is missing of a ladder and report on it, on the terminal unless another console is given.

    Returns 0 if every cell has a record, 1 if some were interrupted. Raises InputError for what cannot be carried out,
    and for a rung of too few seeds, unless `underpowered` says to go on.
    """
    assert experiment.ladder is not None
    store = Store(options.out)
    if not options.underpowered:
        check_seeds(experiment)
    plans = plan_ladder(experiment, options.out, options.workers)
    for plan in plans:
        check_before_training(plan, store)
    merged = merge_plans(experiment, plans)
    if plan_only:
        work = remaining_work(merged, store, options.retry_failed)
        show_ladder_plan(experiment, plans, work, store, options.workers or default_workers(len(work.missing)))
        return 0
    warn(idle_everywhere(plans))
    folder = write_ladder_manifest(experiment, plans, store, options.command)
    interrupted = train_missing(merged, store, options, folder / FILE)
    for plan in plans:
        update_report(store.out / plan.experiment.name, Console(quiet=True))
    report = update_report(folder, console or Console())
    print(f"report: {folder / 'table.md'}, and a folder for each rung beside it", file=sys.stderr)
    return 1 if interrupted or report.damaged else 0


def check_seeds(experiment: Experiment) -> None:
    """Refuse a rung of too few seeds for an interval. Raises InputError."""
    assert experiment.ladder is not None
    for name, rung in experiment.ladder.rungs.items():
        if len(rung.seeds) < MIN_SEEDS:
            hint = f"too few for an interval; give {MIN_SEEDS} or more (6 for a verdict), or go on with --underpowered"
            raise InputError(f"{experiment.name}: rung {name} has {len(rung.seeds)} seed, {hint}")


def idle_everywhere(plans: Sequence[Plan]) -> list[str]:
    """Return a line for each arm that trains the cells of the baseline in every rung."""
    lines_by_rung = [idle_arms(plan) for plan in plans]
    return [line for arm, line in lines_by_rung[0].items() if all(arm in lines for lines in lines_by_rung)]


def show_ladder_plan(
    experiment: Experiment, plans: Sequence[Plan], work: RemainingWork, store: Store, workers: int
) -> None:
    """Print each rung's size, missing cells, and time; a shared cell's time counts in the first rung."""
    ladder, merged, missing = experiment.ladder, work.plan, work.missing
    assert ladder is not None
    by_arm = seconds_per_cell(merged.by_arm, missing, store, threads_each(workers)) if missing else {}
    seconds = {planned.cell.id: by_arm[planned.arm] for planned in missing}
    rows, unassigned = [], dict(seconds)
    described = [describe_rung(name, plan) for name, plan in zip(ladder.rungs, plans, strict=True)]
    for name, rung, plan in zip(ladder.rungs, described, plans, strict=True):
        cells = [planned.cell.id for planned in plan.distinct]
        own = [unassigned.pop(cell) for cell in cells if cell in unassigned]
        counts = [f"{count:,}" for count in (rung["parameters"], rung["tokens"], rung["steps"])]
        done = sum(cell not in seconds for cell in cells)
        time = duration(wall_seconds(own, workers)) if own else "-"
        compute = f"{rung['compute'][experiment.baseline]:z.2e}"
        rows.append([name, *counts, compute, str(len(rung["seeds"])), str(len(cells)), str(done), time])
    print_table(experiment.title, COLUMNS, rows, Console())
    print_line(f"Arms: {', '.join(experiment.arms)}; sizes are those of the baseline, {experiment.baseline}.")
    short: dict[str, list[str]] = {}  # rungs whose seeds cannot reach a verdict at their own size
    for name, plan in zip(ladder.rungs, plans, strict=True):
        if line := shortage(plan.experiment):
            short.setdefault(line, []).append(name)
    shortages = [f"rung{'s' * (len(names) > 1)} {', '.join(names)}: {line}" for line, names in short.items()]
    for line in (*idle_everywhere(plans), *shortages):
        print_line(f"! {line}")
    if (autotuned := plans[0].experiment.autotuned) is not None:
        print_line(describe_autotune(autotuned))
    main = lines_of([(spec.size, spec.tokens_per_parameter) for spec in ladder.rungs.values()])[0]
    if main.along:
        sizes = np.array([(rung["parameters"], rung["tokens"]) for rung in described])
        reason = unidentified(*sizes.T)
        print_line(f"No law of size and length: {reason}." if reason else "All rungs give a law of size and length.")
        print_line(f"Trends, and the forecast, are along size at {main.at}.")
    if len(main.rungs) < MIN_RUNGS:
        print_line(f"{len(main.rungs)} rungs: differences by compute, and no law, which takes {MIN_RUNGS}.")
    elif ladder.forecast and len(main.rungs) == MIN_RUNGS:
        print_line(f"No forecast: a law of the rungs below the top one takes {MIN_RUNGS} of them.")
    elif ladder.forecast:
        print_line("The top rung is forecast by those below it.")
    if shared := sum(len(plan.distinct) for plan in plans) - len(merged.distinct):
        cells_are = "1 cell is" if shared == 1 else f"{shared} cells are"
        print_line(f"{cells_are} in more than one rung: trained once, and timed in the first.")
    print_estimate(work, by_arm, workers, threads_each(workers))
