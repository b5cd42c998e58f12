"""Tables of runs in files: CSV, parquet and JSON, as people and the exports of trackers write them."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lm.analysis.external.table import Row, Table, as_text, flatten
from lm.config.tree import InputError, require_regular
from lm.stats.verdicts import Better
from lm.store.files import read_csv_rows

LONGEST = 200_000_000
"""Bytes of a file."""

LONG = ("metric", "value")
"""Columns by which a table has a row for each quantity, as `cells.csv` has."""

OF_QUANTITY = (*LONG, "label", "unit", "better")
"""Columns of such a table that say nothing of the run."""

PREFIXES = ("params.", "metrics.", "tags.", "config.", "summary.", "params_", "user_attrs_", "values_", "")
"""Prefixes of exports before the names of parameters and measurements."""


def content(path: Path) -> bytes:
    """Read the bytes of a file.

    Raises:
        InputError: where it cannot be read, or is too long.
    """
    try:
        require_regular(path)
        with open(path, "rb") as file:
            data = file.read(LONGEST + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if len(data) > LONGEST:
        raise InputError(f"{path}: is longer than {LONGEST:,} bytes; expected a table of runs")
    return data


def text(path: Path) -> str:
    """Read a file as UTF-8 text."""
    try:
        return content(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text; expected a table of runs, such as a CSV file") from None


# the files -----------------------------------------------------------------------------------------------------------


def read_csv(path: Path) -> Table:
    """Read the runs in a CSV file, or one with tabs or semicolons.

    Raises:
        InputError: for another file.
    """
    decoded = text(path)
    head = decoded.partition("\n")[0]
    delimiter = max(",\t;", key=head.count)
    try:
        lines = read_csv_rows(decoded, delimiter, strict=True)
    except csv.Error as error:
        raise InputError(f"{path}: not valid CSV: {error}") from None
    if not lines or len(lines[0]) < 2:
        raise InputError(f"{path}: expected a CSV file with the columns arm, seed and metrics, found {len(head)} bytes")
    columns = [name.strip() for name in lines[0]]
    if twice := [name for name in columns if name and columns.count(name) > 1]:
        raise InputError(f"{path}:1: the column {twice[0]!r} is there twice; expected each once")
    rows = []
    for place, cells in enumerate(lines[1:], 2):
        if len(cells) > len(columns):
            raise InputError(f"{path}: row {place} has {len(cells)} entries, expected {len(columns)}")
        if any(cells):
            pairs = zip(columns, cells, strict=False)
            rows.append({name: entry for name, cell in pairs if name and (entry := cell.strip())})
    return _table(path, "a table of CSV", rows)


def read_parquet(path: Path) -> Table:
    """Read the runs in a parquet file.

    Raises:
        InputError: for another file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        mappings: list[dict[str, Any]] = pq.read_table(io.BytesIO(content(path))).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: not valid parquet: {str(error).partition(chr(10))[0]}") from None
    return _table(path, "a table of parquet", [flatten(mapping) for mapping in mappings])


def read_json(path: Path) -> Table:
    """Read the runs in a JSON file, a list of mappings or a mapping a line.

    Raises:
        InputError: for another file.
    """
    decoded = text(path)
    try:
        lines = decoded.splitlines() if decoded.lstrip().startswith("{") else []
        mappings = [json.loads(line) for line in lines if line.strip()] if lines else json.loads(decoded)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON, as a list or a mapping a line: {error}") from None
    if not isinstance(mappings, list) or not all(isinstance(mapping, dict) for mapping in mappings):
        raise InputError(f"{path}: expected a list of mappings, one a run, found {type(mappings).__name__}")
    return _table(path, "a table of JSON", [flatten(mapping) for mapping in mappings])


# what they hold ------------------------------------------------------------------------------------------------------


def _table(path: Path, kind: str, rows: list[Row]) -> Table:
    """Recognise the exporter of a table by its columns."""
    if not rows:
        raise InputError(f"{path}: holds no run; expected a row for each arm and seed")
    columns = {name for row in rows for name in row}
    if columns >= set(LONG):
        return _wide(path, rows)
    if {"run_id", "experiment_id", "status"} <= columns and any(name.startswith("metrics.") for name in columns):
        return Table(path, "an export of MLflow's runs", rows, PREFIXES[:3], ("metrics.",), last=True)
    if {"number", "state"} <= columns and columns & {"value", "datetime_start", "values_0"}:
        return Table(path, "an export of Optuna's trials", rows, PREFIXES[5:8], ("value", "user_attrs_"))
    if {"Name", "State"} <= columns:
        return Table(path, "an export of W&B's runs", rows, PREFIXES[3:5], last=True)
    return Table(path, kind, rows, PREFIXES[:5])


def _wide(path: Path, rows: Sequence[Row]) -> Table:
    """Pivot a table with a row for each quantity, such as `cells.csv`, to a row for each run."""
    runs: dict[tuple[tuple[str, str], ...], Row] = {}
    better: dict[str, Better] = {}
    for number, row in enumerate(rows, 2):
        if (quantity := row.get("metric")) is None:
            raise InputError(f"{path}: row {number} names no metric")
        fields = {name: value for name, value in row.items() if name not in OF_QUANTITY}
        run = runs.setdefault(tuple(fields.items()), dict(fields))
        if quantity in run:
            fields_text = ", ".join(f"{name} {value}" for name, value in fields.items())
            raise InputError(f"{path}: row {number}: {quantity} of {fields_text} is there twice; expected it once")
        if (measured := as_text(row.get("value"))) is not None:
            run[quantity] = measured
        if row.get("better") in ("lower", "higher"):
            better[quantity] = "lower" if row["better"] == "lower" else "higher"
    names = tuple(dict.fromkeys(row["metric"] for row in rows))
    return Table(path, "a table with a row for each quantity", list(runs.values()), (), names, better)
