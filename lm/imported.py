"""Classes named by their dotted path, whose modules are a user's own and may do anything."""

import contextlib
import importlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from lm.config import InputError
from lm.origin import origin
from lm.plain import shown

IMPORT_SECONDS = 60.0
"""That importing a module may take."""


def imported(name: str, path: str) -> Any:
    """What a dotted path names. Raises InputError where its module cannot be imported, however it fails."""
    module, _, attribute = name.rpartition(".")
    try:
        with time_limit(IMPORT_SECONDS):
            return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        kind = "" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: "
        said = f"{kind}{' '.join(str(error).split())}{origin(error)}"
        raise InputError(f"{path}: cannot import {shown(name)}: {said}") from None


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
