"""Ctrl-C that something swallows is raised again, and other signals end a command as it does."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from helpers import Patch
from interrupting import Leaving, listening, press_unheard

from lm.execution.signal_handling import cause, deferred_interrupts, ended_by_signals, raise_if_interrupted


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

    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        take()
    return reached


def within() -> None:
    with deferred_interrupts():
        raise_if_interrupted()


def nothing() -> None:
    pass


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_what_was_swallowed_is_raised_where_one_looks() -> None:
    assert block(raise_if_interrupted, press_unheard, nothing, raise_if_interrupted, nothing) == [0, 1, 2]
    within()  # forgotten with the block


def test_a_swallowed_interrupt_leaves_the_outermost_block_at_latest() -> None:
    assert block(within, press_unheard, within, nothing) == [0, 1]
    assert block(press_unheard, nothing) == [0, 1]


def test_what_is_not_swallowed_is_raised_at_once() -> None:
    assert block(press, nothing) == []


def test_another_error_stays_what_it_is() -> None:
    def fails() -> None:
        press_unheard()
        raise ValueError("first")

    with pytest.raises(ValueError, match="first"), deferred_interrupts():
        fails()


def test_what_is_ignored_or_heard_by_another_is_left_so() -> None:
    heard: list[int] = []
    for other in (signal.SIG_IGN, lambda number, frame: heard.append(number)):
        signal.signal(signal.SIGINT, other)
        with deferred_interrupts():
            assert signal.getsignal(signal.SIGINT) is other
            press()
            raise_if_interrupted()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert heard == [signal.SIGINT]


def test_another_thread_leaves_all_as_it_is() -> None:
    reached = []

    def ask() -> None:
        with deferred_interrupts():
            reached.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert reached == [signal.default_int_handler]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_another_signal_is_raised_as_an_interrupt_and_named_once(
    name: str, at_rest: dict[signal.Signals, signal.Handlers]
) -> None:
    number = signal.Signals[name]
    with pytest.raises(KeyboardInterrupt), ended_by_signals():
        signal.raise_signal(number)
    assert (cause(), cause()) == (f"ended by {name}", "interrupted")
    assert {one: signal.getsignal(one) for one in at_rest} == at_rest


@pytest.mark.usefixtures("at_rest")
def test_sigterm_ends_a_command_that_ignores_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with ended_by_signals(), deferred_interrupts():
        press()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert cause() == "ended by SIGTERM"
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.usefixtures("at_rest")
def test_a_signal_that_is_ignored_stays_so() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    with ended_by_signals():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.usefixtures("at_rest")
def test_a_swallowed_interrupt_is_raised_at_the_end_without_traceback(monkeypatch: Patch) -> None:
    printed: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: printed.append(unraisable.exc_type))
    with pytest.raises(KeyboardInterrupt), ended_by_signals():  # noqa: PT012 - it is raised as the block ends
        Leaving()
        printed.append(KeyError)  # it goes on
    assert printed.pop() is KeyError
    assert not printed
    with ended_by_signals():
        Failing()
    assert printed == [ValueError]


@pytest.fixture
def at_rest() -> Iterator[dict[signal.Signals, signal.Handlers]]:
    """Have SIGTERM and SIGHUP do what they do in a process of its own, and return that."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    yield dict.fromkeys(numbers, signal.SIG_DFL)
    for number, handler in before.items():
        signal.signal(number, handler)


class Failing:
    """Fail while it is taken away."""

    def __del__(self) -> None:
        raise ValueError
