"""Leases: exclusive locks between processes of any machine, which expire without heartbeats.

A lease is a folder of numbered files, of which the one with the highest number is valid. It names the holder, which
writes a counter into it every few seconds. A process acquires the lease by creating the file with the next number,
which only one process can do, so that nobody removes a lease that another has just acquired. Releasing a lease marks
its file as released; the file stays.

A lease is free if it was released, or if its holder was a process of this machine that has exited. Any other holder is
monitored: its lease expires if the file does not change for a minute by the clock of the process that waits. Clocks of
two machines are never compared.

A process that lost its lease must not write into the folders that the lease guards. A writer writes into its own
staging directory there, checks the lease again and then renames the file into place. A new holder deletes the old
staging directory before anything else, so that a writer that stalled between check and rename has no file to rename.
"""

import contextlib
import errno
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from lm.store import locks
from lm.store.locks import UNKNOWN_HOLDER, BackoffReporter, Holder, LogLine, parse_holder

BEAT_SECONDS = 5.0  # interval between two heartbeats

MAX_MISSED_BEATS = 12
"""Heartbeats that may be missing: a slow disk, or a library that lets no other thread run, delays several."""


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


class LeasePlace(Protocol):
    """Place of the versions of a lease, under numbers of which the highest is valid."""

    def read(self) -> LeaseState:
        """Return the valid lease."""

    def create(self, number: int, content: bytes) -> bool:
        """Create the lease with the next number; return False if another process was faster."""

    def write(self, content: bytes) -> bool:
        """Write the lease that was created here; return False if it is known to be taken over."""

    def close(self) -> None:
        """Close what was opened for writing."""


class LeaseFolder:
    """A folder of numbered files, of which the one with the highest number is valid."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def numbers(self) -> list[int]:
        """Return the numbers of the files in ascending order."""
        try:
            return sorted(int(name) for name in os.listdir(self.folder) if name.isascii() and name.isdecimal())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self) -> LeaseState:
        """Read the file with the highest number."""
        while number := max(self.numbers(), default=0):
            try:
                return LeaseState(number, (self.folder / str(number)).read_bytes())
            except OSError as error:  # a newer lease replaced it; the second error is of a network file system
                if error.errno not in (errno.ENOENT, errno.ESTALE):
                    raise
        return LeaseState(0)

    def create(self, number: int, content: bytes) -> bool:
        """Create a file, and remove those before it; return False if another process was faster."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / str(number)
        if not _create_exclusively(path, content):
            return False
        if max(self.numbers(), default=0) > number:  # the caller's knowledge was out of date
            path.unlink(missing_ok=True)
            return False
        for name in os.listdir(self.folder):  # left by processes that were killed, or came too late
            if name.startswith(".") or (name.isdecimal() and int(name) < number):
                (self.folder / name).unlink(missing_ok=True)
        try:
            self.file = os.open(path, os.O_RDWR)
        except FileNotFoundError:  # removed at once by somebody: nobody holds it, and the next attempt may succeed
            return False
        return True

    def write(self, content: bytes) -> bool:
        """Write into the file that was created, wherever that is by now."""
        os.pwrite(self.file, content, 0)
        os.fsync(self.file)  # on a network file system others see no more than that
        return True

    def close(self) -> None:
        """Close the file."""
        os.close(self.file)


def _create_exclusively(path: Path, content: bytes) -> bool:
    """Create a file with its content and return True; return False if it exists. Network file systems do it too."""
    temporary = path.with_name(f".{secrets.token_hex(8)}")
    try:
        temporary.write_bytes(content)
        try:
            os.link(temporary, path)
        except FileExistsError:  # or the reply of a network file system to a link that was made is lost
            with contextlib.suppress(FileNotFoundError):  # the faster process has removed this one's temporary file
                return temporary.stat().st_nlink == 2
            return False
        except OSError:  # a file system without links
            with open(path, "xb") as file:
                file.write(content)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def current_holder(place: Path | LeasePlace) -> Holder | None:
    """Return the holder of the lease in a folder or place; None if it is free or its content damaged."""
    state = (LeaseFolder(place) if isinstance(place, Path) else place).read()
    return None if state.free() else state.holder


