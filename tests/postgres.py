"""A PostgreSQL server of a test's own, on a port of this machine, gone when the test is over."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

PASSWORD = "not-to-be-shown"

USERS = ("postgres", "nobody")
"""As one of whom the server runs where this process is root's, which PostgreSQL refuses."""


class Postgres:
    """A server that runs in a folder, on a port of this machine."""

    def __init__(self, programs: Path, folder: Path, user: str | None) -> None:
        self.programs, self.folder, self.user = programs, folder, user
        self.port = free_port()
        secret = folder / "password"
        secret.write_text(PASSWORD, encoding="utf-8")
        if user is not None:
            owner = pwd.getpwnam(user)
            for path in (folder, secret):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        self.call("initdb", "-U", "tester", "--auth=scram-sha-256", f"--pwfile={secret}", "-N", "-D", self.data)
        self.control("start")

    @property
    def data(self) -> str:
        """The folder of its data."""
        return str(self.folder / "data")

    def call(self, program: str, *arguments: str) -> None:
        """Runs one of its programs. Raises CalledProcessError where that fails."""
        subprocess.run(
            [str(self.programs / program), *arguments],
            check=True,
            user=self.user,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            timeout=120,
        )

    def control(self, what: str) -> None:
        """Starts, stops or restarts it; at once, as if the machine had lost its power."""
        options = f"-p {self.port} -h 127.0.0.1 -k {self.folder} -c fsync=off"
        how = ["-m", "immediate"] if what != "start" else []
        begin = ["-o", options] if what != "stop" else []
        self.call("pg_ctl", what, "-w", "-D", self.data, "-l", str(self.folder / "log"), *how, *begin)

    @property
    def url(self) -> str:
        """Its database, for a sweep's `storage`."""
        return f"postgresql://tester:{PASSWORD}@127.0.0.1:{self.port}/postgres"


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def programs() -> Path | None:
    """The folder of PostgreSQL's programs; None where there are none."""
    found = [Path(path).resolve() for path in (shutil.which("initdb"),) if path]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


def _others() -> list[str]:
    names = {entry.pw_name for entry in pwd.getpwall()}
    return [name for name in USERS if name in names]


@contextlib.contextmanager
def serving() -> Iterator[Postgres]:
    """A running server; skips the test where there is none to be had."""
    pytest.importorskip("psycopg", reason="needs the extra postgres")
    found, root = programs(), os.geteuid() == 0
    if found is None or (root and not _others()):
        pytest.skip("needs PostgreSQL: apt-get install postgresql, and a user beside root, as whom it runs")
    folder = Path(tempfile.mkdtemp(prefix="lm-postgres-"))
    try:
        server = Postgres(found, folder, _others()[0] if root else None)
        try:
            yield server
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):
                server.control("stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
