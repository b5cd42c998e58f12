"""Whether what the library computes is what a worked example says."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from worked_examples.rows import Printed, Row

Verdict = Literal["agrees", "holds", "erratum in the source", "OFF"]

Ours = Mapping[str, Any]
"""What the library computed: by name, a number or lists of numbers."""


@dataclass(frozen=True)
class Finding:
    """A judged row: `ours` is what the library computed, `reasons` say what is off."""

    row: Row
    ours: Ours
    verdict: Verdict
    reasons: tuple[str, ...] = ()


def tolerance(printed: Decimal | int, places: int = 0) -> Decimal:
    """Half a unit in the last printed place, or in decimal place `places` where that is further."""
    exponent = Decimal(printed).as_tuple().exponent
    if not isinstance(exponent, int):
        raise ValueError(f"{printed} is printed where a finite number belongs")
    return Decimal("0.5").scaleb(min(exponent, -places))


def pairs(printed: Printed, ours: Any) -> Iterator[tuple[Decimal | int, float]]:
    """Each printed number with ours in its place. Raises ValueError where the shapes differ."""
    if not isinstance(printed, list):
        if isinstance(ours, list):
            raise ValueError("a list where a number is expected")
        yield printed, ours
        return
    if not isinstance(ours, list) or len(ours) != len(printed):
        raise ValueError(f"{len(printed)} numbers or rows expected")
    for expected, found in zip(printed, ours, strict=True):
        yield from pairs(expected, found)


def meets(printed: Printed, ours: Any, places: int = 0) -> bool:
    """Whether every number of ours rounds to the one printed."""
    try:
        return all(
            math.isfinite(found) and abs(Decimal(found) - expected) <= tolerance(expected, places)
            for expected, found in pairs(printed, ours)
        )
    except ValueError:
        return False


def judge(row: Row, ours: Ours) -> Finding:
    """The verdict on `row`, given what the library computed for it."""
    missing = [f"{name}: not computed" for name in row.quantities if name not in ours]
    reasons = tuple(missing or [*_figures(row, ours), *_bounds(row, ours), *_source(row, ours)])
    if reasons:
        return Finding(row, ours, "OFF", reasons)
    if row.erratum is not None:
        return Finding(row, ours, "erratum in the source")
    return Finding(row, ours, "agrees" if row.computed else "holds")


def failed(row: Row, error: Exception) -> Finding:
    """The finding for a row that could not be computed."""
    return Finding(row, {}, "OFF", (f"{type(error).__name__}: {error}",))


def _figures(row: Row, ours: Ours) -> Iterator[str]:
    for name, printed in row.computed.items():
        if not meets(printed, ours[name], row.places):
            yield f"{name}: ours {as_text(ours[name])} is not {as_text(printed)} to its last digit"


def _bounds(row: Row, ours: Ours) -> Iterator[str]:
    for name, bound in row.at_most.items():
        if not ours[name] <= float(bound):
            yield f"{name}: {ours[name]:z.3g} is more than {bound}"
    for name, bound in row.at_least.items():
        if not ours[name] >= float(bound):
            yield f"{name}: {ours[name]:z.3g} is less than {bound}"


def _source(row: Row, ours: Ours) -> Iterator[str]:
    for name, printed in row.differently_stated.items():
        same = meets(printed, ours[name])
        if row.erratum is not None and same:
            yield f"{name}: called an erratum, but the source's {as_text(printed)} is what we find"
        if row.erratum is None and not same:
            yield f"{name}: ours {as_text(ours[name])} does not round to the source's {as_text(printed)}"


def as_text(value: Any) -> str:
    """Numbers as text: a printed one with its digits, ours with nine."""
    if isinstance(value, list):
        return f"[{', '.join(map(as_text, value))}]"
    return f"{value:z.9g}" if isinstance(value, float) else str(value)
