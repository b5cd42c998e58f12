"""Who holds a lease: a process, known to those on its machine and on others by what it writes there, and its life."""

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

from lm.store.locks import ENDED, STOPPED, state

BEAT_SECONDS = 5.0
"""Between two signs of life."""

BEATS_MISSED = 12
"""Signs of life that may be missing: a slow disk, or a library that lets no other thread run, is no death."""

BYTES = 512
"""Of a holder written down, always, so that a sign of life is written over the one before it."""

WORKS_FOR = "LM_WORKS_FOR"
"""Names the process that hands out work, to those that do it."""


PROC = Path("/proc/self")
"""Is there where a process can learn of others."""


@functools.cache
def machine() -> str:
    """By what a machine is known, where process numbers mean the same: one start of one kernel, one of its namespaces.

    Names of hosts are given to several machines, and to containers whose processes do not see each other.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def start_of(pid: int) -> int | None:
    """When a process began, in ticks since its machine did; None where nobody can say."""
    try:
        return int(
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
        )
    except (OSError, ValueError, IndexError):
        return None


def has_ended(pid: int, start: int | None) -> bool:
    """Whether a process of this machine that began then is known to have ended."""
    if PROC.exists():
        return state(pid) is None or state(pid) in ENDED or start_of(pid) != start
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def signature() -> str:
    """By which this process is known in the name of a file: its number, when it began, and its machine."""
    return f"{os.getpid()}-{start_of(os.getpid())}-{_machine()}"


def is_of_the_dead(text: str) -> bool:
    """Whether this is the signature of a process of this machine that is known to have ended."""
    found = re.fullmatch(rf"(\d+)-(\d+|None)-{_machine()}", text)
    return found is not None and has_ended(int(found[1]), None if found[2] == "None" else int(found[2]))


@functools.cache
def _machine() -> str:
    return hashlib.sha256(machine().encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Holder:
    """What a lease says.

    Args:
        token: another one for each lease.
        pid, start, machine, host: of the process.
        of: the process that gave it its work; its own number where nobody did.
        since: seconds since 1970, for people alone.
        beat: signs of life so far.
        released: whether it was let go of.
    """

    token: str
    pid: int
    start: int | None
    machine: str
    host: str
    of: int
    since: float
    beat: int = 0
    released: bool = False

    @classmethod
    def this(cls, token: str) -> "Holder":
        """This process."""
        pid, named = os.getpid(), os.environ.get(WORKS_FOR, "")
        of = int(named) if named.isdecimal() else pid
        return cls(token, pid, start_of(pid), machine(), socket.gethostname(), of, time.time())

    def written(self) -> bytes:
        """The content of the file."""
        return json.dumps(asdict(self)).encode().ljust(BYTES - 1) + b"\n"

    def here(self) -> bool:
        """Whether it is a process of this machine."""
        return self.machine == machine()

    def dead(self) -> bool:
        """Whether the process is known to have ended."""
        return self.here() and has_ended(self.pid, self.start)

    def at_work(self) -> bool:
        """Whether the process is known to live, and not to be stopped: however silent it is."""
        return self.here() and PROC.exists() and not self.dead() and state(self.pid) not in STOPPED

    def __str__(self) -> str:
        doing = " (stopped)" if self.here() and state(self.pid) in STOPPED else ""
        return f"process {self.pid}{doing} on host {self.host} since {self.when()}"

    def when(self) -> str:
        """Since when, in words."""
        since, today = time.localtime(self.since), time.localtime()[:3]
        return time.strftime("%H:%M" if since[:3] == today else "%Y-%m-%d %H:%M", since)


NAMELESS = "a process that left no name"


def parsed(content: bytes) -> Holder | None:
    """What a lease says; None where that cannot be read."""
    try:
        found = Holder(**json.loads(content))
        whole = all(isinstance(one, int) for one in (found.pid, found.of, found.beat)) and isinstance(found.token, str)
        time.localtime(found.since)
    except (ValueError, TypeError, OverflowError, OSError, RecursionError):
        return None
    return found if whole and found.token.isalnum() else None


@dataclass
class Found:
    """The lease that counts in a folder: its number, content and holder; 0 where there is none."""

    number: int
    content: bytes = b""

    @property
    def holder(self) -> Holder | None:
        """Who has it, as far as it can be read."""
        return parsed(self.content)

    def free(self) -> bool:
        """Whether anybody may have the next one."""
        holder = self.holder
        return self.number == 0 or (holder is not None and (holder.released or holder.dead()))


def numbers(folder: Path) -> list[int]:
    """Of the leases in a folder."""
    try:
        return sorted(int(name) for name in os.listdir(folder) if name.isascii() and name.isdecimal())
    except (FileNotFoundError, NotADirectoryError):
        return []


def look(folder: Path) -> Found:
    """The lease that counts now."""
    while True:
        number = max(numbers(folder), default=0)
        if not number:
            return Found(0)
        try:
            return Found(number, (folder / str(number)).read_bytes())
        except FileNotFoundError:  # another came after it
            continue


def held(folder: Path) -> Holder | None:
    """Who holds the lease of a folder; None where nobody does, as far as can be told at once."""
    found = look(folder)
    return None if found.free() else found.holder


def holder_of(folder: Path) -> str:
    """Who holds the lease of a folder, in words."""
    holder = held(folder)
    return NAMELESS if holder is None else str(holder)


class Watch:
    """Over the lease of a folder, which another holds: whether it shows life.

    A pause of the watcher itself counts as one look: who was stopped, or asleep, has seen nothing meanwhile.

    Args:
        clock: of the watcher's seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.seen: Found | None = None
        self.looked = clock()
        self.silent = 0.0

    def lost(self, found: Found) -> bool:
        """Takes in what was found; says whether the one who holds it has lost it."""
        now = self.clock()
        self.silent += min(now - self.looked, 2 * BEAT_SECONDS)
        self.looked = now
        if found != self.seen:
            self.seen, self.silent = found, 0.0
        if self.silent <= BEATS_MISSED * BEAT_SECONDS:
            return False
        return found.holder is None or not found.holder.at_work()
