"""Signs of life from wherever a cell spends its time, told to whoever listens at most every few seconds."""

import contextlib
import time
from collections.abc import Callable, Iterator

SECONDS_BETWEEN = 5.0

HANG_SECONDS = 1800.0
"""Without a sign of life, such as a batch: no step and no compilation takes that long."""

_listeners: list[Callable[[], None]] = []
_told = [float("-inf")]


def alive() -> None:
    """Says that something was just completed: a batch, or what else takes its time."""
    if _listeners and (now := time.monotonic()) - _told[0] >= SECONDS_BETWEEN:
        _told[0] = now
        _listeners[-1]()


@contextlib.contextmanager
def listening(tell: Callable[[], None]) -> Iterator[None]:
    """Has `tell` called at signs of life within a block."""
    _listeners.append(tell)
    try:
        yield
    finally:
        _listeners.remove(tell)
