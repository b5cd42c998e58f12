"""Checks of the numbers that constructors take; messages name the argument, its value and what it must be."""

import math

Number = float | None
"""Type of a checked number; None is a missing one, and passes."""


def require_positive(**values: Number) -> None:
    """Raise ValueError for a number that is not finite and above 0."""
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name}={value} must be a finite number above 0")


def require_not_negative(**values: Number) -> None:
    """Raise ValueError for a number that is not finite and 0 or more."""
    for name, value in values.items():
        if value is not None and not 0 <= value < math.inf:
            raise ValueError(f"{name}={value} must be a finite number, 0 or more")


def require_share(**values: Number) -> None:
    """Raise ValueError for a number that does not lie in [0, 1)."""
    for name, value in values.items():
        if value is not None and not 0 <= value < 1:
            raise ValueError(f"{name}={value} must lie in [0, 1)")


def require_from(low: int, high: int, **values: Number) -> None:
    """Raise ValueError for a number below `low` or above `high`."""
    for name, value in values.items():
        if value is not None and not low <= value <= high:
            raise ValueError(f"{name}={value} must be from {low:,} to {high:,}")
