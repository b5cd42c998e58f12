"""What a configuration may hold, read from constructors, and the objects it describes.

The root is a dataclass. A parameter whose type is a class is a *component node*, written as a class name or
`{class_path, init_args}`. A parameter typed `Callable[[A, B], Base]` is a component whose first two arguments the
program supplies later; the configuration holds the others. A node that only one class can fill is a *section*,
written as the class's arguments alone.

Names and keys are checked here, so that a misspelling is answered with the nearest choice; plain values are checked
and filled in by jsonargparse, one parser a class.
"""

import copy
import functools
import inspect
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lm.config.choices import Slot, choices, class_name, constructor, find_class, is_section, parameters, slots
from lm.config.imported import user_frame
from lm.config.plain import find_unusable, shown
from lm.config.tree import InputError, Tree, is_component, join, nearest

REQUIRED = object()
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", dict: "a mapping", None: "null"}

# components ----------------------------------------------------------------------------------------------------------


@functools.cache
def _parser(cls: type, supplied: int) -> Any:
    from jsonargparse import ArgumentParser  # 0.1 s, which `lm --help` need not pay

    parser = ArgumentParser(exit_on_error=False)
    skip: set[str | int] = set(slots(cls, supplied))
    if supplied:
        skip.add(supplied)
    parser.add_class_arguments(cls, skip=skip, fail_untyped=False)
    return parser


@functools.cache
def plain_options(cls: type, supplied: int = 0) -> dict[str, Any]:
    """Names and defaults of the plain parameters of `cls`; REQUIRED where there is no default."""
    defaults = _parser(cls, supplied).get_defaults().as_dict()
    known, empty = parameters(cls), inspect.Parameter.empty
    return {
        name: REQUIRED if name in known and known[name].default is empty else value for name, value in defaults.items()
    }


def describe(hint: Any) -> str:
    """What a type hint accepts, in words."""
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


def hint_of(cls: type, name: str) -> Any:
    """The type hint of the parameter `name` of `cls`; None where there is none to be read."""
    for owner in cls.__mro__:  # `**settings` are passed up
        try:
            hints = typing.get_type_hints(constructor(owner))
        except (NameError, TypeError):
            continue
        if name in hints:
            return hints[name]
    return None


def _check_plain(cls: type, supplied: int, given: Tree, path: str) -> Tree:
    """`given` checked against the plain parameters of `cls`, with defaults filled in.

    Arms of an experiment have most nodes in common, so that what was found right once is not parsed again.
    """
    try:
        key = (cls, supplied, repr(given))
    except ValueError:  # a whole number of thousands of digits
        return _parsed(cls, supplied, given, path)
    if key not in _checked:
        _checked[key] = _parsed(cls, supplied, given, path)
    return copy.deepcopy(_checked[key])


_checked: dict[tuple[type, int, str], Tree] = {}


def _parsed(cls: type, supplied: int, given: Tree, path: str) -> Tree:
    parser = _parser(cls, supplied)
    try:
        found = {name: _plain(value) for name, value in parser.parse_object(copy.deepcopy(given)).as_dict().items()}
        found = {name: _as_given(cls, name, given.get(name), value) for name, value in found.items()}
    except (Exception, SystemExit) as error:  # jsonargparse raises several kinds; each becomes the one line below
        for name, value in given.items():
            if re.search(rf'"{re.escape(name)}(?!\w)', str(error).splitlines()[0]):
                raise InputError(f"{join(path, name)}: {_expected(cls, name, value)}") from None
        raise InputError(f"{path}: {' '.join(str(error).split())}") from None
    for name, value in found.items():
        if (problem := find_unusable(value)) and not isinstance(given.get(name), str):
            raise InputError(f"{join(path, name)}: {problem}")
        if problem or (type(value) is int and isinstance(given.get(name), str)):  # "3" is text
            raise InputError(f"{join(path, name)}: {_expected(cls, name, given.get(name, value))}")
    return found


