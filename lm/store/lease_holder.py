"""Holders of leases: which process holds one, and whether it still runs."""

import functools
import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from lm.store.locks import ENDED, STOPPED, UNKNOWN_HOLDER, clock_time, describe_process, process_status, start_ticks

BEAT_SECONDS = 5.0
"""Interval between two heartbeats."""

MAX_MISSED_BEATS = 12
"""Heartbeats that may be missing: a slow disk, or a library that lets no other thread run, delays several."""

HOLDER_BYTES = 512
"""Size of a lease file. It is fixed, so that a heartbeat overwrites the one before it."""

PARENT_VARIABLE = "LM_WORKS_FOR"
"""Environment variable with the number of the process that hands out work, for the processes that do it."""

PROC = Path("/proc/self")
"""Path that exists where a process can read the state of others."""


# processes -----------------------------------------------------------------------------------------------------------


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
    if PROC.exists():
        return process_status(pid) is None or process_status(pid) in ENDED or start_ticks(pid) != start
    try:
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


# holders -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Holder:
    """The process that holds a lease, as the lease's file names it.

    Args:
        token: unique to each lease.
        pid: number of the process.
        start: when it started, in clock ticks since boot; None if unknown.
        machine: see `machine_id`.
        host: host name, for messages.
        parent_pid: the process that gave it its work; its own number without one. The file calls it `of`.
        since: seconds since 1970, for messages.
        beat: number of heartbeats so far.
        released: whether the lease was released.
    """

    token: str
    pid: int
    start: int | None
    machine: str
    host: str
    parent_pid: int
    since: float
    beat: int = 0
    released: bool = False

    @classmethod
    def this(cls, token: str) -> "Holder":
        """Return this process as the holder of a lease."""
        pid, parent = os.getpid(), os.environ.get(PARENT_VARIABLE, "")
        parent_pid = int(parent) if parent.isdecimal() else pid
        return cls(token, pid, start_ticks(pid), machine_id(), socket.gethostname(), parent_pid, time.time())

    def written(self) -> bytes:
        """Return the content of the lease's file."""
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
        return self.is_local() and PROC.exists() and not self.has_exited() and process_status(self.pid) not in STOPPED

    def __str__(self) -> str:
        return describe_process(self.pid, self.host, self.since, self.is_local())

    def when(self) -> str:
        """Format the time since which it holds the lease."""
        return clock_time(self.since)


def parse_holder(content: bytes) -> Holder | None:
    """Read the holder from the content of a lease's file; return None if it is damaged."""
    try:
        fields = json.loads(content)
        holder = Holder(**{"parent_pid" if name == "of" else name: value for name, value in fields.items()})
        valid = all(isinstance(number, int) for number in (holder.pid, holder.parent_pid, holder.beat))
        time.localtime(holder.since)
    except (ValueError, TypeError, AttributeError, OverflowError, OSError, RecursionError):
        return None
    return holder if valid and isinstance(holder.token, str) and holder.token.isalnum() else None


@dataclass
class LeaseState:
    """The valid lease of a folder: the number of its file, 0 if there is no lease, and the file's content."""

    number: int
    content: bytes = b""

    @property
    def holder(self) -> Holder | None:
        """Its holder; None if the file is damaged."""
        return parse_holder(self.content)

    def free(self) -> bool:
        """Return True if any process may take the next lease."""
        holder = self.holder
        return self.number == 0 or (holder is not None and (holder.released or holder.has_exited()))


def lease_numbers(folder: Path) -> list[int]:
    """Return the numbers of the leases in a folder, in ascending order."""
    try:
        return sorted(int(name) for name in os.listdir(folder) if name.isascii() and name.isdecimal())
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_lease(folder: Path) -> LeaseState:
    """Read the valid lease of a folder: the one with the highest number."""
    while True:
        number = max(lease_numbers(folder), default=0)
        if not number:
            return LeaseState(0)
        try:
            return LeaseState(number, (folder / str(number)).read_bytes())
        except FileNotFoundError:  # a newer lease replaced it
            continue


def current_holder(folder: Path) -> Holder | None:
    """Return the holder of a folder's lease; None if it is free or its file damaged."""
    state = read_lease(folder)
    return None if state.free() else state.holder


def describe_holder(folder: Path) -> str:
    """Describe the holder of a folder's lease for a message."""
    holder = current_holder(folder)
    return UNKNOWN_HOLDER if holder is None else str(holder)


class LeaseMonitor:
    """Monitor of a lease that another process holds: it expires without heartbeats.

    A pause of the monitoring process counts as one missed interval: a stopped process sees no heartbeats either.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.checked, self.silent = clock, clock(), 0.0
        self.last_state: LeaseState | None = None

    def has_expired(self, state: LeaseState) -> bool:
        """Return True if the lease did not change for too long and its process is not known to run."""
        now = self.clock()
        self.silent += min(now - self.checked, 2 * BEAT_SECONDS)
        self.checked = now
        if state != self.last_state:
            self.last_state, self.silent = state, 0.0
        silent = self.silent > MAX_MISSED_BEATS * BEAT_SECONDS
        return silent and (state.holder is None or not state.holder.is_running())
