"""Classes named by their dotted path, and those in packages of choices: modules of a user's own may do anything."""

import contextlib
import functools
import importlib
import importlib.machinery
import os
import pkgutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lm.config.origin import origin
from lm.config.plain import shown
from lm.config.tree import InputError

IMPORT_SECONDS = 60.0
"""That importing a module may take."""

OURS = __name__.partition(".")[0]

_trusted_only = [""]
"""What has modules of a user's own refused, as whoever asked for it calls it; empty where nothing does."""


@contextlib.contextmanager
def trusted_only(on: bool = True, called: str = "--trusted-only") -> Iterator[None]:
    """Classes outside `lm` are refused, and their modules neither looked for nor imported; `called` is what says so."""
    before, _trusted_only[0] = _trusted_only[0], called if on else ""
    try:
        yield
    finally:
        _trusted_only[0] = before


def require_trusted(name: str, path: str, instead: str = "") -> None:
    """Raises InputError for the dotted path of a class that may not be imported; `instead` is what may stand there."""
    if _trusted_only[0] and name.partition(".")[0] != OURS:
        raise InputError(
            f"{path}: {shown(name)} is not part of {OURS}, and with {_trusted_only[0]} no other code is run{instead}"
        )


def look_in(folder: Path) -> None:
    """Modules in a folder are found from now on, after all others: one of theirs never hides one that is installed."""
    place = os.path.abspath(folder)
    if place not in sys.path and not _trusted_only[0]:
        sys.path.append(place)
        importlib.invalidate_caches()  # a file may be younger than what is known of its folder


@contextlib.contextmanager
def own_modules() -> Iterator[None]:
    """Modules in the current folder are found in it; then `sys.path` is what it was, whoever else was looked in."""
    before = list(sys.path)
    with contextlib.suppress(OSError):  # the current folder may be gone
        look_in(Path())
    try:
        yield
    finally:
        sys.path[:] = before


def imported(name: str, path: str) -> Any:
    """What a dotted path names. Raises InputError where its module cannot be imported, however it fails."""
    require_trusted(name, path)
    module, _, attribute = name.rpartition(".")
    with _blamed(name, f"{path}: "):
        loaded = importlib.import_module(module)
        _require_first_found(module.partition(".")[0])
        return getattr(loaded, attribute)


def _require_first_found(module: str) -> None:
    """Raises ImportError where another folder's module of this name was imported before, which Python would go on with.

    A program that reads two experiments, each with a `parts.py` beside it, would train the second with the first's.
    """
    loaded = getattr(sys.modules.get(module), "__file__", None)
    found = importlib.machinery.PathFinder.find_spec(module)
    if not loaded or found is None or not found.origin or module == OURS:
        return
    if os.path.realpath(loaded) != os.path.realpath(found.origin):
        raise ImportError(
            f"{shown(module)} was imported from {loaded} before, and here it is {found.origin}; give one of them "
            "another name, or start another process"
        )


@functools.cache
def import_all(package: str) -> None:
    """Imports every module of a package, so that its classes are known. Raises InputError naming a broken one."""
    for found in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        if found.name.rpartition(".")[2].isidentifier():
            with _blamed(found.name, ""):
                importlib.import_module(found.name)


@contextlib.contextmanager
def _blamed(name: str, where: str) -> Iterator[None]:
    """Turns whatever an import raises, or that it takes too long, into an InputError."""
    try:
        with time_limit(IMPORT_SECONDS):
            yield
    except (Exception, SystemExit) as error:
        kind = "" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: "
        said = f"{kind}{' '.join(str(error).split())}{origin(error)}"
        raise InputError(f"{where}cannot import {shown(name)}: {said}") from None


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in what takes longer; without effect outside the main thread, which alone gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError(f"takes more than {seconds:zg} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, left)
