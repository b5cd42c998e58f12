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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lm.store import lease_holder, locks
from lm.store.lease_holder import Holder, LeaseMonitor, describe_holder, lease_numbers, parse_holder, read_lease
from lm.store.locks import UNKNOWN_HOLDER, BackoffReporter, LogLine

MAX_POLL_SECONDS = 1.0
"""Longest interval between two attempts of a process that waits."""

STAGING_PREFIX = ".writing-"
"""Prefix of the name of a holder's staging directory, in each folder that its lease guards."""


class HeldError(Exception):
    """Another process holds a lease for which the caller did not want to wait."""


class LostError(Exception):
    """This process lost its lease: it sent no heartbeat for so long that another process took it over."""


@dataclass(eq=False)
class Lease:
    """A lease that this process holds, with a thread that sends heartbeats.

    Into the folders that it `guards` only the holder may write. `previous` is a holder that never released it.
    """

    path: Path
    holder: Holder
    guards: Sequence[Path] = ()
    previous: Holder | None = None
    taken_over: bool = False
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.file = os.open(self.path, os.O_RDWR)
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self._send_heartbeats, name=f"lease {self.path.parent.name}", daemon=True)

    def start(self) -> None:
        """Start the heartbeats and guard the folders."""
        for folder in self.guards:
            _leases_by_folder[folder.absolute()] = self
        self.thread.start()

    def _send_heartbeats(self) -> None:
        while not self.over.wait(lease_holder.BEAT_SECONDS):
            with contextlib.suppress(OSError):  # a disk that fails may be back before the lease expires
                self.beat()

    def beat(self) -> None:
        """Send one heartbeat, into the file that this process created, wherever that is by now."""
        with self.lock:
            self.holder = replace(self.holder, beat=self.holder.beat + 1)
            os.pwrite(self.file, self.holder.written(), 0)
            if not self.holder.released:
                os.fsync(self.file)  # on a network file system others see no more than that

    def check(self) -> None:
        """Raise LostError if another process took the lease over."""
        try:
            holder = None if self.taken_over else parse_holder(self.path.read_bytes())
            self.taken_over = self.taken_over or (holder is not None and holder.token != self.holder.token)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):  # the latter of a network file system
                raise
            self.taken_over = True
        folder = self.path.parent
        if self.taken_over and not lease_numbers(folder):
            raise LostError(f"{folder.name[:8]}: its lease was removed; it goes on with a new one")
        if self.taken_over:
            problem = f"sent no heartbeat for so long that it was taken over by {describe_holder(folder)}"
            raise LostError(f"{folder.name[:8]}: this process {problem}")

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
        if self.thread.is_alive():
            self.thread.join()
        self.holder = replace(self.holder, released=True)
        with contextlib.suppress(OSError):  # to others an unreleased lease is free once this process has exited
            self.beat()
        os.close(self.file)


_leases_by_folder: dict[Path, Lease] = {}
"""The leases of this process, by the folders that they guard."""

os.register_at_fork(after_in_child=_leases_by_folder.clear)


def guarding_lease(folder: Path) -> Lease | None:
    """Return the lease of this process that guards a folder; None without one."""
    return _leases_by_folder.get(folder.absolute())


def try_acquire(folder: Path, guards: Sequence[Path] = (), monitor: LeaseMonitor | None = None) -> Lease | None:
    """Acquire a lease that is free, or has expired by its monitor; return None if another process holds it."""
    before = read_lease(folder)
    held = not before.free()
    if held and (monitor is None or not monitor.has_expired(before)):
        return None
    holder = Holder.this(secrets.token_hex(8))
    path = folder / str(before.number + 1)
    folder.mkdir(parents=True, exist_ok=True)
    if not _create_exclusively(path, holder.written()):
        return None
    if max(lease_numbers(folder), default=0) > before.number + 1:  # `before` was out of date
        path.unlink(missing_ok=True)
        return None
    for name in os.listdir(folder):  # left by processes that were killed, or came too late
        if name.startswith(".") or (name.isdecimal() and int(name) <= before.number):
            (folder / name).unlink(missing_ok=True)
    previous = before.holder if before.number and not (before.holder and before.holder.released) else None
    try:
        lease = Lease(path, holder, guards, previous)
    except FileNotFoundError:  # removed at once by somebody: nobody holds it, and the next attempt may succeed
        return None
    for guarded in guards:  # in which earlier holders left staging directories
        with contextlib.suppress(OSError):  # at once and by its name, whatever a cached listing says
            former = previous.token if previous is not None else ""
            os.rename(guarded / f"{STAGING_PREFIX}{former}", guarded / f"{STAGING_PREFIX}{holder.token}.gone")
        for staging in guarded.glob(f"{STAGING_PREFIX}*") if guarded.is_dir() else ():
            shutil.rmtree(staging, ignore_errors=True)
    lease.start()
    return lease


def _create_exclusively(path: Path, content: bytes) -> bool:
    """Create a file with its content and return True; return False if it exists. Network file systems do it too."""
    temporary = path.with_name(f".{secrets.token_hex(8)}")
    try:
        temporary.write_bytes(content)
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            with open(path, "xb") as file:
                file.write(content)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


@contextlib.contextmanager
def try_lease(folder: Path, guards: Sequence[Path] = ()) -> Iterator[Lease | None]:
    """Hold the lease of a folder in the block if it is free; yield None if another process holds it."""
    lease = try_acquire(folder, guards)
    try:
        yield lease
    finally:
        if lease is not None:
            lease.release()


@contextlib.contextmanager
def acquire(folder: Path, what: str, guards: Sequence[Path], say: LogLine, wait: bool = True) -> Iterator[Lease]:
    """Hold a lease in the block, after waiting for it, which `say` reports; raise HeldError without `wait`."""
    reporter, monitor, pause = BackoffReporter(locks.FIRST_SECONDS), LeaseMonitor(), 0.01
    while (lease := try_acquire(folder, guards, monitor)) is None:
        if not wait:
            raise HeldError(f"{what}: held by {describe_holder(folder)}")
        if reporter.should_report():
            say(f"waiting for {what}: held by {describe_holder(folder)}")
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
    state = read_lease(folder)
    if state.free():
        return None
    if not monitor.has_expired(state):
        return state.holder or UNKNOWN_HOLDER
    if (lease := try_acquire(folder, guards, monitor)) is not None:
        lease.release()
    return None
