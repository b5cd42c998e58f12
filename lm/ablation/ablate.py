"""`lm ablate`: plan, train what is missing, report."""

import itertools
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from lm.ablation.before_training import (
    TUNING_FOLDER,
    asked_before,
    check_before_training,
    check_texts_differ,
    parts_beside,
    searches_of,
    warnings_of,
)
from lm.ablation.branches import with_branches
from lm.ablation.derived import (
    RatesByArm,
    at_best_rates,
    at_shared_rate,
    best_rates,
    curves_of,
    expand_corpora,
    expand_rates,
    expand_rivals,
    grid_rates,
    rates_around,
    with_winners,
    write_rates,
)
from lm.ablation.experiment import Experiment, check_power
from lm.ablation.plan import (
    Plan,
    RemainingWork,
    idle_arms,
    remaining_work,
    with_autotuned_settings,
    write_manifest,
)
from lm.ablation.plan_tables import print_line, show_plan
from lm.ablation.sections import RATE
from lm.ablation.stored_plan import plan_experiment
from lm.analysis.results import FEWEST_LOOKED_AT, FirstLook, Records, load, paired
from lm.config.tree import InputError, prefix_errors
from lm.execution.estimate import Stopwatch, wall_seconds
from lm.execution.factory import LOCAL, capacity, make_executor, prepare, threads
from lm.execution.machine import accelerators, default_workers
from lm.execution.progress import Display
from lm.execution.scheduler import train_cells
from lm.report.status import duration
from lm.report.write import pointer, update_report, write_summary
from lm.stats.sequential import anytime_p, anytime_pairs_needed, left_after, sequential
from lm.stats.tests import ALPHA
from lm.store.archive import CURVE, RIVALS, SHARED
from lm.store.files import read_json, to_json, write_atomic
from lm.store.formats import TUNED
from lm.store.store import Store
from lm.training.identified import auto_settings_requested
from lm.training.process import Execution


@dataclass(frozen=True)
class RunOptions:
    """Options of a command that trains; `workers` is None for one a device, or as many as measured to be best."""

    out: Path
    workers: int | None = None
    retry_failed: bool = False
    underpowered: bool = False
    command: tuple[str, ...] = ()
    execution: Execution = field(default_factory=Execution)
    executor: str = "local"


@dataclass
class PlannedSeconds:
    """The work that plans showed, added up."""

    plans: int = 0
    by_cell: dict[str, float] = field(default_factory=dict)  # estimated seconds of each missing cell
    workers: int = 1  # the most of a plan
    is_open: bool = False  # True if it depends on results which cells follow


def ablate(experiment: Experiment, options: RunOptions, plan_only: bool = False) -> int:
    """Train what is missing and report on it; return 0, or 1 if cells were interrupted. Raises InputError."""
    assert experiment.ladder is None
    planned = PlannedSeconds()
    code = _ablate(experiment, options, planned if plan_only else None)
    if planned.plans > 1 and planned.by_cell:
        cells, workers = list(planned.by_cell.values()), planned.workers
        at_once, least = min(workers, len(cells)), "at least " * planned.is_open
        time = duration(wall_seconds(cells, workers))
        print_line(f"in all {least}{len(cells)} cells to train; {least or 'about '}{time} with {at_once} at a time")
    return code


