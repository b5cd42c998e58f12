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

LogLine = Callable[[str], None]  # function that is called with one line of text for the user
FIRST_SECONDS = 8.0  # seconds of waiting before the first message

UNKNOWN_HOLDER = "a process that left no name"

STOPPED = frozenset("Tt")
ENDED = frozenset("ZX")
"""Letters of `process_status` for processes that are stopped, and for those that have ended."""


def to_stderr(line: str) -> None:
    """Print a line to standard error."""
    print(line, file=sys.stderr, flush=True)


class BackoffReporter:
    """Timer for messages on something that lasts: after `first` seconds, then at three times the seconds before."""

    def __init__(self, first: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.first, self.clock = first, clock
        self.restart()

    def restart(self) -> None:
        """Start again from zero seconds."""
        self.since, self.next = self.clock(), self.first

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


def _proc_fields(pid: int) -> list[str]:
    """Return the fields of `/proc/PID/stat` after the name of the process; none if it has no such file."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def process_status(pid: int) -> str | None:
    """Return the letter of a process's state on Linux, such as R for running and T for stopped; None if unknown."""
    return next(iter(_proc_fields(pid)), None)


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if unknown."""
    return int(fields[19]) if len(fields := _proc_fields(pid)) > 19 else None


def describe_process(pid: int, host: str, since: float, local: bool) -> str:
    """Describe a process that holds something since a time in seconds; a local one may be stopped."""
    stopped = " (stopped)" if local and process_status(pid) in STOPPED else ""
    return f"process {pid}{stopped} on host {host} since {clock_time(since)}"


def clock_time(seconds: float) -> str:
    """Format a time in seconds since 1970, with its date unless it is of today."""
    moment = time.localtime(seconds)
    return time.strftime("%H:%M" if moment[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M", moment)


def describe_lock_holder(path: Path) -> str:
    """Describe the holder of the lock at `path` for a message."""
    try:
        content = json.loads(path.with_name(path.name + ".holder").read_text(encoding="utf-8"))
        pid, host, since = int(content["pid"]), str(content["host"]), float(content["since"])
        return describe_process(pid, host, since, host == socket.gethostname())
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return UNKNOWN_HOLDER


@contextlib.contextmanager
def locked(path: Path, what: str, say: LogLine = to_stderr) -> Iterator[None]:
    """Hold the lock at `path` in the block, after waiting until it is free; messages name it `what`."""
    lock, reporter, holder = FileLock(path), BackoffReporter(FIRST_SECONDS), path.with_name(path.name + ".holder")
    while True:
        try:
            lock.acquire(timeout=reporter.left)
            break
        except Timeout:
            if reporter.should_report():
                say(f"waiting for {what}: held by {describe_lock_holder(path)}")
    try:
        with contextlib.suppress(OSError):
            holder.unlink(missing_ok=True)
            text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()})
            holder.write_text(text, encoding="utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):
            holder.unlink(missing_ok=True)
        lock.release()
