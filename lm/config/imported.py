"""Classes named by their dotted path, and those in packages of choices: modules of a user's own may do anything."""

import contextlib
import functools
import importlib
import importlib.machinery
import os
import pkgutil
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def add_module_folder(folder: Path) -> None:
    """Modules in a folder are found from now on, after all others: one of theirs never hides one that is installed."""
    place = os.path.abspath(folder)
    if place not in sys.path and not _trusted_only[0]:
        sys.path.append(place)
        importlib.invalidate_caches()  # a file may be younger than what is known of its folder


@contextlib.contextmanager
def current_folder_modules() -> Iterator[None]:
    """Modules in the current folder are found in it; then `sys.path` is what it was, whoever else was looked in."""
    before = list(sys.path)
    with contextlib.suppress(OSError):  # the current folder may be gone
        add_module_folder(Path())
    try:
        yield
    finally:
        sys.path[:] = before


def import_object(name: str, path: str) -> Any:
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
        said = f"{kind}{' '.join(str(error).split())}{user_frame(error)}"
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


# origin ---------------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[1]
CHOICES = ("data/", "model/", "training/objective.py", "training/optim.py", "training/schedule.py")
"""The parts of lm whose classes are choices, to which users add their own."""

INSTALLED = tuple({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")})
"""Where Python and the packages lie that are installed."""


def user_frame(error: BaseException) -> str:
    """` (my_parts.py:9)`: the innermost line of a user's code that an error passed, or an empty string.

    A component of lm itself counts where no code outside lm was passed and the error is no ValueError, by which it
    refuses its arguments in words of its own.
    """
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    inside = [(path, line) for path, line in frames if path.is_relative_to(ROOT)]
    users = [one for one in frames if one not in inside and _is_written(one[0])]
    if not users and not isinstance(error, ValueError):
        users = [(path, line) for path, line in inside if path.relative_to(ROOT).as_posix().startswith(CHOICES)]
    return f" ({_shown(users[-1][0])}:{users[-1][1]})" if users else ""


def _is_written(path: Path) -> bool:
    """Whether a file is code of nobody's library; what Python makes up has no file."""
    installed = any(path.is_relative_to(folder) for folder in INSTALLED)
    return path.is_file() and not installed and not {"site-packages", "dist-packages"} & set(path.parts)


def _shown(path: Path) -> str:
    """The path as seen from the current folder, or from that of the package."""
    for folder in (Path.cwd(), ROOT.parent):
        if path.is_relative_to(folder):
            return str(path.relative_to(folder))
    return str(path)