def _ablate(experiment: Experiment, options: RunOptions, planned: PlannedSeconds | None) -> int:
    """Train and report, or with `planned` show and add up what there is to train."""
    plan_only = planned is not None
    if experiment.corpora:
        return _ablate_on_each_corpus(experiment, options, planned)
    store, tuning = Store(options.out), experiment.tuning
    if auto_settings_requested(experiment.tree) and not (plan_only or options.underpowered):
        check_power(experiment)  # before anything is measured
    experiment = with_autotuned_settings(experiment, options.out, options.workers)
    plan = _plan(experiment, store, options, plan_only)
    check_before_training(plan, store)
    rate_plan = None
    if experiment.grid is not None:
        rate_plan = _plan(expand_rates(experiment, grid_rates(experiment)), store, options, plan_only)
    warnings, tuned = warnings_of(plan), tuning is not None or rate_plan is not None
    if not plan_only:
        warn(idle_arms(plan).values())
        if (tuned or experiment.bracket) and not options.underpowered:
            check_power(experiment)
    shared = None
    if experiment.bracket is not None:
        beside = _further_plans(experiment, store, options, to_show=True)  # refused now, not after rates were searched
        bracketed = find_rates(plan, store, options, planned, beside.values())
        if isinstance(bracketed, int):
            return bracketed
        shared, plan, experiment = at_shared_rate(plan), bracketed, bracketed.experiment
    further = _further_plans(experiment, store, options, plan_only)
    plan, parts = with_branches(plan, further.values(), store)
    further = dict(zip(further, parts, strict=True))
    if planned is not None:
        rivals = _rivals(plan, experiment.seeds, store, options)
        if shared is not None and not shared.missing(store):
            shared = None
        plans = filter(None, (rate_plan, shared, plan, rivals, *further.values()))
        _show_plans(plans, store, options, planned, {plan.experiment.name: warnings})
        return 0
    if tuning is not None and tune(plan, store, options):
        return 1
    if rate_plan is not None:
        seeds = len(rate_plan.experiment.seeds)
        print(f"{len(rate_plan.by_arm)} arms and rates, {seeds} seeds each", file=sys.stderr)
        if train_experiment(rate_plan, store, options)[1]:
            return 1
    folder, interrupted = train_with_rivals(plan, store, options)
    for title, part in further.items():
        if not interrupted:
            print(f"{title}, {len(part.experiment.seeds)} seeds each", file=sys.stderr)
            interrupted = train_experiment(part, store, options)[1]
    if tuned and not interrupted:
        interrupted = _train_winners(plan, store, options)
    report = update_report(folder, Console())
    print(pointer(folder), file=sys.stderr)
    return 1 if interrupted or report.damaged else 0


def _train_winners(plan: Plan, store: Store, options: RunOptions) -> int:
    """Train each arm with the winner of its search or curve and report; return the number of interrupted cells."""
    experiment, path = plan.experiment, store.out / plan.experiment.name / TUNING_FOLDER / "tuned.json"
    if experiment.grid is not None:
        rates = best_rates(plan, grid_rates(experiment), store)
        write_rates(rates, grid_rates(experiment), plan, store)
        winners = {arm: {"changes": {RATE: rate["best"]} if rate["best"] else None} for arm, rate in rates.items()}
    else:
        winners = TUNED.read(read_json(path), path)["arms"]
    print("training the experiment again, each arm with its winner", file=sys.stderr)
    folder, interrupted = train_experiment(_plan(with_winners(experiment, winners), store, options), store, options)
    update_report(folder, Console())
    return interrupted


def _further_plans(experiment: Experiment, store: Store, options: RunOptions, to_show: bool) -> dict[str, Plan]:
    """Return the plans of what is trained beside an experiment by titles."""
    plans = {}
    for title, part in parts_beside(experiment).items():
        with prefix_errors(title):
            plans[title] = _plan(part, store, options, to_show)
    return plans


def _rivals(plan: Plan, seeds: list[int], store: Store, options: RunOptions) -> Plan | None:
    """Plan arms with seeds at the rates that may be as good as theirs; None without any."""
    rivals = expand_rivals(plan, seeds)
    return None if rivals is None else _plan(rivals, store, options)


def train_with_rivals(plan: Plan, store: Store, options: RunOptions) -> tuple[Path, int]:
    """Train what is missing as `train_experiment` does, then its arms at the rates that may be as good as theirs."""
    seeds = plan.experiment.seeds
    if (rivals := _rivals(plan, seeds, store, options)) is not None:
        write_manifest(rivals, store, options.command)  # those of other cells are no rivals of the ones to be trained
    folder, interrupted = train_experiment(plan, store, options)
    if rivals is not None and not interrupted:
        untrained = {planned.seed for planned in plan.missing(store)}  # in stages, where fewer seeds were enough
        rivals = _rivals(plan, [seed for seed in seeds if seed not in untrained], store, options) or rivals
        print("the same at rates that may be as good as the best", file=sys.stderr)
        interrupted = train_experiment(rivals, store, options)[1]
    return folder, interrupted


