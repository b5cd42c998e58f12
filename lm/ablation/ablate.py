"""`lm ablate`: plan, train what is missing, report."""

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from lm.ablation.derived import expand_orders, expand_rates, with_winners, write_rates
from lm.ablation.experiment import Experiment, check_power, shortage
from lm.ablation.plan import Plan, idle_arms, make_plan, read_finished, with_autotuned_settings, write_manifest
from lm.ablation.show import show_plan
from lm.analysis.results import Results, load, paired
from lm.config.tree import InputError, override
from lm.execution.estimate import Stopwatch
from lm.execution.factory import capacity, make_executor, threads
from lm.execution.machine import default_workers
from lm.execution.progress import Display
from lm.execution.scheduler import Planned, train_cells
from lm.execution.sharing import choose_num_workers
from lm.inference.autotune import auto_settings_requested
from lm.inference.remeasure import measure_lengths
from lm.report.write import pointer, write_report
from lm.search.sweep import SearchJob, best_changes, check_search, run_searches
from lm.stats.sequential import sequential
from lm.stats.tests import ALPHA
from lm.store.files import read_json, to_json, write_atomic
from lm.store.formats import TUNED
from lm.store.store import Store
from lm.training.evaluate import missing as lacks_lengths
from lm.training.process import Execution

TUNING_FOLDER = "tune"
MAX_TRIALS = 10_000


@dataclass(frozen=True)
class RunOptions:
    """Options of a command that trains experiments.

    Args:
        out: folder of cells and reports.
        workers: cells trained at a time; None for one a device, or as many as were measured to be best.
        retry_failed: True to train failed cells again.
        underpowered: True to go on where the seeds cannot reach significance.
        command: the arguments of `lm`, which the manifests store.
        execution: how each cell is trained.
        executor: that trains the cells, as in `lm ablate --executor`.
    """

    out: Path
    workers: int | None = None
    retry_failed: bool = False
    underpowered: bool = False
    command: tuple[str, ...] = ()
    execution: Execution = field(default_factory=Execution)
    executor: str = "local"


def ablate(experiment: Experiment, options: RunOptions, plan_only: bool = False) -> int:
    """Train what is missing of an experiment and report on it; `lm.ablation.ladder.run_ladder` does so for a ladder.

    Returns:
        0 if every cell has a record, 1 if some were interrupted.

    Raises:
        InputError: for what cannot be carried out.
    """
    assert experiment.ladder is None
    store = Store(options.out)
    if experiment.tuning is not None:
        check_tuning(experiment, options.out)
    if auto_settings_requested(experiment.tree) and not (plan_only or options.underpowered):
        check_power(experiment)  # before anything is measured
    experiment = with_autotuned_settings(experiment, options.out, options.workers)
    plan = _plan(experiment, store)
    rate_plan = None if experiment.grid is None else _plan(expand_rates(experiment), store)
    order_plan = _plan(expand_orders(experiment), store) if experiment.data_seeds else None
    idle = list(idle_arms(plan).values())
    if plan_only:
        warnings = [*idle, *filter(None, [shortage(experiment)])]
        for part in filter(None, (rate_plan, plan, order_plan)):
            finished = read_finished(part, store)
            missing = to_train(part, finished.statuses, options.retry_failed)
            workers = _num_workers(missing, options, measure=False)
            show_plan(part, store, finished, missing, workers, options.executor, warnings if part is plan else ())
        return 0
    warn(idle)
    tuned = experiment.tuning is not None or rate_plan is not None
    if tuned and not options.underpowered:
        check_power(experiment)
    if experiment.tuning is not None and tune(experiment, store, options):
        return 1
    if rate_plan is not None:
        seeds = len(rate_plan.experiment.seeds)
        print(f"{len(rate_plan.by_arm)} arms and rates, {seeds} seeds each", file=sys.stderr)
        if train_experiment(rate_plan, store, options)[1]:
            return 1
    folder, interrupted = train_experiment(plan, store, options)
    if order_plan is not None and not interrupted:
        seeds = len(order_plan.experiment.seeds)
        print(f"the baseline in {len(order_plan.by_arm)} orders, {seeds} seeds each", file=sys.stderr)
        interrupted = train_experiment(order_plan, store, options)[1]
    if tuned and not interrupted:
        path = folder / TUNING_FOLDER / "tuned.json"
        winners = write_rates(plan, store) if rate_plan else TUNED.read(read_json(path), path)["arms"]
        print("training the experiment again, each arm with its winner", file=sys.stderr)
        tuned_folder, interrupted = train_experiment(_plan(with_winners(experiment, winners), store), store, options)
        write_report(tuned_folder, Console())
    results = write_report(folder, Console())
    print(pointer(folder), file=sys.stderr)
    return 1 if interrupted or results.harmed else 0


def warn(lines: Iterable[str]) -> None:
    """Print warnings on stderr."""
    for line in lines:
        print(f"warning: {line}", file=sys.stderr)


def _plan(experiment: Experiment, store: Store) -> Plan:
    return make_plan(experiment, Stopwatch(store.out / experiment.name / "seconds.json"))


# stages of seeds -----------------------------------------------------------------------------------------------------


