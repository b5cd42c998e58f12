"""Readers of what trackers leave: MLflow without its package, Optuna and TensorBoard by theirs."""

import importlib.util
import math
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lm.analysis.external.table import Row, Table, as_text
from lm.analysis.external.tabular import text
from lm.config.plain import shown
from lm.config.tree import InputError, load_yaml
from lm.stats.verdicts import Better

STATUSES = {1: "running", 2: "scheduled", 3: "finished", 4: "failed", 5: "killed"}
"""Statuses by their numbers in a run's `meta.yaml`."""

INFINITE = 1.7976931348623157e308
"""Value of the database for infinity."""

PREFIXES = ("params.", "metrics.", "tags.")
META = "meta.yaml"


def read_store(path: Path, files: list[Path]) -> Table:
    """Read the runs in a folder such as `mlruns`.

    Args:
        path: of the folder.
        files: every `meta.yaml` in it.

    Raises:
        InputError: for files that are damaged.
    """
    metas = {file.parent: load_yaml(file) for file in files}
    runs = {folder: meta for folder, meta in metas.items() if {"run_id", "run_uuid"} & meta.keys()}
    active = {folder: meta for folder, meta in runs.items() if meta.get("lifecycle_stage", "active") == "active"}
    rows = []
    for folder, meta in sorted(active.items()):
        fields = {"experiment": metas.get(folder.parent, {}).get("name", meta.get("experiment_id"))}
        fields |= {"run_id": meta.get("run_id", meta.get("run_uuid")), "run_name": meta.get("run_name")}
        fields["status"] = STATUSES.get(meta.get("status", 0), meta.get("status"))
        row = {name: written for name, value in fields.items() if (written := as_text(value)) is not None}
        row |= {f"params.{name}": text(file).strip() for name, file in _below(folder / "params")}
        row |= {f"tags.{name}": text(file).strip() for name, file in _below(folder / "tags")}
        row |= {f"metrics.{name}": _latest(file) for name, file in _below(folder / "metrics")}
        rows.append(row)
    return _mlflow_table(path, rows, len(runs) - len(active))


