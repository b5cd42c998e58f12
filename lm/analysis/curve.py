"""Learning curves from their files, and means over the last validations of a run: `nll~3` is that of three."""

import functools
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from lm.store.files import unescape_formula
from lm.store.metrics import parse_average
from lm.store.record import Record
from lm.store.thin_curves import THIN_NAME, read_thin_curve


def curve_table(path: Path, parts: bool = False) -> pd.DataFrame:
    """Return a learning curve, a row a step, read once per file; `parts` adds columns of the model's parts."""
    file = path.stat()
    return _curve_table(path, parts, (file.st_ino, file.st_mtime_ns, file.st_size))


@functools.lru_cache(maxsize=4096)
def _curve_table(path: Path, parts: bool, version: tuple[int, int, int]) -> pd.DataFrame:
    if path.name == THIN_NAME:
        return pd.DataFrame(read_thin_curve(path)["columns"]).set_index("step")
    table = pd.read_csv(path, index_col="step", usecols=lambda name: parts or "/" not in name)
    return table.rename(columns=unescape_formula)


def last_validations(path: Path, quantity: str, count: int) -> list[float]:
    """Read the last validations of a quantity from a learning curve; none where there are fewer."""
    column = f"validation_{quantity}"
    curve = curve_table(path) if path.is_file() else None
    if curve is None or column not in curve:
        return []
    values = [float(value) for value in curve[column].dropna()]
    return values[-count:] if len(values) >= count else []


def with_averages(record: Record, path: Path, names: Iterable[str]) -> Record:
    """Add the metrics in `names` that are averages over validations, from the curve at `path`."""
    averages: dict[str, float | None] = {}
    for name in names:
        if (average := parse_average(name)) is not None:
            mean = float(np.mean(last_validations(path, *average) or [math.nan]))
            averages[name] = mean if math.isfinite(mean) else None
    return {**record, "metrics": {**record["metrics"], **averages}} if averages else record
