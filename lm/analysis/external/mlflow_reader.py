"""Runs of MLflow, in its folder of files or in its database of SQLite, read without its package."""

import math
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from lm.analysis.external.table import Row, Table, as_text
from lm.analysis.external.tabular import text
from lm.config.tree import InputError, load_yaml

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
    return _table(path, rows, len(runs) - len(active))


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


def read_database(path: Path) -> Table:
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
    return _table(path, list(rows.values()), len(listed) - len(rows))


def _finite(value: Any) -> float:
    number = float(value)
    return math.copysign(math.inf, number) if abs(number) >= INFINITE else number


def _table(path: Path, rows: list[Row], deleted: int) -> Table:
    if not rows:
        raise InputError(f"{path}: holds no run of MLflow's that was not deleted")
    gone = (f"{deleted} deleted run{'s are' if deleted > 1 else ' is'} left out",) if deleted else ()
    return Table(path, "MLflow's runs", rows, PREFIXES, ("metrics.",), last=True, notes=gone)