def find_rates(
    plan: Plan, store: Store, options: RunOptions, planned: PlannedSeconds | None = None, beside: Iterable[Plan] = ()
) -> Plan | int:
    """Find each arm's learning rate and train all at the shared one; return the plan with every arm at its own.

    Rates are added below and above for all arms, until the best of each arm lies between two others or their number is
    the largest. Returns an exit status where cells were interrupted, or where only a plan is asked and rates are open;
    it is shown with those of what is trained beside the experiment.
    """
    experiment, low, high, plan_only = plan.experiment, -1, 1, planned is not None
    bracket, shared = experiment.bracket, at_shared_rate(plan)
    assert bracket is not None
    while True:
        rates = rates_around(plan, low, high)
        over_rates, count = _plan(expand_rates(experiment, rates), store, options, plan_only), high - low + 1
        is_trained = over_rates.is_described(store) and not over_rates.missing(store)
        if not plan_only and (options.retry_failed or not is_trained):
            print(f"{len(plan.by_arm)} arms at {count} rates, {len(bracket.seeds)} seeds each", file=sys.stderr)
            if train_experiment(over_rates, store, options)[1]:
                return 1
        elif planned is not None and not is_trained:
            warnings = {shared.experiment.name: warnings_of(plan)}
            _show_plans([over_rates, shared, *beside], store, options, planned, warnings)
            planned.is_open = True
            print_line(
                f"Every arm is trained at {count} rates with {len(bracket.seeds)} seeds each, and at up to "
                f"{bracket.at_most} while the best of an arm is the lowest or the highest; then at the shared rate, "
                f"at its own best, and at those that may be as good, with {len(experiment.seeds)} seeds each: at most "
                f"{len(plan.by_arm) * bracket.at_most * (len(bracket.seeds) + len(experiment.seeds))} cells. "
                "`tune: none` leaves all at the shared rate."
            )
            return 0
        more = _open_ends(experiment, rates, store)[: bracket.at_most - (high - low + 1)]
        if not more:
            break
        low, high = low - more.count("low"), high + more.count("high")
    rate_of_arm = best_rates(plan, rates, store)
    if not plan_only:
        write_rates(rate_of_arm, rates, plan, store)
        print("every arm at the shared rate, for comparison", file=sys.stderr)
        folder, interrupted = train_experiment(shared, store, options)
        if interrupted:
            return 1
        update_report(folder, Console())
        print("every arm at its own best rate", file=sys.stderr)
    return replace(_plan(at_best_rates(experiment, rate_of_arm), store, options, plan_only), registered=plan)


def _open_ends(experiment: Experiment, rates: RatesByArm, store: Store) -> list[str]:
    """Return the ends, `low` and `high`, at which an arm has its best rate; low where none of its rates ended well."""
    ends = {"low" if curve.best is None else curve.edge for curve in curves_of(experiment, rates, store).values()}
    return sorted(ends - {""}, reverse=True)


def _show_plans(
    plans: Iterable[Plan], store: Store, options: RunOptions, planned: PlannedSeconds, warnings: dict[str, list[str]]
) -> None:
    """Print plans, with the warnings of some by the experiment's name, and add up what there is to train."""
    for part in plans:
        work = remaining_work(part, store, options.retry_failed)
        of_part, workers = warnings.get(part.experiment.name, ()), num_workers(work, options)
        seconds = show_plan(work, store, workers, options.executor, of_part)
        planned.by_cell |= {missing.cell.id: seconds[missing.arm] for missing in work.missing}
        planned.plans, planned.workers = planned.plans + 1, max(planned.workers, workers)


def _ablate_on_each_corpus(experiment: Experiment, options: RunOptions, planned: PlannedSeconds | None) -> int:
    plan_only = planned is not None
    parts, store, plans = expand_corpora(experiment), Store(options.out), dict[str, Plan]()
    for text, part in zip(experiment.corpora, parts, strict=True):  # all that is wrong, before the first is trained
        with prefix_errors(f"corpora.{text}"):
            part = with_autotuned_settings(part, options.out, options.workers)
            plans[text] = _plan(part, store, options, plan_only)
            check_before_training(plans[text], store)
            _further_plans(part, store, options, to_show=True)
    check_texts_differ(plans)
    for number, part in enumerate(parts, 1):
        print(f"({number}/{len(parts)}) {part.name}", file=sys.stderr)
        if code := _ablate(part, options, planned):
            return code
    if not plan_only:
        folder = options.out / experiment.name
        write_summary([options.out / part.name for part in parts], folder, Console())
        print(f"{pointer(folder)}, and a folder for each text beside it", file=sys.stderr)
    return 0


def warn(lines: Iterable[str]) -> None:
    """Print warnings on stderr."""
    for line in lines:
        print(f"warning: {line}", file=sys.stderr)


