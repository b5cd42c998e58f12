"""Sections of an experiment's file: stages of seeds, a grid of learning rates, a search for every arm."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Required, TypedDict, TypeGuard

from lm.config.keys import Also, keys, required
from lm.config.plain import shown
from lm.config.reading import MOST_SEEDS, Seeds, read_seeds
from lm.config.tree import InputError, Tree, nearest
from lm.search.distributions import SpacePaths
from lm.search.space import Space, read_space
from lm.search.spec import PRUNERS, SAMPLERS, Method, Pruner, Sampler, SweepSpec, check_methods, read_method
from lm.stats.sequential import plan_looks
from lm.stats.tests import ALPHA
from lm.store.metrics import describe, parse_average


def read_section(
    value: Any, node: type, path: str, expected: str = "", missing: str = "", inside: str = "", dotted: str = ""
) -> dict[str, Any]:
    """Return a mapping that has only the keys of a TypedDict. Raises InputError naming the path, and the nearest key.

    Args:
        value: as the file has it.
        node: TypedDict that declares the keys.
        path: of the section, for messages.
        expected: in the message for anything but a mapping.
        missing: added to the message for a missing key; required keys are not checked without it.
        inside: added to the message for an unknown key, after the key.
        dotted: added to the message for an unknown key with a dot.
    """
    names = keys(node)
    if not isinstance(value, Mapping):
        raise InputError(f"{path}: expected {expected or 'a mapping of ' + ', '.join(names)}, found {shown(value)}")
    for key in value:
        if key not in names:
            near, hint = nearest(str(key), names), dotted if "." in str(key) else ""
            raise InputError(f"{path}: no key {shown(key)}{inside}.{near} It takes {', '.join(names)}{hint}")
    for key in required(node) if missing else ():
        if key not in value:
            raise InputError(f"{path}: {key} is missing; {missing}")
    return dict(value)


@contextlib.contextmanager
def prefix_errors(prefix: str) -> Iterator[None]:
    """Put a prefix before the message of an InputError that is raised inside."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{prefix}: {error}") from None


