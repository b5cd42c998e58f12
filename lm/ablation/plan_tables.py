"""The tables of `--plan`: cells, differences and costs of arms, and how long their training may take."""

from collections.abc import Mapping, Sequence

from rich.console import Console

from lm.ablation.experiment import Experiment
from lm.ablation.plan import Plan, RemainingWork
from lm.ablation.sections import RATE
from lm.analysis.comparability import changes_in_words
from lm.execution.estimate import advice, seconds_per_cell, wall_seconds
from lm.execution.factory import LOCAL, threads
from lm.report.render import print_table
from lm.report.run import describe_autotune
from lm.report.status import duration
from lm.store.store import Store

TOLERANCE = 0.01  # share of the baseline's cost by which an arm may differ without declaring it

COLUMNS = ("arm", "parameters", "FLOPs/token", "tokens", "steps", "seeds")


def print_line(text: str) -> None:
    """Print a line as it is, without markup or line breaks of its own."""
    Console().print(text, highlight=False, markup=False, soft_wrap=True)


def show_plan(
    work: RemainingWork, store: Store, workers: int, executor: str = LOCAL, warnings: Sequence[str] = ()
) -> dict[str, float]:
    """Print cells, differences and costs of arms, `!` for undeclared ones; return estimated seconds of each's cell."""
    plan, experiment = work.plan, work.plan.experiment
    missing = {planned.cell.id for planned in work.missing}
    rows, base = [], _costs(plan, experiment.baseline)
    for arm in experiment.arms:
        declared = experiment.inference.declared.get(arm, [])
        costs = [_format_cost(cost, base[name], name in declared) for name, cost in _costs(plan, arm).items()]
        seeds: dict[str, list[str]] = {}
        for planned in plan.by_arm[arm]:
            cell = planned.cell.id
            if status := work.statuses.get(cell):
                status += " (again)" if cell in missing else ""
            else:
                status = "started" if store.started(cell) else "missing"
            seeds.setdefault(status, []).append(str(planned.seed))
        rows.append([arm, *costs, "\n".join(f"{status}: {', '.join(listed)}" for status, listed in seeds.items())])
    print_table(experiment.title, COLUMNS, rows, Console())
    for arm in experiment.arms:
        changes = changes_in_words(plan.changes[arm])
        same = "the baseline" if arm == experiment.baseline else "no difference from the baseline"
        print_line(f"{arm}: {'; '.join(changes) or same}")
    if revision := plan.first(experiment.baseline).facts.revision:
        print_line(f"data.corpus.revision: {revision}, pinned on this machine; give it in the file for others")
    if branches := [planned for planned in work.missing if planned.branched]:
        steps = dict.fromkeys(f"{p.branched} of {p.cell.config['trainer']['max_steps']}" for p in branches)
        print_line(f"{len(branches)} begin from checkpoints of the whole training, after {', '.join(steps)} steps")
    for line in (*_remarks(experiment), *(f"! {warning}" for warning in warnings)):
        print_line(line)
    each = threads(executor, workers) if missing else 0
    seconds = seconds_per_cell(plan.by_arm, work.missing, store, each) if missing else {}
    print_estimate(work, seconds, workers, each if executor == LOCAL else None)
    return seconds


def print_estimate(work: RemainingWork, seconds: Mapping[str, float], workers: int, local_threads: int | None) -> None:
    """Print how many cells are to be trained, how long they take by the `seconds` of each arm, and other code's."""
    cells = [planned.cell for planned in work.missing]
    if local_threads is not None and (remark := advice(cells, local_threads)):
        print_line(remark)
    line = work.counts
    if cells:
        wall = wall_seconds([seconds[planned.arm] for planned in work.missing], workers)
        at_once = min(workers, len(cells))
        line += f"; about {duration(wall)} with {at_once} at a time, estimated from finished cells or a few steps"
    for text in (line, *work.reused()):
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
    own_rates = [arm for arm, changes in experiment.arms.items() if RATE in changes]
    if own_rates and experiment.claims and not (experiment.bracket or experiment.tuning or experiment.grid):
        rates_set = f"the file sets that of {', '.join(own_rates)}"
        remarks.append(f"No learning rate is searched, and {rates_set}; `tune: rates` searches one for every arm.")
    if looks := experiment.inference.looks:
        remarks.append(
            f"Seeds come in stages of {', '.join(map(str, looks))}; after each, training stops where every "
            "confirmatory difference is found."
        )
    return remarks


def _costs(plan: Plan, arm: str) -> dict[str, float | None]:
    """Return the costs of a run of an arm, by the names under which an experiment declares them."""
    cell = plan.first(arm)
    size, steps = plan.sizes(arm), cell.config["trainer"]["max_steps"]
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
