"""Which classes may stand where: the components that a constructor asks for, and the choices there are for each."""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm.config.imported import import_all, import_object, require_trusted
from lm.config.plain import shown
from lm.config.tree import InputError, nearest


@dataclass(frozen=True)
class Slot:
    """A parameter that holds a component: its base class, and how many leading arguments the program supplies."""

    base: type
    supplied: int
    optional: bool = False


def slot_of(hint: Any) -> Slot | None:
    """The component slot that a type hint describes, or None for a plain value."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = [slot_of(h) for h in typing.get_args(hint) if h is not type(None)]
        if len(inner) == 1 and inner[0] is not None and type(None) in typing.get_args(hint):
            return Slot(inner[0].base, inner[0].supplied, optional=True)
        return None
    supplied = 0
    if typing.get_origin(hint) is Callable:
        if len(typing.get_args(hint)) != 2:
            return None
        arguments, hint = typing.get_args(hint)
        if arguments is Ellipsis:
            return None
        supplied = len(arguments)
    if not isinstance(hint, type) or hint.__module__ in ("builtins", "typing") or issubclass(hint, Path):
        return None
    return Slot(hint, supplied)


def constructor(cls: type) -> Any:
    return inspect.getattr_static(cls, "__init__", object.__init__)


@functools.cache
def parameters(cls: type) -> Mapping[str, inspect.Parameter]:
    """What the constructor of `cls` takes, by name."""
    return inspect.signature(cls).parameters


@functools.cache
def slots(cls: type, supplied: int = 0) -> dict[str, Slot]:
    """The component parameters of `cls` by name, less the first `supplied`."""
    names = list(parameters(cls))[supplied:]
    try:
        hints = typing.get_type_hints(constructor(cls))
    except (NameError, TypeError):  # another library's annotations that only its own type checker can read
        return {}
    found = {name: slot_of(hints.get(name)) for name in names}
    return {name: slot for name, slot in found.items() if slot is not None}


def choices(base: type) -> dict[str, type]:
    """The concrete public classes that may stand where `base` is asked for, by short name.

    They are those of the base's package and of this one; a class defined elsewhere is named by its dotted path. Every
    file beside that of a base of ours is imported, so that a class in a new one is found.
    """
    ours, (first, *inner) = __name__.split(".")[0], base.__module__.split(".")
    if first == ours and len(inner) > 1:
        import_all(f"{ours}.{inner[0]}")
    packages = {first, ours}
    found: dict[str, type] = {}
    queue: list[type] = base.__subclasses__()
    while queue:
        cls = queue.pop(0)
        queue.extend(cls.__subclasses__())
        public = not cls.__name__.startswith("_") and cls.__module__.split(".")[0] in packages
        if public and not inspect.isabstract(cls):
            found.setdefault(cls.__name__, cls)
    return dict(sorted(found.items())) or {base.__name__: base}


def is_section(base: type) -> bool:
    """Whether `base` is itself the only choice, so that its node is written as its arguments alone."""
    return choices(base).get(base.__name__) is base


def find_class(name: Any, base: type, path: str) -> type:
    """The class that `name` stands for where `base` is asked for. Raises InputError with the choices."""
    known = choices(base)
    if isinstance(name, str) and name in known:
        return known[name]
    if isinstance(name, str) and "." in name and all(part.isidentifier() for part in name.split(".")):
        require_trusted(name, path, f".{nearest(name.rpartition('.')[2], list(known))} Choose from {', '.join(known)}")
        cls = import_object(name, path)
        if isinstance(cls, type) and issubclass(cls, base) and not inspect.isabstract(cls):
            return cls
        raise InputError(f"{path}: {name!r} is not a concrete subclass of {base.__module__}.{base.__name__}")
    listed = ", ".join(known)
    raise InputError(
        f"{path}: no {base.__name__} called {shown(name)}.{nearest(name, list(known))} "
        f"Choose from {listed}, or give the dotted path of your own class"
    )


def class_name(cls: type, base: type) -> str:
    """The one name under which a class is written in a resolved configuration."""
    return cls.__name__ if choices(base).get(cls.__name__) is cls else f"{cls.__module__}.{cls.__qualname__}"


# resolving -----------------------------------------------------------------------------------------------------------
