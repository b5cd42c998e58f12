"""Search spaces: dotted paths of a configuration with the distributions of their values."""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lm.config.keys import keys, required
from lm.config.plain import shown
from lm.config.tree import InputError, canonical, is_component, join, nearest
from lm.search.distributions import ConditionalChoice, Distribution

RANGE_KEYS, CHOICE_KEYS = keys(Distribution), keys(ConditionalChoice)
MOST_POINTS = 10_000
"""Largest grid; more points are refused as a typo."""

LARGEST_WHOLE = 2**53
"""Largest whole number up to which each is a float too: samplers draw floats."""


class Suggests(Protocol):
    """Source of values: Optuna's Trial, or its FixedTrial for fixed values."""

    def suggest_float(self, name: str, low: float, high: float, *, step: float | None, log: bool) -> float:
        """Suggest a number between two bounds."""

    def suggest_int(self, name: str, low: int, high: int, *, step: int, log: bool) -> int:
        """Suggest a whole number between two bounds."""

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        """Suggest one of the choices."""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included.

    Args:
        log: drawn evenly in the logarithm.
        step: distance of the numbers, counted from `low`; None for a continuous range.
        whole: whole numbers only.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None
    whole: bool = False

    def suggest(self, trial: Suggests, name: str) -> float:
        """Draw a number."""
        if self.whole:
            return trial.suggest_int(name, int(self.low), int(self.high), step=int(self.step or 1), log=self.log)
        return trial.suggest_float(name, self.low, self.high, step=self.step, log=self.log)

    def count(self, path: str) -> int:
        """Return how many numbers it has. Raises InputError for a continuous range."""
        if self.step is None and not self.whole:
            raise InputError(f"space.{path}: a grid needs choices, a step, or int: true; found every number in between")
        return round((self.high - self.low) / (self.step or 1)) + 1

    def values(self, path: str) -> list[float]:
        """Return all numbers. Raises InputError for a continuous range."""
        values = [self.low + index * (self.step or 1) for index in range(self.count(path))]
        return [int(value) for value in values] if self.whole else values

    def described(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"low": self.low, "high": self.high, "log": self.log, "step": self.step, "int": self.whole}


@dataclass(frozen=True)
class Option:
    """A value of a choice, with the space that is searched only if it is chosen."""

    value: Any
    space: "Space"


@dataclass(frozen=True)
class Choices:
    """Several values, by their labels in a study."""

    options: dict[str, Option]

    def described(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"choices": list(self.options)}


@dataclass(frozen=True)
class Dimension:
    """Distribution of one dotted path, with its name in a study."""

    name: str
    path: str
    values: Range | Choices


