"""Ctrl-C that is not lost where what it raises is swallowed."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_asked = [False]
"""Whether Ctrl-C was pressed since a block of `remembered` began; no Event, whose lock a handler must not wait for."""


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    """While the block runs, Ctrl-C is remembered besides being raised, and raised again where `look` is called, at the
    latest as the block ends.

    It is raised wherever this thread is at that moment. In a `__del__`, or in a function that a library in C calls,
    Python can only print "Exception ignored in", and goes on; what speaks to a cluster does much in these.

    Nothing is changed where Ctrl-C is ignored, as in the background of a shell, or is for somebody else to see to.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    _asked[0] = False
    signal.signal(signal.SIGINT, _remember)
    try:
        yield
        look()
    finally:
        signal.signal(signal.SIGINT, before)
        _asked[0] = False


def look() -> None:
    """Raises KeyboardInterrupt where Ctrl-C was pressed and the block goes on all the same."""
    if _asked[0]:
        raise KeyboardInterrupt


def _remember(number: int, frame: FrameType | None) -> None:
    _asked[0] = True
    signal.default_int_handler(number, frame)