def is_positive(value: Any) -> TypeGuard[float]:
    """Return True for a finite number above 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _read_selection_seeds(
    tree: Mapping[str, Any], default: list[int], metric: str, confirmation: Sequence[int], path: str
) -> list[int]:
    """Return the seeds on which a winner is chosen by a metric. Raises InputError for one that also confirms it."""
    if describe(metric).better is None:
        raise InputError(f"{path}: arms are judged by {metric}, of which neither more nor less is better")
    seeds = read_seeds(tree.get("seeds", default), f"{path}.seeds")
    if shared := sorted(set(seeds) & set(confirmation)):
        raise InputError(
            f"{path}.seeds: {shared} confirm the winner; a winner is confirmed on seeds it was not chosen on"
        )
    return seeds


# stages of seeds -----------------------------------------------------------------------------------------------------

STAGES = 4


class Stages(TypedDict, total=False):
    """Seeds added in stages, until every confirmatory difference is found or the seeds are spent."""

    min: Required[Annotated[int, "Seeds before the first look.", Also(minimum=1)]]
    max: Required[Annotated[int, "Seeds at most.", Also(minimum=1, maximum=MOST_SEEDS)]]
    stages: Annotated[int, "Looks.", Also(minimum=1, maximum=MOST_SEEDS, default=STAGES)]


def read_stages(value: Any, comparisons: int, path: str) -> tuple[int, ...]:
    """Return the numbers of seeds after which to look, from `{min, max, stages}`. Raises InputError naming `path`."""
    numbers = {"stages": STAGES, **read_section(value, Stages, path)}
    for key in keys(Stages):
        number = numbers.get(key)
        if type(number) is not int or number < 1:
            raise InputError(f"{path}.{key}: expected a whole number from 1, found {shown(number)}")
    if numbers["min"] > numbers["max"]:
        raise InputError(f"{path}: min={numbers['min']} is more than max={numbers['max']}")
    for key, most in (("max", "seeds at most"), ("stages", "at most, as every one adds a seed")):
        if numbers[key] > MOST_SEEDS:
            raise InputError(f"{path}.{key}: expected {MOST_SEEDS} {most}, found {numbers[key]}")
    return plan_looks(numbers["min"], numbers["max"], numbers["stages"], ALPHA / max(1, comparisons))


# a grid of learning rates --------------------------------------------------------------------------------------------

MIN_RATES, MAX_RATES = 3, 100
CURVE_SEEDS = [1000, 1001, 1002]
"""Seeds of a grid of learning rates, where the experiment names none."""


class RatesNode(TypedDict, total=False):
    """Rates from low to high, evenly in their logarithm."""

    low: Required[Annotated[float, "The smallest rate.", Also(exclusiveMinimum=0)]]
    high: Required[Annotated[float, "The largest rate.", Also(exclusiveMinimum=0)]]
    n: Required[Annotated[int, "How many, both ends with them.", Also(minimum=MIN_RATES, maximum=MAX_RATES)]]


class CurveNode(TypedDict, total=False):
    """A grid of learning rates for every arm; arms are then compared each at its own best rate."""

    rates: Required[Annotated[list[float] | RatesNode, "The rates: a list, or {low, high, n}."]]
    seeds: Annotated[
        Seeds, "Every rate is trained with each; none of them confirms a winner.", Also(default=CURVE_SEEDS)
    ]


@dataclass(frozen=True)
class Grid:
    """Learning rates in rising order, and the seeds that each is trained with."""

    rates: tuple[float, ...]
    seeds: list[int]


def read_grid(value: Any, metric: str, confirmation: Sequence[int], path: str) -> Grid:
    """Read the `lr_curve` section of an experiment whose arms are judged by `metric`, on the seeds of `confirmation`.

    Raises InputError naming the path.
    """
    tree = read_section(value, CurveNode, path, "a mapping with rates", "expected a list, or {low, high, n}")
    seeds = _read_selection_seeds(tree, CURVE_SEEDS, metric, confirmation, path)
    path, rates = f"{path}.rates", tree["rates"]
    if isinstance(rates, Mapping):
        rates = _spread_rates(rates, path)
    if not isinstance(rates, list):
        raise InputError(f"{path}: expected a list of rates, or {{low, high, n}}, found {shown(rates)}")
    for rate in rates:
        if not is_positive(rate):
            raise InputError(f"{path}: expected numbers above 0, found {shown(rate)}")
    if not MIN_RATES <= len(set(rates)) <= MAX_RATES or len(set(rates)) < len(rates):
        raise InputError(
            f"{path}: expected {MIN_RATES} different rates or more, {MAX_RATES} at most, found {shown(tree['rates'])}; "
            "fewer do not bracket the best one"
        )
    return Grid(tuple(sorted(map(float, rates))), seeds)


def _spread_rates(value: Mapping[str, Any], path: str) -> list[float]:
    """Return the rates of `{low, high, n}`, evenly spaced in their logarithm. Raises InputError."""
    tree = read_section(value, RatesNode, path)
    count = tree.get("n")
    if type(count) is not int or not MIN_RATES <= count <= MAX_RATES:
        raise InputError(f"{path}.n: expected a whole number from {MIN_RATES} to {MAX_RATES}, found {shown(count)}")
    for key in ("low", "high"):
        if not is_positive(tree.get(key)):
            raise InputError(f"{path}.{key}: expected a number above 0, found {shown(tree.get(key))}")
    low, high = tree["low"], tree["high"]
    if not low < high:
        raise InputError(f"{path}: expected low below high, found {low} and {high}")
    inner = [float(f"{low * (high / low) ** (index / (count - 1)):z.6g}") for index in range(1, count - 1)]
    return [low, *inner, high]


# a search for every arm ----------------------------------------------------------------------------------------------

TUNING_SEEDS = [1000]
"""Seeds of the trials, where the experiment names none."""


class TuningNode(TypedDict, total=False):
    """A search for every arm, with the same space and budget; the winner is trained anew on the experiment's seeds."""

    space: Required[Annotated[SpacePaths, "What is searched: the nuisance parameters."]]
    trials: Required[Annotated[int, "Trials of each arm, whatever becomes of them.", Also(minimum=1)]]
    seeds: Annotated[
        Seeds, "Every trial is trained with each; none of them confirms a winner.", Also(default=TUNING_SEEDS)
    ]
    sampler: Annotated[Sampler, "How values are drawn."]
    pruner: Annotated[Pruner, "How trials are stopped early."]


@dataclass(frozen=True)
class Tuning:
    """The search that each arm gets, as `TuningNode` describes it; the winner is best in `metric`."""

    space: Space
    trials: int
    seeds: list[int]
    sampler: Method
    pruner: Method
    metric: str

    def spec(self, arm: str, title: str, tree: Tree) -> SweepSpec:
        """Return the search of one arm, which starts from its configuration."""
        better = str(describe(self.metric).better)
        return SweepSpec(
            arm, title, tree, self.space, {self.metric: better}, self.trials, self.seeds, self.sampler, self.pruner
        )


def read_tuning(value: Any, metric: str, confirmation: Sequence[int], path: str) -> Tuning:
    """Read the `tune` section of an experiment whose arms are judged by `metric`, on the seeds of `confirmation`.

    Raises InputError naming the path.
    """
    missing = "tuning needs a space and a number of trials for each arm"
    tree = read_section(value, TuningNode, path, "a mapping with space and trials", missing)
    if parse_average(metric) is not None:
        raise InputError(f"{path}: arms are judged by {metric}, a mean over validations, which a search does not know")
    if "@" in metric:
        raise InputError(f"{path}: arms are judged by {metric}, a loss at a length, which a search does not know")
    seeds = _read_selection_seeds(tree, TUNING_SEEDS, metric, confirmation, path)
    if type(tree["trials"]) is not int or tree["trials"] < 1:
        raise InputError(f"{path}.trials: expected a whole number from 1, found {shown(tree['trials'])}")
    tuning = Tuning(
        read_space(tree["space"], f"{path}.space"),
        tree["trials"],
        seeds,
        read_method(tree.get("sampler", "tpe"), SAMPLERS, f"{path}.sampler"),
        read_method(tree.get("pruner", "none"), PRUNERS, f"{path}.pruner"),
        metric,
    )
    check_methods(tuning.spec("", "", {}), path)
    return tuning