@dataclass(frozen=True)
class Space:
    """Dimensions in the order in which they are drawn and applied."""

    dimensions: tuple[Dimension, ...] = ()

    def suggest(self, trial: Suggests) -> dict[str, Any]:
        """Draw a value for every dimension; return dotted changes to a configuration."""
        changes: dict[str, Any] = {}
        for dimension in self.dimensions:
            if isinstance(dimension.values, Range):
                changes[dimension.path] = dimension.values.suggest(trial, dimension.name)
            else:
                options = dimension.values.options
                chosen = options[trial.suggest_categorical(dimension.name, list(options))]
                changes |= {dimension.path: chosen.value, **chosen.space.suggest(trial)}
        return changes

    def points(self) -> int:
        """Return the number of points of the grid. Raises InputError if it is infinite."""
        sizes = (
            dimension.values.count(dimension.path)
            if isinstance(dimension.values, Range)
            else sum(option.space.points() for option in dimension.values.options.values())
            for dimension in self.dimensions
        )
        return math.prod(sizes)

    def grid(self) -> list[dict[str, Any]]:
        """Return all points as values by name; options only where their choice is made.

        Raises:
            InputError: if there are too many.
        """
        if self.points() > MOST_POINTS:
            raise InputError(f"space: a grid of {self.points():,} points, expected {MOST_POINTS:,} at most")
        points: list[dict[str, Any]] = [{}]
        for dimension in self.dimensions:
            if isinstance(dimension.values, Range):
                values = dimension.values.values(dimension.path)
                parts: list[dict[str, Any]] = [{dimension.name: value} for value in values]
            else:
                parts = [
                    {dimension.name: label, **rest}
                    for label, option in dimension.values.options.items()
                    for rest in option.space.grid()
                ]
            points = [{**point, **part} for point in points for part in parts]
        return points

    def examples(self) -> list[dict[str, Any]]:
        """Return changes with every choice and both ends of every range, one dimension at a time."""
        examples: list[dict[str, Any]] = []
        for dimension in self.dimensions:
            if isinstance(dimension.values, Range):
                examples += [{dimension.path: value} for value in _ends(dimension.values)]
                continue
            for option in dimension.values.options.values():
                examples.append({dimension.path: option.value})
                examples += [{dimension.path: option.value, **inner} for inner in option.space.examples()]
        return examples

    def flat(self) -> list[Dimension]:
        """Return all dimensions, those of choices included."""
        dimensions = []
        for dimension in self.dimensions:
            dimensions.append(dimension)
            if isinstance(dimension.values, Choices):
                dimensions += [inner for option in dimension.values.options.values() for inner in option.space.flat()]
        return dimensions

    @property
    def conditional(self) -> bool:
        """True if a dimension depends on a choice."""
        return len(self.flat()) > len(self.dimensions)

    def described(self) -> dict[str, Any]:
        """Return all dimensions by name, as JSON."""
        return {dimension.name: dimension.values.described() for dimension in self.flat()}


def _ends(values: Range) -> list[float]:
    """Return both ends of a range, and a number in between if it is continuous."""
    inner = [] if values.whole or values.step else [values.low + (values.high - values.low) * 0.38196601]
    return [int(v) if values.whole else v for v in (values.low, values.high)] + inner


# reading -------------------------------------------------------------------------------------------------------------


def read_space(node: Any, where: str) -> Space:
    """Parse a mapping of dotted paths to distributions. Raises InputError that names the path."""
    space = _space(node, where, "", "")
    paths = [dimension.path for dimension in space.dimensions]
    for path in paths:
        outer = [other for other in paths if path.startswith(f"{other}.")]
        if outer:
            raise InputError(
                f"{where}.{path}: lies inside {outer[0]}, which is drawn as a whole; move it into a choice's space"
            )
    return space


def _space(node: Any, where: str, path: str, prefix: str) -> Space:
    """Parse a mapping of dotted paths."""
    if not isinstance(node, Mapping) or not node:
        raise InputError(f"{where}: expected a mapping of dotted paths to distributions, found {shown(node)}")
    return Space(tuple(_dimension(str(key), value, where, path, prefix) for key, value in node.items()))


def _dimension(key: str, node: Any, where: str, path: str, prefix: str) -> Dimension:
    """Parse one dimension."""
    location, full = f"{where}.{key}", join(path, key)
    if full in ("seed", "data_seed"):
        raise InputError(f"{location}: a seed is not searched for; give the seeds of every trial with seeds")
    if not isinstance(node, Mapping):
        raise InputError(f"{location}: expected {{low, high}} or {{choices: [...]}}, found {shown(node)}")
    name = join(prefix, key)
    if "choices" in node:
        extra = [inner for inner in node if inner != "choices"]
        if extra:
            raise InputError(f"{location}: choices stand alone, found {shown(extra[0])} beside them")
        return Dimension(name, full, _choices(node["choices"], location, full, name))
    return Dimension(name, full, _range(node, location))


