"""What is said of a process that says nothing, and when."""

import pytest

from lm.execution import heartbeat
from lm.execution.heartbeat import SilenceMonitor


class Machine:
    """A process of which nothing is heard, and a clock."""

    def __init__(self, state: str | None = "R") -> None:
        self.now, self.doing = 0.0, state

    def monitor(self) -> SilenceMonitor:
        return SilenceMonitor(4711, lambda: self.now, lambda pid: self.doing)


def heard(one: SilenceMonitor, machine: Machine, seconds: int) -> dict[float, str]:
    """What is said in so many seconds, by when."""
    found = {}
    for _ in range(seconds):
        machine.now += 1
        if (line := one.check()) is not None:
            found[machine.now] = line
    return found


def test_a_stopped_process_is_reported_soon_and_then_rarely() -> None:
    machine = Machine("T")
    found = heard(machine.monitor(), machine, 300)
    assert list(found) == [8, 24, 72, 216]
    assert found[8] == "no word for 8 s: process 4711 is stopped, SIGCONT lets it go on"


def test_silence_ends_with_a_message_and_grows_only_when_checked() -> None:
    machine = Machine("R")
    one = machine.monitor()
    for _ in range(30):
        machine.now += 1
        assert one.seconds_silent() == machine.now
    machine.now += 1e6
    assert one.seconds_silent() == 30 + heartbeat.MAX_CHECK_INTERVAL
    one.record_activity()
    machine.now += 2
    assert one.seconds_silent() == 2


def test_a_silent_busy_process_is_reported_after_a_minute() -> None:
    machine = Machine("R")
    one = machine.monitor()
    assert heard(one, machine, 59) == {}
    assert heard(one, machine, 1)[60] == (
        "no word for 60 s: process 4711 lives; long steps, compilation and evaluation are silent"
    )
    assert list(heard(one, machine, 540)) == [180, 540]


def test_a_process_that_sends_messages_is_never_reported() -> None:
    machine = Machine("R")
    one = machine.monitor()
    for _ in range(20):
        assert heard(one, machine, 50) == {}
        one.record_activity()


def test_a_process_stopped_after_long_silence_is_reported_at_once() -> None:
    machine = Machine("S")
    one = machine.monitor()
    heard(one, machine, 100)
    machine.doing = "t"
    assert list(heard(one, machine, 2)) == [101]


@pytest.mark.parametrize("state", [None, "R"])
def test_silence_is_reported_without_process_information(state: str | None) -> None:
    machine = Machine(state)
    one = SilenceMonitor(4711, lambda: machine.now, lambda pid: state)
    assert heard(one, machine, 61) == {
        60: "no word for 60 s: process 4711 lives; long steps, compilation and evaluation are silent"
    }