def _below(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files below a folder with their relative paths; a name may hold slashes."""
    for parent, _, names in sorted(os.walk(folder)):
        for name in sorted(names):
            file = Path(parent) / name
            yield file.relative_to(folder).as_posix(), file


def _latest(file: Path) -> str:
    """Read the value of the last step in a file with a line of time, value and step for each."""
    points: list[tuple[int, int, str]] = []
    for line in text(file).splitlines():
        words = line.split()
        try:
            points.append((int(words[2]) if len(words) > 2 else 0, int(words[0]), words[1]))
        except (ValueError, IndexError):
            raise InputError(f"{file}: expected lines of time, value and step, found {line[:40]!r}") from None
    return max(points)[2] if points else "nan"


def read_mlflow_database(path: Path) -> Table:
    """Read the runs in a database of SQLite.

    Raises:
        InputError: where it is damaged.
    """
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        try:
            listed = database.execute(
                "select run_uuid, runs.name, status, experiments.name, runs.lifecycle_stage from runs "
                "left join experiments using (experiment_id) order by start_time, run_uuid"
            ).fetchall()
            params = database.execute("select run_uuid, key, value from params").fetchall()
            tags = database.execute("select run_uuid, key, value from tags").fetchall()
            measured = database.execute("select run_uuid, key, value, is_nan from latest_metrics").fetchall()
        except sqlite3.Error as error:
            raise InputError(f"{path}: is no database of MLflow's, or damaged: {error}") from None
    rows: dict[str, Row] = {}
    for run, name, status, experiment, stage in listed:
        if stage == "active":
            parts = {"run_id": run, "run_name": name, "status": status, "experiment": experiment}
            rows[run] = {key: text for key, value in parts.items() if (text := as_text(value)) is not None}
    for prefix, entries in (("params.", params), ("tags.", tags)):
        for run, key, value in entries:
            if run in rows and (text := as_text(value)) is not None:
                rows[run][f"{prefix}{key}"] = text
    for run, key, value, is_nan in measured:
        if run in rows:
            rows[run][f"metrics.{key}"] = "nan" if is_nan else repr(_finite(value))
    return _mlflow_table(path, list(rows.values()), len(listed) - len(rows))


def _finite(value: Any) -> float:
    number = float(value)
    return math.copysign(math.inf, number) if abs(number) >= INFINITE else number


def _mlflow_table(path: Path, rows: list[Row], deleted: int) -> Table:
    if not rows:
        raise InputError(f"{path}: holds no run of MLflow's that was not deleted")
    gone = (f"{deleted} deleted run{'s are' if deleted > 1 else ' is'} left out",) if deleted else ()
    return Table(path, "MLflow's runs", rows, PREFIXES, ("metrics.",), last=True, notes=gone)


# Optuna --------------------------------------------------------------------------------------------------------------

OPTUNA_PREFIXES = ("params_", "user_attrs_", "values_")


def read_optuna_journal(path: Path) -> Table:
    """Read the trials in a journal.

    Raises:
        InputError: where Optuna cannot read it.
    """
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return _trials(path, lambda: JournalStorage(JournalFileBackend(str(path))))


def read_optuna_database(path: Path) -> Table:
    """Read the trials in a database of SQLite without writing to it.

    Raises:
        InputError: where Optuna cannot read it.
    """
    from optuna.storages import RDBStorage

    url = f"sqlite:///file:{quote(str(path.absolute()))}?mode=ro&uri=true"
    return _trials(path, lambda: RDBStorage(url, skip_table_creation=True))


def _trials(path: Path, open_storage: Any) -> Table:
    """Tabulate each trial of every study, with columns named as in `Study.trials_dataframe`."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        storage = open_storage()
        studies = [optuna.load_study(study_name=name, storage=storage) for name in optuna.get_all_study_names(storage)]
        rows, better = list[Row](), dict[str, Better]()
        for study in studies:
            names = _objectives(study)
            better |= {
                name: "higher" if direction == optuna.study.StudyDirection.MAXIMIZE else "lower"
                for name, direction in zip(names, study.directions, strict=True)
            }
            rows += [_trial_row(study.study_name, trial, names) for trial in study.get_trials(deepcopy=False)]
    except Exception as error:  # SQLAlchemy's, and whatever a journal's lines lead Optuna to
        raise InputError(f"{path}: Optuna cannot read it: {' '.join(str(error).split())[:200]}") from None
    finally:
        optuna.logging.set_verbosity(verbosity)
    if not rows:
        raise InputError(f"{path}: holds no trial of Optuna's")
    return Table(path, "Optuna's trials", rows, OPTUNA_PREFIXES, ("value", "values_", "user_attrs_"), better)


def _objectives(study: Any) -> list[str]:
    """Name the objectives of a study."""
    if study.metric_names:
        return [f"values_{name}" for name in study.metric_names]
    count = len(study.directions)
    return ["value"] if count == 1 else [f"values_{place}" for place in range(count)]


def _trial_row(study: str, trial: Any, names: list[str]) -> Row:
    fields: dict[str, Any] = {"study": study, "number": trial.number, "state": trial.state.name}
    fields |= dict(zip(names, trial.values or (), strict=False))
    fields |= {f"params_{name}": value for name, value in trial.params.items()}
    fields |= {f"user_attrs_{name}": value for name, value in trial.user_attrs.items()}
    return {name: text for name, value in fields.items() if (text := as_text(value)) is not None}


# TensorBoard ---------------------------------------------------------------------------------------------------------

ARM, SEED = "{arm}", "{seed}"

USUAL = re.compile(r"(?P<arm>.+?)[/_.-]+(?:(?:seed|s|run|version)[=_-]?)?(?P<seed>\d+)")
"""Names such as base/0, base_seed0 and base-s0."""


def read_events(path: Path, folders: list[Path], called: str | None) -> Table:
    """Read the runs in a folder, the last value of each scalar.

    Args:
        path: of the folder.
        folders: those in it that hold files of events, a run each.
        called: how these are called, such as `{arm}/{seed}`; None for the usual ways.

    Raises:
        InputError: without TensorBoard, or where a name does not say arm and seed.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise InputError(
            f"{path}: TensorBoard's events are read by the package tensorboard, which is not installed; "
            "pip install 'lm-ablations[track]'"
        )
    pattern = USUAL if called is None else _run_name_pattern(called)
    rows = []
    for folder in sorted(folders):
        name = folder.relative_to(path).as_posix() if folder != path else path.resolve().name
        match = pattern.fullmatch(name)
        if match is None:
            expected = "names such as base/0 or base_seed0, or --runs-called" if called is None else called
            raise InputError(f"{path}: the run {shown(name)} does not say its arm and its seed; expected {expected}")
        rows.append({"run": name, "arm": match["arm"], "seed": match["seed"], **_last_values(folder)})
    return Table(path, "TensorBoard's runs", rows, ("scalars.",), ("scalars.",), last=True)


def _run_name_pattern(called: str) -> re.Pattern[str]:
    """Compile the pattern of run names.

    Raises:
        InputError: where arm or seed is not in it once.
    """
    if called.count(ARM) != 1 or called.count(SEED) != 1:
        raise InputError(f"--runs-called {called}: expected {ARM} and {SEED}, each once, as in {ARM}/{SEED}")
    escaped = re.escape(called)
    return re.compile(
        escaped.replace(re.escape(ARM), r"(?P<arm>.+?)").replace(re.escape(SEED), r"(?P<seed>[^/]+)"), re.DOTALL
    )


def _last_values(folder: Path) -> Row:
    """Read the last value of each scalar in the files of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    events = EventAccumulator(str(folder), size_guidance={"scalars": 1, "tensors": 1})
    events.Reload()
    values: dict[str, Any] = {}
    for tag in events.Tags()["scalars"]:
        values[tag] = events.Scalars(tag)[-1].value
    for tag in events.Tags()["tensors"]:
        value = tensor_util.make_ndarray(events.Tensors(tag)[-1].tensor_proto)
        if value.size == 1 and value.dtype.kind in "fiu":
            values[tag] = value.item()
    return {f"scalars.{tag}": repr(float(value)) for tag, value in values.items()}
