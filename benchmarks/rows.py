"""What a run of the benchmarks leaves: a file of JSON with a row for each way of doing something."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from benchmarks.ratios import Spread, spread
from lm.config.plain import find_unusable
from lm.config.tree import InputError
from lm.store.files import read_json

FORMAT = 1


class Row(TypedDict):
    """One way of doing something.

    group: what is done; its rows are compared with each other.
    value, unit: the median over the rounds; None where it could not be measured.
    to, ratio: the way that it is compared with, and value over that way's, or over what `to` says; None where there
        is nothing to compare with.
    more: further numbers by name.
    note: what a reader must know, such as why there is no value.
    """

    group: str
    way: str
    value: float | None
    unit: str
    to: str | None
    ratio: Spread | None
    more: dict[str, float | None]
    note: str


class Measured(TypedDict):
    """A case: what it is in a line, its rows, and the day on which they were measured."""

    about: str
    rows: list[Row]
    date: NotRequired[str]


class Result(TypedDict):
    """The file."""

    format: int
    lm: str
    quick: bool
    machine: dict[str, Any]
    cases: dict[str, Measured]


def row(
    group: str,
    way: str,
    value: float | None,
    unit: str = "s",
    to: str | None = None,
    ratio: Spread | None = None,
    more: Mapping[str, float | None] | None = None,
    note: str = "",
) -> Row:
    """A row, most of which may be empty."""
    return {
        "group": group,
        "way": way,
        "value": value,
        "unit": unit,
        "to": to,
        "ratio": ratio,
        "more": dict(more or {}),
        "note": note,
    }


def rows_of(
    group: str,
    taken: Mapping[str, Sequence[float]],
    to: str,
    unit: str = "s",
    more: Mapping[str, Mapping[str, float | None]] | None = None,
    notes: Mapping[str, str] | None = None,
) -> list[Row]:
    """A row for each way of a group, compared with the way `to`, from what was taken in each round."""
    return [
        row(
            group,
            way,
            statistics.median(values),
            unit,
            to,
            spread(values, taken[to]),
            (more or {}).get(way),
            (notes or {}).get(way, ""),
        )
        for way, values in taken.items()
    ]


def exactly(ratio: float) -> Spread:
    """A ratio that was measured once."""
    return {"median": ratio, "low": ratio, "high": ratio, "rounds": 1}


def read_result(path: Path) -> Result:
    """A file that an earlier run wrote. Raises InputError where it is none."""
    found = read_json(path)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(f"{path}: expected what `python -m benchmarks --out` wrote, in format {FORMAT}")
    if problem := find_unusable(found) or _problem(found):
        raise InputError(f"{path}: {problem}; `python -m benchmarks --out` writes it anew")
    return found  # type: ignore[return-value]


def _problem(found: dict[str, Any]) -> str:
    """What is wrong with the cases of a file, in words; nothing if all is right."""
    cases, machine = found.get("cases"), found.get("machine")
    if not isinstance(cases, dict) or not isinstance(machine, dict):
        return "it has no cases, or no machine"
    if not isinstance(machine.get("packages"), dict) or not isinstance(machine.get("flags"), list):
        return "its machine has no packages, or no flags"
    for name, case in cases.items():
        rows = case.get("rows") if isinstance(case, dict) else None
        if not isinstance(rows, list) or not all(isinstance(one, dict) and _is_row(one) for one in rows):
            return f"case {name} has rows of another shape"
    return ""


def _is_row(one: dict[str, Any]) -> bool:
    ratio = one.get("ratio")
    known = ratio is None or (
        isinstance(ratio, dict)
        and all(_number(ratio.get(name)) and ratio[name] >= 0 for name in Spread.__annotations__)
    )
    more = one.get("more")
    return (
        one.keys() == Row.__annotations__.keys()
        and known
        and all(isinstance(one[name], str) for name in ("group", "way", "unit", "note"))
        and (one["value"] is None or _number(one["value"]))
        and (one["to"] is None or isinstance(one["to"], str))
        and isinstance(more, dict)
        and all(value is None or _number(value) for value in more.values())
    )


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300
