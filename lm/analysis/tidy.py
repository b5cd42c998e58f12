"""Results as long tables: a row for each arm, seed and quantity, or for each step of a run."""

import math

import pandas as pd

from lm.analysis.curve import curve_table
from lm.analysis.results import Records, curve_files, quantities, value
from lm.store.metrics import describe

CELLS = ("experiment", "arm", "seed", "cell", "status", "metric", "label", "unit", "better", "value")
CURVES = ("experiment", "arm", "seed", "step")


def status_of(results: Records, arm: str, seed: int) -> str:
    """Return the status of a cell: `ok`, `diverged`, `failed`, `damaged`, or `missing` if not trained yet."""
    if (arm, seed) in results.corrupt_records:
        return "damaged"
    record = results.records[arm, seed]
    return "missing" if record is None else str(record["status"])


def cells(results: Records) -> pd.DataFrame:
    """Tabulate the values of all cells: a row for each arm, seed and quantity, with the columns of `CELLS`.

    `cell` is the id, `unit` empty for a pure number, and `value` NaN where the cell has none, as one that diverged.
    """
    rows = []
    for arm in results.arms:
        for seed in results.manifest["seeds"]:
            record, status = results.records[arm, seed], status_of(results, arm, seed)
            cell = results.manifest["arms"][arm]["cells"][str(seed)]
            for name in quantities(results):
                meaning = describe(name)
                number = math.nan if record is None else value(record, name)
                of_cell = (results.manifest["name"], arm, seed, cell, status)
                rows.append((*of_cell, name, meaning.label, meaning.unit, meaning.better or "", number))
    return pd.DataFrame(rows, columns=list(CELLS)).astype({"seed": "int64", "value": "float64"})


def curves(results: Records) -> pd.DataFrame:
    """Return the learning curves: a row for each arm, seed and logged step, a column for each quantity.

    A run without a curve has no rows, nor has an arm with a damaged one: that may be what made it better or worse.
    """
    tables = []
    for arm in results.arms:
        for seed, path in curve_files(results, arm):
            table = curve_table(path).reset_index()
            tables.append(table.assign(experiment=results.manifest["name"], arm=arm, seed=seed))
    if not tables:
        return pd.DataFrame(columns=list(CURVES))
    whole = pd.concat(tables, ignore_index=True)
    return whole[[*CURVES, *(name for name in whole.columns if name not in CURVES)]]