def _choices(values: Any, where: str, path: str, name: str) -> Choices:
    """Parse the values of a choice."""
    if not isinstance(values, list) or not values:
        raise InputError(f"{where}.choices: expected a list of values, found {shown(values)}")
    options: dict[str, Option] = {}
    for value in values:
        inner: Any = None
        if isinstance(value, Mapping) and "space" in value:
            inner, value = value["space"], {key: v for key, v in value.items() if key != "space"}
        if is_component(value):
            for key in value:
                if key not in CHOICE_KEYS:
                    listed = ", ".join(CHOICE_KEYS)
                    raise InputError(
                        f"{where}.choices: no key {key!r} in a component.{nearest(key, CHOICE_KEYS)} It takes {listed}"
                    )
            if not isinstance({} if value.get("init_args") is None else value["init_args"], Mapping):
                raise InputError(f"{where}.choices: init_args: expected a mapping, found {shown(value['init_args'])}")
        label = _label(value)
        if label in options:
            raise InputError(f"{where}.choices: {label} is given twice")
        location = f"{where}.choices.{label}.space"
        options[label] = Option(
            value, _space(inner, location, path, f"{name}.{label}") if inner is not None else Space()
        )
    return Choices(options)


def _label(value: Any) -> str:
    """Return the label of a value in a study."""
    if is_component(value):
        init_args = value.get("init_args") or {}
        options = ", ".join(f"{key}={_label(inner)}" for key, inner in init_args.items())
        return f"{value['class_path']}({options})" if options else str(value["class_path"])
    return value if isinstance(value, str) else canonical(value)


def _range(node: Mapping[str, Any], where: str) -> Range:
    """Parse a range."""
    for key in node:
        if key not in RANGE_KEYS:
            accepted = (*RANGE_KEYS, "choices")
            raise InputError(f"{where}: no key {key!r}.{nearest(key, accepted)} It takes {', '.join(accepted)}")
    for key in required(Distribution):
        if key not in node:
            raise InputError(f"{where}: {key} is missing; a range needs low and high, or give choices")
    for key in ("log", "int"):
        if not isinstance(node.get(key, False), bool):
            raise InputError(f"{where}.{key}: expected true or false, found {shown(node[key])}")
    low, high = (_number(node[key], f"{where}.{key}") for key in ("low", "high"))
    step = None if node.get("step") is None else _number(node["step"], f"{where}.step")
    numbers = Range(low, high, bool(node.get("log", False)), step, bool(node.get("int", False)))
    _check_range(numbers, where)
    return numbers


def _check_range(numbers: Range, where: str) -> None:
    """Check a range. Raises InputError."""
    if not numbers.low < numbers.high:
        raise InputError(f"{where}: low={numbers.low:zg} must be below high={numbers.high:zg}")
    if not math.isfinite(numbers.high - numbers.low):
        raise InputError(f"{where}: high={numbers.high:zg} less low={numbers.low:zg} is no finite number")
    if numbers.log and numbers.low <= 0:
        raise InputError(f"{where}: log needs low above 0, found {numbers.low:zg}")
    if numbers.whole and not all(float(v).is_integer() for v in (numbers.low, numbers.high, numbers.step or 1)):
        raise InputError(f"{where}: int needs whole numbers for low, high and step")
    if numbers.whole and max(abs(numbers.low), abs(numbers.high)) > LARGEST_WHOLE:
        raise InputError(f"{where}: int needs low and high between -2**53 and 2**53")
    if numbers.step is None:
        return
    if numbers.log:
        raise InputError(f"{where}: log and step exclude each other; list the values as choices")
    steps = (numbers.high - numbers.low) / numbers.step if numbers.step > 0 else 0.5
    if not steps <= LARGEST_WHOLE:  # more than can be counted one by one, infinitely many too
        raise InputError(f"{where}: step={numbers.step:zg} is too small for {numbers.low:zg} to {numbers.high:zg}")
    if not math.isclose(steps, round(steps), rel_tol=0, abs_tol=1e-9 * max(1, abs(steps))) or steps < 1:
        raise InputError(f"{where}: high must be low plus a whole number of steps, found step={numbers.step:zg}")


def _number(value: Any, where: str) -> float:
    """Parse a finite number; YAML reads 1e-4, without a point, as text."""
    if not isinstance(value, bool) and isinstance(value, int | float | str):
        with contextlib.suppress(ValueError, OverflowError):
            if math.isfinite(number := float(value.encode("ascii") if isinstance(value, str) else value)):
                return number
    raise InputError(f"{where}: expected a number, found {shown(value)}")
