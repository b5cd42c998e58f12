"""Tuning every arm alike, and the experiment over again with each arm's winner."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lm.ablation.experiment import Experiment
from lm.config.tree import InputError, override
from lm.execution.factory import capacity
from lm.execution.machine import default_workers
from lm.search.search import Job, best_changes, check_search, run_searches
from lm.store.files import to_json, write_atomic
from lm.store.formats import TUNED
from lm.store.store import Store
from lm.training.process import Execution

FOLDER = "tune"
MOST_TRIALS = 10_000


@dataclass(frozen=True)
class Winner:
    """What an arm's search ended in: the changes, or None where no trial was trained to its end."""

    changes: dict[str, Any] | None
    value: float | None
    trial: int | None


def tune(
    experiment: Experiment,
    store: Store,
    workers: int | None,
    execution: Execution,
    executor: str = "local",
) -> int:
    """Gives every arm its search, all with the same budget. Returns how many cells were interrupted.

    Leaves OUT/EXPERIMENT/tune/ARM/ for each arm, and `tuned.json` with the winners once all searches have ended.
    """
    tuning = experiment.tuning
    assert tuning is not None
    folder = store.out / experiment.name / FOLDER
    jobs = [
        Job(
            tuning.spec(arm, f"{experiment.title}: {arm}", override(experiment.tree, changes)),
            folder / arm,
            f"{arm} ",
            f"{experiment.name}.tune/{arm}.trial_",
        )
        for arm, changes in experiment.arms.items()
    ]
    print(f"tuning {len(jobs)} arms, {tuning.trials} trials each", file=sys.stderr)
    cells = len(jobs) * tuning.trials
    workers = workers or capacity(executor, cells, search=True) or default_workers(cells)
    interrupted = run_searches(jobs, store, workers, execution, executor)
    if not interrupted:
        _write(folder / "tuned.json", {job.spec.name: _winner(job) for job in jobs}, experiment)
    return interrupted


def check_tuning(experiment: Experiment, out: Path) -> None:
    """Finds what is wrong with the search of any arm before anything is trained. Raises InputError."""
    folder = out / experiment.name / FOLDER
    tuning = experiment.tuning
    assert tuning is not None
    if tuning.trials > MOST_TRIALS:
        raise InputError(f"tune.trials: expected at most {MOST_TRIALS}, found {tuning.trials}")
    for arm, changes in experiment.arms.items():
        spec = tuning.spec(arm, experiment.title, override(experiment.tree, changes))
        check_search(spec, folder / arm)


def _winner(job: Job) -> Winner:
    found = best_changes(job)
    return Winner(None, None, None) if found is None else Winner(*found)


def _write(path: Path, winners: dict[str, Winner], experiment: Experiment) -> None:
    tuning = experiment.tuning
    assert tuning is not None
    described = {
        "metric": tuning.metric,
        "trials": tuning.trials,
        "seeds": tuning.seeds,
        "sampler": tuning.sampler.described(),
        "pruner": tuning.pruner.described(),
        "arms": {
            arm: {"changes": winner.changes, "value": winner.value, "trial": winner.trial}
            for arm, winner in winners.items()
        },
    }
    write_atomic(path, to_json(TUNED.stamped(described)))


def tuned(experiment: Experiment, winners: dict[str, Any]) -> Experiment:
    """The experiment with what each arm won with frozen; an arm without a winner keeps the shared values."""
    arms = {arm: {**changes, **(winners[arm]["changes"] or {})} for arm, changes in experiment.arms.items()}
    return replace(
        experiment,
        name=f"{experiment.name}.tuned",
        title=f"{experiment.title} (each arm tuned)",
        design=replace(experiment.design, arms=arms),
        claims=(),
        tuning=None,
        grid=None,
        data_seeds=(),
    )
