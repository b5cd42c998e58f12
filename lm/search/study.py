"""An Optuna study: its sampler and pruner, and what the processes that work on it share."""

import contextlib
import json
import warnings
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.pruners import BasePruner
from optuna.storages import JournalStorage, RDBStorage
from optuna.study import StudyDirection as Way
from optuna.trial import FrozenTrial, TrialState

from lm.config.plain import shown
from lm.config.tree import InputError, differences
from lm.search.db_lease import DbLeases
from lm.search.spec import SweepSpec
from lm.search.storage import RetryingStorage, describe_location, journal, open_storage
from lm.search.workers import FileLeases, StudyWorkers
from lm.store.locks import to_stderr

FINISHED_STATES = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
"""States of a trial that count against the budget."""

MAX_RESUMES = 3
"""How often a trial that a dead process left is taken up before it counts as failed."""

DEFINITION, METHODS, REASON, CELLS, RESUMES = "definition", "methods", "reason", "cells", "taken_up"
HOLDER, SECONDS = "holder", "seconds"
"""Names of the attributes that a study and its trials carry; the last is how long a trial took the process that ended
it, by a clock that nobody sets."""

# samplers and pruners ------------------------------------------------------------------------------------------------


def fresh_seed(seed: int, done: int, seat: int = 0) -> int:
    """The sampler's seed after `done` trials: the same again would repeat the suggestions of the first time.

    Nor may processes that work on a study at once suggest the same: the first has seat 0, each other one of its own.
    """
    return int(np.random.SeedSequence([seed, done, seat] if seat else [seed, done]).generate_state(1)[0])


