"""Ctrl-C in tests, where nobody hears of it."""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Has this process take Ctrl-C as Python does where it is not ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Leaving:
    """Has Ctrl-C come while it is taken away."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def press_unheard() -> None:
    """Has Ctrl-C come where Python can do no more than print what it raises, and goes on."""
    Leaving()
