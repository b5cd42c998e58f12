"""Quantities averaged over the last validations of a run, from its learning curve: `nll~3` is the mean of three."""

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from lm.analysis.curve import curve_table
from lm.store.metrics import parse_average
from lm.store.record import Record


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
