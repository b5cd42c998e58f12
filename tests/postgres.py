"""A PostgreSQL server of a test's own, on a port of this machine, gone when the test is over."""

import contextlib
from collections.abc import Iterator

import pytest
from faults import database
from faults.database import PASSWORD, Postgres

__all__ = ["PASSWORD", "Postgres", "serving"]


@contextlib.contextmanager
def serving() -> Iterator[Postgres]:
    """A running server; skips the test where there is none to be had."""
    if reason := database.no_server():
        pytest.skip(reason)
    with database.serving() as server:
        yield server
