"""Processes that work on one study, on this machine or others: which are alive, and which holds the mutex.

Each process holds a lease, its slot, while it works on the study, and writes the slot's token on every trial that it
runs. A running trial whose token belongs to no living process is free: any process may resume it. Whatever reads the
study and then changes it holds the mutex, a lease of one process at a time: this keeps the budget, and no process
resumes the trial of another. Leases are files beside a journal, or rows in a database, with the rules of
`lm/store/leases.py`.
"""

import contextlib
import hashlib
import itertools
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, Text, insert, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from lm.search.storage import STORAGE_ERRORS, retry_create
from lm.store import leases as file_leases
from lm.store import locks
from lm.store.leases import Holder, Lease, LeaseMonitor, LeaseState, read_lease, try_acquire
from lm.store.locks import UNKNOWN_HOLDER, BackoffReporter

# table with one row per lease: the number counts its acquisitions, the content names its holder
TABLE = Table(
    "lm_leases",
    MetaData(),
    Column("name", String(128), primary_key=True),
    Column("number", Integer, nullable=False),
    Column("content", Text, nullable=False),
)


AGAIN_SECONDS = 1.0  # delay between two attempts to release a lease whose database does not answer


class DbLease:
    """A lease that this process holds, by the number of its acquisitions, with a thread that sends heartbeats."""

    def __init__(self, leases: "DbLeases", name: str, number: int, holder: Holder) -> None:
        self.leases, self.name, self.number, self.holder = leases, name, number, holder
        self.taken_over = False
        self.over = threading.Event()

        def live() -> None:
            while not self.over.wait(file_leases.BEAT_SECONDS) and not self.taken_over:
                self.beat()

        self.thread = threading.Thread(target=live, name=f"lease {name}", daemon=True)
        self.thread.start()

    def beat(self) -> bool:
        """Send a heartbeat; return False if the database did not answer."""
        self.holder = replace(self.holder, beat=self.holder.beat + 1)
        try:
            self.taken_over = not self.leases.replace(self.name, self.number, self.number, self.holder)
        except SQLAlchemyError:
            return False
        return True

    def release(self) -> None:
        """Release the lease; its row stays."""
        self.over.set()
        self.thread.join()
        self.holder = replace(self.holder, released=True)
        if not self.beat():  # other processes would wait for this one, which lives
            self.leases.given_up.add(self.holder.token)

            def release_later() -> None:
                while not self.beat():
                    time.sleep(AGAIN_SECONDS)

            threading.Thread(target=release_later, name=f"lease {self.name}", daemon=True).start()


class DbLeases:
    """Leases of a study in its database, whose table is created if it is missing."""

    def __init__(self, engine: Engine, study: str) -> None:
        self.engine = engine
        # tokens of leases that this process may hold unknowingly, as the database did not answer
        self.given_up: set[str] = set()
        self.study = hashlib.sha256(study.encode()).hexdigest()[:32]
        retry_create(lambda: TABLE.metadata.create_all(engine))

    def read(self, name: str) -> LeaseState:
        """Return the current state of a lease, number 0 if there never was one. Raises SQLAlchemyError."""
        query = select(TABLE.c.number, TABLE.c.content).where(TABLE.c.name == self._key(name))
        with self.engine.connect() as connection:
            row = connection.execute(query).first()
        return LeaseState(0) if row is None else LeaseState(int(row[0]), str(row[1]).encode())

    def try_acquire(self, name: str, watch: LeaseMonitor) -> DbLease | None:
        """Acquire a lease if it is free or expired as far as `watch` has seen; None if another process holds it."""
        before = self.read(name)
        own = before.holder is not None and before.holder.token in self.given_up
        if not before.free() and not own and not watch.has_expired(before):
            return None
        holder = Holder.this(secrets.token_hex(8))
        try:
            if not self.replace(name, before.number, before.number + 1, holder):
                return None
        except SQLAlchemyError:
            self.given_up.add(holder.token)
            raise
        return DbLease(self, name, before.number + 1, holder)

    def replace(self, name: str, before: int, number: int, holder: Holder) -> bool:
        """Write a row if it still has the number `before` (0: no row), as only one process can; return success."""
        content = holder.written().decode()
        with self.engine.begin() as connection:
            if before == 0:
                try:
                    connection.execute(insert(TABLE).values(name=self._key(name), number=number, content=content))
                except IntegrityError:
                    connection.rollback()
                    return False
                return True
            same = (TABLE.c.name == self._key(name)) & (TABLE.c.number == before)
            return connection.execute(update(TABLE).where(same).values(number=number, content=content)).rowcount == 1

    def _key(self, name: str) -> str:
        return f"{self.study}/{name}"


