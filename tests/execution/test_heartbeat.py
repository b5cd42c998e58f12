"""What is said of a process that says nothing, and when."""

import time

import pytest
from helpers import Patch

from lm.execution import heartbeat
from lm.execution.heartbeat import SilenceMonitor, SlowBlockWarning


class Machine:
    """A process of which nothing is heard, and a clock."""

    def __init__(self, state: str | None = "R") -> None:
        self.now, self.doing, self.used = 0.0, state, 0.0

    def monitor(self) -> SilenceMonitor:
        return SilenceMonitor(4711, lambda: self.now, lambda pid: self.doing, lambda pid: self.used)


def heard(one: SilenceMonitor | SlowBlockWarning, machine: Machine, seconds: int) -> dict[float, str]:
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
    machine.used = 3.0
    assert heard(one, machine, 59) == {}
    assert heard(one, machine, 1)[60] == (
        "no word for 60 s: process 4711 lives and has used 3 s of a processor; "
        "long steps, compilation and evaluation are silent"
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


def test_an_unreported_exit_is_reported_after_a_delay() -> None:
    machine = Machine("R")
    one = machine.monitor()
    assert heard(one, machine, 30) == {}
    machine.doing = "Z"
    found = heard(one, machine, 10)
    assert list(found) == [39]
    assert found[39] == "no word for 39 s: process 4711 has ended; the fork server is silent"


@pytest.mark.parametrize("state", [None, "R"])
def test_silence_is_reported_without_process_information(state: str | None) -> None:
    machine = Machine(state)
    one = SilenceMonitor(4711, lambda: machine.now, lambda pid: state, lambda pid: None)
    assert heard(one, machine, 61) == {
        60: "no word for 60 s: process 4711 lives; long steps, compilation and evaluation are silent"
    }


def waited(machine: Machine, seconds: int, pid: int | None = 4711) -> dict[float, str]:
    """What is said of a block that waits so long for a process that does what the machine says, by when."""
    late = SlowBlockWarning("waiting for it", print, lambda: pid, lambda: machine.now, lambda pid: machine.doing)
    return heard(late, machine, seconds)


def test_a_slow_start_is_reported_after_a_minute() -> None:
    assert waited(Machine("R"), 59) == {}
    assert waited(Machine("S"), 200) == {
        60: "waiting for it, which has not answered for 60 s",
        180: "waiting for it, which has not answered for 180 s",
    }


def test_a_process_stopped_at_its_start_is_reported_soon() -> None:
    line = "waiting for it: process 4711 is stopped, SIGCONT lets it go on"
    assert waited(Machine("T"), 80) == {8: line, 24: line, 60: line, 72: line}


def test_a_wait_without_a_process_is_reported_after_a_minute() -> None:
    assert waited(Machine("T"), 70, pid=None) == {60: "waiting for it, which has not answered for 60 s"}


def test_only_a_slow_block_is_reported(monkeypatch: Patch) -> None:
    lines: list[str] = []
    with SlowBlockWarning("waiting for it", lines.append, lambda: 4711, state=lambda pid: "T"):
        pass
    assert lines == []
    monkeypatch.setattr(heartbeat, "FIRST_SECONDS", 0.001)
    with SlowBlockWarning("waiting for it", lines.append, lambda: 4711, state=lambda pid: "T"):
        deadline = time.monotonic() + 60
        while not lines and time.monotonic() < deadline:
            time.sleep(0.001)
    assert set(lines) == {"waiting for it: process 4711 is stopped, SIGCONT lets it go on"}
