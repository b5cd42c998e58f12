"""Optuna studies: samplers, pruners, and the state that the processes of a study share."""

import contextlib
import importlib.util
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
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from lm.config.plain import shown
from lm.config.tree import InputError, differences
from lm.search.spec import SweepSpec
from lm.search.storage import RetryingStorage, describe_location, journal, open_storage
from lm.search.workers import StudyWorkers, row_leases
from lm.store.leases import LeaseFolder
from lm.store.locks import to_stderr

FINISHED_STATES = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)  # count against the budget

MAX_RESUMES = 3  # times that a trial of a dead process is resumed before it counts as failed

DEFINITION, METHODS, REASON, CELLS, RESUMES = "definition", "methods", "reason", "cells", "taken_up"
# Names of the attributes of a study and its trials. SECONDS is the duration of a trial by the monotonic clock of the
# process that ended it.
HOLDER, SECONDS = "holder", "seconds"


def sampler(spec: SweepSpec, done: int, parallel: bool, slot: int = 0) -> optuna.samplers.BaseSampler:
    """Make the sampler of a sweep after `done` trials. Raises InputError."""
    name, start = spec.sampler.name, [spec.sampler.seed, done, *([slot] if slot else [])]
    # The same seed would repeat the first suggestions; nor must processes suggest the same: the first has slot 0.
    options = {"seed": int(np.random.SeedSequence(start).generate_state(1)[0]), **spec.sampler.options}
    package = {"gp": "torch", "cmaes": "cmaes"}.get(name)
    if package is not None and importlib.util.find_spec(package) is None:
        raise InputError(f"sampler {name}: needs the package {package}; install it with: pip install {package}")
    _quiet()
    silent = {"warn_independent_sampling": False}
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "tpe": ("TPESampler", {"group": spec.space.conditional, "constant_liar": parallel}),
        "gp": ("GPSampler", silent),
        "cmaes": ("CmaEsSampler", silent),
        "nsga2": ("NSGAIISampler", {"population_size": max(4, min(50, spec.trials // 4))}),
        "qmc": ("QMCSampler", {"scramble": True, **silent, "warn_asynchronous_seeding": False}),
        "random": ("RandomSampler", {}),
        "grid": ("RandomSampler", {}),  # a grid is enumerated by us
    }
    kind, defaults = kinds[name]
    if name == "qmc":  # its position in the sequence is kept by the study, so its seed must stay the same
        options["seed"] = spec.sampler.seed
    return _made("sampler", getattr(optuna.samplers, kind), **{**defaults, **options})


def pruner(spec: SweepSpec, settings: dict[str, Any]) -> optuna.pruners.BasePruner:
    """Make the pruner of a sweep; `settings` are those of the base's trainer. Raises InputError."""
    name, options = spec.pruner.name, spec.pruner.options
    if name == "none":
        return optuna.pruners.NopPruner()
    every = settings["val_check_interval"]
    if not isinstance(every, int) or not settings["limit_val_batches"]:
        hint = f"set trainer.val_check_interval to a number of batches, found {shown(every)}"
        raise InputError(f"pruner: trials are judged by validations in training; {hint}")
    if name == "median":
        return _made("pruner", optuna.pruners.MedianPruner, **options)
    step = max(1, every // settings["accumulate_grad_batches"])
    options = {"min_resource": step, "max_resource": max(settings["max_steps"], step), **options}
    return _made("pruner", optuna.pruners.HyperbandPruner, **options)


def _quiet() -> None:
    """Silence Optuna's messages about new studies and its warnings about experimental options."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)


def _made(where: str, kind: Any, **options: Any) -> Any:
    """Make a sampler or pruner, with errors of Optuna as InputError."""
    try:
        return kind(**options)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: {' '.join(str(error).split())}") from None


@dataclass
class SharedStudy:
    """A study, and the processes that work on it; `say` is called with a line when this one waits."""

    study: optuna.Study
    workers: StudyWorkers
    retry: RetryingStorage
    say: Callable[[str], None] = to_stderr

    def trials(self) -> list[FrozenTrial]:
        """Return all trials as they are now. Raises InputError if the storage does not answer."""
        return self.retry(lambda: self.study.get_trials(deepcopy=False))


@contextlib.contextmanager
def open_study(spec: SweepSpec, folder: Path, settings: dict[str, Any], parallel: bool) -> Iterator[SharedStudy]:
    """Open or create the study of a sweep beside other processes, for work until the end. Raises InputError."""
    _quiet()
    path = journal(spec, folder)
    chosen = pruner(spec, settings)
    storage = open_storage(spec, path)

    def say(line: str) -> None:
        shared.say(line)

    retry = RetryingStorage(describe_location(spec, path), say)
    if path is None:
        place = retry(lambda: row_leases(storage.engine, spec.name))  # type: ignore[union-attr]
    else:
        place = lambda name: LeaseFolder(path.with_name(f".{path.name}.leases") / spec.name / name)  # noqa: E731
    workers = StudyWorkers(place, say)
    shared = SharedStudy(None, workers, retry)  # type: ignore[arg-type]  # its study is made with the mutex held

    def join() -> optuna.Study:
        with workers.mutex():
            study = _load_or_create(spec, storage, path, chosen)
            slot = workers.register()
            done = len(study.get_trials(deepcopy=False))
            study.sampler = sampler(spec, done, parallel or bool(workers.peers()), slot)
            study.set_user_attr(DEFINITION, spec.definition())
            if len(study.get_trials(deepcopy=False, states=FINISHED_STATES)) < spec.trials:
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
    """Open the study of a sweep for reading. Raises InputError if it cannot be read or is of another search."""
    _quiet()
    path = journal(spec, folder)
    return _load_or_create(spec, open_storage(spec, path), path, None)


def _load_or_create(
    spec: SweepSpec, storage: JournalStorage | RDBStorage, path: Path | None, chosen: BasePruner | None
) -> optuna.Study:
    """Load a study, or create it. Raises InputError for a damaged one, or one of another search."""
    location = describe_location(spec, path)
    lower, higher = StudyDirection.MINIMIZE, StudyDirection.MAXIMIZE
    directions = [lower if better == "lower" else higher for better in spec.objectives.values()]
    if spec.name not in optuna.get_all_study_names(storage):
        created: Any = {"directions": directions, "pruner": chosen, "load_if_exists": True}
        study = optuna.create_study(study_name=spec.name, storage=storage, **created)
        study.set_metric_names(list(spec.objectives))
        return study
    study = optuna.load_study(study_name=spec.name, storage=storage, pruner=chosen)
    before, definition = study.user_attrs.get(DEFINITION), json.loads(json.dumps(spec.definition()))
    changed = differences(before, definition) if isinstance(before, dict) else {}
    if changed:
        key, (old, new) = next(iter(changed.items()))
        more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
        what = f"holds trials of another search ({key}: {old} -> {new}{more})"
        raise InputError(f"{location}: {what}; name another --out, or the sweep's file otherwise")
    is_list = isinstance(study.user_attrs.get(METHODS, []), list)
    if before not in (None, definition) or not is_list or study.directions != directions:  # no version writes it
        raise InputError(f"{location}: is damaged: it describes no valid study; move it away to start a new one")
    return study


def resume_trial(
    study: optuna.Study, frozen: FrozenTrial, signature: dict[str, Any], own: Set[str]
) -> optuna.trial.Trial | None:
    """Resume a free trial as this process, whose tokens are `own`; None for one resumed too often, which fails."""
    resumes, before = frozen.user_attrs.get(RESUMES, 0), frozen.user_attrs.get(HOLDER)
    trial = optuna.trial.Trial(study, frozen._trial_id)
    if before is not None and before["token"] not in own:
        if resumes >= MAX_RESUMES:
            trial.set_user_attr(REASON, f"left unfinished by {resumes + 1} processes")
            study.tell(frozen.number, state=TrialState.FAIL)
            return None
        trial.set_user_attr(RESUMES, resumes + 1)
    trial.set_user_attr(HOLDER, signature)
    return trial
