"""Detection of the tracker or table format of a path by its content."""

import os
from pathlib import Path

from lm.analysis.external.table import Table, read_csv, read_json, read_parquet
from lm.analysis.external.trackers import META, SUPPORTED, read_events, read_mlflow_database, read_mlflow_folder
from lm.config.tree import InputError, require_regular

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
