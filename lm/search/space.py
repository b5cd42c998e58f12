"""Search spaces: dotted paths of a configuration, and from what their values are drawn."""

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
"""Of a grid; more are a slip of the pen."""

LARGEST_WHOLE = 2**53
"""Up to here every whole number is a float too, as which samplers draw them."""


class Suggests(Protocol):
    """What draws values: Optuna's Trial, or its FixedTrial for values that are known."""

    def suggest_float(self, name: str, low: float, high: float, *, step: float | None, log: bool) -> float: ...

    def suggest_int(self, name: str, low: int, high: int, *, step: int, log: bool) -> int: ...

    def suggest_categorical(self, name: str, choices: Any) -> Any: ...


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included.

    Args:
        log: whether they are drawn evenly in their logarithm.
        step: between them, counted from `low`; None for every number in between.
        whole: whether they are whole numbers.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None
    whole: bool = False

    def suggest(self, trial: Suggests, name: str) -> float:
        """Draws a number."""
        if self.whole:
            return trial.suggest_int(name, int(self.low), int(self.high), step=int(self.step or 1), log=self.log)
        return trial.suggest_float(name, self.low, self.high, step=self.step, log=self.log)

    def count(self, path: str) -> int:
        """How many numbers there are in it. Raises InputError where they cannot be counted."""
        if self.step is None and not self.whole:
            raise InputError(f"space.{path}: a grid needs choices, a step, or int: true; found every number in between")
        return round((self.high - self.low) / (self.step or 1)) + 1

    def values(self, path: str) -> list[float]:
        """Every number in it. Raises InputError where they cannot be counted."""
        values = [self.low + index * (self.step or 1) for index in range(self.count(path))]
        return [int(value) for value in values] if self.whole else values

    def described(self) -> dict[str, Any]:
        """Itself as JSON."""
        return {"low": self.low, "high": self.high, "log": self.log, "step": self.step, "int": self.whole}


@dataclass(frozen=True)
class Option:
    """One of several values, and what is searched only where it is chosen."""

    value: Any
    space: "Space"


@dataclass(frozen=True)
class Choices:
    """One of several values, by the label under which a study knows it."""

    options: dict[str, Option]

    def described(self) -> dict[str, Any]:
        """Itself as JSON."""
        return {"choices": list(self.options)}


@dataclass(frozen=True)
class Dimension:
    """What is drawn for one dotted path, and the name it has in a study."""

    name: str
    path: str
    values: Range | Choices


