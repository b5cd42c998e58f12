"""`lm sweep`: search, train missing cells, report."""

import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lm.config.components import resolve
from lm.config.plain import shown
from lm.config.tree import InputError, Tree, override
from lm.execution.estimate import advice, judged_seconds, wall_seconds
from lm.execution.factory import capacity, make_executor, threads
from lm.execution.machine import default_workers
from lm.execution.progress import Display
from lm.execution.scheduler import Watcher, run_cells
from lm.inference.autotune import replace_auto_settings
from lm.report.run import describe_autotune
from lm.report.status import duration
from lm.report.write import pointer, write_report
from lm.search.space import Space
from lm.search.spec import SweepSpec
from lm.search.storage import check_storage, journal
from lm.search.study import CELLS, METHODS, REASON, SECONDS, SharedStudy, open_study, pruner, read_study, sampler
from lm.search.trials import OUTCOMES, Search, Searches
from lm.store.files import finite, to_json, write_atomic
from lm.store.formats import SEARCH
from lm.store.store import Store
from lm.training.cell import check
from lm.training.process import Execution
from lm.training.run import RunConfig
from lm.training.strategies import check_strategy

BEST = "best.yaml"  # file in the folder of a search with the configuration of its best trial
SAVED_SECONDS = 5.0  # shortest time between two writes of `study.json` during a search
NUM_DRAWS = 20  # draws of the other dimensions with which a value that does not fit the base is built


@dataclass(frozen=True)
class SearchJob:
    """A search with the folder of its study and report, and the prefixes of its trials' names."""

    spec: SweepSpec
    folder: Path
    label: str = ""
    called: str = ""


def sweep(
    spec: SweepSpec, out: Path, workers: int | None, execution: Execution, plan_only: bool, executor: str = "local"
) -> int:
    """Run a search, with cells trained by `executor`. Return 0 if every trial has ended, 1 if some were interrupted."""
    store, folder = Store(out), out / spec.name
    if (folder / "experiment.json").exists():
        raise InputError(f"{folder}: holds an experiment's report; name the sweep's file otherwise, or another --out")
    cells = spec.trials * len(spec.seeds)
    workers = workers or capacity(executor, cells, search=True) or default_workers(cells)
    tree, decision = replace_auto_settings(spec.tree, out, threads(executor, workers))
    if decision is not None:
        spec = replace(spec, tree=tree)
        print(describe_autotune(asdict(decision)), file=sys.stderr)
    if plan_only:
        check_search(spec, folder)
        show_plan(spec, workers, threads(executor, workers))
        return 0
    interrupted = run_searches([SearchJob(spec, folder)], store, workers, execution, executor)
    write_report(folder, Console())
    print(pointer(folder), file=sys.stderr)
    best = best_changes(SearchJob(spec, folder)) if len(spec.objectives) == 1 else None
    if best is None:
        (folder / BEST).unlink(missing_ok=True)
    else:
        changes, value, number = best
        config = resolve(override(spec.tree, {**changes, "seed": spec.seeds[0]}), RunConfig)
        mean = f", the mean of {len(spec.seeds)} seeds" if len(spec.seeds) > 1 else ""
        about = f"# trial {number} of {spec.name}: {next(iter(spec.objectives))} {value:z.6g}{mean}\n"
        write_atomic(folder / BEST, about + yaml.safe_dump(config, sort_keys=False))
        names = ", ".join(f"{spec.name}/trial_{number}/{seed}" for seed in spec.seeds)
        print(f"best: {folder / BEST} (lm fit takes it), of {names}", file=sys.stderr)
    return 1 if interrupted else 0


def check_search(spec: SweepSpec, folder: Path) -> None:
    """Check a search before anything is trained or written. Raises InputError."""
    settings = resolve(spec.tree, RunConfig)["trainer"]
    check_strategy(settings)
    check_storage(spec, folder)
    sampler(spec, 0, parallel=False)
    pruner(spec, settings)
    if spec.sampler.name == "grid":
        spec.space.grid()
    check_space(spec.space, spec.tree)
    path = journal(spec, folder)
    if path is not None and path.is_file():
        read_study(spec, folder)  # refuses one that holds trials of another search


def check_space(space: Space, tree: Tree) -> None:
    """Check that every choice and both ends of every range can be trained, with drawn values of others if need be."""
    resolve(tree, RunConfig)
    examples = space.examples()
    for changes in examples:
        try:
            resolve(override(tree, changes), RunConfig)
        except InputError as error:
            hint = " (int: true draws whole numbers)" if "expected a whole number" in str(error) else ""
            raise InputError(f"space: {error}{hint}") from None
    for changes in examples:
        prefixes, draws, problem = tuple(f"{path}." for path in changes), random_draws(space, 0), ""
        for attempt in range(1 + NUM_DRAWS if len(space.dimensions) > 1 else 1):
            drawn = next(draws) if attempt else {}
            others = {path: value for path, value in drawn.items() if not f"{path}.".startswith(prefixes)}
            try:
                check(override(tree, {**others, **changes}))
                break
            except InputError as error:
                problem = problem or str(error)
        else:
            values = ", ".join(f"{path}={shown(value)}" for path, value in changes.items())
            raise InputError(f"space: {values} cannot be trained: {problem}")