def _plan(experiment: Experiment, store: Store, options: RunOptions, to_show: bool = False) -> Plan:
    name = experiment.name
    for ending in (CURVE, SHARED, RIVALS):  # a step takes as long at any learning rate
        name = name.removesuffix(ending)
    stopwatch = Stopwatch(store.out / name / "seconds.json")

    def before_new() -> None:
        if not to_show:  # what is planned anew mostly has cells to train
            prepare(options.executor)

    return plan_experiment(experiment, store, stopwatch, not options.retry_failed or to_show, to_show, before_new)


# stages of seeds -----------------------------------------------------------------------------------------------------


def train_experiment(plan: Plan, store: Store, options: RunOptions) -> tuple[Path, int]:
    """Train what is missing; return the experiment's folder and the number of interrupted cells.

    Where seeds come in stages, each stage is trained whole, and the next only if a confirmatory difference is open.
    Raises InputError where the seeds cannot reach significance, unless `underpowered` says to go on.
    """
    if not options.underpowered:
        check_power(plan.experiment)
    inference = plan.experiment.inference
    for seeds in inference.looks or (len(plan.experiment.seeds),):
        stage = plan.upto(seeds)
        folder = write_manifest(stage, store, options.command)
        interrupted = train_missing(stage, store, options, stage.manifest(store))
        if interrupted or not inference.looks:
            break
        settled = settled_arms(load(folder), inference.looks, inference.confirmatory)
        undecided = [arm for arm, done in settled.items() if not done]
        progress = "every confirmatory difference is found"
        if undecided:
            progress = (
                f"{len(settled) - len(undecided)} of {len(settled)} differences found, open: {', '.join(undecided)}"
            )
        print(f"after {seeds} seeds: {progress}", file=sys.stderr)
        if not undecided:
            break
    return folder, interrupted


def settled_arms(results: Records, looks: tuple[int, ...], confirmatory: list[str]) -> dict[str, bool]:
    """Return True for each confirmatory arm whose difference in the headline metric is significant at a look."""
    settled, comparisons, first = {}, len(confirmatory) * len(results.judged), results.first_look()
    for arm in confirmatory:
        pairs = paired(results, arm, results.headline)
        differences = [x - y for x, y in pairs if math.isfinite(x - y)]
        if first.pairs:
            settled[arm] = anytime_p(differences) <= left_after(*first) / comparisons
            continue
        look = sequential(differences, looks, looks[-1], ALPHA / comparisons)
        settled[arm] = look is not None and look.rejected
    return settled


def with_added_seeds(
    experiment: Experiment, number: int, out: Path, underpowered: bool = False, other_seeds: Any = None
) -> Any:
    """Return the seeds of an experiment's results and `number` more; those alone while any cell with them is missing.

    Raises:
        InputError: without such results, with `other_seeds` beside it, or where so many seeds can find nothing
            with the error that looks leave.
    """
    if other_seeds is not None:
        raise InputError("--add-seeds: adds to the seeds of the results; expected no --seeds beside it")
    store, parts, comparisons = Store(out), expand_corpora(experiment), experiment.inference.comparisons
    if experiment.ladder is not None or experiment.inference.looks or number < 1:
        problem = f"found {number}" if number < 1 else "a ladder's are its rungs'" if experiment.ladder else "in stages"
        raise InputError(
            f"--add-seeds: expected 1 or more, for an experiment with a list or number of seeds; {problem}"
        )
    seeds, complete = asked_before(parts, store)
    if complete:
        earlier = load(store.out / parts[0].name).first_look()
        look = earlier if earlier.pairs or len(seeds) < FEWEST_LOOKED_AT else FirstLook(len(seeds), max(1, comparisons))
        searches = (experiment.grid, experiment.bracket, experiment.tuning)
        used = {*seeds, *(seed for search in searches if search is not None for seed in search.seeds)}
        unused = (seed for seed in itertools.count() if seed not in used)
        seeds += itertools.islice(unused, number)
        if not look.pairs:
            return _with_orders(experiment, seeds)
        left = left_after(*look)
        needed = anytime_pairs_needed(left / max(1, comparisons))
        if comparisons and len(seeds) < needed and not underpowered:
            raise InputError(
                f"--add-seeds {number}: the look at {look.pairs} seeds leaves {100 * left:z.2g} of 5 %, at which a "
                f"difference takes {needed} seeds, found {len(seeds)}; add {needed - len(seeds) + number}, or go on "
                "with --underpowered"
            )
        print(f"a look at {look.pairs} seeds leaves {100 * left:z.2g} of 5 % for all further ones", file=sys.stderr)
    else:
        print("the seeds asked for before are not all trained yet: none are added to them", file=sys.stderr)
    return _with_orders(experiment, seeds)


