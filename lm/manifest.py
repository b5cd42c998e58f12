"""What the manifests of experiments and searches hold, so that a damaged one is named before anything is made of it.

A shape is a type or several, `[shape]` for a list of such, `Each(shape)` for a mapping of any names to such, or a
mapping of names to shapes, in which a name that ends in `?` may be left out. None stands for null.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm.config import InputError
from lm.plain import shown


@dataclass(frozen=True)
class Each:
    """A mapping of any names to values of one shape."""

    shape: Any


class Pair(list[Any]):
    """A list of two values of any shape."""


class Exactly(dict[str, Any]):
    """A mapping of names to shapes, and no other names."""


NUMBER = (int, float)
CLAIM = Exactly(
    {
        "claim": str,
        "metric": str,
        "relation": str,
        "contrast?": Each(NUMBER),
        "over?": Each(NUMBER),
        "margin?": NUMBER,
        "low?": NUMBER,
        "high?": NUMBER,
        "exact?": bool,
        "source?": str,
        "tier?": str,
        "kind?": str,
    }
)
ARM = {"changes?": Each(Pair), "levels?": Each(str), "cells": Each(str)}
EXPERIMENT = {
    "name?": str,
    "title": str,
    "tier?": str,
    "command?": [str],
    "notes": str,
    "baseline": str,
    "metric?": str,
    "secondary?": [str],
    "margin?": Each(NUMBER),
    "confirmatory?": [str],
    "declared?": Each([str]),
    "axes?": (Each(str), None),
    "equal?": str,
    "adaptive?": ({"looks": [int], "maximum": int}, None),
    "design?": {"kind": str, "aliases?": [str]},
    "claims?": [CLAIM],
    "seeds": [int],
    "arms": Each(ARM),
}
RANGE = {"low": NUMBER, "high": NUMBER, "log": bool, "step": (*NUMBER, None), "int": bool}
TRIAL = {
    "number": int,
    "state": str,
    "params": Each((*NUMBER, str)),
    "values": ([(*NUMBER, None)], None),
    "reason": (str, None),
    "seconds": (*NUMBER, None),
}
METHOD = {"sampler": {"name": str}, "pruner": {"name": str}, "from_trial": int}
STUDY = {
    "title": str,
    "notes": str,
    "objectives": Each(str),
    "space": Each(({"choices": [str]}, RANGE)),
    "trials": int,
    "seeds": [int],
    "methods": [METHOD],
    "study": [TRIAL],
}


def check_shape(value: Any, shape: Any, path: Path, remedy: str) -> None:
    """Raises InputError naming the file at `path` and the place in it where `value` is of another shape."""
    place = _misshapen(value, shape, "")
    if place is not None:
        where, found = place
        raise InputError(f"{path}: {where or 'the whole'}: is damaged, found {found}; {remedy}")


def _misshapen(value: Any, shape: Any, where: str) -> tuple[str, str] | None:
    """The first place of another shape, and what is there; None where there is no such place."""
    if isinstance(shape, tuple):
        found = [_misshapen(value, one, where) for one in shape]
        return None if None in found else max((one for one in found if one), key=lambda one: len(one[0]))
    inner: list[tuple[Any, Any, str]] = []
    if isinstance(shape, list):
        fits = isinstance(value, list)
        inner = [(one, shape[0], f"[{index}]") for index, one in enumerate(value)] if fits else []
    elif isinstance(shape, Each):
        fits = isinstance(value, Mapping)
        inner = [(one, shape.shape, f".{name}") for name, one in value.items()] if fits else []
    elif isinstance(shape, Mapping):
        fits = isinstance(value, Mapping)
        names = [(name.rstrip("?"), inside, name.endswith("?")) for name, inside in shape.items()] if fits else []
        lost = [name for name, _, optional in names if not optional and name not in value]
        if lost:
            return f"{where}.{lost[0]}".lstrip("."), "nothing"
        known = {name for name, _, _ in names}
        strange = [name for name in value if name not in known] if fits and isinstance(shape, Exactly) else []
        if strange:
            return where, f"the name {shown(strange[0])}"
        inner = [(value[name], inside, f".{name}") for name, inside, _ in names if name in value]
    else:
        fits = _is(value, shape)
    if not fits:
        return where, shown(value)
    places = (_misshapen(one, inside, f"{where}{name}".lstrip(".")) for one, inside, name in inner)
    return next((place for place in places if place is not None), None)


def _is(value: Any, kind: type | None) -> bool:
    if kind is None:
        return value is None
    if kind is Pair:
        return isinstance(value, list) and len(value) == 2
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
