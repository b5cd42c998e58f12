"""An Optuna study on disk: its storage, its sampler and pruner, and the one process that may work on it."""

import contextlib
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from filelock import FileLock, Timeout
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection as Way
from optuna.trial import TrialState
from sqlalchemy import make_url

from lm.config.plain import shown
from lm.config.tree import InputError, differences, nearest, require_place
from lm.search.spec import SweepSpec

SPENT = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
"""States of a trial that count against the budget."""

TAKEN_UP = 3
"""How often a trial that a dead process left is taken up before it counts as failed."""

DEFINITION, METHODS, REASON, CELLS, AGAIN = "definition", "methods", "reason", "cells", "taken_up"
"""Names of the attributes that a study and its trials carry."""

# files ---------------------------------------------------------------------------------------------------------------


def journal(spec: SweepSpec, folder: Path) -> Path | None:
    """The journal file that a study lies in, or None where it lies in a database."""
    if spec.storage is None:
        return folder / "study.journal"
    if "://" not in spec.storage:
        return Path(spec.storage)
    known = ("sqlite", "postgresql", "mysql")
    scheme = spec.storage.partition("://")[0].partition("+")[0]
    if scheme not in known:
        raise InputError(
            f"storage: no kind {scheme!r}.{nearest(scheme, known)} "
            f"Give a URL of {', '.join(known)}, or the path of a journal file"
        )
    return None


def check_storage(spec: SweepSpec, folder: Path) -> None:
    """Refuses a storage that cannot be opened; nothing is made or opened. Raises InputError."""
    path = journal(spec, folder)
    if path is not None:
        require_place(path, "storage" if spec.storage else "--out")
        return
    try:
        url = make_url(str(spec.storage))
        url.get_dialect().import_dbapi()
    except ImportError as error:
        raise InputError(f"storage: {shown(spec.storage)}: its driver is not installed: {error}") from None
    except Exception as error:  # SQLAlchemy's own, and what its parsing of numbers raises
        raise InputError(f"storage: {shown(spec.storage)}: no URL of a database: {error}") from None
    if url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:"):
        require_place(Path(str(url.database)), "storage")


def repair(path: Path) -> int:
    """Cuts a last line that was torn by a kill off a journal; returns the bytes it cost.

    Left there, the next line would be appended to it and the file never be read again.

    Raises:
        InputError: where an unreadable line is followed by readable ones, which must not be thrown away.
    """
    content = path.read_bytes() if path.is_file() else b""
    good = 0
    for number, line in enumerate(content.splitlines(keepends=True), 1):
        try:
            whole = line.endswith(b"\n") and isinstance(json.loads(line), dict)
        except ValueError:
            whole = False
        if whole:
            good += len(line)
        elif good + len(line) < len(content):
            raise InputError(
                f"{path}:{number}: not a line of a study's journal, and whole lines follow; "
                "take that line out, or move the file away to begin again"
            )
    if good < len(content):
        os.truncate(path, good)
    return len(content) - good


@contextlib.contextmanager
def owned(path: Path) -> Iterator[None]:
    """Holds a study against every other process. Raises InputError where one works on it already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(path.name + ".owner"), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(f"{path}: another process works on this study; wait for it, or use another --out") from None
    try:
        yield
    finally:
        lock.release()


# samplers and pruners ------------------------------------------------------------------------------------------------


def fresh_seed(seed: int, done: int) -> int:
    """The sampler's seed after `done` trials: the same again would repeat the suggestions of the first time."""
    return int(np.random.SeedSequence([seed, done]).generate_state(1)[0])


def sampler(spec: SweepSpec, done: int, parallel: bool) -> optuna.samplers.BaseSampler:
    """The sampler a sweep asks for, after `done` trials. Raises InputError where it cannot be made."""
    name, options = spec.sampler.name, spec.sampler.options
    seed = fresh_seed(spec.sampler.seed, done)
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


@contextlib.contextmanager
def open_study(spec: SweepSpec, folder: Path, settings: dict[str, Any], parallel: bool) -> Iterator[optuna.Study]:
    """The study of a sweep, made or taken up, for this process alone.

    Args:
        spec: what is searched.
        folder: of the study's report, where its journal lies unless the sweep names another storage.
        settings: of the base's trainer, resolved.
        parallel: whether several trials are open at a time.

    Raises:
        InputError: where another process works on it, it cannot be read, or it holds another search.
    """
    _quiet()
    path = journal(spec, folder)
    chosen = pruner(spec, settings)
    with owned(path or folder / "study"):
        storage = _storage(spec, path)
        directions = [Way.MINIMIZE if way == "lower" else Way.MAXIMIZE for way in spec.objectives.values()]
        known = spec.name in optuna.get_all_study_names(storage)
        if known:
            _same(spec, optuna.load_study(study_name=spec.name, storage=storage), path)
            study = optuna.load_study(study_name=spec.name, storage=storage, pruner=chosen)
        else:
            study = optuna.create_study(
                study_name=spec.name, storage=storage, directions=directions, pruner=chosen, sampler=None
            )
            study.set_metric_names(list(spec.objectives))
        done = len(study.get_trials(deepcopy=False))
        study.sampler = sampler(spec, done, parallel)
        study.set_user_attr(DEFINITION, spec.definition())
        if spent(study) >= spec.trials:
            yield study
            return
        used = {"sampler": spec.sampler.described(), "pruner": spec.pruner.described(), "from_trial": done}
        study.set_user_attr(METHODS, [*study.user_attrs.get(METHODS, []), used])
        yield study


def _storage(spec: SweepSpec, path: Path | None) -> Any:
    if path is not None:
        repair(path)
        try:
            return JournalStorage(JournalFileBackend(str(path)))
        except (ValueError, KeyError) as error:
            raise InputError(f"{path}: not the journal of a study: {error}") from None
    url = str(spec.storage)
    try:
        return RDBStorage(url)
    except Exception as error:  # SQLAlchemy's and each driver's own
        raise InputError(f"storage: {url}: cannot be opened: {' '.join(str(error).split())[:200]}") from None


def _same(spec: SweepSpec, study: optuna.Study, path: Path | None) -> None:
    """Refuses a study of trials that cannot be compared with those asked for."""
    before = study.user_attrs.get(DEFINITION)
    asked = json.loads(json.dumps(spec.definition()))
    if before is not None and before != asked:
        changed = differences(before, asked)
        key, (old, new) = next(iter(changed.items()))
        more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise InputError(
            f"{path or spec.storage}: holds trials of another search ({key}: {old} -> {new}{more}); "
            "name another --out, or the sweep's file otherwise"
        )


def spent(study: optuna.Study) -> int:
    """Trials that have ended, however."""
    return len(study.get_trials(deepcopy=False, states=SPENT))


def left_running(study: optuna.Study) -> list[optuna.trial.Trial]:
    """The trials that a dead process left running, to be taken up; one that was taken up too often is given up.

    Only the study's one owner may ask: to anybody else they look the same as trials that are alive.
    """
    found = []
    for frozen in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        times = frozen.user_attrs.get(AGAIN, 0)
        trial = optuna.trial.Trial(study, frozen._trial_id)
        if times >= TAKEN_UP:
            trial.set_user_attr(REASON, f"left unfinished by {times + 1} processes")
            study.tell(frozen.number, state=TrialState.FAIL)
            continue
        trial.set_user_attr(AGAIN, times + 1)
        found.append(trial)
    return found
