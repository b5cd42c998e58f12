"""Runs as others wrote them down: a row each, text by column, and which column a name means."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lm.config.plain import shown
from lm.config.tree import InputError, nearest
from lm.stats.verdicts import Better

Row = dict[str, str]
"""Fields of a run: text by column, without empty ones."""

MOST_NAMED = 20
"""Columns that an error lists."""


@dataclass(frozen=True)
class Table:
    """Runs of a file or a folder, a row each.

    Args:
        path: of the file or folder.
        kind: what it is, in words.
        rows: one a run.
        prefixes: what stands before the names of some columns, `params.` and the like, and may be left out of a name.
        metrics: the beginnings of columns that hold measurements; none where any column of numbers may.
        better: which way is better, where the file says so, by column.
        last: whether each value is the last of many that the run logged.
        notes: what else is to be known.
    """

    path: Path
    kind: str
    rows: list[Row]
    prefixes: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    better: Mapping[str, Better] = field(default_factory=dict)
    last: bool = False
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """All columns, in order of appearance."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def find(self, name: str) -> str | None:
        """Find the column with a name, exact or after a prefix; None for none.

        Raises:
            InputError: where several match.
        """
        columns = self.columns
        if name in columns:
            return name
        matches = [prefix + name for prefix in self.prefixes if prefix + name in columns]
        if len(matches) > 1:
            raise InputError(f"{self.path}: {name!r} may be {' or '.join(matches)}; give one of them")
        return matches[0] if matches else None

    def column(self, name: str, option: str) -> str:
        """Find the column that an option names.

        Raises:
            InputError: where there is none, with the nearest.
        """
        column_name = self.find(name)
        if column_name is None:
            names = [self.short(column) for column in self.columns]
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            raise InputError(
                f"{self.path}: {option} {shown(name)}: no filled column.{nearest(name, names)} "
                f"It has {', '.join(names[:MOST_NAMED])}{more}"
            )
        return column_name

    def short(self, column: str) -> str:
        """Return the name of a column without its prefix, where that is unique."""
        for prefix in self.prefixes:
            rest = column.removeprefix(prefix)
            if rest and rest != column:
                return column if rest in self.columns or self._several(rest) else rest
        return column

    def _several(self, name: str) -> bool:
        columns = set(self.columns)
        return sum(prefix + name in columns for prefix in self.prefixes) > 1


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
    """Flatten nested mappings into one row, keys joined with dots; lists are left out.

    A mapping with a `value`, and perhaps a `desc`, is how W&B writes down a setting.
    """
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
    """Keep the rows in which columns hold these texts.

    Raises:
        InputError: where there are none.
    """
    rows = table.rows
    for name, text in conditions:
        column = table.column(name, "--only")
        texts = list(dict.fromkeys(row.get(column, "") for row in rows))
        rows = [row for row in rows if _same(row.get(column, ""), text)]
        if not rows:
            raise InputError(
                f"{table.path}: --only {name}={text}: no such run.{nearest(text, texts)} {name} is "
                f"{', '.join(map(shown, texts[:MOST_NAMED]))}"
            )
    return Table(**{**vars(table), "rows": rows})


def _same(text: str, expected: str) -> bool:
    left, right = number(text), number(expected)
    return text == expected or (left is not None and left == right and math.isfinite(left))
