"""Locks between the processes of a machine, messages for those that wait, and the state of a process.

The holder of a lock writes its process, its host and the time into a file beside it, for messages alone.
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

LogLine = Callable[[str], None]
"""Function that is called with one line of text for the user."""

FIRST_SECONDS = 8.0
"""Seconds of waiting before the first message."""

STOPPED = frozenset("Tt")
ENDED = frozenset("ZX")
"""Letters of `process_status` for processes that are stopped, and for those that have ended."""


def to_stderr(line: str) -> None:
    """Print a line to standard error."""
    print(line, file=sys.stderr, flush=True)


class BackoffReporter:
    """Timer for messages on something that lasts: after `first` seconds, then at three times the seconds before.

    Args:
        first: seconds before the first message.
        clock: returns seconds.
    """

    def __init__(self, first: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.first = first
        self.clock = clock
        self.restart()

    def restart(self) -> None:
        """Start again from zero seconds."""
        self.since = self.clock()
        self.next = self.first

    @property
    def lasted(self) -> float:
        """Seconds since the start."""
        return self.clock() - self.since

    @property
    def left(self) -> float:
        """Seconds until the next message is due."""
        return max(0.0, self.next - self.lasted)

    def should_report(self) -> bool:
        """Return True if a message is due, and schedule the next one."""
        if self.left > 0:
            return False
        while self.next <= self.lasted:
            self.next *= 3
        return True


# processes -----------------------------------------------------------------------------------------------------------


def process_status(pid: int) -> str | None:
    """Return the letter of a process's state on Linux, such as R for running and T for stopped; None if unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()[0]


def cpu_seconds(pid: int) -> float | None:
    """Return the processor time that a process has used; None if unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


# locks ---------------------------------------------------------------------------------------------------------------


def _holder_path(path: Path) -> Path:
    return path.with_name(path.name + ".holder")


def describe_lock_holder(path: Path) -> str:
    """Describe the holder of the lock at `path` for a message."""
    try:
        content = json.loads(_holder_path(path).read_text(encoding="utf-8"))
        pid, host, since = int(content["pid"]), str(content["host"]), time.localtime(float(content["since"]))
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return "a process that left no name"
    today = since[:3] == time.localtime()[:3]
    stopped = " (stopped)" if host == socket.gethostname() and process_status(pid) in STOPPED else ""
    return f"process {pid}{stopped} on host {host} since {time.strftime('%H:%M' if today else '%Y-%m-%d %H:%M', since)}"


@contextlib.contextmanager
def locked(path: Path, what: str, say: LogLine = to_stderr) -> Iterator[None]:
    """Hold the lock at `path` in the block, after waiting until it is free.

    Args:
        path: of the lock file.
        what: name of what is waited for, in messages.
        say: called with a line if waiting takes long.
    """
    lock, reporter = FileLock(path), BackoffReporter(FIRST_SECONDS)
    while True:
        try:
            lock.acquire(timeout=reporter.left)
            break
        except Timeout:
            if reporter.should_report():
                say(f"waiting for {what}: held by {describe_lock_holder(path)}")
    try:
        with contextlib.suppress(OSError):
            _holder_path(path).unlink(missing_ok=True)
            text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()})
            _holder_path(path).write_text(text, encoding="utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):
            _holder_path(path).unlink(missing_ok=True)
        lock.release()
