"""Leases in a database: rows instead of files, with the rules of `lm/store/leases.py`."""

import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, Text, insert, select, update
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError

from lm.store import lease_holder
from lm.store.lease_holder import Holder, LeaseMonitor, LeaseState

TABLE = Table(
    "lm_leases",
    MetaData(),
    Column("name", String(128), primary_key=True),
    Column("number", Integer, nullable=False),
    Column("content", Text, nullable=False),
)
"""Table with one row per lease: the number counts its acquisitions, the content names its holder."""


AGAIN_SECONDS = 1.0
"""Delay between two attempts to release a lease whose database does not answer."""


TRIES, PAUSE_SECONDS = 12, 0.25
"""Attempts to create the tables of a database, and the delay between two."""

T = TypeVar("T")


def retry_create(make: Callable[[], T]) -> T:
    """Call `make` until no other process creates the same tables at the same time; return its result."""
    for left in reversed(range(TRIES)):
        try:
            return make()
        except Exception as error:
            errors = (error, error.__cause__, error.__context__)  # Optuna raises its own from SQLAlchemy's
            is_conflict = any(
                isinstance(cause, IntegrityError | ProgrammingError | OperationalError) for cause in errors
            )
            if not (left and is_conflict and "already exist" in f"{error} {error.__cause__}"):
                raise
        time.sleep(PAUSE_SECONDS)
    raise AssertionError("the last try returns or raises")


class DbLease:
    """A lease that this process holds, with a thread that sends heartbeats.

    Args:
        leases: of the study.
        name: of the lease.
        number: of its acquisitions, this one included.
        holder: written into the row.
    """

    def __init__(self, leases: "DbLeases", name: str, number: int, holder: Holder) -> None:
        self.leases, self.name, self.number, self.holder = leases, name, number, holder
        self.lost = False
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._live, name=f"lease {name}", daemon=True)
        self.thread.start()

    def _live(self) -> None:
        """Send heartbeats until the lease is released or lost."""
        while not self.over.wait(lease_holder.BEAT_SECONDS) and not self.lost:
            self.beat()

    def beat(self) -> bool:
        """Send a heartbeat; return False if the database did not answer."""
        self.holder = replace(self.holder, beat=self.holder.beat + 1)
        try:
            self.lost = not self.leases.replace(self.name, self.number, self.number, self.holder)
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
            threading.Thread(target=self._release_later, name=f"lease {self.name}", daemon=True).start()

    def _release_later(self) -> None:
        """Retry the release until the database answers."""
        while not self.beat():
            time.sleep(AGAIN_SECONDS)


class DbLeases:
    """Leases of a study in its database.

    Args:
        engine: of the database; the table is created if it is missing.
        study: name of the study.
    """

    def __init__(self, engine: Engine, study: str) -> None:
        self.engine = engine
        self.given_up: set[str] = set()
        """Tokens of leases that this process may hold unknowingly, as the database did not answer."""
        self.study = hashlib.sha256(study.encode()).hexdigest()[:32]
        retry_create(lambda: TABLE.metadata.create_all(engine))

    def look(self, name: str) -> LeaseState:
        """Return the current state of a lease, number 0 if there never was one. Raises SQLAlchemyError."""
        query = select(TABLE.c.number, TABLE.c.content).where(TABLE.c.name == self._key(name))
        with self.engine.connect() as connection:
            row = connection.execute(query).first()
        return LeaseState(0) if row is None else LeaseState(int(row[0]), str(row[1]).encode())

    def take(self, name: str, watch: LeaseMonitor) -> DbLease | None:
        """Acquire a lease if it is free or expired as far as `watch` has seen; None if another process holds it."""
        before = self.look(name)
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
