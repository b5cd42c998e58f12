"""`lm ablate` of a ladder: plan, train the cells of all rungs from the smallest on, report on each and on all."""

import sys
from collections.abc import Mapping, Sequence

from rich.console import Console

from lm.ablation.ablate import Manner, to_train, train_missing, warn
from lm.ablation.experiment import Experiment, shortage
from lm.ablation.finished import Finished, finished_of
from lm.ablation.ladder import check_seeds, described, plan_ladder, together, write_ladder
from lm.ablation.plan import Plan, idle_arms
from lm.analysis.ladder import FILE
from lm.execution.cell_queue import Planned
from lm.execution.estimate import advice, duration, seconds_per_cell, wall_seconds
from lm.execution.machine import threads_each
from lm.execution.sharing import choose_num_workers
from lm.report.ladder_page import write_ladder_report
from lm.report.render import print_table
from lm.report.run import describe_autotune
from lm.report.write import write_report
from lm.stats.scaling import MIN_RUNGS
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
        workers = manner.workers or choose_num_workers(missing, manner.out, measure=False)
        show_ladder_plan(experiment, plans, whole, store, finished, missing, workers)
        return 0
    warn(_idle(plans))
    folder = write_ladder(experiment, plans, store, manner.command)
    interrupted = train_missing(whole, store, manner, folder / FILE)
    for plan in plans:
        write_report(store.out / plan.experiment.name, Console(quiet=True))
    results = write_ladder_report(folder, console or Console())
    print(f"report: {folder / 'table.md'}, and a folder for each rung beside it", file=sys.stderr)
    return 1 if interrupted or results.damaged else 0


def _idle(plans: Sequence[Plan]) -> list[str]:
    """Return a line for each arm that trains the cells of the baseline in every rung."""
    of_rungs = [idle_arms(plan) for plan in plans]
    return [line for arm, line in of_rungs[0].items() if all(arm in lines for lines in of_rungs)]


def _short(plans: Mapping[str, Plan]) -> list[str]:
    """Return a line for the rungs, by name, whose seeds bear out no verdict at their own size."""
    rungs: dict[str, list[str]] = {}
    for name, plan in plans.items():
        if line := shortage(plan.experiment):
            rungs.setdefault(line, []).append(name)
    return [f"rung{'s' * (len(names) > 1)} {', '.join(names)}: {line}" for line, names in rungs.items()]


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
    """Prints of each rung what a cell of its baseline is, how many cells are to train, and how long that takes.

    A cell for which several rungs ask is trained once; it counts in each of them, and its time in the first.
    """
    ladder = experiment.ladder
    assert ladder is not None
    by_arm = seconds_per_cell(whole.by_arm, missing, store, threads_each(workers)) if missing else {}
    seconds = {planned.cell.id: by_arm[planned.arm] for planned in missing}
    rows = []
    untimed = dict(seconds)
    for name, plan in zip(ladder.rungs, plans, strict=True):
        of, left = described(name, plan), [one.cell.id for one in plan.distinct if one.cell.id in seconds]
        own = [untimed.pop(cell) for cell in left if cell in untimed]
        counts = [f"{of[key]:,}" for key in ("parameters", "tokens", "steps")]
        compute = f"{of['compute'][experiment.baseline]:z.2e}"
        done = len(plan.distinct) - len(left)
        time = duration(wall_seconds(own, workers)) if own else "-"
        rows.append([name, *counts, compute, str(len(of["seeds"])), str(len(plan.distinct)), str(done), time])
    console = Console()
    print_table(experiment.title, PLAN, rows, console)
    say = lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True)  # noqa: E731
    say(f"Arms: {', '.join(experiment.arms)}; sizes are those of the baseline, {experiment.baseline}.")
    for line in (*_idle(plans), *_short(dict(zip(ladder.rungs, plans, strict=True)))):
        say(f"! {line}")
    if (ways := plans[0].experiment.ways) is not None:
        say(describe_autotune(ways))
    if len(plans) < MIN_RUNGS:
        say(f"{len(plans)} rungs: differences by compute, and no law, which takes {MIN_RUNGS}.")
    elif ladder.forecast:
        few = len(plans) == MIN_RUNGS
        say(
            f"No forecast: a law of the rungs below the top one takes {MIN_RUNGS} of them."
            if few
            else "The top rung is forecast by those below it."
        )
    if shared := sum(len(plan.distinct) for plan in plans) - len(whole.distinct):
        are = "1 cell is" if shared == 1 else f"{shared} cells are"
        say(f"{are} asked for by more than one rung, trained once, and timed in the first.")
    if remark := advice([planned.cell for planned in missing], threads_each(workers)):
        say(remark)
    line = f"{len(whole.distinct)} cells: {len(whole.distinct) - len(missing)} done, {len(missing)} to train"
    if missing:
        wall = wall_seconds(list(seconds.values()), workers)
        line += f"; about {duration(wall)} with {workers} at a time, judged by finished cells or by a few steps"
    for each in (line, *finished.reused(seconds)):
        say(each)
