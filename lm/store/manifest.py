"""Whether a manifest still is what was written, so that a damaged one is named before anything is made of it."""

import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union

from lm.config.plain import shown
from lm.config.tree import InputError
from lm.store.record import ClaimOf

EXACT = (ClaimOf,)
"""Declarations that hold no other names than their own: they are handed to a constructor."""


def check_shape(value: Any, declared: Any, path: Path, remedy: str) -> None:
    """Raises InputError naming the file at `path` and the place in it where `value` is not what `declared` says.

    Args:
        value: as it was read from JSON, in which a tuple is a list.
        declared: a type of lm/store/record.py.
        path: of the file.
        remedy: what helps.
    """
    place = _misshapen(value, declared, "")
    if place is not None:
        where, found = place
        raise InputError(f"{path}: {where or 'the whole'}: is damaged, found {found}; {remedy}")


def _misshapen(value: Any, declared: Any, where: str) -> tuple[str, str] | None:
    """The first place that is not as declared, and what is there; None where there is no such place."""
    if typing.is_typeddict(declared):
        return _misshapen_mapping(value, declared, where)
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin in (Union, types.UnionType):
        found = [_misshapen(value, one, where) for one in arguments]
        return None if None in found else max((one for one in found if one), key=lambda one: len(one[0]))
    inner: list[tuple[Any, Any, str]] = []
    if origin is list:
        fits = isinstance(value, list)
        inner = [(one, arguments[0], f"[{index}]") for index, one in enumerate(value)] if fits else []
    elif origin is tuple:
        fits = isinstance(value, list) and len(value) == len(arguments)
        pairs = zip(value, arguments, strict=True) if fits else ()
        inner = [(one, kind, f"[{index}]") for index, (one, kind) in enumerate(pairs)]
    elif origin is dict:
        fits = isinstance(value, Mapping)
        inner = [(one, arguments[1], f".{name}") for name, one in value.items()] if fits else []
    else:
        fits = value in arguments if origin is Literal else _is(value, declared)
    return _first(inner, where) if fits else (where, shown(value))


def _misshapen_mapping(value: Any, declared: Any, where: str) -> tuple[str, str] | None:
    if not isinstance(value, Mapping):
        return where, shown(value)
    hints = typing.get_type_hints(declared)
    lost = [name for name in hints if name in declared.__required_keys__ and name not in value]
    if lost:
        return f"{where}.{lost[0]}".lstrip("."), "nothing"
    strange = [name for name in value if name not in hints] if declared in EXACT else []
    if strange:
        return where, f"the name {shown(strange[0])}"
    return _first([(value[name], hint, f".{name}") for name, hint in hints.items() if name in value], where)


def _first(inner: list[tuple[Any, Any, str]], where: str) -> tuple[str, str] | None:
    places = (_misshapen(one, declared, f"{where}{name}".lstrip(".")) for one, declared, name in inner)
    return next((place for place in places if place is not None), None)


def _is(value: Any, kind: Any) -> bool:
    if kind is Any:
        return True
    if kind is type(None):
        return value is None
    if isinstance(value, float) and not math.isfinite(value):
        return False
    number = isinstance(value, (int, float)) if kind is float else isinstance(value, kind)
    return number and (kind is bool or not isinstance(value, bool))
