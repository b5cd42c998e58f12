"""Checks of the numbers that constructors take; messages name the argument, its value and what it must be."""

import math
from collections.abc import Callable, Mapping

Number = float | None  # type of a checked number; None is a missing one, and passes


def require_positive(**values: Number) -> None:
    """Raise ValueError for a number that is not finite and above 0."""
    _require(lambda value: 0 < value < math.inf, "be a finite number above 0", values)


def require_not_negative(**values: Number) -> None:
    """Raise ValueError for a number that is not finite and 0 or more."""
    _require(lambda value: 0 <= value < math.inf, "be a finite number, 0 or more", values)


def require_share(**values: Number) -> None:
    """Raise ValueError for a number that does not lie in [0, 1)."""
    _require(lambda value: 0 <= value < 1, "lie in [0, 1)", values)


def require_from(low: int, high: int, **values: Number) -> None:
    """Raise ValueError for a number below `low` or above `high`."""
    _require(lambda value: low <= value <= high, f"be from {low:,} to {high:,}", values)


def _require(accepts: Callable[[float], bool], condition: str, values: Mapping[str, Number]) -> None:
    for name, value in values.items():
        if value is not None and not accepts(value):
            raise ValueError(f"{name}={value} must {condition}")
