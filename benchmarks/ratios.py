"""The arithmetic of a comparison: ways taken in turn and ratios within a round."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

Way = Callable[[], float]
"""Does something once; returns what is compared, such as the seconds it took."""


class Spread(TypedDict):
    """Ratios of pairs that were measured in the same round: their median and quartiles, and how many there are."""

    median: float
    low: float
    high: float
    rounds: int


def timed(work: Callable[[], object], times: int = 1, clock: Callable[[], float] = time.perf_counter) -> Way:
    """A way that does `work` so many times and returns the mean seconds of one."""

    def way() -> float:
        begun = clock()
        for _ in range(times):
            work()
        return (clock() - begun) / times

    return way


def alternate(ways: Mapping[str, Way], rounds: int, warm: int = 1) -> dict[str, list[float]]:
    """What each way gave in each round, by name.

    A round takes every way once, and every other round takes them backwards, so that a machine that grows slower or
    faster in between does so for all of them alike. The first `warm` rounds are not kept. Each value goes to
    standard error as it comes.
    """
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(warm + rounds):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            value = ways[name]()
            print(f"round {number + 1} of {warm + rounds}, {name}: {value:.4g}", file=sys.stderr)
            if number >= warm:
                found[name].append(value)
    return found


def spread(of: Sequence[float], to: Sequence[float]) -> Spread | None:
    """Ratios of what was measured in the same round, `of` over `to`; None where nothing was.

    >>> spread([2.0, 6.0, 4.0], [1.0, 2.0, 2.0])
    {'median': 2.0, 'low': 2.0, 'high': 2.5, 'rounds': 3}
    """
    ratios = [a / b for a, b in zip(of, to, strict=True)]
    if not ratios:
        return None
    low, median, high = quartiles(ratios)
    return {"median": median, "low": low, "high": high, "rounds": len(ratios)}


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The quartiles of one or more numbers, between neighbours linearly."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high
