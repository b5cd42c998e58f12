"""The worked examples as data. Imports no torch, so that a misspelt id is answered at once.

A number in rows.yaml keeps the digits it is written with, since they say how exactly it is to be met.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from lm.config.tree import InputError, nearest

Printed = Any
"""A figure as printed: a Decimal, an int, or lists of them."""


@dataclass(frozen=True)
class Row:
    """One worked example.

    Args:
        id: its name.
        section: the part of the texts that it belongs to.
        formula: what is computed, in plain text.
        compute: the function in `worked_examples.compute` that does.
        given: that function's inputs.
        computed: the right figures, by name.
        places: decimal places that every figure must meet even where fewer are printed, for figures that end in zeros.
        at_most: errors and how large each may be, for a property.
        at_least: differences that there must be, and how large.
        stated: the source's figures: `same`, those that it prints with other digits, or None for a property.
        erratum: what is wrong in the source, or None.
        note: what else a reader should know.
    """

    id: str
    section: str
    formula: str
    compute: str
    given: Mapping[str, Any] = field(default_factory=dict)
    computed: Mapping[str, Printed] = field(default_factory=dict)
    places: int = 0
    at_most: Mapping[str, Decimal] = field(default_factory=dict)
    at_least: Mapping[str, Decimal] = field(default_factory=dict)
    stated: str | Mapping[str, Printed] | None = None
    erratum: str | None = None
    note: str | None = None

    @property
    def quantities(self) -> list[str]:
        """The names of all that the row's function must return."""
        return [*self.computed, *self.at_most, *self.at_least]

    @property
    def differently_stated(self) -> Mapping[str, Printed]:
        """The figures that the source prints with other digits."""
        return self.stated if isinstance(self.stated, Mapping) else {}


class _KeepsDigits(yaml.SafeLoader):
    """The safe loader, reading 0.50 as Decimal('0.50')."""


_KeepsDigits.add_constructor("tag:yaml.org,2002:float", lambda _, node: Decimal(node.value))


@functools.cache
def load_rows() -> tuple[Row, ...]:
    """All worked examples, in the order of the texts."""
    text = Path(__file__).with_name("rows.yaml").read_text(encoding="utf-8")
    sections = yaml.load(text, Loader=_KeepsDigits)  # noqa: S506 - a SafeLoader
    return tuple(Row(section=section, **row) for section, rows in sections.items() for row in rows)


def select(ids: Sequence[str]) -> list[Row]:
    """The rows called `ids`, all rows for none. Raises InputError for an unknown id, with the nearest."""
    rows = {row.id: row for row in load_rows()}
    for name in ids:
        if name not in rows:
            raise InputError(f"no worked example {name!r}.{nearest(name, list(rows))} Choose from {', '.join(rows)}")
    return [rows[name] for name in dict.fromkeys(ids)] or list(rows.values())


def plain(value: Any) -> Any:
    """A row's value with floats for Decimals, as arithmetic wants it."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value
