"""Types of the search space in a sweep's file."""

from typing import Annotated, Any, Required, TypedDict

from lm.config.keys import Also, ref

SpacePaths = Annotated[dict[str, Any], ref("Space")]
"""Dotted paths of a configuration, each with the distribution of its values."""


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
