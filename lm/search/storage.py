"""Where a study lies: a journal or a database, opened, repaired, and waited for where it does not answer."""

import contextlib
import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from optuna.exceptions import StorageInternalError
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from sqlalchemy import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

from lm.config.plain import shown
from lm.config.tree import InputError, nearest, require_place
from lm.search.db_lease import retry_create
from lm.search.spec import SweepSpec
from lm.store.redaction import redacted

TROUBLE = (StorageInternalError, SQLAlchemyError, OSError)
"""Raised where a storage does not answer, which it may again."""

WAIT_SECONDS = 120.0
"""A storage that does not answer is waited for."""

DAMAGED = ("database disk image is malformed", "file is not a database")
"""What SQLite says of a file that no waiting mends."""

TRY_SECONDS = 1.0
"""Between two tries."""

T = TypeVar("T")


def journal(spec: SweepSpec, folder: Path) -> Path | None:
    """The journal file that a study lies in, or None where it lies in a database."""
    if spec.storage is None:
        return folder / "study.journal"
    if "://" not in spec.storage:
        return Path(spec.storage)
    known = ("sqlite", "postgresql", "mysql")
    scheme = spec.storage.partition("://")[0].partition("+")[0]
    if scheme not in known:
        raise InputError(
            f"storage: no kind {scheme!r}.{nearest(scheme, known)} "
            f"Give a URL of {', '.join(known)}, or the path of a journal file"
        )
    return None


def check_storage(spec: SweepSpec, folder: Path) -> None:
    """Refuses a storage that cannot be opened; nothing is made or opened. Raises InputError."""
    path = journal(spec, folder)
    if path is not None:
        require_place(path, "storage" if spec.storage else "--out")
        return
    name = shown(redacted(str(spec.storage)))
    try:
        url = _url(str(spec.storage))
        url.get_dialect().import_dbapi()
    except ImportError as error:
        extra = "; it comes with the extra postgres" if "postgresql" in str(spec.storage) else ""
        raise InputError(f"storage: {name}: its driver is not installed: {error}{extra}") from None
    except Exception as error:  # SQLAlchemy's own, and what its parsing of numbers raises
        raise InputError(f"storage: {name}: no URL of a database: {redacted(str(error))}") from None
    if url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:"):
        require_place(Path(str(url.database)), "storage")


def _url(text: str) -> URL:
    """PostgreSQL is spoken to by psycopg, unless a URL names another driver or only another is installed."""
    url = make_url(text)
    if url.drivername == "postgresql" and importlib.util.find_spec("psycopg"):
        return url.set(drivername="postgresql+psycopg")
    return url


