"""Storage of studies in a journal or a database: opened, repaired, and retried while it does not answer."""

import importlib.util
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from optuna.exceptions import StorageInternalError
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from sqlalchemy import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

from lm.config.plain import shown
from lm.config.tree import InputError, nearest, require_place
from lm.search.spec import SweepSpec
from lm.store.redaction import redacted

STORAGE_ERRORS = (StorageInternalError, SQLAlchemyError, OSError)  # of a storage that may answer later

WAIT_SECONDS = 120.0  # time limit of the retries
DAMAGED = ("database disk image is malformed", "file is not a database")  # SQLite's, of a file no retry mends

TRY_SECONDS = 1.0  # delay between two attempts

T = TypeVar("T")

TRIES, PAUSE_SECONDS = 12, 0.25  # attempts to create the tables of a database, and the delay between two


def retry_create(make: Callable[[], T]) -> T:
    """Call `make` until no other process creates the same tables at the same time; return its result."""
    for left in reversed(range(TRIES)):
        try:
            return make()
        except Exception as error:
            if not left or "already exist" not in f"{error} {error.__cause__}":
                raise
        time.sleep(PAUSE_SECONDS)
    raise AssertionError("the last try returns or raises")


def journal(spec: SweepSpec, folder: Path) -> Path | None:
    """Return the journal file of a study, None if it is in a database."""
    if spec.storage is None:
        return folder / "study.journal"
    if "://" not in spec.storage:
        return Path(spec.storage)
    schemes, scheme = ("sqlite", "postgresql", "mysql"), spec.storage.partition("://")[0].partition("+")[0]
    if scheme not in schemes:
        hint = f"{nearest(scheme, schemes)} Give a URL of {', '.join(schemes)}, or the path of a journal file"
        raise InputError(f"storage: no kind {scheme!r}.{hint}")
    return None


def check_storage(spec: SweepSpec, folder: Path) -> None:
    """Check that a storage can be opened, without opening or creating it. Raises InputError."""
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
    """Return a URL; PostgreSQL gets psycopg, unless another driver is named or alone installed."""
    url = make_url(text)
    if url.drivername == "postgresql" and importlib.util.find_spec("psycopg"):
        return url.set(drivername="postgresql+psycopg")
    return url


def open_storage(spec: SweepSpec, path: Path | None) -> JournalStorage | RDBStorage:
    """Open the storage of a study: the journal at `path`, or the database. Raises InputError on failure."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return JournalStorage(Backend(path))
        except OSError:
            raise
        except Exception as error:  # Optuna checks little of what it reads: a damaged line may raise anything
            what = _one_line(error) or type(error).__name__
            line = f"is damaged, or not the journal of a study: {what}; move the file away to start a new study"
            raise InputError(f"{path}: {line}") from None
    url, options = _url(str(spec.storage)), dict[str, Any](pool_pre_ping=True)
    if url.get_backend_name() == "postgresql":  # detects a lost connection or host within half a minute
        defaults = {"connect_timeout": 10, "keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3}
        options["connect_args"] = {key: value for key, value in defaults.items() if key not in url.query}
    try:
        return retry_create(lambda: RDBStorage(url.render_as_string(hide_password=False), engine_kwargs=options))
    except Exception as error:  # SQLAlchemy's and each driver's own
        raise InputError(f"storage: {describe_location(spec, path)}: cannot be opened: {_one_line(error)}") from None


def describe_location(spec: SweepSpec, path: Path | None) -> str:
    """Return where a study is, for messages."""
    return str(path) if path is not None else redacted(str(spec.storage))


def _one_line(error: BaseException) -> str:
    """Return the cause as the driver words it: Optuna has one message for everything."""
    cause = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ else error
    return redacted(" ".join(str(getattr(cause, "orig", None) or cause).split())[:200]).rstrip(". ")


class Backend(JournalFileBackend):
    """Journal in which no line is appended to one that a kill has torn: Optuna could never read the file again."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()  # the link that is Optuna's lock would lead nowhere from its own folder
        self.lock = JournalFileSymlinkLock(str(self.path))  # a killed holder loses it after half a minute
        super().__init__(str(self.path), self.lock)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append lines, all or none. Raises OSError if they cannot be written."""
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        self.lock.acquire()
        try:
            with self.path.open("r+b") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
                if file.read() not in (b"", b"\n"):
                    file.seek(0)
                    file.truncate(file.read().rfind(b"\n") + 1)
                    file.seek(0, os.SEEK_END)
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        finally:
            self.lock.release()


class RetryingStorage:
    """Callable that repeats a repeatable operation on a storage until it succeeds, or the time is up."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self.name, self.say, self.given_up = name, say, False

    def __call__(self, operation: Callable[[], T]) -> T:
        """Return the result of `operation`. Raises InputError if the storage is damaged, or does not answer in time."""
        start, reported = time.monotonic(), False
        while True:
            try:
                result = operation()
            except STORAGE_ERRORS as error:
                line, elapsed = _one_line(error), time.monotonic() - start
                if any(words in line for words in DAMAGED):
                    hint = f"is damaged: {line}; move it away to start a new study"
                    raise InputError(f"storage: {self.name}: {hint}") from None
                if self.given_up or elapsed > WAIT_SECONDS:
                    self.given_up = True
                    hint = f"{elapsed:z.0f} s: {line}; the same command resumes where this one stopped"
                    raise InputError(f"storage: {self.name}: did not answer for {hint}") from None
                if not reported:
                    self.say(f"waiting up to {WAIT_SECONDS:z.0f} s for {self.name}: {line}")
                    reported = True
                time.sleep(TRY_SECONDS)
                continue
            if reported:
                self.say(f"{self.name} answers again")
            return result
