"""Configurations checked against constructors, and the objects that they describe.

The root is a dataclass. A parameter whose type is a class is a *component node*, written as a class name or
`{class_path, init_args}`. A parameter typed `Callable[[A, B], Base]` is a component whose first two arguments the
program supplies later; the configuration holds the others. A node with only one possible class is a *section*, written
as the class's arguments alone.

This module checks names and keys, so that the message for a misspelled one has the nearest choice. jsonargparse checks
plain values and adds defaults, with one parser for each class.
"""

import contextlib
import copy
import functools
import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from lm.config.choices import (
    SUPPLIED,
    Slot,
    choices,
    class_name,
    find_class,
    is_section,
    parameters,
    slots,
    supplied_by_name,
    supplied_names,
    type_hints,
)
from lm.config.imported import user_frame
from lm.config.layers import expand_layers, merge_layers
from lm.config.plain import find_unusable, shown
from lm.config.tree import INHERITED, InputError, Tree, flatten, is_component, is_schedule, join, nearest
from lm.config.usual_names import suggest_setting

REQUIRED = object()
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", dict: "a mapping", None: "null"}


@functools.cache
def _parser(cls: type, supplied: int) -> Any:
    from jsonargparse import ArgumentParser  # takes 0.1 s, which `lm --help` does not need

    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(cls, skip={*slots(cls, supplied), *supplied_names(cls, supplied)}, fail_untyped=False)
    return parser


@functools.cache
def plain_options(cls: type, supplied: int = 0) -> dict[str, Any]:
    """Return the plain parameters of a class with their defaults; REQUIRED if there is none."""
    defaults = _parser(cls, supplied).get_defaults().as_dict()
    own, empty = parameters(cls), inspect.Parameter.empty
    return {name: REQUIRED if name in own and own[name].default is empty else value for name, value in defaults.items()}


