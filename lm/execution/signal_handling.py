"""Signals that end a command like Ctrl-C, and interrupts that are raised again if something swallows them."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

INTERRUPTED = 130  # exit code of a command that a signal interrupted

# signals by which others than the user at the keyboard end a command
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_swallowed = [False]  # True once an interrupt was raised where Python could only print it
_signals: list[int] = []  # signals of ENDING since a block of `ended_by_signals` began


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt if an interrupt was swallowed, as a library in C, or `__del__`, does with exceptions."""
    if _swallowed[0]:
        raise KeyboardInterrupt


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise SIGTERM and SIGHUP as Ctrl-C in the block; an interrupt that was swallowed is raised at its end.

    Python prints no traceback of such a one. A signal that is ignored, as SIGHUP under `nohup`, or handled elsewhere
    stays as it is, and so does everything in another thread than the main one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    before = sys.unraisablehook

    def unheard(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            _swallowed[0] = True
        else:
            before(unraisable)

    _swallowed[0] = False
    sys.unraisablehook = unheard
    for number in numbers:
        signal.signal(number, _as_interrupt)
    try:
        yield
        raise_if_interrupted()
    finally:
        for number in numbers:
            if signal.getsignal(number) is _as_interrupt:
                signal.signal(number, signal.SIG_DFL)
        sys.unraisablehook = before
        _swallowed[0] = False


def end_at_once(code: int) -> None:
    """Make interrupts end this process silently with an exit code: Python could only print them as it exits."""

    def leave(number: int, frame: FrameType | None, ends: Callable[[int], NoReturn] = os._exit) -> None:
        ends(code)  # an argument, as the names of modules are taken away meanwhile

    for number in (signal.SIGINT, *ENDING):
        if signal.getsignal(number) in (signal.default_int_handler, _as_interrupt):
            signal.signal(number, leave)


def ignore() -> None:
    """Ignore the signals that interrupt this process, which is about to exit with its code."""
    for number in (signal.SIGINT, *ENDING):
        signal.signal(number, signal.SIG_IGN)


def cause() -> str:
    """Return what interrupted the command last, `interrupted` or the signal that ended it, and forget the rest."""
    numbers, _signals[:] = list(_signals), []
    return f"ended by {signal.Signals(numbers[-1]).name}" if numbers else "interrupted"


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    """Record a signal and do what Ctrl-C does at the moment, or would do if it were ignored."""
    _signals.append(number)
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(number, frame)