def _engine(url: URL) -> dict[str, Any]:
    """Options that let a lost connection, or a host that has gone, be noticed within half a minute."""
    if url.get_backend_name() != "postgresql":
        return {"pool_pre_ping": True}
    settled = {"connect_timeout": 10, "keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3}
    return {"pool_pre_ping": True, "connect_args": {k: v for k, v in settled.items() if k not in url.query}}


def open_storage(spec: SweepSpec, path: Path | None) -> JournalStorage | RDBStorage:
    """The storage of a study: its journal at `path`, or its database. Raises InputError where it cannot be opened."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return JournalStorage(Backend(path))
        except (InputError, OSError):
            raise
        except Exception as error:  # Optuna checks little of what it reads: a damaged line may raise anything
            what = _one_line(error) or type(error).__name__
            raise InputError(
                f"{path}: is damaged, or not the journal of a study: {what}; move the file away to begin again"
            ) from None
    url = _url(str(spec.storage))
    try:
        return retry_create(lambda: RDBStorage(url.render_as_string(hide_password=False), engine_kwargs=_engine(url)))
    except Exception as error:  # SQLAlchemy's and each driver's own
        raise InputError(f"storage: {describe_location(spec, path)}: cannot be opened: {_one_line(error)}") from None


def describe_location(spec: SweepSpec, path: Path | None) -> str:
    """Where a study lies, for people to read."""
    return str(path) if path is not None else redacted(str(spec.storage))


def _one_line(error: BaseException) -> str:
    """What went wrong, as the driver says it: Optuna says the same of everything."""
    cause = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ else error
    return redacted(" ".join(str(getattr(cause, "orig", None) or cause).split())[:200]).rstrip(". ")


# journals ------------------------------------------------------------------------------------------------------------


class Backend(JournalFileBackend):
    """A journal in which no line is appended to one that was torn: Optuna would never read the file again."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()  # the link that is Optuna's lock would lead nowhere from its own folder
        self.lock = JournalFileSymlinkLock(str(self.path))
        super().__init__(str(self.path), self.lock)
        if not _readable(path):
            with self.locked():
                repair(path)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Adds lines, whole or not at all. Raises OSError where they cannot be written."""
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        with self.locked():
            if _torn(self.path):
                repair(self.path)
            with self.path.open("ab") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the journal against all others; who was killed while it did so loses it after half a minute."""
        self.lock.acquire()
        try:
            yield
        finally:
            self.lock.release()


def _torn(path: Path) -> bool:
    """Whether a journal ends in the middle of a line."""
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _readable(path: Path) -> bool:
    with path.open("rb") as file:
        return all(_whole(line) for line in file)


def _whole(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and isinstance(json.loads(line), dict)
    except ValueError:
        return False


def repair(path: Path) -> int:
    """Cuts a last line that was torn by a kill off a journal; returns the bytes it cost.

    Left there, the next line would be appended to it and the file never be read again. Who calls it holds the
    journal's lock: to anybody else a line that is being written looks the same.

    Raises:
        InputError: where an unreadable line is followed by readable ones, which must not be thrown away.
    """
    content = path.read_bytes() if path.is_file() else b""
    good = 0
    for number, line in enumerate(content.splitlines(keepends=True), 1):
        if _whole(line):
            good += len(line)
        elif good + len(line) < len(content):
            raise InputError(
                f"{path}:{number}: not a line of a study's journal, and whole lines follow; "
                "take that line out, or move the file away to begin again"
            )
    if good < len(content):
        os.truncate(path, good)
    return len(content) - good


# waiting -------------------------------------------------------------------------------------------------------------


class RetryingStorage:
    """Does what a storage is needed for again and again, until it answers or the time is up.

    What is done must come to the same when it is begun again after it failed in the middle.

    Args:
        name: of the storage, without passwords.
        say: told in a line what is waited for.
    """

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self.name = name
        self.say = say
        self.given_up = False

    def __call__(self, operation: Callable[[], T]) -> T:
        """What `operation` returns. Raises InputError where the storage is damaged, or gives no answer for too long."""
        since, told = time.monotonic(), False
        while True:
            try:
                found = operation()
            except TROUBLE as error:
                if any(words in _one_line(error) for words in DAMAGED):
                    raise InputError(
                        f"storage: {self.name}: is damaged: {_one_line(error)}; move it away to begin again"
                    ) from None
                lasted = time.monotonic() - since
                if self.given_up or lasted > WAIT_SECONDS:
                    self.given_up = True
                    raise InputError(
                        f"storage: {self.name}: gave no answer for {lasted:z.0f} s: {_one_line(error)}; "
                        "the same command goes on where it stopped"
                    ) from None
                if not told:
                    self.say(f"waiting up to {WAIT_SECONDS:z.0f} s for {self.name}: {_one_line(error)}")
                    told = True
                time.sleep(TRY_SECONDS)
                continue
            if told:
                self.say(f"{self.name} answers again")
            return found


@contextlib.contextmanager
def ignore_storage_errors() -> Iterator[None]:
    """For what need not succeed: a storage that does not answer finds out by itself that this process has gone."""
    with contextlib.suppress(*TROUBLE):
        yield
