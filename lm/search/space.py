"""Search spaces: dotted paths of a configuration with the distributions of their values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Required, TypedDict

from lm.config.keys import Also, ref
from lm.config.nodes import read_section
from lm.config.plain import shown
from lm.config.tree import InputError, canonical, is_component, join

if TYPE_CHECKING:  # a plan draws nothing
    from optuna.trial import BaseTrial

SpacePaths = Annotated[dict[str, Any], ref("Space")]  # paths of a configuration with their distributions


class Distribution(TypedDict, total=False):
    """Numbers from low to high."""

    low: Required[Annotated[float, "The smallest number, included."]]
    high: Required[Annotated[float, "The largest number, included."]]
    log: Annotated[bool, "True to draw evenly in the logarithm.", Also(default=False)]
    step: Annotated[float | None, "Distance of the numbers, counted from low; without it, any number."]
    int: Annotated[bool, "True to draw whole numbers.", Also(default=False)]


class ConditionalChoice(TypedDict, total=False):
    """A component, and what is searched only where it is chosen."""

    class_path: Required[Annotated[str, "Its class."]]
    init_args: Annotated[dict[str, Any] | None, "Its options that are not searched."]
    space: Annotated["dict[str, Distribution | ChoicesNode]", "What is searched of it, as paths below it."]


Section = Annotated[dict[str, Any], Also(**{"type": "object", "not": {"required": ["class_path"]}})]


class ChoicesNode(TypedDict):
    """One of several values."""

    choices: Annotated[
        list[str | float | bool | list[Any] | ConditionalChoice | Section | None],
        "Values, names of components, or components with a space of their own.",
        Also(minItems=1),
    ]


MOST_POINTS = 10_000  # largest grid; more points are refused as a typo
LARGEST_WHOLE = 2**53  # largest whole number up to which each is a float too: samplers draw floats


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, as `Distribution` describes them; `whole` ones only, or all without a step."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    whole: bool = False

    def draw(self, trial: "BaseTrial", name: str, path: str) -> dict[str, Any]:
        """Draw a number, and return it as a change of the path."""
        if self.whole:
            low, high, step = int(self.low), int(self.high), int(self.step or 1)
            return {path: trial.suggest_int(name, low, high, step=step, log=self.log)}
        return {path: trial.suggest_float(name, self.low, self.high, step=self.step, log=self.log)}

    def count(self, path: str) -> int:
        """Return how many numbers it has. Raises InputError for a continuous range."""
        if self.step is None and not self.whole:
            raise InputError(f"space.{path}: a grid needs choices, a step, or int: true; found every number in between")
        return round((self.high - self.low) / (self.step or 1)) + 1

    def points(self, name: str, path: str) -> list[dict[str, Any]]:
        """Return all numbers by name. Raises InputError for a continuous range."""
        low, step = Fraction(str(self.low)), Fraction(str(self.step or 1))  # as they are written: .1 + 2 * .1 is .3
        values = [float(low + index * step) for index in range(self.count(path))]
        return [{name: int(value) if self.whole else value} for value in values]

    def examples(self, path: str) -> list[dict[str, Any]]:
        """Return changes of the path to both ends, and a number in between if it is continuous."""
        inner = [] if self.whole or self.step else [self.low + (self.high - self.low) * 0.38196601]
        return [{path: int(value) if self.whole else value} for value in (self.low, self.high, *inner)]

    def described(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"low": self.low, "high": self.high, "log": self.log, "step": self.step, "int": self.whole}


@dataclass(frozen=True)
class Choices:
    """Several values by their labels in a study, each with the space that is searched only if it is chosen."""

    options: dict[str, tuple[Any, "Space"]]

    def draw(self, trial: "BaseTrial", name: str, path: str) -> dict[str, Any]:
        """Draw a value and its space, and return changes."""
        value, space = self.options[trial.suggest_categorical(name, list(self.options))]
        return {path: value, **space.suggest(trial)}

    def count(self, path: str) -> int:
        """Return the number of points. Raises InputError if it is infinite."""
        return sum(space.points() for _, space in self.options.values())

    def points(self, name: str, path: str) -> list[dict[str, Any]]:
        """Return all labels and the points of their spaces, by name."""
        return [{name: label, **rest} for label, (_, space) in self.options.items() for rest in space.grid()]

    def examples(self, path: str) -> list[dict[str, Any]]:
        """Return changes to every value, and to the examples of its space."""
        return [{path: value, **inner} for value, space in self.options.values() for inner in ({}, *space.examples())]

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

    def suggest(self, trial: "BaseTrial") -> dict[str, Any]:
        """Draw a value for every dimension; return dotted changes to a configuration."""
        changes: dict[str, Any] = {}
        for dimension in self.dimensions:
            changes |= dimension.values.draw(trial, dimension.name, dimension.path)
        return changes

    def points(self) -> int:
        """Return the number of points of the grid. Raises InputError if it is infinite."""
        return math.prod(dimension.values.count(dimension.path) for dimension in self.dimensions)

    def grid(self) -> list[dict[str, Any]]:
        """Return all points by name, options only where their choice is made. Raises InputError for too many."""
        if self.points() > MOST_POINTS:
            raise InputError(f"space: a grid of {self.points():,} points, expected {MOST_POINTS:,} at most")
        points: list[dict[str, Any]] = [{}]
        for dimension in self.dimensions:
            parts = dimension.values.points(dimension.name, dimension.path)
            points = [{**point, **part} for point in points for part in parts]
        return points

    def examples(self) -> list[dict[str, Any]]:
        """Return changes with every choice and both ends of every range, one dimension at a time."""
        return [changes for dimension in self.dimensions for changes in dimension.values.examples(dimension.path)]

    def flat(self) -> list[Dimension]:
        """Return all dimensions, those of choices included."""
        dimensions = []
        for dimension in self.dimensions:
            dimensions.append(dimension)
            if isinstance(dimension.values, Choices):
                dimensions += [inner for _, space in dimension.values.options.values() for inner in space.flat()]
        return dimensions

    @property
    def conditional(self) -> bool:
        """True if a dimension depends on a choice."""
        return len(self.flat()) > len(self.dimensions)

    def described(self) -> dict[str, Any]:
        """Return all dimensions by name, as JSON."""
        return {dimension.name: dimension.values.described() for dimension in self.flat()}


def read_space(node: Any, where: str) -> Space:
    """Parse a mapping of dotted paths to distributions. Raises InputError that names the path."""
    space = _space(node, where, "", "")
    paths = [dimension.path for dimension in space.dimensions]
    for path in paths:
        if outer := [other for other in paths if path.startswith(f"{other}.")]:
            hint = "move it into a choice's space"
            raise InputError(f"{where}.{path}: lies inside {outer[0]}, which is drawn as a whole; {hint}")
    return space


def _space(node: Any, where: str, path: str, prefix: str) -> Space:
    if not isinstance(node, Mapping) or not node:
        raise InputError(f"{where}: expected a mapping of dotted paths to distributions, found {shown(node)}")
    dimensions = []
    for key, values in node.items():
        location, full, name = f"{where}.{key}", join(path, str(key)), join(prefix, str(key))
        if full in ("seed", "data_seed"):
            raise InputError(f"{location}: a seed is not searched for; give the seeds of every trial with seeds")
        if not isinstance(values, Mapping):
            raise InputError(f"{location}: expected {{low, high}} or {{choices: [...]}}, found {shown(values)}")
        if "choices" not in values:
            dimensions.append(Dimension(name, full, _range(values, location)))
            continue
        if extra := [inner for inner in values if inner != "choices"]:
            raise InputError(f"{location}: choices stand alone, found {shown(extra[0])} beside them")
        dimensions.append(Dimension(name, full, _choices(values["choices"], location, full, name)))
    return Space(tuple(dimensions))


def _choices(values: Any, where: str, path: str, name: str) -> Choices:
    if not isinstance(values, list) or not values:
        raise InputError(f"{where}.choices: expected a list of values, found {shown(values)}")
    options: dict[str, tuple[Any, Space]] = {}
    for value in values:
        inner: Any = None
        if isinstance(value, Mapping) and "space" in value:
            inner, value = value["space"], {key: v for key, v in value.items() if key != "space"}
        if is_component(value):
            read_section(value, ConditionalChoice, f"{where}.choices")
        label = _label(value)
        if label in options:
            raise InputError(f"{where}.choices: {label} is given twice")
        location = f"{where}.choices.{label}.space"
        space = Space() if inner is None else _space(inner, location, path, f"{name}.{label}")
        options[label] = value, space
    return Choices(options)


def _label(value: Any) -> str:
    if is_component(value):
        init_args = value.get("init_args") or {}
        options = ", ".join(f"{key}={_label(inner)}" for key, inner in init_args.items())
        return f"{value['class_path']}({options})" if options else str(value["class_path"])
    return value if isinstance(value, str) else canonical(value)


def _range(node: Mapping[str, Any], where: str) -> Range:
    section: Any = {"step": None, **read_section(node, Distribution, where)}
    low, high, step, log, whole = (section[key] for key in ("low", "high", "step", "log", "int"))
    if not low < high:
        raise InputError(f"{where}: low={low:zg} must be below high={high:zg}")
    if not math.isfinite(high - low):
        raise InputError(f"{where}: high={high:zg} less low={low:zg} is no finite number")
    if log and low <= 0:
        raise InputError(f"{where}: log needs low above 0, found {low:zg}")
    if whole and not all(number.is_integer() and abs(number) <= LARGEST_WHOLE for number in (low, high, step or 1.0)):
        raise InputError(f"{where}: int needs whole numbers between -2**53 and 2**53 for low, high and step")
    if step is not None:
        if log:
            raise InputError(f"{where}: log and step exclude each other; list the values as choices")
        steps = (high - low) / step if step > 0 else 0.5
        if not steps <= LARGEST_WHOLE:  # more than can be counted one by one, infinitely many too
            raise InputError(f"{where}: step={step:zg} is too small for {low:zg} to {high:zg}")
        if not math.isclose(steps, round(steps), rel_tol=0, abs_tol=1e-9 * max(1, abs(steps))) or steps < 1:
            raise InputError(f"{where}: high must be low plus a whole number of steps, found step={step:zg}")
    return Range(low, high, log, step, whole)
