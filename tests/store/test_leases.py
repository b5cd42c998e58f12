"""Leases: one holder at a time, which loses the lease without heartbeats and then writes nothing."""

import contextlib
import itertools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from messages import CheckMessage, Refused

from lm.store import files, leases, locks
from lm.store.files import write_atomic
from lm.store.leases import (
    HeldError,
    Lease,
    LeaseFolder,
    LeaseMonitor,
    LeaseState,
    LostError,
    acquire,
    current_holder,
    release_if_expired,
    try_acquire,
)
from lm.store.locks import Holder, parse_holder

HERE = socket.gethostname()


def read_lease(folder: Path) -> LeaseState:
    return LeaseFolder(folder).read()


def lease_numbers(folder: Path) -> list[int]:
    return LeaseFolder(folder).numbers()


def described(folder: Path) -> str:
    return str(current_holder(folder) or locks.UNKNOWN_HOLDER)


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send no heartbeat but by a test."""
    monkeypatch.setattr(Lease, "_send_heartbeats", lambda self: None)


def left(folder: Path, number: int = 1, **changes: Any) -> Holder:
    """Write the lease of a process on another machine."""
    holder = replace(Holder.this("f" * 16), **{"machine": "another", "host": "elsewhere", "pid": 4711, **changes})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(number)).write_bytes(holder.written())
    return holder


def watched(folder: Path, clock: Clock, seconds: float, each: Callable[[], None] = lambda: None) -> LeaseMonitor:
    """Return a monitor that has read a lease every two seconds."""
    watch = LeaseMonitor(clock)
    for _ in range(int(seconds / 2) + 1):
        watch.has_expired(read_lease(folder))
        clock.now += 2
        each()
    return watch


def unnamed(line: str) -> str:
    """A line without what is of this process and this minute alone."""
    return re.sub(r"since [-\d: ]*\d", "since WHEN", line.replace(f"{os.getpid()} on host {HERE}", "HERE"))


def got(folder: Path, watch: LeaseMonitor | None = None) -> Lease:
    lease = try_acquire(folder, (), watch)
    assert lease is not None
    return lease


def test_a_lease_has_one_holder_until_it_is_released(tmp_path: Path, check_message: CheckMessage) -> None:
    with contextlib.ExitStack() as stack:
        stack.callback(got(tmp_path / "x").release)
        assert try_acquire(tmp_path / "x") is None
        with pytest.raises(HeldError) as caught:
            contextlib.ExitStack().enter_context(acquire(tmp_path / "x", "the thing", (), print, wait=False))
        check_message(unnamed(str(caught.value)))
    assert current_holder(tmp_path / "x") is None
    assert current_holder(tmp_path / "never") is None
    got(tmp_path / "x").release()
    assert lease_numbers(tmp_path / "x") == [2], "one file stays"


def test_acquire_waits_and_reports_the_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    monkeypatch.setattr(locks, "FIRST_SECONDS", 0.01)
    lines, first = [], got(tmp_path / "x")

    def say(line: str) -> None:
        lines.append(line)
        first.release()

    with acquire(tmp_path / "x", "the thing", (), say):
        lines.append(described(tmp_path / "x"))
    check_message([unnamed(line) for line in lines])


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="nobody says when a process began")
def test_a_local_process_that_exited_frees_its_lease_at_once(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    mine = Holder.this("a" * 16)
    for holder in (replace(mine, pid=process.pid), replace(mine, start=(mine.start or 0) - 1)):
        left(tmp_path / "x", 1, **{name: getattr(holder, name) for name in ("pid", "start", "machine")})
        assert current_holder(tmp_path / "x") is None
        shutil.rmtree(tmp_path / "x")
    left(tmp_path / "x", 1, pid=process.pid)
    assert current_holder(tmp_path / "x") is not None, "the same number on another machine is another process"
    left(tmp_path / "x", 1, pid=process.pid, machine=mine.machine + " of another container", host=HERE)
    assert current_holder(tmp_path / "x") is not None, "and so it is where a host's name is used twice"


@pytest.mark.parametrize("error", [PermissionError, ProcessLookupError])
def test_a_process_that_the_system_hides_keeps_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    def kill(*_: Any) -> None:
        raise error

    mine = Holder.this("a" * 16)
    left(tmp_path / "x", pid=mine.pid, start=mine.start, machine=mine.machine)
    monkeypatch.setattr(locks, "_proc_fields", lambda pid: [])
    monkeypatch.setattr(os, "kill", kill)
    assert (current_holder(tmp_path / "x") is None) == (error is ProcessLookupError)
    got(tmp_path / "x", watched(tmp_path / "x", Clock(), 100)).release()


def test_leases_expire_by_the_clock_of_the_monitor(tmp_path: Path) -> None:
    folder, clock, bound = tmp_path / "x", Clock(), leases.MAX_MISSED_BEATS * leases.BEAT_SECONDS
    holder = left(folder, since=1e12)  # the clock of that host is of no interest
    assert try_acquire(folder, (), watched(folder, clock, bound - 4)) is None

    def beat() -> None:
        nonlocal holder
        holder = replace(holder, beat=holder.beat + 1)
        (folder / "1").write_bytes(holder.written())

    assert try_acquire(folder, (), watched(folder, clock, 2 * bound, beat)) is None
    lease = got(folder, watched(folder, clock, bound + 2))
    assert lease.previous == holder
    assert lease_numbers(folder) == [2]
    lease.release()


def test_a_pause_of_the_monitor_does_not_expire_a_lease(tmp_path: Path) -> None:
    clock = Clock()
    left(tmp_path / "x")
    watch = watched(tmp_path / "x", clock, 4)
    clock.now += 1e6
    assert try_acquire(tmp_path / "x", (), watch) is None


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="nobody says whether a process is stopped")
def test_a_silent_local_process_keeps_its_lease_unless_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, mine = Clock(), Holder.this("a" * 16)
    left(tmp_path / "x", pid=mine.pid, start=mine.start, machine=mine.machine)
    watch = watched(tmp_path / "x", clock, 100)
    assert try_acquire(tmp_path / "x", (), watch) is None
    monkeypatch.setattr(locks, "process_status", lambda pid: "T")
    assert "(stopped)" in described(tmp_path / "x")
    got(tmp_path / "x", watch).release()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1]", b'{"pid": 1}', b"\x00" * 512, b'{"token": "../x", "pid": 1}'],
    ids=["empty", "cut", "list", "no token", "zeros", "path"],
)
def test_a_damaged_lease_expires_like_any_other(tmp_path: Path, check_message: CheckMessage, content: bytes) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "1").write_bytes(content)
    assert try_acquire(tmp_path / "x") is None
    check_message(described(tmp_path / "x"))
    got(tmp_path / "x", watched(tmp_path / "x", Clock(), 100)).release()


def test_a_heartbeat_overwrites_the_file_and_keeps_its_size(tmp_path: Path) -> None:
    lease = got(tmp_path / "x")
    before = read_lease(tmp_path / "x")
    lease.beat()
    after = read_lease(tmp_path / "x")
    assert after != before
    assert (after.number, len(after.content)) == (1, locks.HOLDER_BYTES)
    found = parse_holder(after.content)
    assert found is not None
    assert found.beat == 1
    lease.release()


def test_a_process_that_lost_its_lease_writes_nothing(tmp_path: Path, check_message: CheckMessage) -> None:
    folder, work = tmp_path / "x", tmp_path / "work"
    first = try_acquire(folder, (work,))
    assert first is not None
    write_atomic(work / "file", "first")
    assert (work / "file").read_text() == "first"
    del leases._leases_by_folder[work.absolute()]  # what follows is of another process
    left(folder, 2)
    (folder / "1").unlink()
    leases._leases_by_folder[work.absolute()] = first
    first.beat()
    with pytest.raises(LostError) as caught:
        write_atomic(work / "file", "first again")
    check_message(unnamed(str(caught.value)))
    assert (work / "file").read_text() == "first"
    first.release()
    found = current_holder(folder)
    assert found is not None
    assert (found.pid, found.released, lease_numbers(folder)) == (4711, False, [2])


def test_a_removed_lease_is_lost_and_free(tmp_path: Path, refused: Refused, check_message: CheckMessage) -> None:
    folder, work = tmp_path / "x", tmp_path / "work"
    first = try_acquire(folder, (work,))
    assert first is not None
    write_atomic(work / "file", "first")
    (folder / "1").unlink()
    first.beat()
    assert lease_numbers(folder) == [], "a sign of life makes no lease"
    with refused(LostError):
        write_atomic(work / "file", "first again")
    second = got(folder)
    with pytest.raises(LostError) as caught:
        first.check()
    check_message(unnamed(str(caught.value)))
    first.release()
    found = current_holder(folder)
    assert found is not None
    assert (found.token, (work / "file").read_text()) == (second.holder.token, "first")
    second.release()


def test_a_lease_removed_while_acquired_has_no_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = leases._create_exclusively

    def made_and_removed(path: Path, content: bytes) -> bool:
        done = made(path, content)
        path.unlink()
        return done

    monkeypatch.setattr(leases, "_create_exclusively", made_and_removed)
    assert try_acquire(tmp_path / "x", (tmp_path / "work",)) is None
    assert leases.guarding_lease(tmp_path / "work") is None
    monkeypatch.setattr(leases, "_create_exclusively", made)
    got(tmp_path / "x").release()


@pytest.mark.parametrize(
    "moment", ["while its folder is made", "before the file is there", "before the look", "between look and move"]
)
def test_a_writer_that_stalled_before_its_rename_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    folder, work = tmp_path / "x", tmp_path / "work"
    first = try_acquire(folder, (work,))
    assert first is not None
    check = first.check
    looks = iter(["room", "move"])

    def succeeded() -> None:
        monkeypatch.setattr(Holder, "is_running", lambda self: False)
        second = try_acquire(folder, (work,), watched(folder, Clock(), 100))
        assert second is not None
        write_atomic(work / "file", "second")
        leases._leases_by_folder[work.absolute()] = first

    def look_and_sleep() -> None:
        if next(looks, "") != "move":
            return check()
        if moment == "before the look":
            succeeded()
            return check()
        check()
        succeeded()
        return None

    def sleep_and_name() -> str:
        monkeypatch.setattr(files, "process_signature", locks.process_signature)
        succeeded()
        return locks.process_signature()

    def sleep_and_look(path: Path) -> bool:
        if path.name.startswith(leases.STAGING_PREFIX):
            monkeypatch.setattr(Path, "is_dir", is_dir)
            succeeded()
        return is_dir(path)

    is_dir = Path.is_dir
    if moment == "while its folder is made":
        write_atomic(work / "file", "first")
        monkeypatch.setattr(Path, "is_dir", sleep_and_look)
    elif moment == "before the file is there":
        monkeypatch.setattr(files, "process_signature", sleep_and_name)
    else:
        monkeypatch.setattr(first, "check", look_and_sleep)
    with pytest.raises(LostError):
        write_atomic(work / "file", "first")
    assert (work / "file").read_text() == "second"


class Actors:
    """Takers of a lease as threads of which one runs at a time, changing over at every file operation, as drawn."""

    OPERATIONS = ("listdir", "link", "unlink", "rename")

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.turn = threading.Condition()
        self.waiting: set[int] = set()
        self.chosen: int | None = None
        self.local = threading.local()

    def pause(self) -> None:
        """Lets another go on, maybe."""
        mine = getattr(self.local, "number", None)
        if mine is None:
            return
        with self.turn:
            self._choose()
            self.turn.wait_for(lambda: self.chosen == mine)

    def _choose(self) -> None:
        self.chosen = self.random.choice(sorted(self.waiting)) if self.waiting else None
        self.turn.notify_all()

    def run(self, acts: list[Callable[[], None]]) -> None:
        self.waiting = set(range(len(acts)))

        def body(number: int, act: Callable[[], None]) -> None:
            self.local.number = number
            try:
                self.pause()
                act()
            finally:
                with self.turn:
                    self.waiting.discard(number)
                    self._choose()

        threads = [threading.Thread(target=body, args=one, daemon=True) for one in enumerate(acts)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(start, start + 15) for start in range(0, 60, 15)])
def test_one_of_many_processes_acquires_an_expired_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: range
) -> None:
    monkeypatch.setattr(Holder, "has_exited", lambda self: self.token == "f" * 16)
    real = {name: getattr(os, name) for name in Actors.OPERATIONS}
    for seed in seeds:
        actors, folder = Actors(seed), tmp_path / str(seed)
        left(folder, 3)
        at_once, most, wins = [0], [0], itertools.count(1)
        won = [0]

        def take() -> None:
            for _ in range(2):
                lease = try_acquire(folder)  # noqa: B023
                if lease is None:
                    continue
                at_once[0] += 1  # noqa: B023
                most[0], won[0] = max(most[0], at_once[0]), next(wins)  # noqa: B023
                actors.pause()  # noqa: B023
                lease.check()
                at_once[0] -= 1  # noqa: B023
                lease.release()

        for name, operation in real.items():

            def slow(*given: Any, operation: Any = operation, **more: Any) -> Any:
                actors.pause()  # noqa: B023
                return operation(*given, **more)

            monkeypatch.setattr(os, name, slow)
        actors.run([take] * 4)
        assert most[0] == 1, seed
        assert won[0] >= 1, seed
        assert len(lease_numbers(folder)) == 1
        assert not [name for name in real["listdir"](folder) if name.startswith(".")]


def test_an_attempt_on_an_outdated_state_withdraws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "x"
    left(folder, 3, released=True)
    past = read_lease(folder)
    got(folder).release()
    second = got(folder)
    assert lease_numbers(folder) == [5]
    with monkeypatch.context() as patch:
        patch.setattr(LeaseFolder, "read", lambda self: past)
        assert try_acquire(folder) is None
    assert lease_numbers(folder) == [5]
    second.check()
    second.release()


def test_leases_work_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", link)
    lease = got(tmp_path / "x")
    assert try_acquire(tmp_path / "x") is None
    lease.release()
    got(tmp_path / "x").release()


def test_a_link_whose_reply_was_lost_is_a_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def link_twice(*paths: Path) -> None:  # as a client repeats a call
        link(*paths)
        link(*paths)

    monkeypatch.setattr(os, "link", link_twice)
    got(tmp_path / "x").release()


def test_a_faster_process_that_cleans_up_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, won = os.link, list[Lease]()

    def link_late(temporary: Path, path: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        won.append(got(tmp_path / "x"))  # removes all temporary files
        temporary.touch()
        try:
            link(temporary, path)
        finally:
            temporary.unlink()

    monkeypatch.setattr(os, "link", link_late)
    assert try_acquire(tmp_path / "x") is None
    won[0].release()
    got(tmp_path / "x").release()


def test_release_if_expired_releases_nothing_else(tmp_path: Path, check_message: CheckMessage) -> None:
    clock = Clock()
    left(tmp_path / "x")
    watch = LeaseMonitor(clock)
    check_message(unnamed(str(release_if_expired(tmp_path / "x", watch))))
    assert release_if_expired(tmp_path / "x", watched(tmp_path / "x", clock, 100)) is None
    assert current_holder(tmp_path / "x") is None


def test_a_holder_is_described_with_its_date(tmp_path: Path, check_message: CheckMessage) -> None:
    left(tmp_path / "x", since=time.mktime((2024, 3, 1, 12, 3, 0, 0, 0, -1)))
    check_message(described(tmp_path / "x"))


# two processes -------------------------------------------------------------------------------------------------------

WRITER = """
import sys, time
from pathlib import Path
from lm.store import leases
leases.BEAT_SECONDS = 0.05
from lm.store.files import write_atomic
from lm.store.leases import LostError, acquire
folder = Path(sys.argv[1])
try:
    with acquire(folder / "lease", "it", (folder / "work",), print):
        for number in range(10**9):
            write_atomic(folder / "work" / "file", f"{sys.argv[2]} {number}")
            time.sleep(0.001)
except LostError:
    print("lost", flush=True)
"""


@contextlib.contextmanager
def writer(folder: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds a lease and writes its name, until it has lost it."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), name], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until(done: Callable[[], Any]) -> None:
    while not done():
        time.sleep(0.01)


def written(folder: Path) -> str:
    """By whom."""
    with contextlib.suppress(FileNotFoundError):
        return (folder / "work" / "file").read_text().partition(" ")[0]
    return ""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="nobody says whether a process is stopped")
def test_a_stopped_process_loses_its_lease_and_writes_nothing(tmp_path: Path) -> None:
    with writer(tmp_path, "first") as first:
        until(lambda: written(tmp_path) == "first")
        os.kill(first.pid, signal.SIGSTOP)
        with writer(tmp_path, "second"):
            until(lambda: written(tmp_path) == "second")
            os.kill(first.pid, signal.SIGCONT)
            seen = set()
            until(lambda: seen.add(written(tmp_path)) or first.poll() is not None)  # type: ignore[func-returns-value]
            assert seen == {"second"}
            assert first.stdout is not None
            assert first.stdout.read() == "lost\n"