def _as_given(cls: type, name: str, given: Any, parsed: Any) -> Any:
    """A whole number as it was given, where the hint admits both kinds of numbers.

    Python keeps one copy of `Union[int, float]` and `Union[float, int]`, whichever came first in the process, and the
    parser takes the first that fits: 2 would become 2.0 or not by the order of imports.
    """
    both = type(given) is int and isinstance(parsed, float) and int in typing.get_args(hint_of(cls, name))
    return given if both else parsed


def _plain(value: Any) -> Any:
    """`value` as JSON would give it back, so that a configuration read from a file equals the one written."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def describe_option(cls: type, name: str) -> str:
    """What the parameter `name` of `cls` accepts, in words."""
    hint = hint_of(cls, name)
    return describe(hint) if hint is not None else "any value"


def _expected(cls: type, name: str, value: Any) -> str:
    members = [str(a) for a in _literals(hint_of(cls, name))]
    return f"expected {describe_option(cls, name)}, found {shown(value)}.{nearest(value, members)}".rstrip(".")


def _literals(hint: Any) -> list[Any]:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return list(arguments)
    return [literal for argument in arguments for literal in _literals(argument)]


Missing = list[tuple[str, str, str]]
"""Settings that were not given: their paths, the class that needs them, and what they may be."""


def _resolve_arguments(cls: type, supplied: int, given: Any, path: str, missing: Missing) -> Tree:
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise InputError(f"{path}: expected a mapping of settings of {cls.__name__}, found {shown(given)}")
    components, plain = slots(cls, supplied), plain_options(cls, supplied)
    accepted = [*components, *plain]
    for key in given:
        if (reason := getattr(cls, "REASONS", {}).get(key)) is not None:
            raise InputError(f"{join(path, str(key))}: {reason}")
        if key not in accepted:
            listed = ", ".join(accepted) or "no settings"
            raise InputError(
                f"{join(path, str(key))}: {cls.__name__} has no setting {key!r}."
                f"{nearest(key, accepted)} It takes {listed}"
            )
    defaults = parameters(cls)
    for name in accepted:
        has_default = name in components and defaults[name].default is not inspect.Parameter.empty
        absent = name not in given or (name in plain and given[name] is None)
        if absent and not has_default and plain.get(name, REQUIRED) is REQUIRED:
            what = _needed(components[name]) if name in components else describe_option(cls, name)
            missing.append((join(path, name), cls.__name__, what))
    lacking = {name for name, _, _ in missing}
    whole = not any(join(path, name) in lacking for name in plain)  # otherwise there is nothing that could be parsed
    resolved = _check_plain(cls, supplied, {k: v for k, v in given.items() if k in plain}, path) if whole else {}
    for name, slot in components.items():
        node = given.get(name)
        if join(path, name) in lacking:
            continue
        if node is None and (slot.optional or name not in given):
            resolved[name] = None
        else:
            resolved[name] = _resolve_node(node, slot, join(path, name), missing)
    return dict(sorted(resolved.items()))


def _needed(slot: Slot) -> str:
    """What may stand where something of this kind is missing; of a section what it cannot do without."""
    base = slot.base
    if not is_section(base):
        return " or ".join(choices(base))
    inner: Missing = []
    _resolve_arguments(base, slot.supplied, {}, "", inner)
    return f"{base.__name__}, with {', '.join(name for name, _, _ in inner)}" if inner else base.__name__


def _resolve_node(node: Any, slot: Slot, path: str, missing: Missing) -> Tree:
    if isinstance(node, str):
        node = {"class_path": node}
    if not is_component(node) and is_section(slot.base):
        return _resolve_arguments(slot.base, slot.supplied, node, path, missing)
    if not is_component(node):
        listed = ", ".join(choices(slot.base))
        raise InputError(
            f"{path}: expected a class name or {{class_path, init_args}}, found {shown(node)}. Choose from {listed}"
        )
    extra = [key for key in node if key not in ("class_path", "init_args")]
    if extra:
        raise InputError(f"{path}: a component has class_path and init_args only; move {extra[0]!r} under init_args")
    cls = find_class(node["class_path"], slot.base, path)
    arguments = _resolve_arguments(cls, slot.supplied, node.get("init_args"), path, missing)
    return {"class_path": class_name(cls, slot.base), "init_args": arguments}


def resolve(tree: Tree, root: type) -> Tree:
    """The whole configuration: `tree` checked against the constructors under `root`, every default filled in.

    Raises:
        InputError: at the first wrong key, name, type or value; where none is wrong, with all that is missing.
    """
    return resolve_class(root, tree, "")


def resolve_class(cls: type, given: Any, path: str) -> Tree:
    """The arguments of one class at `path`, checked as those of a root are."""
    missing: Missing = []
    resolved = _resolve_arguments(cls, 0, given, path, missing)
    if len(missing) == 1:
        path, kind, what = missing[0]
        raise InputError(f"{path}: {kind} needs this setting: {what}")
    if missing:
        listed = "; ".join(f"{path}: {what}" for path, _, what in missing)
        raise InputError(f"{len(missing)} settings are missing, or a base that has them (base: char_tiny): {listed}")
    return resolved


# building ------------------------------------------------------------------------------------------------------------


def build(resolved: Tree, root: type) -> Any:
    """The objects that a resolved configuration describes; a node with supplied arguments becomes a partial.

    Raises:
        InputError: where a constructor refuses its arguments, with the constructor's own reason.
    """
    return build_class(root, resolved, "")


def build_class(cls: type, arguments: Tree, path: str) -> Any:
    """The object that resolved arguments of a class at `path` describe."""
    return _build_arguments(cls, 0, arguments, path)


def _build_arguments(cls: type, supplied: int, resolved: Tree, path: str) -> Any:
    components = slots(cls, supplied)
    arguments = {
        name: _build_node(value, components[name], join(path, name))
        if name in components and value is not None
        else value
        for name, value in resolved.items()
    }
    if supplied:
        return functools.partial(cls, **arguments)
    with blame(path):
        return cls(**arguments)


def _build_node(node: Tree, slot: Slot, path: str) -> Any:
    if is_component(node):
        cls = find_class(node["class_path"], slot.base, path)
        return _build_arguments(cls, slot.supplied, node["init_args"], path)
    return _build_arguments(slot.base, slot.supplied, node, path)


class blame:  # noqa: N801 - reads as a statement
    """Turns what a constructor raises into an InputError that says where in the configuration it came from."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        exits = type(error) is SystemExit and not isinstance(error.__context__, KeyboardInterrupt)
        if error is not None and (isinstance(error, Exception) or exits) and not isinstance(error, InputError):
            name = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            said = f"{name}{' '.join(str(error).split())}{user_frame(error)}"
            raise InputError(f"{self.path + ': ' if self.path else ''}{said}") from None