@dataclass(frozen=True)
class Space:
    """Dimensions in the order in which they are drawn and put into a configuration."""

    dimensions: tuple[Dimension, ...] = ()

    def suggest(self, trial: Suggests) -> dict[str, Any]:
        """Draws a value for every dimension: dotted changes to a configuration."""
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
        """How many points a grid over it has. Raises InputError if endless."""
        sizes = (
            dimension.values.count(dimension.path)
            if isinstance(dimension.values, Range)
            else sum(option.space.points() for option in dimension.values.options.values())
            for dimension in self.dimensions
        )
        return math.prod(sizes)

    def grid(self) -> list[dict[str, Any]]:
        """Every point, as values by name; options only where their choice is made.

        Raises:
            InputError: where there are too many, or no end of them.
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
        """Changes that hold every choice and both ends of every range, one dimension at a time."""
        found: list[dict[str, Any]] = []
        for dimension in self.dimensions:
            if isinstance(dimension.values, Range):
                found += [{dimension.path: value} for value in _ends(dimension.values)]
                continue
            for option in dimension.values.options.values():
                found.append({dimension.path: option.value})
                found += [{dimension.path: option.value, **inner} for inner in option.space.examples()]
        return found

    def flat(self) -> list[Dimension]:
        """All dimensions, those of choices included."""
        found = []
        for dimension in self.dimensions:
            found.append(dimension)
            if isinstance(dimension.values, Choices):
                found += [inner for option in dimension.values.options.values() for inner in option.space.flat()]
        return found

    @property
    def conditional(self) -> bool:
        """Whether something is drawn only where something else was chosen."""
        return len(self.flat()) > len(self.dimensions)

    def described(self) -> dict[str, Any]:
        """All dimensions by name, as JSON."""
        return {dimension.name: dimension.values.described() for dimension in self.flat()}


def _ends(values: Range) -> list[float]:
    inner = [] if values.whole or values.step else [values.low + (values.high - values.low) * 0.38196601]
    return [int(v) if values.whole else v for v in (values.low, values.high)] + inner


# reading -------------------------------------------------------------------------------------------------------------


def read_space(node: Any, where: str) -> Space:
    """The space that a mapping of dotted paths to distributions describes. Raises InputError naming the path."""
    space = _space(node, where, "", "")
    paths = [dimension.path for dimension in space.dimensions]
    for path in paths:
        outer = [other for other in paths if path.startswith(f"{other}.")]
        if outer:
            raise InputError(
                f"{where}.{path}: lies inside {outer[0]}, which is drawn whole; put it in a choice's space"
            )
    return space


def _space(node: Any, where: str, path: str, prefix: str) -> Space:
    if not isinstance(node, Mapping) or not node:
        raise InputError(f"{where}: expected a mapping of dotted paths to distributions, found {shown(node)}")
    return Space(tuple(_dimension(str(key), value, where, path, prefix) for key, value in node.items()))


def _dimension(key: str, node: Any, where: str, path: str, prefix: str) -> Dimension:
    place, full = f"{where}.{key}", join(path, key)
    if full in ("seed", "data_seed"):
        raise InputError(f"{place}: a seed is not searched for; give the seeds of every trial with seeds")
    if not isinstance(node, Mapping):
        raise InputError(f"{place}: expected {{low, high}} or {{choices: [...]}}, found {shown(node)}")
    name = join(prefix, key)
    if "choices" in node:
        extra = [inner for inner in node if inner != "choices"]
        if extra:
            raise InputError(f"{place}: choices stand alone, found {shown(extra[0])} beside them")
        return Dimension(name, full, _choices(node["choices"], place, full, name))
    return Dimension(name, full, _range(node, place))


def _choices(values: Any, where: str, path: str, name: str) -> Choices:
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
        place = f"{where}.choices.{label}.space"
        options[label] = Option(value, _space(inner, place, path, f"{name}.{label}") if inner is not None else Space())
    return Choices(options)


def _label(value: Any) -> str:
    if is_component(value):
        given = value.get("init_args") or {}
        options = ", ".join(f"{key}={_label(inner)}" for key, inner in given.items())
        return f"{value['class_path']}({options})" if options else str(value["class_path"])
    return value if isinstance(value, str) else canonical(value)


def _range(node: Mapping[str, Any], where: str) -> Range:
    for key in node:
        if key not in RANGE_KEYS:
            known = (*RANGE_KEYS, "choices")
            raise InputError(f"{where}: no key {key!r}.{nearest(key, known)} It takes {', '.join(known)}")
    for key in required(Distribution):
        if key not in node:
            raise InputError(f"{where}: {key} is missing; a range needs low and high, or give choices")
    for key in ("log", "int"):
        if not isinstance(node.get(key, False), bool):
            raise InputError(f"{where}.{key}: expected true or false, found {shown(node[key])}")
    low, high = (_number(node[key], f"{where}.{key}") for key in ("low", "high"))
    step = None if node.get("step") is None else _number(node["step"], f"{where}.step")
    found = Range(low, high, bool(node.get("log", False)), step, bool(node.get("int", False)))
    _check_range(found, where)
    return found


def _check_range(found: Range, where: str) -> None:
    if not found.low < found.high:
        raise InputError(f"{where}: low={found.low:zg} must be below high={found.high:zg}")
    if not math.isfinite(found.high - found.low):
        raise InputError(f"{where}: high={found.high:zg} less low={found.low:zg} is no finite number")
    if found.log and found.low <= 0:
        raise InputError(f"{where}: log needs low above 0, found {found.low:zg}")
    if found.whole and not all(float(v).is_integer() for v in (found.low, found.high, found.step or 1)):
        raise InputError(f"{where}: int needs whole numbers for low, high and step")
    if found.whole and max(abs(found.low), abs(found.high)) > LARGEST_WHOLE:
        raise InputError(f"{where}: int needs low and high between -2**53 and 2**53")
    if found.step is None:
        return
    if found.log:
        raise InputError(f"{where}: log and step exclude each other; list the values as choices")
    steps = (found.high - found.low) / found.step if found.step > 0 else 0.5
    if not steps <= LARGEST_WHOLE:  # more than can be counted one by one, infinitely many too
        raise InputError(f"{where}: step={found.step:zg} is too small for {found.low:zg} to {found.high:zg}")
    if not math.isclose(steps, round(steps), rel_tol=0, abs_tol=1e-9 * max(1, abs(steps))) or steps < 1:
        raise InputError(f"{where}: high must be low plus a whole number of steps, found step={found.step:zg}")


def _number(value: Any, where: str) -> float:
    """A finite number; YAML reads 1e-4, without a point, as text."""
    if not isinstance(value, bool) and isinstance(value, int | float | str):
        with contextlib.suppress(ValueError, OverflowError):
            if math.isfinite(number := float(value.encode("ascii") if isinstance(value, str) else value)):
                return number
    raise InputError(f"{where}: expected a number, found {shown(value)}")
