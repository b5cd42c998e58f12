"""Sections of YAML files, read as the nodes of `lm.config.keys` declare them."""

import functools
import math
import operator
import re
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import yaml

from lm.config.keys import NUMBER, Also, keys, required
from lm.config.plain import parse_yaml, shown
from lm.config.tree import InputError, nearest
from lm.config.usual_names import suggest

Words = Mapping[str, Any]  # of JSON Schema, beside a hint
NAMES = {dict: "a mapping", list: "a list", bool: "true or false", int: "a whole number", float: "a number"}
BOUNDS = {
    "minimum": (operator.ge, "from"),
    "maximum": (operator.le, "to"),
    **dict.fromkeys(("minItems", "minProperties"), (operator.ge, "of at least")),
    **dict.fromkeys(("maxItems", "maxProperties"), (operator.le, "of at most")),
    "exclusiveMinimum": (operator.gt, "above"),
    "exclusiveMaximum": (operator.lt, "below"),
}


def read_section(value: Any, node: type, path: str) -> dict[str, Any]:
    """Return a mapping with the keys and types of a TypedDict, and its defaults. Raises InputError naming the path.

    A `path` that ends in a colon is that of a file. Numbers may be text, as YAML reads 1e-4. Null stands for an empty
    mapping or list where it is allowed. Text with a pattern has a reader of its own and is returned as it is.
    """
    where, before = path.removesuffix(":"), f"{path} " if path.endswith(":") else f"{path}."
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: expected {_expected(node, {})}, found {shown(value)}")
    names, section = keys(node), {}
    for key in value:
        if key not in names:
            near = suggest(str(key), names, "keys")
            is_setting = "common" in names and ("." in str(key) or near == " Did you mean common?")
            hint = "; changes to the base stand under common, by dotted paths" if is_setting else ""
            raise InputError(f"{where}: no key {shown(key)}.{near} It takes {', '.join(names)}{hint}")
    for key, hint in _hints(node).items():
        words = _unwrapped(hint)[1]
        if key in value:
            section[key] = _read(value[key], hint, f"{before}{key}")
        elif key in required(node):
            raise InputError(f"{where}: {key} is missing: {words['description']}")
        elif "default" in words:
            section[key] = words["default"]
    return section


def one_of(value: Any, choices: Iterable[str], path: str, kind: str) -> str:
    """Return one of the choices, also where YAML read its name as a value. Raises InputError naming the nearest."""
    names, name = list(choices), str(value)
    if name not in names:
        if len(read_alike := [other for other in names if _value_as_text(other) == name]) == 1:
            return read_alike[0]
        raise InputError(f"{path}: no {kind} {name!r}.{nearest(name, names)} Choose from {', '.join(names)}")
    return name


def _value_as_text(name: str) -> str:
    """Return the text of what YAML reads a name as: False of `off`, 0.001 of `1.0e-3`."""
    try:
        return str(parse_yaml(name))
    except yaml.YAMLError:
        return name


def _read(value: Any, hint: Any, path: str) -> Any:
    """Return a value of the type that a hint names. Raises InputError."""
    hint, words = _unwrapped(hint)
    members = _members(hint)
    if any("pattern" in _unwrapped(member)[1] for member in members):
        members = tuple(filter(typing.is_typeddict, members))
        if not (members and isinstance(value, Mapping)):
            return value
        members = tuple(sorted(members, key=lambda node: not {*keys(node)} & {*value}))  # the one that has its keys
    if value is None and types.NoneType in members:
        value = next((kind() for kind in map(_kind, members) if kind in (dict, list)), None)
    if "type" in words:  # text that YAML may read as something else
        if isinstance(value, str | int | float | None):
            return "" if value is None else str(value)
        members = ()
    member = next((member for member in members if _fits(value, member)), None)
    if member is None:
        examples = [
            yaml.safe_dump(example, default_flow_style=True, sort_keys=False, width=math.inf).strip()
            for example in words.get("examples", [])
        ]
        expected = ", such as ".join([_expected(hint, words), *examples])
        raise InputError(f"{path}: expected {expected}, found {shown(value)}")
    if "enum" in words and value not in words["enum"]:
        value = one_of(value, [choice for choice in words["enum"] if choice is not None], path, "choice")
    sized = isinstance(value, Mapping | list)
    size: Any = len(value) if sized else _number(value)
    if value is not None and not all(BOUNDS[word][0](size, bound) for word, bound in words.items() if word in BOUNDS):
        raise InputError(f"{path}: expected {_expected(hint, words)}, found {size if sized else shown(value)}")
    if member is not hint:
        return _read(value, member, path)
    if typing.is_typeddict(hint):
        return read_section(value, hint, path)
    if _kind(hint) is dict:
        return {str(key): _read(inner, typing.get_args(hint)[1], f"{path}.{key}") for key, inner in value.items()}
    if _kind(hint) is list:
        return [_read(item, typing.get_args(hint)[0], f"{path}[{index}]") for index, item in enumerate(value)]
    return size if hint is float else value


@functools.cache
def _hints(node: type) -> dict[str, Any]:
    return typing.get_type_hints(node, include_extras=True)


def _unwrapped(hint: Any) -> tuple[Any, Words]:
    """Return a hint without its wrappers, and the words beside it."""
    words: dict[str, Any] = {}
    while (origin := typing.get_origin(hint)) in (Annotated, typing.Required, typing.NotRequired):
        for note in hint.__metadata__ if origin is Annotated else ():
            words |= note.words if isinstance(note, Also) else {"description": note}
        hint = typing.get_args(hint)[0]
    return hint, words


def _members(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _kind(hint: Any) -> Any:
    hint = _unwrapped(hint)[0]
    return dict if typing.is_typeddict(hint) else typing.get_origin(hint) or hint


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of the kind of a hint, whatever it holds."""
    kind = _kind(hint)
    if kind is typing.Literal:
        return isinstance(value, str) and value in typing.get_args(hint)
    if kind in (int, bool, types.NoneType):
        return type(value) is kind
    if kind is float:
        return _number(value) is not None
    return kind is Any or isinstance(value, Mapping if kind is dict else kind)


def _number(value: Any) -> float | None:
    """Return a finite number, also one given as text; None for anything else."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if not plain and not (isinstance(value, str) and value.isascii() and re.match(NUMBER, value)):
        return None
    try:
        return float(value) if math.isfinite(float(value)) else None
    except OverflowError:
        return None


def _expected(hint: Any, words: Words) -> str:
    """Describe the values that a hint takes."""
    if len(members := _members(hint)) > 1 and "type" not in words:
        return " or ".join(_expected(*_unwrapped(member)) for member in members if member is not types.NoneType)
    if typing.is_typeddict(hint):
        return f"a mapping of {', '.join(keys(hint))}"
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(typing.get_args(hint))
    text = "a mapping of dotted paths to values" if "$ref" in words else NAMES.get(_kind(hint), "text")
    bounds = [f"{BOUNDS[word][1]} {bound:zg}" for word, bound in words.items() if word in BOUNDS]
    text = " ".join([text, " and ".join(bounds).replace(" and to ", " to ")]).rstrip()
    return re.sub(r"of at least (\S+) and of at most", r"of \1 to", text)
