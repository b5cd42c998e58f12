"""`lm ablate` of a ladder: plan, train the cells of all rungs from the smallest on, report on each and on all."""

import sys
from collections.abc import Sequence

from rich.console import Console

from lm.ablation.ablate import Manner, to_train, train_missing
from lm.ablation.experiment import Experiment
from lm.ablation.finished import Finished, finished_of
from lm.ablation.ladder import check_seeds, described, plan_ladder, together, write_ladder
from lm.ablation.plan import Plan
from lm.analysis.ladder import FILE
from lm.execution.estimate import duration, seconds_per_cell, wall_seconds
from lm.execution.machine import threads_each
from lm.execution.sharing import shared_out
from lm.execution.source import Planned
from lm.report.ladder_page import write_ladder_report
from lm.report.page import show
from lm.report.ways import described as as_decided
from lm.report.write import write_report
from lm.stats.scaling import FEWEST
from lm.store.store import Store


def climb(experiment: Experiment, manner: Manner, plan_only: bool = False, console: Console | None = None) -> int:
    """Carries out a ladder and reports, on the terminal unless another console is given.

    Returns 0 if every cell has a record, 1 if some were interrupted.

    Raises:
        InputError: for what cannot be carried out, and a rung of too few seeds, unless `underpowered` says to go on.
    """
    assert experiment.ladder is not None
    store = Store(manner.out)
    if not manner.underpowered:
        check_seeds(experiment)
    plans = plan_ladder(experiment, manner.out, manner.workers)
    whole = together(experiment, plans)
    if plan_only:
        finished = finished_of(whole, store)
        missing = to_train(whole, finished.statuses, manner.retry_failed)
        workers = manner.workers or shared_out(missing, manner.out, measure=False)
        show_ladder_plan(experiment, plans, whole, store, finished, missing, workers)
        return 0
    folder = write_ladder(experiment, plans, store, manner.command)
    interrupted = train_missing(whole, store, manner, folder / FILE)
    for plan in plans:
        write_report(store.out / plan.experiment.name, Console(quiet=True))
    results = write_ladder_report(folder, console or Console())
    print(f"report: {folder / 'table.md'}, and a folder for each rung beside it", file=sys.stderr)
    return 1 if interrupted or results.damaged else 0


PLAN = ("rung", "parameters", "tokens", "steps", "FLOPs a cell", "seeds", "cells", "done", "time")


def show_ladder_plan(
    experiment: Experiment,
    plans: Sequence[Plan],
    whole: Plan,
    store: Store,
    finished: Finished,
    missing: Sequence[Planned],
    workers: int,
) -> None:
    """Prints of each rung what a cell of its baseline is, how many cells are to train, and how long that takes."""
    ladder = experiment.ladder
    assert ladder is not None
    ids = {planned.cell.id for planned in missing}
    seconds = seconds_per_cell(whole.by_arm, missing, store, threads_each(workers)) if missing else {}
    rows = []
    for name, plan in zip(ladder.rungs, plans, strict=True):
        of, left = described(name, plan), [one for one in plan.distinct if one.cell.id in ids]
        wall = wall_seconds([seconds[f"{name}.{one.arm}"] for one in left], workers)
        counts = [f"{of[key]:,}" for key in ("parameters", "tokens", "steps")]
        compute = f"{of['compute'][experiment.baseline]:z.2e}"
        done = len(plan.distinct) - len(left)
        time = duration(wall) if left else "-"
        rows.append([name, *counts, compute, str(len(of["seeds"])), str(len(plan.distinct)), str(done), time])
    console = Console()
    show(experiment.title, PLAN, rows, console)
    say = lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True)  # noqa: E731
    say(f"Arms: {', '.join(experiment.arms)}; sizes are those of the baseline, {experiment.baseline}.")
    if (ways := plans[0].experiment.ways) is not None:
        say(as_decided(ways))
    if len(plans) < FEWEST:
        say(f"{len(plans)} rungs: differences by compute, and no law, which takes {FEWEST}.")
    elif ladder.forecast:
        few = len(plans) == FEWEST
        say(
            f"No forecast: a law of the rungs below the top one takes {FEWEST} of them."
            if few
            else "The top rung is forecast by those below it."
        )
    line = f"{len(whole.distinct)} cells: {len(whole.distinct) - len(missing)} done, {len(missing)} to train"
    if missing:
        wall = wall_seconds([seconds[planned.arm] for planned in missing], workers)
        line += f"; about {duration(wall)} with {workers} at a time, judged by finished cells or by a few steps"
    for each in (line, *finished.reused(ids)):
        say(each)
