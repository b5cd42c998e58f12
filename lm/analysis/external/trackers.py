"""Readers of a path by its content: tables, databases of MLflow by SQL, the rest by the tracker's own package."""

import importlib.util
import math
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path

from lm.analysis.external.table import PREFIXES, Row, Table, flatten, read_csv, read_json, read_parquet
from lm.config.plain import shown
from lm.config.tree import InputError, require_regular

INFINITE = 1.7976931348623157e308  # value of MLflow's database for infinity
SUPPORTED = "a table (CSV, parquet, JSON), MLflow's mlruns or mlflow.db, or a folder of TensorBoard's events"
META = "meta.yaml"  # file of each run and experiment in MLflow's folder


def _require(package: str, what: str, path: Path) -> None:
    """Refuse files whose package is not installed. Raises InputError."""
    if importlib.util.find_spec(package) is None:
        hint = "pip install 'lm-ablations[track]'"
        raise InputError(f"{path}: {what} by the package {package}, which is not installed; {hint}")


def read_mlflow_folder(path: Path, metas: list[Path]) -> Table:
    """Read the runs in a folder such as `mlruns` with files `meta.yaml`, by MLflow itself. Raises InputError."""
    _require("mlflow", "MLflow's folders are read", path)
    os.environ.update(MLFLOW_ALLOW_FILE_STORE="true", MLFLOW_DISABLE_TELEMETRY="true")
    from mlflow import MlflowClient
    from mlflow.entities import ViewType

    store = min(metas, key=lambda meta: len(meta.parts)).parent.parent
    rows, deleted = list[Row](), 0
    try:
        client = MlflowClient(store.absolute().as_uri())
        for folder in sorted(meta.parent.name for meta in metas if meta.parent.parent == store):
            experiment, token = client.get_experiment(folder).name, None
            while token != "":
                page = client.search_runs([folder], run_view_type=ViewType.ALL, order_by=["run_id"], page_token=token)
                token = page.token or ""
                for run in page:
                    deleted += run.info.lifecycle_stage != "active"
                    if run.info.lifecycle_stage == "active":
                        fields = {"experiment": experiment, "run_id": run.info.run_id, "run_name": run.info.run_name}
                        fields["status"] = run.info.status.lower()
                        for part in ("params", "tags", "metrics"):
                            fields |= {f"{part}.{name}": value for name, value in getattr(run.data, part).items()}
                        rows.append(flatten(fields))
    except Exception as error:  # MLflow's, YAML's, and whatever damaged files lead to
        raise InputError(f"{path}: MLflow cannot read it: {' '.join(str(error).split())[:200]}") from None
    return _mlflow_table(path, rows, deleted)


