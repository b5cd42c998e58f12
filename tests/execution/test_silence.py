"""What is said of a process that says nothing, and when."""

import pytest
from helpers import Patch
from messages import CheckMessage

from lm.execution.local import MAX_CHECK_INTERVAL, SilenceMonitor


class Machine:
    """A process of which nothing is heard, and a clock."""

    def __init__(self, monkeypatch: Patch, state: str | None) -> None:
        self.now, self.state = 0.0, state
        monkeypatch.setattr("lm.store.locks.process_status", lambda pid: self.state)
        self.monitor = SilenceMonitor(4711, lambda: self.now)

    def heard(self, seconds: int) -> dict[float, str]:
        """What is said in so many seconds, by when."""
        found = {}
        for _ in range(seconds):
            self.now += 1
            if (line := self.monitor.check()) is not None:
                found[self.now] = line
        return found


def test_a_stopped_process_is_reported_soon_and_then_rarely(monkeypatch: Patch, check_message: CheckMessage) -> None:
    found = Machine(monkeypatch, "T").heard(300)
    assert list(found) == [8, 24, 72, 216]
    check_message(found[8])


def test_silence_ends_with_a_message_and_grows_only_when_checked(monkeypatch: Patch) -> None:
    machine = Machine(monkeypatch, "R")
    for _ in range(30):
        machine.now += 1
        assert machine.monitor.seconds_silent() == machine.now
    machine.now += 1e6
    assert machine.monitor.seconds_silent() == 30 + MAX_CHECK_INTERVAL
    machine.monitor.record_activity()
    machine.now += 2
    assert machine.monitor.seconds_silent() == 2


@pytest.mark.parametrize("state", [None, "R"])
def test_a_process_is_reported_only_once_it_is_stopped(monkeypatch: Patch, state: str | None) -> None:
    machine = Machine(monkeypatch, state)
    assert machine.heard(100) == {}
    machine.state = "t"
    assert list(machine.heard(2)) == [101]
