"""Component parameters of constructors, and the classes that can be chosen for each."""

import contextlib
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lm.config.imported import import_all, import_object, require_trusted
from lm.config.plain import shown
from lm.config.tree import InputError, nearest
from lm.config.usual_names import suggest_setting


@dataclass(frozen=True)
class Slot:
    """A component parameter: its base class, and the number of leading arguments that the program supplies."""

    base: type
    supplied: int
    optional: bool = False


def slot_of(hint: Any) -> Slot | None:
    """Return the component slot of a type hint, or None for a plain value."""
    origin, arguments, supplied = typing.get_origin(hint), typing.get_args(hint), 0
    if origin in (typing.Union, types.UnionType):
        inner = [slot_of(argument) for argument in arguments if argument is not type(None)]
        optional = len(inner) == 1 and type(None) in arguments
        return replace(inner[0], optional=True) if optional and inner[0] is not None else None
    if origin is Callable:
        if len(arguments) != 2 or arguments[0] is Ellipsis:
            return None
        supplied, hint = len(arguments[0]), arguments[1]
    if not isinstance(hint, type) or hint.__module__ in ("builtins", "typing") or issubclass(hint, Path):
        return None
    return Slot(hint, supplied)


@functools.cache
def parameters(cls: type) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a constructor by name; `*args` and `**kwargs` are followed to the parent's."""
    own = inspect.signature(cls).parameters
    if not any(parameter.kind in VARIABLE for parameter in own.values()):
        return own
    from jsonargparse._parameter_resolvers import get_signature_parameters  # reads the source, for calls of `super`

    followed: Any = get_signature_parameters(cls)
    return {p.name: inspect.Parameter(p.name, p.kind, default=p.default) for p in followed if p.kind not in VARIABLE}


VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
SUPPLIED = (("vocabulary", "context"), ("params", "lr"), ("shape", "norm", "dropout"), ("shape",), ("seed",))
"""Names of the arguments that the program supplies; a constructor that takes others first gets them by name."""


@functools.cache
def supplied_names(cls: type, supplied: int) -> tuple[str, ...]:
    """Return the names of the parameters of a class that the program supplies."""
    own, empty = parameters(cls), inspect.Parameter.empty
    fitting = (n for n in SUPPLIED if len(n) == supplied and own.keys() >= {*n} and own[n[0]].default is empty)
    return next(fitting, (*own,)[:supplied])


def supplied_by_name(cls: type, supplied: int) -> tuple[str, ...]:
    """Return the names under which arguments are supplied; empty for a constructor that takes them first."""
    names, own = supplied_names(cls, supplied), inspect.signature(cls).parameters.values()
    first = tuple(p.name for p in own if p.kind in POSITIONAL)[:supplied]
    takes_first = first == names[: len(first)] and (
        len(first) == supplied or any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in own)
    )
    return () if takes_first else names


@functools.cache
def type_hints(cls: type) -> Mapping[str, Any]:
    """Return the type hints of the parameters of a class and, as `**kwargs` are passed up, of its parents."""
    hints: dict[str, Any] = {}
    for owner in reversed(cls.__mro__):
        with contextlib.suppress(NameError, TypeError):  # annotations that only another library's checker can read
            hints |= typing.get_type_hints(inspect.getattr_static(owner, "__init__", object.__init__))
    return hints


@functools.cache
def slots(cls: type, supplied: int = 0) -> dict[str, Slot]:
    """Return the component parameters of a class by name, without the `supplied` ones."""
    names, hints = [name for name in parameters(cls) if name not in supplied_names(cls, supplied)], type_hints(cls)
    return {name: slot for name in names if (slot := slot_of(hints.get(name))) is not None}


def choices(base: type) -> dict[str, type]:
    """Return the concrete public subclasses of a base by short name.

    They are those of the base's package and of this one; a class defined elsewhere is named by its dotted path. For a
    base of this package, all modules of its folder are imported, so that classes in new files are included.
    """
    package, (first, *inner) = __name__.split(".")[0], base.__module__.split(".")
    if first == package and len(inner) > 1:
        import_all(f"{package}.{inner[0]}")
    packages = {first, package}
    classes: dict[str, type] = {}
    queue: list[type] = base.__subclasses__()
    while queue:
        cls = queue.pop(0)
        queue.extend(cls.__subclasses__())
        public = not cls.__name__.startswith("_") and cls.__module__.split(".")[0] in packages
        if public and not inspect.isabstract(cls) and vars(cls).get("is_choice", True):
            classes.setdefault(cls.__name__, cls)
    return dict(sorted(classes.items())) or {base.__name__: base}


def is_section(base: type) -> bool:
    """Return True if a base is its own only choice, so that its node holds its arguments alone."""
    return choices(base).get(base.__name__) is base


def find_class(name: Any, base: type, path: str) -> type:
    """Return the subclass of a base by its short or dotted name; raise InputError with the choices without one."""
    classes = choices(base)
    if isinstance(name, str) and name in classes:
        return classes[name]
    listed = f"Choose from {', '.join(classes)}"
    if isinstance(name, str) and "." in name and all(part.isidentifier() for part in name.split(".")):
        require_trusted(name, path, f".{nearest(name.rpartition('.')[2], list(classes))} {listed}")
        cls = import_object(name, path)
        accepted = (base, *getattr(base, "ADAPTS", ()))
        if isinstance(cls, type) and issubclass(cls, accepted) and not inspect.isabstract(cls):
            return cls
        raise InputError(f"{path}: {name!r} is not a concrete subclass of {base.__module__}.{base.__name__}")
    hint = f"{suggest_setting(name, list(classes))} {listed}, or give the dotted path of your own class"
    raise InputError(f"{path}: no {base.__name__} called {shown(name)}.{hint}")


def class_name(cls: type, base: type) -> str:
    """Return the name of a class in a resolved configuration."""
    return cls.__name__ if choices(base).get(cls.__name__) is cls else f"{cls.__module__}.{cls.__qualname__}"
