"""Imports of a user's own modules, and the places in them that errors come from."""

import contextlib
import functools
import importlib
import importlib.machinery
import os
import pkgutil
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lm.config.plain import shown
from lm.config.tree import InputError, nearest

OURS = __name__.partition(".")[0]

_trusted_only = [""]  # name of the option that refuses a user's own modules; empty if none does


@contextlib.contextmanager
def trusted_only(on: bool = True, called: str = "--trusted-only") -> Iterator[None]:
    """Refuse classes outside `lm` in the block if `on`, and import none of their modules; `called` is the option."""
    before, _trusted_only[0] = _trusted_only[0], called if on else ""
    try:
        yield
    finally:
        _trusted_only[0] = before


def require_trusted(name: str, path: str, instead: str = "") -> None:
    """Raise InputError for the dotted path of a class that may not be imported; `instead` ends the message."""
    if _trusted_only[0] and name.partition(".")[0] != OURS:
        refused = f"with {_trusted_only[0]} no other code is run{instead}"
        raise InputError(f"{path}: {shown(name)} is not part of {OURS}, and {refused}")


def add_module_folder(folder: Path) -> None:
    """Append a folder to `sys.path`: its modules never hide installed ones."""
    path = os.path.abspath(folder)
    if path not in sys.path and not _trusted_only[0]:
        sys.path.append(path)
        importlib.invalidate_caches()  # a file may be newer than the cached listing of its folder


@contextlib.contextmanager
def current_folder_modules() -> Iterator[None]:
    """Make the modules in the current folder importable in the block, then restore `sys.path`."""
    before = list(sys.path)
    with contextlib.suppress(OSError):  # the current folder may be gone
        add_module_folder(Path())
    try:
        yield
    finally:
        sys.path[:] = before


def import_object(name: str, path: str) -> Any:
    """Import the object that a dotted path names, at `path` of a configuration; raise InputError for any error."""
    require_trusted(name, path)
    module, _, attribute = name.rpartition(".")
    with _blamed(name, f"{path}: "):
        loaded = importlib.import_module(module)
        # A program that reads two experiments, each with its own `parts.py`, would train the second with the first's
        top = module.partition(".")[0]
        file, spec = getattr(sys.modules.get(top), "__file__", None), importlib.machinery.PathFinder.find_spec(top)
        origin = spec.origin if spec and top != OURS else None
        if file and origin and os.path.realpath(file) != os.path.realpath(origin):
            remedy = "give one of them another name, or start another process"
            raise ImportError(f"{shown(top)} was imported from {file} before, and here it is {origin}; {remedy}")
        if not hasattr(loaded, attribute):
            classes = [name for name, value in vars(loaded).items() if isinstance(value, type)]
            near = nearest(attribute, classes).replace(" ", ". ", 1)
            raise AttributeError(f"module {module!r} has no attribute {attribute!r}{near}")
        return getattr(loaded, attribute)


@functools.cache
def import_all(package: str) -> None:
    """Import all modules of a package, to define its classes; raise InputError for one that cannot be imported."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        if module.name.rpartition(".")[2].isidentifier():
            with _blamed(module.name, ""):
                importlib.import_module(module.name)


@contextlib.contextmanager
def _blamed(name: str, where: str) -> Iterator[None]:
    """Convert any error of an import to an InputError."""
    try:
        yield
    except (Exception, SystemExit) as error:
        kind = "" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: "
        message = f"{kind}{' '.join(str(error).split())}{user_frame(error)}"
        raise InputError(f"{where}cannot import {shown(name)}: {message}") from None


ROOT = Path(__file__).resolve().parents[1]
CHOICES = ("data/", "model/", "training/objective.py", "training/optim.py", "training/schedule.py")
"""Files of lm with classes that can be chosen, to which users add their own."""


@functools.cache
def library_folders() -> tuple[Path, ...]:
    """Return the folders of installed packages and of the standard library."""
    folders = [sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    return tuple(dict.fromkeys(Path(folder).resolve() for folder in folders))


def user_frame(error: BaseException) -> str:
    """Return the innermost line of a user's code in a traceback, such as ` (my_parts.py:9)`, or an empty string.

    Without one, a component of lm counts, unless the error is a ValueError, whose message explains the argument.
    """
    places: dict[bool, str] = {}
    for frame in traceback.extract_tb(error.__traceback__):
        path, of_package = Path(frame.filename), frame.filename.startswith(f"{ROOT}{os.sep}")
        if of_package:
            counts = path.relative_to(ROOT).as_posix().startswith(CHOICES)
        else:  # generated code has no file
            counts = path.is_file() and not any(path.is_relative_to(folder) for folder in library_folders())
        folder = next(filter(path.is_relative_to, (Path.cwd(), ROOT.parent)), None)
        if counts:
            places[of_package] = f" ({path.relative_to(folder) if folder else path}:{frame.lineno})"
    return places.get(False) or ("" if isinstance(error, ValueError) else places.get(True, ""))