def train_experiment(plan: Plan, store: Store, options: RunOptions) -> tuple[Path, int]:
    """Train what is missing; return the experiment's folder and the number of interrupted cells.

    Where seeds come in stages, each stage is trained whole, and the next only if a confirmatory difference is open.

    Raises:
        InputError: where the seeds cannot reach significance, unless `underpowered` says to go on.
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
        progress = f"{len(settled) - len(undecided)} of {len(settled)} differences found, open: {', '.join(undecided)}"
        print(
            f"after {seeds} seeds: {progress if undecided else 'every confirmatory difference is found'}",
            file=sys.stderr,
        )
        if not undecided:
            break
    return folder, interrupted


def settled_arms(results: Results, looks: tuple[int, ...], confirmatory: list[str]) -> dict[str, bool]:
    """Return True for each confirmatory arm whose difference in the headline metric is significant at a look."""
    settled = {}
    for arm in confirmatory:
        pairs = paired(results, arm, results.headline)
        differences = [x - y for x, y in pairs if math.isfinite(x - y)]
        look = sequential(differences, looks, looks[-1], ALPHA / (len(confirmatory) * len(results.judged)))
        settled[arm] = look is not None and look.rejected
    return settled


# training ------------------------------------------------------------------------------------------------------------


def train_missing(plan: Plan, store: Store, options: RunOptions, manifest: Path) -> int:
    """Train the cells of a plan that are missing; return the number of interrupted cells.

    Raises:
        LostError: where the `manifest`, that of the experiment or the ladder, is removed.
    """
    finished = read_finished(plan, store)
    missing = to_train(plan, finished.statuses, options.retry_failed)
    workers = _num_workers(missing, options)
    total = len(plan.distinct)
    parts = [f"{total} cells: {total - len(missing)} done, {len(missing)} to train with {workers} at a time"]
    if resumed := sum(store.started(planned.cell.id) for planned in missing):
        parts.append(f"{resumed} from a checkpoint")
    if not options.retry_failed and (failed := list(finished.statuses.values()).count("failed")):
        parts.append(f"{failed} failed earlier (--retry-failed trains them again)")
    for line in (", ".join(parts), *finished.reused({planned.cell.id for planned in missing})):
        print(line, file=sys.stderr)
    interrupted = 0
    if missing:
        num_threads = threads(options.executor, workers)
        execution = replace(options.execution, threads=num_threads, retrain=options.retry_failed)
        with (
            Display(len(missing), workers, store) as display,
            make_executor(options.executor, store, workers, display.on_waiting) as executor,
        ):
            interrupted = train_cells(missing, executor, display, execution, manifest)
    measure_missing_lengths(plan, store)
    return interrupted


def _num_workers(missing: list[Planned], options: RunOptions, measure: bool = True) -> int:
    """Return the number of cells to train at a time."""
    return (
        options.workers or capacity(options.executor, len(missing)) or choose_num_workers(missing, options.out, measure)
    )


def to_train(plan: Plan, statuses: dict[str, str], retry_failed: bool) -> list[Planned]:
    """Return the cells to train, each once: those not finished, and with `retry_failed` those that failed."""
    untrained = (None, "failed") if retry_failed else (None,)
    return [planned for planned in plan.distinct if statuses.get(planned.cell.id) in untrained]


def measure_missing_lengths(plan: Plan, store: Store) -> None:
    """Measure finished cells at context lengths that were added to the experiment since."""
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


# tuning --------------------------------------------------------------------------------------------------------------


def _searches(experiment: Experiment, out: Path) -> list[SearchJob]:
    """Return the search of every arm, with the same budget."""
    tuning, folder = experiment.tuning, out / experiment.name / TUNING_FOLDER
    assert tuning is not None
    return [
        SearchJob(
            tuning.spec(arm, f"{experiment.title}: {arm}", override(experiment.tree, changes)),
            folder / arm,
            f"{arm} ",
            f"{experiment.name}.tune/{arm}.trial_",
        )
        for arm, changes in experiment.arms.items()
    ]


def check_tuning(experiment: Experiment, out: Path) -> None:
    """Check the search of every arm before anything is trained. Raises InputError."""
    tuning = experiment.tuning
    assert tuning is not None
    if tuning.trials > MAX_TRIALS:
        raise InputError(f"tune.trials: expected at most {MAX_TRIALS}, found {tuning.trials}")
    for job in _searches(experiment, out):
        check_search(job.spec, job.folder)


def tune(experiment: Experiment, store: Store, options: RunOptions) -> int:
    """Run the search of every arm; return the number of interrupted cells.

    Writes OUT/EXPERIMENT/tune/ARM/ for each arm, and `tuned.json` with the winners once all searches have ended.
    """
    tuning = experiment.tuning
    assert tuning is not None
    jobs = _searches(experiment, store.out)
    print(f"tuning {len(jobs)} arms, {tuning.trials} trials each", file=sys.stderr)
    cells = len(jobs) * tuning.trials
    workers = options.workers or capacity(options.executor, cells, search=True) or default_workers(cells)
    interrupted = run_searches(
        jobs,
        store,
        workers,
        options.execution,
        options.executor,
    )
    if interrupted:
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
