"""Locks between processes, which say whom they wait for, and what the machine knows of a process.

The holder of a lock writes its number, its machine and the time beside it. That is for people alone: who holds a lock
is decided by the lock.
"""

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

Say = Callable[[str], None]
"""Told in a line what is waited for."""

FIRST_SECONDS = 8.0
"""Of waiting, before a word is said of it."""

STOPPED = frozenset("Tt")
ENDED = frozenset("ZX")


def to_stderr(line: str) -> None:
    """Says it to the person who gave the command."""
    print(line, file=sys.stderr, flush=True)


class Patience:
    """When to speak of something that lasts: once after `first` seconds, then each time it has lasted thrice as long.

    Args:
        first: seconds before the first word.
        clock: of the seconds.
    """

    def __init__(self, first: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.first = first
        self.clock = clock
        self.restart()

    def restart(self) -> None:
        """Something was heard: begins anew."""
        self.since = self.clock()
        self.next = self.first

    @property
    def lasted(self) -> float:
        """Seconds since the beginning."""
        return self.clock() - self.since

    @property
    def left(self) -> float:
        """Seconds until it is time to speak."""
        return max(0.0, self.next - self.lasted)

    def spent(self) -> bool:
        """Whether it is time to speak; if so, the next time is put off."""
        if self.left > 0:
            return False
        while self.next <= self.lasted:
            self.next *= 3
        return True


# who holds it --------------------------------------------------------------------------------------------------------


def state(pid: int) -> str | None:
    """The letter by which Linux calls what a process does, R running, T stopped; None where nobody can say."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()[0]


def busy_seconds(pid: int) -> float | None:
    """Processor time that a process has used; None where nobody can say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".holder")


def _signed(path: Path) -> tuple[int, str, float] | None:
    """Process, host and time that lie beside the lock at `path`; None where nothing does that can be read."""
    try:
        found = json.loads(_beside(path).read_text(encoding="utf-8"))
        signed = int(found["pid"]), str(found["host"]), float(found["since"])
        time.localtime(signed[2])
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return signed


def holder(path: Path) -> str:
    """Who holds the lock at `path`, as far as it said so."""
    signed = _signed(path)
    if signed is None:
        return "a process that left no name"
    pid, host, since = signed[0], signed[1], time.localtime(signed[2])
    today = since[:3] == time.localtime()[:3]
    doing = " (stopped)" if host == socket.gethostname() and state(pid) in STOPPED else ""
    return f"process {pid}{doing} on host {host} since {time.strftime('%H:%M' if today else '%Y-%m-%d %H:%M', since)}"


def _sign(path: Path) -> None:
    """Leaves this process's name beside a lock it has taken; the name of one before it goes in any case."""
    with contextlib.suppress(OSError):
        _beside(path).unlink(missing_ok=True)
        text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()})
        _beside(path).write_text(text, encoding="utf-8")


# locks ---------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(path: Path, what: str, say: Say = to_stderr) -> Iterator[None]:
    """Holds the lock at `path` after waiting for who holds it, and says so where that lasts: `what` is waited for."""
    lock, patience = FileLock(path), Patience(FIRST_SECONDS)
    while True:
        try:
            lock.acquire(timeout=patience.left)
            break
        except Timeout:
            if patience.spent():
                say(f"waiting for {what}: held by {holder(path)}")
    with _held(lock, path):
        yield


@contextlib.contextmanager
def _held(lock: FileLock, path: Path) -> Iterator[None]:
    try:
        _sign(path)
        yield
    finally:
        with contextlib.suppress(OSError):
            _beside(path).unlink(missing_ok=True)
        lock.release()
