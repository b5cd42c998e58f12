"""Signals end a command as Ctrl-C does, which is raised again if something swallows it."""

import signal
import sys
import threading
from collections.abc import Iterator

import pytest
from helpers import Patch
from interrupting import Leaving, listening, press_unheard
from messages import CheckMessage

from lm.execution.signal_handling import cause, ended_by_signals, raise_if_interrupted


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    with listening():
        yield
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("at_rest")
def test_a_swallowed_interrupt_is_raised_once_and_then_forgotten() -> None:
    with ended_by_signals():
        press_unheard()
        with pytest.raises(KeyboardInterrupt):
            raise_if_interrupted()
        with pytest.raises(KeyboardInterrupt), ended_by_signals():
            press_unheard()
    raise_if_interrupted()


@pytest.mark.usefixtures("at_rest")
def test_another_error_stays_what_it_is() -> None:
    with pytest.raises(ValueError, match="first"), ended_by_signals():  # noqa: PT012
        press_unheard()
        raise ValueError("first")


@pytest.mark.usefixtures("at_rest")
def test_another_thread_leaves_all_as_it_is() -> None:
    reached = []

    def ask() -> None:
        with ended_by_signals():
            reached.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert reached == [signal.SIG_DFL]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_another_signal_is_raised_as_an_interrupt_and_named_once(
    name: str, at_rest: dict[signal.Signals, signal.Handlers], check_message: CheckMessage
) -> None:
    number = signal.Signals[name]
    with pytest.raises(KeyboardInterrupt), ended_by_signals():
        signal.raise_signal(number)
    check_message([cause(), cause()])
    assert {one: signal.getsignal(one) for one in at_rest} == at_rest


@pytest.mark.usefixtures("at_rest")
def test_sigterm_ends_a_command_that_ignores_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with ended_by_signals():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert "SIGTERM" in cause()
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