def read_mlflow_database(path: Path) -> Table:
    """Read the runs in a database of SQLite. Raises InputError where it is damaged."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        try:
            listed = database.execute(
                "select run_uuid, runs.name, status, experiments.name, runs.lifecycle_stage from runs "
                "left join experiments using (experiment_id) order by start_time, run_uuid"
            ).fetchall()
            settings = database.execute(
                "select run_uuid, 'params.' || key, value from params union all "
                "select run_uuid, 'tags.' || key, value from tags"
            ).fetchall()
            measured = database.execute("select run_uuid, key, value, is_nan from latest_metrics").fetchall()
        except sqlite3.Error as error:
            raise InputError(
                f"{path}: a database, and not of MLflow, or damaged ({error}); expected {SUPPORTED}"
            ) from None
    rows: dict[str, Row] = {}
    for run, name, status, experiment, stage in listed:
        if stage == "active":
            rows[run] = flatten({"run_id": run, "run_name": name, "status": status, "experiment": experiment})
    for run, name, value in settings:
        if run in rows:
            rows[run] |= flatten({name: value})
    for run, name, value, is_nan in measured:
        if run in rows:
            number = math.copysign(math.inf, value) if abs(value) >= INFINITE else float(value)
            rows[run][f"metrics.{name}"] = "nan" if is_nan else repr(number)
    return _mlflow_table(path, list(rows.values()), len(listed) - len(rows))


def _mlflow_table(path: Path, rows: list[Row], deleted: int) -> Table:
    if not rows:
        raise InputError(f"{path}: holds no run of MLflow's that was not deleted")
    gone = (f"{deleted} deleted run{'s are' if deleted > 1 else ' is'} left out",) if deleted else ()
    return Table(path, "MLflow's runs", rows, PREFIXES[:3], ("metrics.",), last=True, notes=gone)


ARM, SEED = "{arm}", "{seed}"

# names such as base/0, base_seed0 and base-s0
USUAL = re.compile(r"(?P<arm>.+?)[/_.-]+(?:(?:seed|s|run|version)[=_-]?)?(?P<seed>\d+)")


def read_events(path: Path, folders: list[Path], called: str | None) -> Table:
    """Read the runs in the `folders` below a path that hold files of events, the last value of each scalar.

    `called` is how these are called, such as `{arm}/{seed}`. Raises InputError where a name does not say arm and seed.
    """
    _require("tensorboard", "TensorBoard's events are read", path)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    pattern = USUAL
    if called is not None:
        if called.count(ARM) != 1 or called.count(SEED) != 1:
            raise InputError(f"--runs-called {called}: expected {ARM} and {SEED}, each once, as in {ARM}/{SEED}")
        with_arm = re.escape(called).replace(re.escape(ARM), r"(?P<arm>.+?)")
        pattern = re.compile(with_arm.replace(re.escape(SEED), r"(?P<seed>[^/]+)"), re.DOTALL)
    rows = []
    for folder in sorted(folders):
        name = folder.relative_to(path).as_posix() if folder != path else path.resolve().name
        match = pattern.fullmatch(name)
        if match is None:
            expected = "names such as base/0 or base_seed0, or --runs-called" if called is None else called
            raise InputError(f"{path}: the run {shown(name)} does not say its arm and its seed; expected {expected}")
        events = EventAccumulator(str(folder), size_guidance={"scalars": 1, "tensors": 1})
        events.Reload()
        scalars = {tag: float(events.Scalars(tag)[-1].value) for tag in events.Tags()["scalars"]}
        for tag in events.Tags()["tensors"]:
            value = tensor_util.make_ndarray(events.Tensors(tag)[-1].tensor_proto)
            if value.size == 1 and value.dtype.kind in "fiu":
                scalars[tag] = float(value.item())
        of_run = {f"scalars.{tag}": repr(number) for tag, number in scalars.items()}
        rows.append({"run": name, "arm": match["arm"], "seed": match["seed"], **of_run})
    return Table(path, "TensorBoard's runs", rows, ("scalars.",), ("scalars.",), last=True)


# detection ------------------------------------------------------------------------------------------------------------

WANDB, PARQUET, SQLITE = b":W&B", b"PAR1", b"SQLite format 3\0"
EVENTS = ".tfevents."

EXPORT_WANDB = (
    "is W&B's own file or folder, which is not read; export the table of runs in W&B's app as CSV (after `wandb sync` "
    "for runs that were offline), or write it with wandb.Api as JSON or parquet"
)


def read(path: Path, called: str | None = None) -> Table:
    """Read the runs at a path in a supported format; TensorBoard's may be `called` otherwise. Raises InputError."""
    if os.path.isdir(path):
        return _folder(path, called)
    try:
        require_regular(path)
        with open(path, "rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if head.startswith(WANDB):
        raise InputError(f"{path}: {EXPORT_WANDB}")
    if head[:4] == PARQUET:
        return read_parquet(path)
    if head.startswith(SQLITE):
        return read_mlflow_database(path)
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if start in (b"[", b"{"):
        return read_json(path)
    if EVENTS in path.name:
        raise InputError(f"{path}: is one run of TensorBoard's; expected the folder that holds those of all arms")
    return read_csv(path)


def _folder(path: Path, called: str | None) -> Table:
    wandb, metas, events = list[Path](), list[Path](), list[Path]()
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not os.path.islink(os.path.join(folder, name)))
        wandb += [Path(folder) / name for name in sorted(names) if name.startswith("run-") and name.endswith(".wandb")]
        metas += [Path(folder) / META] if META in names else []
        events += [Path(folder)] if any(EVENTS in name for name in names) else []
    kinds = {"W&B": wandb, "MLflow": metas, "TensorBoard": events}
    trackers = [kind for kind, paths in kinds.items() if paths]
    if len(trackers) > 1:
        raise InputError(f"{path}: holds runs of {' and '.join(trackers)}; give the folder of one of them")
    if wandb:
        raise InputError(f"{path}: {EXPORT_WANDB}")
    if metas:
        return read_mlflow_folder(path, metas)
    if events:
        return read_events(path, events, called)
    raise InputError(f"{path}: holds no runs; expected {SUPPORTED}")
