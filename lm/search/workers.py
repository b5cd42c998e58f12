"""Processes that work on one study, on this machine or others: which are alive, and which holds the mutex.

Each process holds a lease, its slot, as long as it works on the study, and writes the token of the slot on every trial
that it runs. A running trial whose token belongs to no living process is free: any process may resume it. Whatever
reads the study and then changes it holds the mutex, a lease of one process at a time: this keeps the budget, and no
process resumes the trial of another.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from lm.search.db_lease import DbLease, DbLeases
from lm.search.storage import ignore_storage_errors
from lm.store import locks
from lm.store.lease_holder import UNKNOWN_HOLDER, Holder, LeaseMonitor, LeaseState, read_lease
from lm.store.leases import Lease, try_acquire
from lm.store.locks import BackoffReporter

MUTEX = "turn"
"""Name of the lease of the mutex; slots are numbered from 0."""

PAUSE_SECONDS = 0.5
"""Longest delay between two attempts to get the mutex."""


class Leases(Protocol):
    """Storage of leases."""

    def look(self, name: str) -> LeaseState: ...

    def take(self, name: str, watch: LeaseMonitor) -> Lease | DbLease | None: ...


class FileLeases:
    """Leases in a folder beside a journal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def look(self, name: str) -> LeaseState:
        return read_lease(self.folder / name)

    def take(self, name: str, watch: LeaseMonitor) -> Lease | None:
        return try_acquire(self.folder / name, monitor=watch)


def format_process(holder: Holder) -> str:
    """Format a process in few words."""
    return f"process {holder.pid} on host {holder.host}"


class StudyWorkers:
    """Processes that work on a study, as one of them sees them.

    Args:
        leases: storage of the leases.
        say: called with a line when the process waits for the mutex.
    """

    def __init__(self, leases: FileLeases | DbLeases, say: Callable[[str], None]) -> None:
        self.leases: Leases = leases
        self.say = say
        self.slot: Lease | DbLease | None = None
        self.number = 0
        self.tokens: set[str] = set()
        """Tokens of all slots that this process has had."""
        self.watches: dict[str, LeaseMonitor] = {}

    @contextlib.contextmanager
    def mutex(self) -> Iterator[None]:
        """Hold the mutex of the study in the block, after waiting for its holder."""
        patience, watch, pause = BackoffReporter(locks.FIRST_SECONDS), LeaseMonitor(), 0.005
        while (lease := self.leases.take(MUTEX, watch)) is None:
            if patience.should_report():
                self.say(f"waiting for a turn at the study: held by {self.leases.look(MUTEX).holder or UNKNOWN_HOLDER}")
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS)
        try:
            yield
        finally:
            with ignore_storage_errors():
                lease.release()

    def register(self) -> int:
        """Take the first free slot, with the mutex held; return its number, which is unique among living processes."""
        self.number = 0
        while True:
            name, number = str(self.number), self.number
            self.slot = self.leases.take(name, self.watches.setdefault(name, LeaseMonitor()))
            if self.slot is not None:
                self.tokens.add(self.slot.holder.token)
                return number
            self.number += 1

    def is_evicted(self) -> bool:
        """Return True if another process has the slot, as this one missed its heartbeats."""
        if self.slot is None:
            return True
        holder = self.leases.look(str(self.number)).holder
        return holder is not None and holder.token != self.slot.holder.token

    def signature(self) -> dict[str, Any]:
        """Return the token and the name that this process writes on its trials."""
        assert self.slot is not None
        return {"token": self.slot.holder.token, "by": format_process(self.slot.holder)}

    def peers(self) -> dict[str, Holder]:
        """Return the other living processes by token; call it periodically, as it watches their heartbeats."""
        peers: dict[str, Holder] = {}
        number = 0
        while (state := self._read_lease(str(number))).number:
            watch = self.watches.setdefault(str(number), LeaseMonitor())
            alive = state.holder is not None and not state.free() and not watch.has_expired(state)
            if alive and state.holder is not None and state.holder.token not in self.tokens:
                peers[state.holder.token] = state.holder
            number += 1
        return peers

    def _read_lease(self, name: str) -> LeaseState:
        """Return the state of a lease with its holder; a network file system may show it half-written."""
        for _ in range(3):
            state = self.leases.look(name)
            if not state.number or state.holder is not None:
                break
            time.sleep(0.01)
        return state

    def unregister(self) -> None:
        """Release the slot; running trials of this process are free."""
        if self.slot is not None:
            with ignore_storage_errors():
                self.slot.release()
            self.slot = None
