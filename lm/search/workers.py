"""The processes that work on one study, on this machine or others: who is alive, and whose turn it is.

Each holds a lease, its seat, for as long as it works on the study, and writes the seat's token on every trial it asks
for. A trial that is running and whose token belongs to no living process is free: whoever comes by takes it up.
What reads the study and then changes it is done in a turn, a lease that one process holds at a time: so the budget is
kept, and nobody takes up what another has.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from lm.search.db_lease import DbLease, DbLeases
from lm.search.storage import ignore_storage_errors
from lm.store import locks
from lm.store.holders import NAMELESS, Found, Holder, Watch, look
from lm.store.leases import Lease, taken
from lm.store.locks import Patience

MUTEX = "turn"
"""The lease that is held for an instant; seats are numbered from 0."""

PAUSE_SECONDS = 0.5
"""At most, between two tries at a turn."""


class Leases(Protocol):
    """Where leases lie."""

    def look(self, name: str) -> Found: ...

    def take(self, name: str, watch: Watch) -> Lease | DbLease | None: ...


class FileLeases:
    """Leases in a folder beside a journal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def look(self, name: str) -> Found:
        return look(self.folder / name)

    def take(self, name: str, watch: Watch) -> Lease | None:
        return taken(self.folder / name, watch=watch)


def by(holder: Holder) -> str:
    """A process in few words."""
    return f"process {holder.pid} on host {holder.host}"


class StudyWorkers:
    """Those who work on a study, seen by one of them.

    Args:
        places: where its leases lie.
        say: told in a line whose turn is waited for.
    """

    def __init__(self, places: FileLeases | DbLeases, say: Callable[[str], None]) -> None:
        self.places: Leases = places
        self.say = say
        self.seat: Lease | DbLease | None = None
        self.number = 0
        self.tokens: set[str] = set()
        """Of all seats that this process has had."""
        self.watches: dict[str, Watch] = {}

    @contextlib.contextmanager
    def mutex(self) -> Iterator[None]:
        """Holds the turn, after waiting for who has it."""
        patience, watch, pause = Patience(locks.FIRST_SECONDS), Watch(), 0.005
        while (lease := self.places.take(MUTEX, watch)) is None:
            if patience.spent():
                self.say(f"waiting for a turn at the study: held by {self.places.look(MUTEX).holder or NAMELESS}")
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS)
        try:
            yield
        finally:
            with ignore_storage_errors():
                lease.release()

    def register(self) -> int:
        """Takes the first free seat, in a turn; returns its number, which no other living process has."""
        self.number = 0
        while True:
            name, number = str(self.number), self.number
            self.seat = self.places.take(name, self.watches.setdefault(name, Watch()))
            if self.seat is not None:
                self.tokens.add(self.seat.holder.token)
                return number
            self.number += 1

    def is_evicted(self) -> bool:
        """Whether this process showed no life for so long that another has its seat."""
        if self.seat is None:
            return True
        found = self.places.look(str(self.number)).holder
        return found is not None and found.token != self.seat.holder.token

    def signature(self) -> dict[str, Any]:
        """What is written on a trial that this process carries out."""
        assert self.seat is not None
        return {"token": self.seat.holder.token, "by": by(self.seat.holder)}

    def peers(self) -> dict[str, Holder]:
        """The living processes beside this one, by the tokens of their seats. Asked now and then, as it watches."""
        found: dict[str, Holder] = {}
        number = 0
        while (seen := self._seen(str(number))).number:
            watch = self.watches.setdefault(str(number), Watch())
            alive = seen.holder is not None and not seen.free() and not watch.lost(seen)
            if alive and seen.holder is not None and seen.holder.token not in self.tokens:
                found[seen.holder.token] = seen.holder
            number += 1
        return found

    def _seen(self, name: str) -> Found:
        """A lease with its holder's name, which on a network file system may be read while it is written."""
        for _ in range(3):
            seen = self.places.look(name)
            if not seen.number or seen.holder is not None:
                break
            time.sleep(0.01)
        return seen

    def unregister(self) -> None:
        """Gives up the seat: what this process has not ended is free."""
        if self.seat is not None:
            with ignore_storage_errors():
                self.seat.release()
            self.seat = None
