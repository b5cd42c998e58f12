"""Processes that work on one study, on this machine or others: which are alive, and which holds the mutex.

Each process holds a lease, its slot, while it works on the study, and writes the slot's token on every trial that it
runs. A running trial whose token belongs to no living process is free: any process may resume it. Whatever reads the
study and then changes it holds the mutex, a lease of one process at a time: this keeps the budget, and no process
resumes the trial of another. Leases are files beside a journal, or rows in a database, with the rules of
`lm/store/leases.py`.
"""

import hashlib
import itertools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, Text, insert, select, update
from sqlalchemy.exc import IntegrityError

from lm.search.storage import retry_create
from lm.store.leases import Lease, LeaseMonitor, LeasePlace, LeaseState, acquire, try_acquire
from lm.store.locks import Holder

# table with one row per lease: the number counts its acquisitions, the content names its holder
TABLE = Table(
    "lm_leases",
    MetaData(),
    Column("name", String(128), primary_key=True),
    Column("number", Integer, nullable=False),
    Column("content", Text, nullable=False),
)


class LeaseRow:
    """A row of the table, whose number counts the acquisitions of the lease."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine, self.name, self.number = engine, name, 0

    def read(self) -> LeaseState:
        """Read the row; its number is 0 if there never was one. Raises SQLAlchemyError."""
        query = select(TABLE.c.number, TABLE.c.content).where(TABLE.c.name == self.name)
        with self.engine.connect() as connection:
            row = connection.execute(query).first()
        return LeaseState(0) if row is None else LeaseState(int(row[0]), str(row[1]).encode())

    def create(self, number: int, content: bytes) -> bool:
        """Count the number up, if it is the next one. Raises SQLAlchemyError."""
        self.number = number
        if number > 1:
            return self._replace(number - 1, content)
        try:
            with self.engine.begin() as connection:
                connection.execute(insert(TABLE).values(name=self.name, number=number, content=content.decode()))
        except IntegrityError:
            return False
        return True

    def write(self, content: bytes) -> bool:
        """Write the row if it still has the number of this lease. Raises SQLAlchemyError."""
        return self._replace(self.number, content)

    def close(self) -> None:
        """Do nothing: the row stays."""

    def _replace(self, before: int, content: bytes) -> bool:
        same = (TABLE.c.name == self.name) & (TABLE.c.number == before)
        with self.engine.begin() as connection:
            change = update(TABLE).where(same).values(number=self.number, content=content.decode())
            return connection.execute(change).rowcount == 1


def row_leases(engine: Engine, study: str) -> Callable[[str], LeasePlace]:
    """Return the places of the leases of a study by name in its database, whose table is created if it is missing."""
    retry_create(lambda: TABLE.metadata.create_all(engine))
    prefix = hashlib.sha256(study.encode()).hexdigest()[:32]
    return lambda name: LeaseRow(engine, f"{prefix}/{name}")


MUTEX = "turn"  # name of the lease of the mutex; slots are numbered from 0


def format_process(holder: Holder) -> str:
    """Format a process in few words."""
    return f"process {holder.pid} on host {holder.host}"


class StudyWorkers:
    """Processes that work on a study, as one of them sees them, which calls `say` when it waits for the mutex."""

    def __init__(self, place: Callable[[str], LeasePlace], say: Callable[[str], None]) -> None:
        self.place, self.say = place, say  # of a lease by its name
        self.slot: Lease | None = None
        self.number = 0
        self.tokens: set[str] = set()  # tokens of all slots that this process has had
        self.watches: dict[str, LeaseMonitor] = {}

    def mutex(self) -> AbstractContextManager[Lease]:
        """Return a context manager that holds the mutex of the study, after waiting for its holder."""
        return acquire(self.place(MUTEX), "the mutex of the study", (), self.say)

    def register(self) -> int:
        """Take the first free slot, with the mutex held; return its number, which is unique among living processes."""
        for number in itertools.count():
            name = str(number)
            self.slot = try_acquire(self.place(name), monitor=self.watches.setdefault(name, LeaseMonitor()), name=name)
            if self.slot is not None:
                self.number = number
                self.tokens.add(self.slot.holder.token)
                break
        return self.number

    def is_evicted(self) -> bool:
        """Return True if another process has the slot, as this one missed its heartbeats."""
        if self.slot is None:
            return True
        holder = self.place(str(self.number)).read().holder
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
                state = self.place(name).read()
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
            self.slot.release()
            self.slot = None
