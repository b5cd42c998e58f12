"""Ctrl-C that something swallows is raised again."""

import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from interrupting import listening, press_unheard

from lm.execution.interrupts import look, remembered


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    with listening():
        yield
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def block(*steps: Callable[[], None]) -> list[int]:
    """Takes steps in a block that remembers; returns the numbers of those that came to an end, whatever was raised."""
    reached = []

    def take() -> None:
        for number, step in enumerate(steps):
            step()
            reached.append(number)

    with pytest.raises(KeyboardInterrupt), remembered():
        take()
    return reached


def within() -> None:
    with remembered():
        look()


def nothing() -> None:
    pass


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_what_was_swallowed_is_raised_where_one_looks() -> None:
    assert block(look, press_unheard, nothing, look, nothing) == [0, 1, 2]
    within()  # forgotten with the block


def test_it_is_raised_within_another_block_and_as_the_outermost_ends_at_the_latest() -> None:
    assert block(within, press_unheard, within, nothing) == [0, 1]
    assert block(press_unheard, nothing) == [0, 1]


def test_what_is_not_swallowed_is_raised_at_once() -> None:
    assert block(press, nothing) == []


def test_another_error_stays_what_it_is() -> None:
    def fails() -> None:
        press_unheard()
        raise ValueError("first")

    with pytest.raises(ValueError, match="first"), remembered():
        fails()


def test_what_is_ignored_or_heard_by_another_is_left_so() -> None:
    heard: list[int] = []
    for other in (signal.SIG_IGN, lambda number, frame: heard.append(number)):
        signal.signal(signal.SIGINT, other)
        with remembered():
            assert signal.getsignal(signal.SIGINT) is other
            press()
            look()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert heard == [signal.SIGINT]


def test_another_thread_leaves_all_as_it_is() -> None:
    reached = []

    def ask() -> None:
        with remembered():
            reached.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert reached == [signal.default_int_handler]
