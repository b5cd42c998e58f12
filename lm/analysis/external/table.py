"""Tables of runs: one row a run, text by column, from files of CSV, parquet and JSON as trackers export them."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lm.config.plain import shown
from lm.config.tree import InputError, nearest
from lm.stats.verdicts import Better
from lm.store.files import read_csv_rows

Row = dict[str, str]  # fields of a run: text by column, without empty ones
MOST_NAMED = 20  # columns that an error lists


@dataclass(frozen=True)
class Table:
    """Runs of a file or a folder, a row each."""

    path: Path
    kind: str  # what it is, in words
    rows: list[Row]
    # what stands before the names of some columns, `params.` and the like, and may be left out of a name
    prefixes: tuple[str, ...] = ()
    # the beginnings of columns that hold measurements; none where any column of numbers may
    metrics: tuple[str, ...] = ()
    better: Mapping[str, Better] = field(default_factory=dict)  # which way is better, where the file says so, by column
    last: bool = False  # whether each value is the last of many that the run logged
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """All columns, in order of appearance."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def find(self, name: str) -> str | None:
        """Find the column with a name, exact or after a prefix; None for none. Raises InputError if several match."""
        columns = self.columns
        if name in columns:
            return name
        matches = [prefix + name for prefix in self.prefixes if prefix + name in columns]
        if len(matches) > 1:
            raise InputError(f"{self.path}: {name!r} may be {' or '.join(matches)}; give one of them")
        return matches[0] if matches else None

    def column(self, name: str, option: str) -> str:
        """Find the column that an option names. Raises InputError where there is none, with the nearest."""
        column_name = self.find(name)
        if column_name is None:
            names = [self.short(column) for column in self.columns]
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            hint = f"no filled column.{nearest(name, names)} It has {', '.join(names[:MOST_NAMED])}{more}"
            raise InputError(f"{self.path}: {option} {shown(name)}: {hint}")
        return column_name

    def short(self, column: str) -> str:
        """Return the name of a column without its prefix, where that is unique."""
        for prefix in self.prefixes:
            rest = column.removeprefix(prefix)
            if rest and rest != column:
                columns = set(self.columns)
                alone = sum(other + rest in columns for other in self.prefixes) == 1
                return rest if alone and rest not in columns else column
        return column


def number(text: str) -> float | None:
    """Parse a number, `nan` and `inf` among them; None for any other text.

    >>> number("1e-3"), number(" inf"), number("1_000")
    (0.001, inf, None)
    """
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def as_text(value: Any) -> str | None:
    """Format a plain value so that it reads as the same number again; None for nothing."""
    if value is None or value == "":
        return None
    return repr(value) if isinstance(value, float) else str(value)


def flatten(tree: Mapping[str, Any], before: str = "") -> Row:
    """Flatten nested mappings into a row, keys joined with dots, without lists; a mapping with `value` is W&B's."""
    row: Row = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value and value.keys() <= {"value", "desc"}:
            value = value.get("value")
        if isinstance(value, Mapping):
            row |= flatten(value, f"{before}{key}.")
        elif not isinstance(value, list) and (text := as_text(value)) is not None:
            row[f"{before}{key}"] = text
    return row


def filter_rows(table: Table, conditions: Sequence[tuple[str, str]]) -> Table:
    """Keep the rows in which columns hold one of their texts. Raises InputError where a text has none."""
    rows = table.rows
    for name in dict.fromkeys(name for name, _ in conditions):
        column, texts_to_keep = table.column(name, "--only"), set[str]()
        texts = list(dict.fromkeys(row.get(column, "") for row in rows))
        for text in (text for of, text in conditions if of == name):
            expected = number(text)
            same = {other for other in texts if other == text or (expected is not None and number(other) == expected)}
            if not same:
                hint = f"no such run.{nearest(text, texts)} {name} is {', '.join(map(shown, texts[:MOST_NAMED]))}"
                raise InputError(f"{table.path}: --only {name}={text}: {hint}")
            texts_to_keep |= same
        rows = [row for row in rows if row.get(column, "") in texts_to_keep]
    return replace(table, rows=rows)


LONG = ("metric", "value")  # columns by which a table has a row for each quantity, as `cells.csv` has
OF_QUANTITY = (*LONG, "label", "unit", "better")  # columns of such a table that say nothing of the run

# prefixes of exports before the names of parameters and measurements
PREFIXES = ("params.", "metrics.", "tags.", "config.", "summary.", "params_", "user_attrs_", "values_", "")


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text; expected a table of runs, such as a CSV file") from None


def read_csv(path: Path) -> Table:
    """Read the runs in a CSV file, or one with tabs or semicolons. Raises InputError for another file."""
    decoded = _text(path)
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
            rows.append(flatten({name: cell.strip() for name, cell in zip(columns, cells, strict=False) if name}))
    return _table(path, "a table of CSV", rows)


def read_parquet(path: Path) -> Table:
    """Read the runs in a parquet file. Raises InputError for another file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        mappings: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: not valid parquet: {str(error).partition(chr(10))[0]}") from None
    return _table(path, "a table of parquet", [flatten(mapping) for mapping in mappings])


def read_json(path: Path) -> Table:
    """Read the runs in a JSON file, a list of mappings or a mapping a line. Raises InputError for another file."""
    decoded = _text(path)
    try:
        lines = decoded.splitlines() if decoded.lstrip().startswith("{") else []
        mappings = [json.loads(line) for line in lines if line.strip()] if lines else json.loads(decoded)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON, as a list or a mapping a line: {error}") from None
    if not isinstance(mappings, list) or not all(isinstance(mapping, dict) for mapping in mappings):
        raise InputError(f"{path}: expected a list of mappings, one a run, found {type(mappings).__name__}")
    return _table(path, "a table of JSON", [flatten(mapping) for mapping in mappings])


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
