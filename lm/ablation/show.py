"""What `--plan` shows of an experiment: its arms, what they cost, how long it may take."""

from collections.abc import Sequence

from rich.console import Console

from lm.ablation.experiment import Experiment
from lm.ablation.finished import Finished
from lm.ablation.plan import Plan
from lm.execution.cell_queue import Planned
from lm.execution.estimate import advice, duration, seconds_per_cell, wall_seconds
from lm.execution.factory import threads
from lm.report.render import print_table
from lm.report.run import describe_autotune
from lm.store.store import Store
from lm.training.cell import sizes

TOLERANCE = 0.01
"""Share of the baseline's cost by which an arm may differ without declaring it."""


def show_plan(
    plan: Plan,
    store: Store,
    finished: Finished,
    missing: list[Planned],
    workers: int,
    executor: str = "local",
    warnings: Sequence[str] = (),
) -> None:
    """Prints the cells, how arms differ, what they cost, and an estimate of the time.

    `finished` says what became of the cells that are; `warnings` are lines of their own.
    A cost that differs from the baseline's by over 1 % without the experiment saying so is marked with `!`.
    """
    console, experiment = Console(), plan.experiment
    ids = {p.cell.id for p in missing}
    columns, rows = ("arm", "parameters", "FLOPs/token", "tokens", "steps", "seeds"), []
    base = _costs(plan, experiment.baseline)
    for arm in experiment.arms:
        declared = experiment.inference.declared.get(arm, [])
        costs = [_against(name, cost, base[name], name in declared) for name, cost in _costs(plan, arm).items()]
        rows.append([arm, *costs, _states(plan, arm, store, finished.statuses, ids)])
    print_table(experiment.title, columns, rows, console)
    say = lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True)  # noqa: E731
    for arm in experiment.arms:
        changes = [f"{path}: {before} -> {after}" for path, (before, after) in plan.changes(arm).items()]
        same = "the baseline" if arm == experiment.baseline else "no difference from the baseline"
        say(f"{arm}: {'; '.join(changes) or same}")
    for line in (*_remarks(experiment), *(f"! {warning}" for warning in warnings)):
        say(line)
    each = threads(executor, workers)
    if executor == "local" and (remark := advice([planned.cell for planned in missing], each)):
        say(remark)
    total = len(plan.distinct)
    line = f"{total} cells: {total - len(missing)} done, {len(missing)} to train"
    if missing:
        seconds = seconds_per_cell(plan.by_arm, missing, store, each)
        wall = wall_seconds([seconds[p.arm] for p in missing], workers)
        line += (
            f"; about {duration(wall)} with {workers} at a time, judged by finished cells of the arm or by a few steps"
        )
    for text in (line, *finished.reused(ids)):
        say(text)


def _remarks(experiment: Experiment) -> list[str]:
    """What a plan has besides cells: costs held equal, tuning, stages."""
    found = [] if experiment.ways is None else [describe_autotune(experiment.ways)]
    if experiment.inference.equal != "steps":
        found.append(f"Steps are such that {experiment.inference.equal} are equal.")
    if tuning := experiment.tuning:
        found.append(
            f"Before that every arm is tuned: {tuning.trials} trials of {len(tuning.seeds)} seeds, over "
            f"{', '.join(tuning.space.described())}; then all is trained again with the winners."
        )
    if grid := experiment.grid:
        found.append(
            f"Before that every arm is trained at {len(grid.rates)} rates with {len(grid.seeds)} seeds each, as above; "
            "then all is trained again, each arm at its best rate."
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