def _with_orders(experiment: Experiment, seeds: list[int]) -> Any:
    """Return seeds as the file has them: with the orders of the data that each is crossed with, if any."""
    return {"init": seeds, "data": list(experiment.data_seeds)} if experiment.crossed else seeds


# training ------------------------------------------------------------------------------------------------------------


def train_missing(plan: Plan, store: Store, options: RunOptions, manifest: Path) -> int:
    """Train the missing cells; return how many were interrupted. Raises LostError where the `manifest` is removed."""
    work = remaining_work(plan, store, options.retry_failed)
    missing, workers = work.missing, num_workers(work, options)
    parts = [f"{work.counts} with {min(workers, max(1, len(missing)))} at a time"]
    if resumed := sum(store.started(planned.cell.id) for planned in missing):
        parts.append(f"{resumed} from a checkpoint")
    if not options.retry_failed and (failed := list(work.statuses.values()).count("failed")):
        parts.append(f"{failed} failed earlier (--retry-failed trains them again)")
    for line in (", ".join(parts), *work.reused()):
        print(line, file=sys.stderr)
    interrupted = 0
    if missing:
        num_threads = threads(options.executor, workers)
        execution = replace(options.execution, threads=num_threads, retrain=options.retry_failed)
        with (
            Display(len(missing), workers, store) as display,
            make_executor(options.executor, store, workers) as executor,
        ):
            interrupted = train_cells(missing, executor, display, execution, manifest)
    measure_missing_lengths(plan, store)
    return interrupted


def num_workers(work: RemainingWork, options: RunOptions) -> int:
    """Return how many cells to train at a time."""
    cells = len(work.missing)
    if not cells and options.executor == LOCAL:
        return options.workers or 1
    if number := options.workers or capacity(options.executor, cells):
        return number
    if not cells:
        return 1
    # as many as for all cells: the numbers of a cell depend on its threads, which must not depend on what is missing
    return default_workers(len(work.plan.distinct), _largest_step(work) if accelerators() else math.inf)


def _largest_step(work: RemainingWork) -> float:
    """Return the FLOPs of a training step of the largest arm with cells to train; infinite where one has no count."""
    sizes = map(work.plan.sizes, {planned.arm for planned in work.missing})
    return max((size.flops_per_token or math.inf) * size.tokens_per_step for size in sizes)


def measure_missing_lengths(plan: Plan, store: Store) -> None:
    """Measure finished cells at context lengths that were added to the experiment since."""
    for planned in plan.distinct:
        cell = planned.cell
        lengths = (cell.config.get("evaluate") or {}).get("lengths")
        if not lengths or not store.finished(cell.id):
            continue
        from lm.inference.remeasure import measure_lengths  # takes seconds
        from lm.training.evaluate import missing as lacks_lengths

        if not lacks_lengths(store.record(cell.id), cell.config):
            continue
        try:
            print(f"{planned.name}: measuring {lengths} tokens of context", file=sys.stderr)
            measure_lengths(cell, store)
        except InputError as error:
            print(f"{planned.name}: not measured: {error}", file=sys.stderr)


# tuning --------------------------------------------------------------------------------------------------------------


def tune(plan: Plan, store: Store, options: RunOptions) -> int:
    """Run the search of every arm and write `tuned.json` with the winners; return the number of interrupted cells."""
    from lm.search.sweep import best_changes, run_searches

    experiment, tuning = plan.experiment, plan.experiment.tuning
    assert tuning is not None
    jobs = searches_of(experiment, plan, store.out)
    print(f"tuning {len(jobs)} arms, {tuning.trials} trials each", file=sys.stderr)
    cells = len(jobs) * tuning.trials
    workers = options.workers or capacity(options.executor, cells, search=True) or default_workers(cells)
    if interrupted := run_searches(jobs, store, workers, options.execution, options.executor):
        return interrupted
    winners = {job.spec.name: best_changes(job) or (None, None, None) for job in jobs}
    content = {
        "metric": tuning.metric,
        "trials": tuning.trials,
        "seeds": tuning.seeds,
        "sampler": tuning.sampler.described(),
        "pruner": tuning.pruner.described(),
        "arms": {arm: dict(zip(("changes", "value", "trial"), best, strict=True)) for arm, best in winners.items()},
    }
    write_atomic(store.out / experiment.name / TUNING_FOLDER / "tuned.json", to_json(TUNED.stamped(content)))
    return 0