MUTEX = "turn"  # name of the lease of the mutex; slots are numbered from 0
PAUSE_SECONDS = 0.5  # longest delay between two attempts to get the mutex


class FileLeases:
    """Leases in a folder beside a journal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str) -> LeaseState:
        """Read the state of a lease."""
        return read_lease(self.folder / name)

    def try_acquire(self, name: str, watch: LeaseMonitor) -> Lease | None:
        """Take a lease if it is free; None where it is not."""
        return try_acquire(self.folder / name, monitor=watch)


def format_process(holder: Holder) -> str:
    """Format a process in few words."""
    return f"process {holder.pid} on host {holder.host}"


class StudyWorkers:
    """Processes that work on a study, as one of them sees them, which calls `say` when it waits for the mutex."""

    def __init__(self, leases: FileLeases | DbLeases, say: Callable[[str], None]) -> None:
        self.leases, self.say = leases, say
        self.slot: Lease | DbLease | None = None
        self.number = 0
        self.tokens: set[str] = set()  # tokens of all slots that this process has had
        self.watches: dict[str, LeaseMonitor] = {}

    @contextlib.contextmanager
    def mutex(self) -> Iterator[None]:
        """Hold the mutex of the study in the block, after waiting for its holder."""
        patience, watch, pause = BackoffReporter(locks.FIRST_SECONDS), LeaseMonitor(), 0.005
        while (lease := self.leases.try_acquire(MUTEX, watch)) is None:
            if patience.should_report():
                self.say(
                    f"waiting for the mutex of the study: held by {self.leases.read(MUTEX).holder or UNKNOWN_HOLDER}"
                )
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS)
        try:
            yield
        finally:
            with contextlib.suppress(*STORAGE_ERRORS):  # other processes notice the end of this one anyway
                lease.release()

    def register(self) -> int:
        """Take the first free slot, with the mutex held; return its number, which is unique among living processes."""
        for number in itertools.count():
            name = str(number)
            self.slot = self.leases.try_acquire(name, self.watches.setdefault(name, LeaseMonitor()))
            if self.slot is not None:
                self.number = number
                self.tokens.add(self.slot.holder.token)
                break
        return self.number

    def is_evicted(self) -> bool:
        """Return True if another process has the slot, as this one missed its heartbeats."""
        if self.slot is None:
            return True
        holder = self.leases.read(str(self.number)).holder
        return holder is not None and holder.token != self.slot.holder.token

    def signature(self) -> dict[str, Any]:
        """Return the token and the name that this process writes on its trials."""
        assert self.slot is not None
        return {"token": self.slot.holder.token, "by": format_process(self.slot.holder)}

    def peers(self) -> dict[str, Holder]:
        """Return the other living processes by token; call it periodically, as it watches their heartbeats."""
        peers: dict[str, Holder] = {}
        for name in map(str, itertools.count()):
            for _ in range(3):  # a network file system may show a lease half-written
                state = self.leases.read(name)
                if not state.number or (holder := state.holder) is not None:
                    break
                time.sleep(0.01)
            if not state.number:
                break
            watch = self.watches.setdefault(name, LeaseMonitor())
            if holder is not None and not state.free() and not watch.has_expired(state):
                peers[holder.token] = holder
        return {token: holder for token, holder in peers.items() if token not in self.tokens}

    def unregister(self) -> None:
        """Release the slot; running trials of this process are free."""
        if self.slot is not None:
            with contextlib.suppress(*STORAGE_ERRORS):
                self.slot.release()
            self.slot = None
