"""The tables of `--plan`: the arms of an experiment, their costs, and the time to train them."""

from collections.abc import Sequence

from rich.console import Console

from lm.ablation.experiment import Experiment
from lm.ablation.plan import FinishedCells, Plan
from lm.execution.estimate import advice, seconds_per_cell, wall_seconds
from lm.execution.factory import threads
from lm.execution.scheduler import Planned
from lm.report.render import print_table
from lm.report.run import describe_autotune
from lm.report.status import duration
from lm.store.store import Store
from lm.training.cell import sizes

TOLERANCE = 0.01
"""Share of the baseline's cost by which an arm may differ without declaring it."""

COLUMNS = ("arm", "parameters", "FLOPs/token", "tokens", "steps", "seeds")


def print_line(text: str) -> None:
    """Print a line as it is, without markup or line breaks of its own."""
    Console().print(text, highlight=False, markup=False, soft_wrap=True)


def show_plan(
    plan: Plan,
    store: Store,
    finished: FinishedCells,
    missing: list[Planned],
    workers: int,
    executor: str = "local",
    warnings: Sequence[str] = (),
) -> None:
    """Print the cells, differences and costs of arms, and an estimate of the time.

    A cost that differs from the baseline's by over 1 % without the experiment declaring it is marked with `!`.
    """
    experiment, total, threads_each = plan.experiment, len(plan.distinct), threads(executor, workers)
    missing_ids = {planned.cell.id for planned in missing}
    rows, base = [], _costs(plan, experiment.baseline)
    for arm in experiment.arms:
        declared = experiment.inference.declared.get(arm, [])
        costs = [_format_cost(cost, base[name], name in declared) for name, cost in _costs(plan, arm).items()]
        seeds: dict[str, list[str]] = {}
        for planned in plan.by_arm[arm]:
            cell = planned.cell.id
            if status := finished.statuses.get(cell):
                status += " (again)" if cell in missing_ids else ""
            else:
                status = "started" if store.started(cell) else "missing"
            seeds.setdefault(status, []).append(str(planned.seed))
        rows.append([arm, *costs, "\n".join(f"{status}: {', '.join(listed)}" for status, listed in seeds.items())])
    print_table(experiment.title, COLUMNS, rows, Console())
    for arm in experiment.arms:
        changes = [f"{path}: {before} -> {after}" for path, (before, after) in plan.changes(arm).items()]
        same = "the baseline" if arm == experiment.baseline else "no difference from the baseline"
        print_line(f"{arm}: {'; '.join(changes) or same}")
    for line in (*_remarks(experiment), *(f"! {warning}" for warning in warnings)):
        print_line(line)
    if executor == "local" and (remark := advice([planned.cell for planned in missing], threads_each)):
        print_line(remark)
    line = f"{total} cells: {total - len(missing)} done, {len(missing)} to train"
    if missing:
        seconds = seconds_per_cell(plan.by_arm, missing, store, threads_each)
        wall = wall_seconds([seconds[planned.arm] for planned in missing], workers)
        line += f"; about {duration(wall)} with {workers} at a time, estimated from finished cells or a few steps"
    for text in (line, *finished.reused(missing_ids)):
        print_line(text)


def _remarks(experiment: Experiment) -> list[str]:
    """Return a line each on settings that were `auto`, costs held equal, tuning and stages."""
    remarks = [] if experiment.autotuned is None else [describe_autotune(experiment.autotuned)]
    if experiment.inference.equal != "steps":
        remarks.append(f"Arms train for as many steps as make {experiment.inference.equal} equal.")
    if tuning := experiment.tuning:
        remarks.append(
            f"Before that every arm is tuned: {tuning.trials} trials of {len(tuning.seeds)} seeds, over "
            f"{', '.join(tuning.space.described())}; then all is trained again with the winners."
        )
    if grid := experiment.grid:
        remarks.append(
            f"Before that every arm is trained at {len(grid.rates)} rates with {len(grid.seeds)} seeds each, as above; "
            "then all is trained again, each arm at its best rate."
        )
    if looks := experiment.inference.looks:
        remarks.append(
            f"Seeds come in stages of {', '.join(map(str, looks))}; after each, training stops where every "
            "confirmatory difference is found."
        )
    return remarks


def _costs(plan: Plan, arm: str) -> dict[str, float | None]:
    """Return the costs of a run of an arm, by the names under which an experiment declares them."""
    cell = plan.first(arm)
    size, steps = sizes(cell), cell.config["trainer"]["max_steps"]
    return {
        "parameters": size.parameters,
        "flops_per_token": size.flops_per_token,
        "tokens": size.tokens_per_step * steps,
        "steps": steps,
    }


def _format_cost(cost: float | None, base: float | None, declared: bool) -> str:
    """Format a cost, its distance from the baseline's, and a mark where that was not declared."""
    if cost is None or not base:
        return "-" if cost is None else f"{cost:z,.0f}"
    share = cost / base - 1
    marked = " !" if abs(share) > TOLERANCE and not declared else ""
    return f"{cost:z,.0f}" + (f" ({share:+z.2%}){marked}" if share else "")
