"""Locks that say whom they wait for."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from messages import CheckMessage

from lm.store import locks
from lm.store.locks import UNKNOWN_HOLDER, BackoffReporter, Holder, describe_lock_holder, locked

HERE = socket.gethostname()


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@contextlib.contextmanager
def held(path: Path) -> Iterator[contextlib.ExitStack]:
    """A lock held by somebody; closing what is yielded lets it go."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(path, "nothing"))
        yield stack


def test_reports_are_due_at_tripling_intervals() -> None:
    clock = Clock()
    patience = BackoffReporter(10.0, clock)
    spoken = []
    for _ in range(1000):
        clock.now += 1
        if patience.should_report():
            spoken.append(patience.lasted)
    assert spoken == [10, 30, 90, 270, 810]
    patience.restart()
    assert (patience.left, patience.should_report()) == (10.0, False)
    clock.now += 500  # nobody asked for long
    assert (patience.should_report(), patience.should_report()) == (True, False)


def test_locked_waits_and_reports_the_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    monkeypatch.setattr(locks, "FIRST_SECONDS", 0.01)
    lines: list[str] = []
    with held(tmp_path / "lock") as stack:

        def say(line: str) -> None:
            lines.append(line)
            stack.close()

        with locked(tmp_path / "lock", "the thing", say):
            assert describe_lock_holder(tmp_path / "lock") != UNKNOWN_HOLDER
    (line,) = lines
    before, _, when = line.partition(" since ")
    assert when
    check_message(before.replace(f"{os.getpid()} on host {HERE}", "HERE"))


def test_a_free_lock_is_acquired_without_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with locked(tmp_path / "lock", "the thing"):
        pass
    assert capsys.readouterr().err == ""
    assert os.listdir(tmp_path) == ["lock"], "whoever held it leaves no name behind"


def test_the_holder_file_of_a_lock_blocks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    path, beside = tmp_path / "lock", tmp_path / "lock.holder"
    beside.write_bytes(Holder.this("lock").written())
    with locked(path, "the thing"):  # a name that was left holds nothing
        found = []
        for text in ("", "{", "[1]", '{"pid": "x"}', '{"pid": 1, "host": "h", "since": 1e300}', "\x00"):
            beside.write_text(text)
            found.append(describe_lock_holder(path))
        check_message(found)
    monkeypatch.setattr(Path, "write_bytes", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full")))
    with locked(path, "the thing"):
        pass