def describe(hint: Any) -> str:
    """Describe what a type hint accepts."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return "one of " + ", ".join(str(a) for a in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(describe(a) for a in arguments))
    if (kind := dict if origin is dict else None if hint is type(None) else hint) in WORDS:
        return WORDS[kind]
    if origin in (list, tuple) and arguments:
        kinds = list(dict.fromkeys(describe(a) for a in arguments if a is not Ellipsis))
        size = f"{len(arguments)} items, each " if origin is tuple and Ellipsis not in arguments else "items, each "
        return f"a list ({size}{' or '.join(kinds)})"
    return getattr(hint, "__name__", str(hint))


def _check_plain(cls: type, supplied: int, settings: Tree, path: str) -> Tree:
    """Check settings against the plain parameters of a class, and add the defaults; results are cached."""
    key = (cls, supplied, repr(settings))
    if key in _checked:
        return copy.deepcopy(_checked[key])
    try:
        parsed = _parser(cls, supplied).parse_object(copy.deepcopy(settings)).as_dict()
        values = {name: _plain(value) for name, value in parsed.items()}
    except (Exception, SystemExit) as error:  # jsonargparse raises several kinds; each becomes the one line below
        for name, value in settings.items():
            if re.search(rf'"{re.escape(name)}(?!\w)', str(error).splitlines()[0]):
                raise InputError(f"{join(path, name)}: {_expected(cls, name, value)}") from None
        raise InputError(f"{path}: {' '.join(str(error).split())}") from None
    for name, value in values.items():
        raw = settings.get(name)
        # Python caches one of `Union[int, float]` and `Union[float, int]`, whichever came first in the process, and the
        # parser uses the first that fits: 2 would become 2.0 or not by the order of imports
        if type(raw) is int and isinstance(value, float) and int in typing.get_args(type_hints(cls).get(name)):
            values[name] = value = raw
        is_number = type_hints(cls).get(name) in (int, float)
        if is_number and value is None and name in settings and plain_options(cls, supplied)[name] is not None:
            kind = describe_option(cls, name)  # the parser takes null for anything
            raise InputError(f"{join(path, name)}: expected {kind}, found null")
        if (problem := find_unusable(value)) and not isinstance(raw, str):
            raise InputError(f"{join(path, name)}: {problem}")
        if problem or (type(value) is int and isinstance(raw, str)):  # "3" is text
            raise InputError(f"{join(path, name)}: {_expected(cls, name, settings.get(name, value))}")
    _checked[key] = copy.deepcopy(values)
    return values


_checked: dict[tuple[type, int, str], Tree] = {}


def _plain(value: Any) -> Any:
    """Convert a value as JSON does, so that a configuration read from a file equals the one written."""
    if is_schedule(value):  # equal numbers, written in whatever way, have equal ids
        return {f"{float(key):z.15g}": _plain(item) for key, item in value.items()}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def describe_option(cls: type, name: str) -> str:
    """Describe what a parameter of a class accepts."""
    hint = type_hints(cls).get(name)
    return describe(hint) if hint is not None else "any value"


def _expected(cls: type, name: str, value: Any) -> str:
    hints, members = [type_hints(cls).get(name)], list[str]()
    for hint in hints:
        inner = typing.get_args(hint)
        members += map(str, inner if typing.get_origin(hint) is typing.Literal else ())
        hints += inner
    return f"expected {describe_option(cls, name)}, found {shown(value)}.{nearest(value, members)}".rstrip(".")


Missing = list[tuple[str, str, str]]  # missing settings: their paths, the class that needs them, and what it accepts


def _resolve_arguments(cls: type, supplied: int, settings: Any, path: str, missing: Missing) -> Tree:
    settings = {} if settings is None else settings
    if not isinstance(settings, Mapping):
        raise InputError(f"{path}: expected a mapping of settings of {cls.__name__}, found {shown(settings)}")
    components, plain, layers = slots(cls, supplied), plain_options(cls, supplied), list[Tree]()
    accepted = [*components, *plain]
    if (parts := getattr(cls, "LAYER_PARTS", ())) and isinstance(value := settings.get("layers"), Mapping | list):
        layers = expand_layers(value, dict(settings), parts, path)
        settings = {**settings, "layers": len(layers)}
    for key in settings:
        if (reason := getattr(cls, "REASONS", {}).get(key)) is not None:
            raise InputError(f"{join(path, str(key))}: {reason}")
        if key not in accepted:
            below = [] if path else [name for name in flatten(settings) if name.endswith(f".{key}")]
            meant = min(below, key=lambda name: name.count("."), default="")  # `lr` for `optim.lr`
            hint = f" Did you mean {meant}?" if meant else suggest_setting(key, accepted)
            listed = f"It takes {', '.join(accepted) or 'no settings'}"
            raise InputError(f"{join(path, str(key))}: {cls.__name__} has no setting {key!r}.{hint} {listed}")
    defaults = parameters(cls)
    for name in accepted:
        has_default = name in components and defaults[name].default is not inspect.Parameter.empty
        absent = name not in settings or (name in plain and settings[name] is None)
        if absent and not has_default and plain.get(name, REQUIRED) is REQUIRED:
            what, inner = "" if name in components else describe_option(cls, name), Missing()
            if name in components and not is_section(components[name].base):
                what = " or ".join(choices(components[name].base))
            elif name in components:  # with the settings that it requires itself
                _resolve_arguments(components[name].base, components[name].supplied, {}, "", inner)
                names = f", with {', '.join(option for option, _, _ in inner)}" if inner else ""
                what = f"{components[name].base.__name__}{names}"
            missing.append((join(path, name), cls.__name__, what))
    lacking = {name for name, _, _ in missing}
    resolved: Tree = {}
    if not any(join(path, name) in lacking for name in plain):
        resolved = _check_plain(cls, supplied, {k: v for k, v in settings.items() if k in plain}, path)
    for name, slot in components.items():
        if join(path, name) not in lacking:
            node = settings.get(name)
            absent = node is None and (slot.optional or name not in settings)
            resolved[name] = None if absent else _resolve_node(node, slot, join(path, name), missing)
    if layers and not lacking:
        for index, layer in enumerate(layers):
            at = f"{join(path, 'layers')}.{index}"
            layer |= {
                part: _resolve_node(node, components[part], f"{at}.{part}", missing) for part, node in layer.items()
            }
        resolved = merge_layers(resolved, layers, isinstance(value, list), path)
    later = {name: plain.get(name) for name in added_options(cls)}
    return {name: resolved[name] for name in sorted(resolved) if name not in later or resolved[name] != later[name]}


@functools.cache
def added_options(cls: type) -> frozenset[str]:
    """Return the options that a class lists as `ADDED`: those that came after cells with it had been trained.

    At its default such an option is left out of a resolved configuration, so that ids stay as they were.
    """
    return frozenset[str]().union(*(vars(owner).get("ADDED", ()) for owner in cls.__mro__))


def _resolve_node(node: Any, slot: Slot, path: str, missing: Missing) -> Tree:
    if isinstance(node, str):
        node = {"class_path": node}
    if not is_component(node) and is_section(slot.base):
        return _resolve_arguments(slot.base, slot.supplied, node, path, missing)
    if not is_component(node):
        problem = f"found {shown(node)}. Choose from {', '.join(choices(slot.base))}"
        raise InputError(f"{path}: expected a class name or {{class_path, init_args}}, {problem}")
    if extra := [key for key in node if key not in ("class_path", "init_args", INHERITED)]:
        raise InputError(f"{path}: a component has class_path and init_args only; move {extra[0]!r} under init_args")
    cls = find_class(node["class_path"], slot.base, path)
    arguments = _resolve_arguments(cls, slot.supplied, _with_inherited(node, cls, slot, path), path, missing)
    return {"class_path": class_name(cls, slot.base), "init_args": arguments}


def _with_inherited(node: Mapping[str, Any], cls: type, slot: Slot, path: str) -> Any:
    """Return the settings of a node, with those of the node that it replaced whose names and types are its own."""
    settings, base = node.get("init_args"), node.get(INHERITED)
    if not isinstance(base, Mapping) or not is_component(base) or not isinstance(settings, Mapping | None):
        return settings
    base_class = find_class(base["class_path"], slot.base, path)
    inherited = _with_inherited(base, base_class, slot, path) or {}
    accepted, hints, base_hints = parameters(cls), type_hints(cls), type_hints(base_class)
    hinted = {name: (hints.get(name), base_hints.get(name)) for name in inherited if name in accepted}
    agreeing = {
        name for name, (hint, other) in hinted.items() if hint in (None, other) or other in typing.get_args(hint)
    }
    return {**{name: inherited[name] for name in inherited if name in agreeing}, **(settings or {})}


def resolve(settings: Any, root: type, path: str = "") -> Tree:
    """Check settings, at a path, against constructors and add defaults; raise InputError for the first problem."""
    missing: Missing = []
    resolved = _resolve_arguments(root, 0, settings, path, missing)
    if len(missing) == 1:
        path, kind, what = missing[0]
        raise InputError(f"{path}: {kind} needs this setting: {what}")
    if missing:
        listed = "; ".join(f"{path}: {what}" for path, _, what in missing)
        raise InputError(f"{len(missing)} settings are missing, or a base that has them (base: char_tiny): {listed}")
    return resolved


def build(resolved: Tree, root: type, path: str = "", supplied: int = 0) -> Any:
    """Build the objects of a configuration, or a partial if arguments are supplied; raise InputError with its path."""
    components, arguments = slots(root, supplied), dict(resolved)

    def built(name: str, node: Any, path: str) -> Any:
        slot, cls = components[name], components[name].base
        if is_component(node):
            node, cls = node["init_args"], find_class(node["class_path"], slot.base, path)
        component = build(node, cls, path, slot.supplied)
        return component if issubclass(cls, slot.base) else cast(Any, slot.base).adapt(component)

    for name, node in resolved.items():
        if name in components and node is not None:
            arguments[name] = built(name, node, join(path, name))
        elif name == "layers" and isinstance(node, list):  # a part that is the model's own need not be built twice
            layers = [{part: inner for part, inner in layer.items() if inner != resolved[part]} for layer in node]
            at = join(path, name)
            arguments[name] = [
                {part: built(part, inner, f"{at}.{index}.{part}") for part, inner in layer.items()}
                for index, layer in enumerate(layers)
            ]
    if supplied:
        return _Partial(root, **arguments)
    with blame(path):
        return root(**arguments)


class _Partial(functools.partial[Any]):
    """A constructor with its options; what the program supplies is passed by name where the class takes it so."""

    def __call__(self, /, *supplied: Any, **more: Any) -> Any:
        names = supplied_by_name(self.func, len(supplied)) if isinstance(self.func, type) else ()
        if 0 < len(names) < len(supplied):
            expected = next((each for each in SUPPLIED if len(each) == len(supplied)), names)
            reason = f"the constructor of {self.func.__name__} takes {', '.join(names)} alone"
            raise ValueError(f"{reason}; expected {' and '.join(expected)}, first or by name")
        by_name = dict(zip(names, supplied, strict=True)) if names else {}
        return self.func(*(() if names else supplied), **by_name, **{**self.keywords, **more})


@contextlib.contextmanager
def blame(path: str) -> Iterator[None]:
    """Convert errors of a constructor in the block to InputErrors with the path in the configuration."""
    try:
        yield
    except (Exception, SystemExit) as error:
        exits = type(error) is SystemExit and not isinstance(error.__context__, KeyboardInterrupt)
        if isinstance(error, InputError) or not (isinstance(error, Exception) or exits):
            raise
        name = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        message = f"{name}{' '.join(str(error).split())}{user_frame(error)}"
        raise InputError(f"{path + ': ' if path else ''}{message}") from None


Catalogue = dict[str, list[dict[str, Any]]]


def catalogue(root: type, supplied: int = 0, path: str = "", entries: Catalogue | None = None) -> Catalogue:
    """List the components to choose by kind, the dotted path of their parameter, with options and first lines."""
    entries = {} if entries is None else entries
    for name, slot in slots(root, supplied).items():
        kind, members = join(path, name), choices(slot.base)
        if kind in entries:
            continue
        entries[kind] = []
        for choice, member in members.items():
            options: dict[str, dict[str, Any]] = {
                option: {
                    "accepts": describe_option(member, option),
                    **({} if value is REQUIRED else {"default": value}),
                }
                for option, value in plain_options(member, slot.supplied).items()
            }
            first_line = (inspect.getdoc(member) or "").split("\n")[0]
            entries[kind].append({"name": choice, "doc": first_line, "options": options})
        for member in members.values():
            catalogue(member, slot.supplied, kind, entries)
    return entries


def catalogue_lines(entries: Catalogue) -> list[str]:
    """Format the catalogue as text: kind, class, options with defaults, docstring."""
    text: list[str] = []
    for kind, members in entries.items():
        text += ["", kind]
        for member in members:
            texts = (f"{name}={o['default']}" if "default" in o else name for name, o in member["options"].items())
            text += [f"  {member['name']}({', '.join(texts)})", f"      {member['doc']}"]
    return text[1:]
