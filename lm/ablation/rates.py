"""The grid of learning rates that every arm is trained over, before arms are compared at their best: what files say."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Required, TypedDict

from lm.config.keys import Also, keys
from lm.config.plain import shown
from lm.config.reading import Seeds, read_seeds
from lm.config.tree import InputError, nearest
from lm.store.metrics import describe

FEWEST, MOST = 3, 100
SEEDS = [1000, 1001, 1002]
"""Of the grid, where the experiment names none."""


class RatesNode(TypedDict, total=False):
    """Rates from low to high, evenly in their logarithm."""

    low: Required[Annotated[float, "The smallest rate.", Also(exclusiveMinimum=0)]]
    high: Required[Annotated[float, "The largest rate.", Also(exclusiveMinimum=0)]]
    n: Required[Annotated[int, "How many, both ends with them.", Also(minimum=FEWEST, maximum=MOST)]]


class CurveNode(TypedDict, total=False):
    """A grid of learning rates for every arm; arms are then compared each at its own best rate."""

    rates: Required[Annotated[list[float] | RatesNode, "The rates: a list, or {low, high, n}."]]
    seeds: Annotated[Seeds, "Every rate is trained with each; none of them confirms a winner.", Also(default=SEEDS)]


KEYS, RATE_KEYS = keys(CurveNode), keys(RatesNode)


@dataclass(frozen=True)
class Grid:
    """Learning rates in rising order, and the seeds that each is trained with."""

    rates: tuple[float, ...]
    seeds: list[int]


def read_grid(tree: Any, metric: str, confirmation: Sequence[int], path: str) -> Grid:
    """The `lr_curve` node of an experiment that is judged by `metric` on the seeds of `confirmation`.

    Raises:
        InputError: naming `path`.
    """
    if not isinstance(tree, Mapping):
        raise InputError(f"{path}: expected a mapping with rates, found {shown(tree)}")
    for key in tree:
        if key not in KEYS:
            raise InputError(f"{path}: no key {key!r}.{nearest(str(key), KEYS)} It takes {', '.join(KEYS)}")
    if "rates" not in tree:
        raise InputError(f"{path}: rates is missing; expected a list, or {{low, high, n}}")
    if describe(metric).better is None:
        raise InputError(f"{path}: arms are judged by {metric}, of which neither more nor less is better")
    seeds = read_seeds(tree.get("seeds", SEEDS), f"{path}.seeds")
    if shared := sorted(set(seeds) & set(confirmation)):
        raise InputError(
            f"{path}.seeds: {shared} confirm the winner; a winner is confirmed on seeds it was not chosen on"
        )
    return Grid(_rates(tree["rates"], f"{path}.rates"), seeds)


def _rates(given: Any, path: str) -> tuple[float, ...]:
    found = _between(given, path) if isinstance(given, Mapping) else given
    if not isinstance(found, list):
        raise InputError(f"{path}: expected a list of rates, or {{low, high, n}}, found {shown(given)}")
    for rate in found:
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
            raise InputError(f"{path}: expected numbers above 0, found {shown(rate)}")
    if not FEWEST <= len(set(found)) <= MOST or len(set(found)) < len(found):
        raise InputError(
            f"{path}: expected {FEWEST} different rates or more, {MOST} at most, found {shown(given)}; "
            "with fewer nobody sees where the best one lies"
        )
    return tuple(sorted(map(float, found)))


def _between(given: Mapping[str, Any], path: str) -> list[Any]:
    for key in given:
        if key not in RATE_KEYS:
            raise InputError(f"{path}: no key {key!r}.{nearest(str(key), RATE_KEYS)} It takes {', '.join(RATE_KEYS)}")
    low, high, count = (given.get(key) for key in ("low", "high", "n"))
    if type(count) is not int or not FEWEST <= count <= MOST:
        raise InputError(f"{path}.n: expected a whole number from {FEWEST} to {MOST}, found {shown(count)}")
    for key, rate in (("low", low), ("high", high)):
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
            raise InputError(f"{path}.{key}: expected a number above 0, found {shown(rate)}")
    assert isinstance(low, int | float)
    assert isinstance(high, int | float)
    if not low < high:
        raise InputError(f"{path}: expected low below high, found {low} and {high}")
    inner = [float(f"{low * (high / low) ** (index / (count - 1)):z.6g}") for index in range(1, count - 1)]
    return [low, *inner, high]