class LeaseMonitor:
    """Monitor of a lease that another process holds: it expires without heartbeats, by a clock in seconds.

    A pause of the monitoring process counts as one missed interval: a stopped process sees no heartbeats either.
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


MAX_POLL_SECONDS = 1.0  # longest interval between two attempts of a process that waits
STAGING_PREFIX = ".writing-"  # prefix of the name of a holder's staging directory, in each folder that its lease guards


class HeldError(Exception):
    """Another process holds a lease for which the caller did not want to wait."""


class LostError(Exception):
    """This process lost its lease: it sent no heartbeat for so long that another process took it over."""


@dataclass(eq=False)
class Lease:
    """A lease that this process holds, with a thread that sends heartbeats.

    Into the folders that it `guards` only the holder may write. `previous` is a holder that never released it.
    """

    place: LeasePlace
    number: int
    holder: Holder
    name: str
    guards: Sequence[Path] = ()
    previous: Holder | None = None
    taken_over: bool = False

    def __post_init__(self) -> None:
        self.over, self.lock = threading.Event(), threading.Lock()
        for folder in self.guards:
            _leases_by_folder[folder.absolute()] = self
        self.thread = threading.Thread(target=self._send_heartbeats, name=f"lease {self.name}", daemon=True)
        self.thread.start()

    def _send_heartbeats(self) -> None:
        while not self.over.wait(BEAT_SECONDS) and not self.taken_over:
            with contextlib.suppress(Exception):  # a disk or a database may be back before the lease expires
                self.beat()

    def beat(self) -> None:
        """Send one heartbeat."""
        with self.lock:
            self.holder = replace(self.holder, beat=self.holder.beat + 1)
            self.taken_over = not self.place.write(self.holder.written()) or self.taken_over

    def check(self) -> None:
        """Raise LostError if another process took the lease over."""
        state = self.place.read()
        if not state.number:
            raise LostError(f"{self.name}: its lease was removed; it goes on with a new one")
        if state.number != self.number or (state.holder is not None and state.holder.token != self.holder.token):
            problem = "this process sent no heartbeat for so long that it was taken over by"
            raise LostError(f"{self.name}: {problem} {state.holder or UNKNOWN_HOLDER}")

    def staging_dir(self, folder: Path) -> Path:
        """Create and return the directory for new files of a guarded folder; raise LostError after a takeover."""
        self.check()
        staging = folder / f"{STAGING_PREFIX}{self.holder.token}"
        staging.mkdir(parents=True, exist_ok=True)
        return staging

    def release(self) -> None:
        """Release the lease; its file stays."""
        for folder in self.guards:
            if _leases_by_folder.get(folder.absolute()) is self:
                del _leases_by_folder[folder.absolute()]
            shutil.rmtree(folder / f"{STAGING_PREFIX}{self.holder.token}", ignore_errors=True)
        self.over.set()
        self.thread.join()
        self.holder = replace(self.holder, released=True)
        try:
            self.beat()
        except Exception:  # to others an unreleased lease is free once this process has exited
            _given_up.add(self.holder.token)
        self.place.close()


_given_up: set[str] = set()  # tokens of leases that this process may hold unknowingly, as a disk or database failed
_leases_by_folder: dict[Path, Lease] = {}  # the leases of this process, by the folders that they guard

os.register_at_fork(after_in_child=_leases_by_folder.clear)


def guarding_lease(folder: Path) -> Lease | None:
    """Return the lease of this process that guards a folder; None without one."""
    return _leases_by_folder.get(folder.absolute())


def try_acquire(
    place: Path | LeasePlace, guards: Sequence[Path] = (), monitor: LeaseMonitor | None = None, name: str = ""
) -> Lease | None:
    """Acquire a lease that is free, or has expired by its monitor; return None if another process holds it."""
    place, name = (LeaseFolder(place), place.name[:8]) if isinstance(place, Path) else (place, name)
    before = place.read()
    own = before.holder is not None and before.holder.token in _given_up
    if not (before.free() or own) and (monitor is None or not monitor.has_expired(before)):
        return None
    holder = Holder.this(secrets.token_hex(8))
    try:
        if not place.create(before.number + 1, holder.written()):
            return None
    except Exception:
        _given_up.add(holder.token)
        raise
    previous = before.holder if before.number and not (before.holder and before.holder.released) else None
    for guarded in guards:  # in which earlier holders left staging directories
        with contextlib.suppress(OSError):  # at once and by its name, whatever a cached listing says
            former = previous.token if previous is not None else ""
            os.rename(guarded / f"{STAGING_PREFIX}{former}", guarded / f"{STAGING_PREFIX}{holder.token}.gone")
        for staging in guarded.glob(f"{STAGING_PREFIX}*") if guarded.is_dir() else ():
            shutil.rmtree(staging, ignore_errors=True)
    return Lease(place, before.number + 1, holder, name, guards, previous)


@contextlib.contextmanager
def acquire(
    place: Path | LeasePlace, what: str, guards: Sequence[Path], say: LogLine, wait: bool = True
) -> Iterator[Lease]:
    """Hold a lease in the block, after waiting for it, which `say` reports; raise HeldError without `wait`."""
    reporter, monitor, pause = BackoffReporter(locks.FIRST_SECONDS), LeaseMonitor(), 0.01
    while (lease := try_acquire(place, guards, monitor, what)) is None:
        if not wait:
            raise HeldError(f"{what}: held by {current_holder(place) or UNKNOWN_HOLDER}")
        if reporter.should_report():
            say(f"waiting for {what}: held by {current_holder(place) or UNKNOWN_HOLDER}")
        time.sleep(min(pause, max(0.01, reporter.left)))
        pause = min(2 * pause, MAX_POLL_SECONDS)
    try:
        if lease.previous is not None and not lease.previous.has_exited():
            say(f"{what} is taken over: {lease.previous} sends no heartbeat")
        yield lease
    finally:
        lease.release()


def release_if_expired(folder: Path, monitor: LeaseMonitor, guards: Sequence[Path] = ()) -> Holder | str | None:
    """Release an expired lease; return its holder, a text for an unknown one, or None if it is free by now."""
    state = LeaseFolder(folder).read()
    if state.free():
        return None
    if not monitor.has_expired(state):
        return state.holder or UNKNOWN_HOLDER
    if (lease := try_acquire(folder, guards, monitor)) is not None:
        lease.release()
    return None