def random_draws(space: Space, seed: int) -> Iterator[dict[str, Any]]:
    """Yield random changes drawn from a space."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    while True:
        yield space.suggest(study.ask())


def run_searches(
    jobs: Sequence[SearchJob], store: Store, workers: int, execution: Execution, executor: str = "local"
) -> int:
    """Run searches that share the workers, write a `study.json` for each; return how many cells were interrupted."""
    for job in jobs:
        check_search(job.spec, job.folder)
    with contextlib.ExitStack() as stack:
        studies: list[SharedStudy] = []
        watcher = Watcher()

        def say(name: str, outcome: str, cells: int) -> None:
            watcher.on_settled(name, outcome, cells)  # of the display, once there is one

        for job in jobs:
            settings = resolve(job.spec.tree, RunConfig)["trainer"]
            shared = stack.enter_context(open_study(job.spec, job.folder, settings, parallel=workers > 1))
            stack.callback(write_manifest, job.spec, shared, job.folder)
            studies.append(shared)
        searches = [
            Search(job.spec, shared, store, say, job.label, job.called, manifest_writer(job, shared))
            for job, shared in zip(jobs, studies, strict=True)
        ]
        source = Searches(searches, store)
        spent, total = sum(search.spent for search in searches), sum(job.spec.trials for job in jobs)
        open_trials = sum(search.unfinished for search in searches)
        resumed = f", {open_trials} resumed" if open_trials else ""
        left = f"{total - spent} to come with {workers} cells at a time" if total > spent else "none to come"
        print(f"{total} trials: {spent} done{resumed}, {left}", file=sys.stderr)
        execution = replace(execution, threads=threads(executor, workers), prunable=True)
        with (
            Display(source.remaining(), workers, store) as display,
            make_executor(executor, store, workers) as engine,
        ):
            watcher = display
            for shared in studies:
                shared.say = display.on_waiting
            return run_cells(source, engine, display, execution)


def best_changes(job: SearchJob) -> tuple[dict[str, Any], float, int] | None:
    """Return the changes, value and number of the best complete trial of a single objective; None without one."""
    study = read_study(job.spec, job.folder)
    if not study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        return None
    best = study.best_trial
    return job.spec.space.suggest(best), float(best.value or 0.0), best.number


def manifest_writer(job: SearchJob, shared: SharedStudy) -> Callable[[], None]:
    """Return a function that writes `study.json`, unless that was done recently: it takes longer with every trial."""
    due = 0.0

    def write() -> None:
        nonlocal due
        if (started := time.monotonic()) >= due:
            write_manifest(job.spec, shared, job.folder)
            due = time.monotonic() + max(SAVED_SECONDS, 20 * (time.monotonic() - started))

    write()
    return write


def write_manifest(spec: SweepSpec, shared: SharedStudy, folder: Path) -> None:
    """Write `study.json`, the input of the report. Raises InputError if the storage does not answer."""
    trials, study = shared.trials(), shared.study
    manifest = {
        **{name: getattr(spec, name) for name in ("name", "title", "notes", "objectives")},
        "space": spec.space.described(),
        "trials": spec.trials,
        "seeds": spec.seeds,
        "methods": shared.retry(lambda: study.user_attrs[METHODS]),
        "study": [
            {
                "number": trial.number,
                "state": OUTCOMES.get(trial.state, "open"),
                "params": trial.params,
                "values": trial.values if trial.state == TrialState.COMPLETE else None,
                "reason": trial.user_attrs.get(REASON),
                "cells": trial.user_attrs.get(CELLS, {}),
                "seconds": trial_seconds(trial),
                "reported": {str(step): value for step, value in trial.intermediate_values.items()},
            }
            for trial in trials
            if trial.state != TrialState.WAITING
        ],
    }
    write_atomic(folder / "study.json", to_json(finite(SEARCH.stamped(manifest))))


def trial_seconds(trial: FrozenTrial) -> float | None:
    """Return the duration of a trial; None if it was not measured and the clock was set back meanwhile."""
    if (measured := trial.user_attrs.get(SECONDS)) is not None:
        return float(measured)
    elapsed = None if trial.duration is None else trial.duration.total_seconds()
    return None if elapsed is None or elapsed < 0 else elapsed


def show_plan(spec: SweepSpec, workers: int, each: int) -> None:
    """Print the space, the methods and an estimate of the time. Nothing is trained or written."""
    console = Console()
    table = Table(title=Text(spec.title), title_justify="left", highlight=False)
    for column in ("parameter", "drawn from"):
        table.add_column(column)
    for name, drawn in spec.space.described().items():
        values = ", ".join(drawn.get("choices", []))
        if "low" in drawn:
            kind, log = "whole numbers " if drawn["int"] else "", ", logarithmic" if drawn["log"] else ""
            step = f" in steps of {drawn['step']:zg}" if drawn["step"] else ""
            values = f"{kind}{drawn['low']:zg} to {drawn['high']:zg}{step}{log}"
        table.add_row(Text(name), Text(values))
    console.print(table)
    seeds, objectives = len(spec.seeds), ", ".join(f"{name} ({better})" for name, better in spec.objectives.items())
    remark = None
    estimate = "; none of ten random trials can be built: check that the values of the space fit each other"
    for changes in itertools.islice(random_draws(spec.space, spec.sampler.seed), 10):
        try:
            cell = check(override(spec.tree, {**changes, "seed": spec.seeds[0]}))
        except InputError:
            continue
        wall = wall_seconds([judged_seconds({"": cell}, each)[""]] * spec.trials * seeds, workers)
        estimate = f"; about {duration(wall)} with {workers} at a time, estimated from a few steps of a random trial"
        remark = advice([cell], each)
        break
    for line in (
        f"for {objectives}, by {spec.sampler.name} with seed {spec.sampler.seed}, pruner {spec.pruner.name}",
        f"{spec.trials} trials of {seeds} {'seed' if seeds == 1 else 'seeds'}" + estimate,
        *([remark] if remark else []),
    ):
        console.print(line, highlight=False, soft_wrap=True)