def sampler(spec: SweepSpec, done: int, parallel: bool, seat: int = 0) -> optuna.samplers.BaseSampler:
    """The sampler a sweep asks for, after `done` trials. Raises InputError where it cannot be made."""
    name, options = spec.sampler.name, spec.sampler.options
    seed = fresh_seed(spec.sampler.seed, done, seat)
    samplers = optuna.samplers
    needs = {"gp": "torch", "cmaes": "cmaes"}
    _need(needs.get(name), f"sampler {name}")
    _quiet()
    with _blame("sampler"):
        if name == "tpe":
            return samplers.TPESampler(seed=seed, group=spec.space.conditional, constant_liar=parallel, **options)
        if name == "gp":
            return samplers.GPSampler(seed=seed, warn_independent_sampling=False, **options)
        if name == "cmaes":
            return samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False, **options)
        if name == "nsga2":
            size = max(4, min(50, spec.trials // 4))
            return samplers.NSGAIISampler(seed=seed, **{"population_size": size, **options})
        if name == "qmc":  # its position in the sequence is kept by the study, so its seed must stay the same
            settled = {"scramble": True, "warn_independent_sampling": False, **options}
            return samplers.QMCSampler(seed=spec.sampler.seed, warn_asynchronous_seeding=False, **settled)
        return samplers.RandomSampler(seed=seed)  # a grid is enumerated by us


def pruner(spec: SweepSpec, settings: dict[str, Any]) -> optuna.pruners.BasePruner:
    """The pruner a sweep asks for; `settings` are those of the base's trainer. Raises InputError."""
    name, options = spec.pruner.name, spec.pruner.options
    if name == "none":
        return optuna.pruners.NopPruner()
    every = settings["val_check_interval"]
    if not isinstance(every, int) or not settings["limit_val_batches"]:
        raise InputError(
            "pruner: trials are judged by validations in training; "
            f"set trainer.val_check_interval to a number of batches, found {shown(every)}"
        )
    with _blame("pruner"):
        if name == "median":
            return optuna.pruners.MedianPruner(**options)
        step = max(1, every // settings["accumulate_grad_batches"])
        return optuna.pruners.HyperbandPruner(
            **{"min_resource": step, **options}, max_resource=max(settings["max_steps"], step)
        )


def _quiet() -> None:
    """Optuna tells of every study made, and warns of options that it calls experimental; neither is a user's matter."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)


def _need(package: str | None, what: str) -> None:
    if package is not None:
        try:
            __import__(package)
        except ImportError:
            raise InputError(f"{what}: needs the package {package}; install it with: pip install {package}") from None


@contextlib.contextmanager
def _blame(where: str) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: {' '.join(str(error).split())}") from None


# the study -----------------------------------------------------------------------------------------------------------


@dataclass
class SharedStudy:
    """A study, and the processes that work on it.

    Args:
        study: as this process sees it.
        workers: this process among the others.
        retry: does what the storage is needed for.
        say: told in a line what is waited for; may be set to another.
    """

    study: optuna.Study
    workers: StudyWorkers
    retry: RetryingStorage
    say: Callable[[str], None] = to_stderr

    def trials(self) -> list[FrozenTrial]:
        """All trials as they are now. Raises InputError where the storage does not answer."""
        return self.retry(lambda: self.study.get_trials(deepcopy=False))


@contextlib.contextmanager
def open_study(spec: SweepSpec, folder: Path, settings: dict[str, Any], parallel: bool) -> Iterator[SharedStudy]:
    """The study of a sweep, made or taken up, to work on beside other processes.

    Args:
        spec: what is searched.
        folder: of the study's report, where its journal lies unless the sweep names another storage.
        settings: of the base's trainer, resolved.
        parallel: whether this process has several trials open at a time.

    Raises:
        InputError: where it cannot be read, or holds another search.
    """
    _quiet()
    path = journal(spec, folder)
    chosen = pruner(spec, settings)
    storage = open_storage(spec, path)

    def say(line: str) -> None:
        shared.say(line)

    retry = RetryingStorage(describe_location(spec, path), say)
    workers = StudyWorkers(_places(storage, spec, path, retry), say)
    shared = SharedStudy(None, workers, retry)  # type: ignore[arg-type]  # its study is made in a turn

    def join() -> optuna.Study:
        with workers.mutex():
            study = _made(spec, storage, path, chosen)
            seat = workers.register()
            done = len(study.get_trials(deepcopy=False))
            study.sampler = sampler(spec, done, parallel or bool(workers.peers()), seat)
            study.set_user_attr(DEFINITION, spec.definition())
            if spent(study) < spec.trials:
                used = {"sampler": spec.sampler.described(), "pruner": spec.pruner.described(), "from_trial": done}
                before = study.user_attrs.get(METHODS, [])
                if used not in before:
                    study.set_user_attr(METHODS, [*before, used])
            return study

    try:
        shared.study = retry(join)
        yield shared
    finally:
        workers.unregister()


def read_study(spec: SweepSpec, folder: Path) -> optuna.Study:
    """The study of a sweep, to look at. Raises InputError where it cannot be read, or holds another search."""
    _quiet()
    path = journal(spec, folder)
    return _made(spec, open_storage(spec, path), path, None)


def _places(
    storage: JournalStorage | RDBStorage, spec: SweepSpec, path: Path | None, retry: RetryingStorage
) -> FileLeases | DbLeases:
    """Where the processes that work on a study leave word of each other."""
    if isinstance(storage, RDBStorage):
        return retry(lambda: DbLeases(storage.engine, spec.name))
    assert path is not None
    return FileLeases(path.with_name(f".{path.name}.leases") / spec.name)


def _made(
    spec: SweepSpec, storage: JournalStorage | RDBStorage, path: Path | None, chosen: BasePruner | None
) -> optuna.Study:
    """Loads a study, or makes it."""
    directions = _directions(spec)
    if spec.name in optuna.get_all_study_names(storage):
        _same(spec, optuna.load_study(study_name=spec.name, storage=storage), path)
        return optuna.load_study(study_name=spec.name, storage=storage, pruner=chosen)
    study = optuna.create_study(
        study_name=spec.name, storage=storage, directions=directions, pruner=chosen, load_if_exists=True
    )
    study.set_metric_names(list(spec.objectives))
    return study


def _directions(spec: SweepSpec) -> list[Way]:
    """Return the way of each objective, as Optuna calls it."""
    return [Way.MINIMIZE if way == "lower" else Way.MAXIMIZE for way in spec.objectives.values()]


def _same(spec: SweepSpec, study: optuna.Study, path: Path | None) -> None:
    """Refuses a study that is damaged, or of trials that cannot be compared with those asked for."""
    before = study.user_attrs.get(DEFINITION)
    asked = json.loads(json.dumps(spec.definition()))
    damaged = InputError(
        f"{describe_location(spec, path)}: is damaged: its study is described as none is; move it away to begin again"
    )
    if not isinstance(before, dict | None) or not isinstance(study.user_attrs.get(METHODS, []), list):
        raise damaged
    if before is not None and before != asked:
        changed = differences(before, asked)
        if not changed:  # names of missing values differ, which no version writes
            raise damaged
        key, (old, new) = next(iter(changed.items()))
        more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise InputError(
            f"{describe_location(spec, path)}: holds trials of another search ({key}: {old} -> {new}{more}); "
            "name another --out, or the sweep's file otherwise"
        )
    if study.directions != _directions(spec):
        raise damaged


def spent(study: optuna.Study) -> int:
    """Trials that have ended, however."""
    return len(study.get_trials(deepcopy=False, states=FINISHED_STATES))


def resume_trial(
    study: optuna.Study, frozen: FrozenTrial, sign: dict[str, Any], own: Set[str]
) -> optuna.trial.Trial | None:
    """Takes up a trial that is running and free; None where that was done too often, and it is given up.

    Args:
        study: of the trial.
        frozen: the trial as it is found.
        sign: what is written on a trial by who carries it out.
        own: tokens of this process, which may have failed to begin it: that is no second time.
    """
    times, before = frozen.user_attrs.get(RESUMES, 0), frozen.user_attrs.get(HOLDER)
    trial = optuna.trial.Trial(study, frozen._trial_id)
    if before is not None and before["token"] not in own:
        if times >= MAX_RESUMES:
            trial.set_user_attr(REASON, f"left unfinished by {times + 1} processes")
            study.tell(frozen.number, state=TrialState.FAIL)
            return None
        trial.set_user_attr(RESUMES, times + 1)
    trial.set_user_attr(HOLDER, sign)
    return trial