# catalogue ------------------------------------------------------------------------------------------------------------

Catalogue = dict[str, list[dict[str, Any]]]


def catalogue(root: type) -> Catalogue:
    """For each component parameter found under `root`, its choices with their options and first line of doc.

    A kind is the dotted path at which the component stands, the same for all classes that have such a part.
    """
    found: Catalogue = {}
    _add_choices(root, 0, "", found)
    return found


def _add_choices(cls: type, supplied: int, path: str, found: Catalogue) -> None:
    for name, slot in slots(cls, supplied).items():
        kind = f"{path}.{name}" if path else name
        members = choices(slot.base)
        if kind in found:
            continue
        found[kind] = [
            {
                "name": choice,
                "doc": (inspect.getdoc(member) or "").split("\n")[0],
                "options": {
                    option: {
                        "accepts": describe_option(member, option),
                        **({} if default is REQUIRED else {"default": default}),
                    }
                    for option, default in plain_options(member, slot.supplied).items()
                },
            }
            for choice, member in members.items()
        ]
        for member in members.values():
            _add_choices(member, slot.supplied, kind, found)


def catalogue_lines(found: Catalogue) -> list[str]:
    """The catalogue as text: kind, class, options with defaults, doc."""
    text = []
    for kind, members in found.items():
        text.append(kind)
        for member in members:
            options = ", ".join(
                f"{name}={option['default']}" if "default" in option else name
                for name, option in member["options"].items()
            )
            text.append(f"  {member['name']}({options})")
            text.append(f"      {member['doc']}")
        text.append("")
    return text[:-1]
