"""Leases in a database: rows instead of files, with the same rules as in `lm/store/leases.py`."""

import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, Text, insert, select, update
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError

from lm.store import holders
from lm.store.holders import Found, Holder, Watch

TABLE = Table(
    "lm_leases",
    MetaData(),
    Column("name", String(128), primary_key=True),
    Column("number", Integer, nullable=False),
    Column("content", Text, nullable=False),
)
"""A lease a row: the number counts how often it was taken, the content names its holder."""


AGAIN_SECONDS = 1.0
"""Between two tries at letting go of a lease whose database does not answer."""


TRIES, PAUSE_SECONDS = 12, 0.25
"""At making the tables of a database."""

T = TypeVar("T")


def retry_create(make: Callable[[], T]) -> T:
    """What `make` returns once it gets through: two processes that make tables at once get into each other's way."""
    for left in reversed(range(TRIES)):
        try:
            return make()
        except Exception as error:
            about = (error, error.__cause__, error.__context__)  # Optuna raises its own from SQLAlchemy's
            taken = any(isinstance(one, IntegrityError | ProgrammingError | OperationalError) for one in about)
            if not (left and taken and "already exist" in f"{error} {error.__cause__}"):
                raise
        time.sleep(PAUSE_SECONDS)
    raise AssertionError("the last try returns or raises")


class DbLease:
    """A lease that this process holds, with a thread that shows life.

    Args:
        rows: the leases of a study.
        name: of this one.
        number: how often it was taken, this time included.
        holder: what it says.
    """

    def __init__(self, rows: "DbLeases", name: str, number: int, holder: Holder) -> None:
        self.rows, self.name, self.number, self.holder = rows, name, number, holder
        self.lost = False
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._live, name=f"lease {name}", daemon=True)
        self.thread.start()

    def _live(self) -> None:
        while not self.over.wait(holders.BEAT_SECONDS) and not self.lost:
            self.beat()

    def beat(self) -> bool:
        """A sign of life; says whether it was written: a database that does not answer may when the next is due."""
        self.holder = replace(self.holder, beat=self.holder.beat + 1)
        try:
            self.lost = not self.rows.replaced(self.name, self.number, self.number, self.holder)
        except SQLAlchemyError:
            return False
        return True

    def release(self) -> None:
        """Lets go of it; the row stays."""
        self.over.set()
        self.thread.join()
        self.holder = replace(self.holder, released=True)
        if not self.beat():  # others would wait for a process that lives
            self.rows.given_up.add(self.holder.token)
            threading.Thread(target=self._release_later, name=f"lease {self.name}", daemon=True).start()

    def _release_later(self) -> None:
        while not self.beat():
            time.sleep(AGAIN_SECONDS)


class DbLeases:
    """The leases of a study in its database.

    Args:
        engine: of the database; the table is made where it is missing.
        study: its name.
    """

    def __init__(self, engine: Engine, study: str) -> None:
        self.engine = engine
        self.given_up: set[str] = set()
        """Tokens of leases that this process may hold without knowing, as its database did not answer."""
        self.study = hashlib.sha256(study.encode()).hexdigest()[:32]
        retry_create(lambda: TABLE.metadata.create_all(engine))

    def look(self, name: str) -> Found:
        """The lease that counts now; number 0 where there never was one. Raises SQLAlchemyError."""
        asked = select(TABLE.c.number, TABLE.c.content).where(TABLE.c.name == self._key(name))
        with self.engine.connect() as connection:
            row = connection.execute(asked).first()
        return Found(0) if row is None else Found(int(row[0]), str(row[1]).encode())

    def take(self, name: str, watch: Watch) -> DbLease | None:
        """The lease if it is free, or lost as far as `watch` has seen; None where another holds it."""
        before = self.look(name)
        own = before.holder is not None and before.holder.token in self.given_up
        if not before.free() and not own and not watch.lost(before):
            return None
        holder = Holder.this(secrets.token_hex(8))
        try:
            if not self.replaced(name, before.number, before.number + 1, holder):
                return None
        except SQLAlchemyError:
            self.given_up.add(holder.token)
            raise
        return DbLease(self, name, before.number + 1, holder)

    def replaced(self, name: str, before: int, number: int, holder: Holder) -> bool:
        """Writes a row if it still has the number `before`, as only one process can; 0 where there is to be none."""
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
