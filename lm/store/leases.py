"""Leases: what one process holds against all others, on any machine that sees the folder, for as long as it shows life.

A lease on something is a folder of numbered files. The file with the highest number is the lease that counts: it names
its holder, which writes a counter into it every few seconds. Whoever may have the next lease makes the file with the
next number, which only one can; so nobody can take away a lease that another has just got. The file stays when it is
let go of, marked as released.

What has been let go of is free, and so is what a process of this machine held that has ended. Any other holder is
watched: it has lost the lease when nothing changes in the file for a while, by the clock of who watches. Clocks of two
machines are never compared.

Who has lost a lease finds out before it puts a file into a folder that the lease guards. It writes every file into a
room of its own there, looks whether it still holds the lease, and moves the file. Its successor takes the room away
after the lease and before anything else, so that what was stopped between the look and the move finds nothing to move.
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

from lm.store import holders, locks
from lm.store.holders import NAMELESS, Holder, Watch, holder_of, look, numbers, parsed
from lm.store.locks import Patience, Say

LOOK_SECONDS = 1.0
"""At most, between two looks of one who waits."""

ROOM = ".writing-"
"""Begins the name of the folder, in one that is guarded, in which a holder writes its files."""


class HeldError(Exception):
    """Another process holds what was not to be waited for."""


class LostError(Exception):
    """This process no longer holds what it held: it showed no life for so long that another took it over."""


@dataclass(eq=False)
class Lease:
    """A lease that this process holds, with a thread that shows life.

    Args:
        path: its file.
        holder: what it says.
        guards: folders into which only the holder may put files.
        gone: the holder before it, which never let go of it.
    """

    path: Path
    holder: Holder
    guards: Sequence[Path] = ()
    gone: Holder | None = None
    lost: bool = False
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.file = os.open(self.path, os.O_RDWR)
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self._live, name=f"lease {self.path.parent.name}", daemon=True)

    def begin(self) -> None:
        """Begins to show life, and to guard what it guards."""
        for folder in self.guards:
            _guarding[folder.absolute()] = self
        self.thread.start()

    def _live(self) -> None:
        while not self.over.wait(holders.BEAT_SECONDS):
            with contextlib.suppress(OSError):  # a disk that fails may be back before anybody takes this for death
                self.beat()

    def beat(self) -> None:
        """A sign of life. It is written into the file that was made, wherever that is by now."""
        with self.lock:
            self.holder = replace(self.holder, beat=self.holder.beat + 1)
            os.pwrite(self.file, self.holder.written(), 0)
            if not self.holder.released:
                os.fsync(self.file)  # on a network file system others see no more than that

    def check(self) -> None:
        """Raises LostError where another has taken over."""
        if not self.lost:
            try:
                found = parsed(self.path.read_bytes())
                self.lost = found is not None and found.token != self.holder.token
            except FileNotFoundError:
                self.lost = True
            except OSError as error:
                if error.errno != errno.ESTALE:  # of a network file system, whose file is gone
                    raise
                self.lost = True
        if self.lost and not numbers(self.path.parent):
            raise LostError(f"{self.path.parent.name[:8]}: its lease was removed; it goes on with a new one")
        if self.lost:
            raise LostError(
                f"{self.path.parent.name[:8]}: this process showed no life for so long that it was taken over by "
                f"{holder_of(self.path.parent)}"
            )

    def room(self, folder: Path) -> Path:
        """Where files for a guarded folder are written first; made where it is missing. Raises LostError."""
        self.check()
        room = folder / f"{ROOM}{self.holder.token}"
        room.mkdir(parents=True, exist_ok=True)
        return room

    def release(self) -> None:
        """Lets go of it; the file stays."""
        for folder in self.guards:
            if _guarding.get(folder.absolute()) is self:
                del _guarding[folder.absolute()]
            if (folder / f"{ROOM}{self.holder.token}").is_dir():
                shutil.rmtree(folder / f"{ROOM}{self.holder.token}", ignore_errors=True)
        self.over.set()
        if self.thread.is_alive():
            self.thread.join()
        self.holder = replace(self.holder, released=True)
        with contextlib.suppress(OSError):  # who finds it unreleased finds its process ended, or silent
            self.beat()
        os.close(self.file)


_guarding: dict[Path, Lease] = {}
"""The leases that this process holds, by the folders that they guard."""

os.register_at_fork(after_in_child=_guarding.clear)


def guarding(folder: Path) -> Lease | None:
    """The lease of this process that guards a folder."""
    return _guarding.get(folder.absolute())


def taken(folder: Path, guards: Sequence[Path] = (), watch: Watch | None = None) -> Lease | None:
    """The lease of a folder if it is free, or lost as far as `watch` has seen; None where another holds it."""
    before = look(folder)
    lost = not before.free()
    if lost and (watch is None or not watch.lost(before)):
        return None
    holder = Holder.this(secrets.token_hex(8))
    path = folder / str(before.number + 1)
    folder.mkdir(parents=True, exist_ok=True)
    if not _made(path, holder.written()):
        return None
    if max(numbers(folder), default=0) > before.number + 1:  # what was seen was old
        path.unlink(missing_ok=True)
        return None
    for name in os.listdir(folder):  # what others left who were killed, or are too late
        if name.startswith(".") or (name.isdecimal() and int(name) <= before.number):
            (folder / name).unlink(missing_ok=True)
    gone = before.holder if before.number and not (before.holder and before.holder.released) else None
    try:
        lease = Lease(path, holder, guards, gone)
    except FileNotFoundError:  # somebody removed it at once: nobody holds it, and whoever looks again may
        return None
    for guarded in guards:
        _evict(guarded, gone, holder.token)
    lease.begin()
    return lease


def _made(path: Path, content: bytes) -> bool:
    """Makes a file with its content, which exactly one can; on network file systems too."""
    aside = path.with_name(f".{secrets.token_hex(8)}")
    try:
        aside.write_bytes(content)
        try:
            os.link(aside, path)
            return True
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            pass
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(file, "wb") as made:
            made.write(content)
        return True
    finally:
        aside.unlink(missing_ok=True)


def _evict(folder: Path, gone: Holder | None, token: str) -> None:
    """Takes away the rooms of those who held a guarded folder before."""
    aside = folder / f"{ROOM}{token}.gone"
    if gone is not None:
        with contextlib.suppress(OSError):  # at once and by its name, whatever a cached listing says
            os.rename(folder / f"{ROOM}{gone.token}", aside)
    for room in folder.glob(f"{ROOM}*") if folder.is_dir() else ():
        shutil.rmtree(room, ignore_errors=True)


@contextlib.contextmanager
def if_free(folder: Path, guards: Sequence[Path] = ()) -> Iterator[Lease | None]:
    """Holds the lease of a folder if nobody else does."""
    lease = taken(folder, guards)
    try:
        yield lease
    finally:
        if lease is not None:
            lease.release()


@contextlib.contextmanager
def leased(folder: Path, what: str, guards: Sequence[Path], say: Say, wait: bool = True) -> Iterator[Lease]:
    """Holds the lease of a folder after waiting for who holds it, who may lose it meanwhile; says so where it lasts.

    Raises:
        HeldError: where it is held, and there is to be no waiting.
    """
    patience, watch, pause = Patience(locks.FIRST_SECONDS), Watch(), 0.01
    while (lease := taken(folder, guards, watch)) is None:
        if not wait:
            raise HeldError(f"{what}: held by {holder_of(folder)}")
        if patience.spent():
            say(f"waiting for {what}: held by {holder_of(folder)}")
        time.sleep(min(pause, max(0.01, patience.left)))
        pause = min(2 * pause, LOOK_SECONDS)
    try:
        if lease.gone is not None and not lease.gone.dead():
            say(f"{what} is taken over: {lease.gone} shows no life")
        yield lease
    finally:
        lease.release()


def free_lost(folder: Path, watch: Watch, guards: Sequence[Path] = ()) -> Holder | str | None:
    """Looks at a lease that another holds. Returns its holder, in words; None once it is free, or was lost and is."""
    found = look(folder)
    if found.free():
        return None
    if not watch.lost(found):
        return found.holder or NAMELESS
    if (lease := taken(folder, guards, watch)) is not None:
        lease.release()
    return None
