"""Processes that hold locks and leases, locks between the processes of a machine, and messages for those that wait.

The holder of a lock writes itself into a file beside it, for messages alone.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
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


HOLDER_BYTES = 512  # size of a lease file. It is fixed, so that a heartbeat overwrites the one before it.
PARENT_VARIABLE = "LM_WORKS_FOR"
"""Environment variable with the number of the process that hands out work, for the processes that do it."""


@functools.cache
def machine_id() -> str:
    """Identify the boot and process namespace in which process numbers mean the same; host names may be shared."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


@functools.cache
def _machine_digest() -> str:
    return hashlib.sha256(machine_id().encode()).hexdigest()[:8]


def process_has_exited(pid: int, start: int | None) -> bool:
    """Return True if the process of this machine that started at `start` is known to have exited."""
    if (status := process_status(pid)) is not None:
        return status in ENDED or start_ticks(pid) != start
    try:  # it has exited, or the system hides it from other users
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False


def process_signature() -> str:
    """Return the part of a file name that identifies this process: its number, its start and its machine."""
    return f"{os.getpid()}-{start_ticks(os.getpid())}-{_machine_digest()}"


def is_of_exited_process(signature: str) -> bool:
    """Return True for the signature of a process of this machine that is known to have exited."""
    match = re.fullmatch(rf"(\d+)-(\d+|None)-{_machine_digest()}", signature)
    return match is not None and process_has_exited(int(match[1]), None if match[2] == "None" else int(match[2]))


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock or a lease, as its file names it."""

    token: str  # unique to each lease; any text for a lock
    pid: int
    start: int | None  # clock ticks since boot; None if unknown
    machine: str  # see `machine_id`
    host: str  # host name, for messages
    parent_pid: int  # the process that gave it its work, or itself without one; the file calls it `of`
    since: float  # seconds since 1970, for messages
    beat: int = 0  # number of heartbeats so far
    released: bool = False

    @classmethod
    def this(cls, token: str) -> "Holder":
        """Return this process as a holder."""
        pid, parent = os.getpid(), os.environ.get(PARENT_VARIABLE, "")
        parent_pid = int(parent) if parent.isdecimal() else pid
        return cls(token, pid, start_ticks(pid), machine_id(), socket.gethostname(), parent_pid, time.time())

    def written(self) -> bytes:
        """Return the content of the file."""
        content = {"of" if name == "parent_pid" else name: value for name, value in asdict(self).items()}
        return json.dumps(content).encode().ljust(HOLDER_BYTES - 1) + b"\n"

    def is_local(self) -> bool:
        """Return True for a process of this machine."""
        return self.machine == machine_id()

    def has_exited(self) -> bool:
        """Return True if the process is known to have exited."""
        return self.is_local() and process_has_exited(self.pid, self.start)

    def is_running(self) -> bool:
        """Return True if the process is known to run and not to be stopped, even if it sends no heartbeat."""
        is_visible = self.is_local() and process_status(self.pid) is not None
        return is_visible and not self.has_exited() and process_status(self.pid) not in STOPPED

    def __str__(self) -> str:
        stopped = " (stopped)" if self.is_local() and process_status(self.pid) in STOPPED else ""
        return f"process {self.pid}{stopped} on host {self.host} since {self.when()}"

    def when(self) -> str:
        """Format the time since which it holds the lock, with its date unless it is of today."""
        moment = time.localtime(self.since)
        return time.strftime("%H:%M" if moment[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M", moment)


def parse_holder(content: bytes) -> Holder | None:
    """Read the holder from the content of its file; return None if it is damaged."""
    try:
        fields = json.loads(content)
        holder = Holder(**{"parent_pid" if name == "of" else name: value for name, value in fields.items()})
        valid = all(isinstance(number, int) for number in (holder.pid, holder.parent_pid, holder.beat))
        time.localtime(holder.since)
    except (ValueError, TypeError, AttributeError, OverflowError, OSError, RecursionError):
        return None
    return holder if valid and isinstance(holder.token, str) and holder.token.isalnum() else None


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
            holder.write_bytes(Holder.this("lock").written())
        yield
    finally:
        with contextlib.suppress(OSError):
            holder.unlink(missing_ok=True)
        lock.release()


def describe_lock_holder(path: Path) -> str:
    """Describe the holder of the lock at `path` for a message."""
    with contextlib.suppress(OSError):
        return str(parse_holder(path.with_name(path.name + ".holder").read_bytes()) or UNKNOWN_HOLDER)
    return UNKNOWN_HOLDER
