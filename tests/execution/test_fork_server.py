"""The fork server: what it starts with."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from helpers import Patch
from messages import Refused

from lm.execution import fork_server
from lm.store.locks import process_status


@pytest.mark.extra
def test_the_server_sets_the_folder_of_compiled_code_before_torch(tmp_path: Path) -> None:
    """It also leaves Ctrl-C to the command."""
    code = """
import os, signal, sys
class Seen(dict):
    def find_spec(self, name, *_):
        self.setdefault(name, os.environ.get("TORCHINDUCTOR_CACHE_DIR"))
seen = Seen()
sys.meta_path.insert(0, seen)
import lm.execution.forkserver_preload
print(seen["torch"], signal.getsignal(signal.SIGINT) is signal.SIG_IGN, "lm.model.position" in sys.modules)
"""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TORCHINDUCTOR")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={**kept, "LM_CACHE": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(tmp_path / "inductor"), "True", "True"]


def test_ctrl_c_is_blocked_until_the_server_ignores_it(monkeypatch: Patch) -> None:
    blocked: list[bool] = []
    see = lambda: blocked.append(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))  # noqa: E731
    monkeypatch.setattr("multiprocessing.forkserver.ensure_running", see)
    monkeypatch.setattr("multiprocessing.resource_tracker.ensure_running", lambda: None)
    fork_server.start_fork_server()
    see()
    assert blocked == [True, False]


def test_a_folder_too_long_for_a_socket_is_named(tmp_path: Path, monkeypatch: Patch, refused: Refused) -> None:
    def bind() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{tempfile.gettempdir()}/{'x' * 200}")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("multiprocessing.forkserver.ensure_running", bind)
    with refused():
        fork_server.start_fork_server()


@pytest.mark.slow
def test_a_server_that_still_imports_ends_with_its_command(tmp_path: Path) -> None:
    code = """
import sys
from multiprocessing import forkserver
from pathlib import Path
from lm.execution.fork_server import start_fork_server
start_fork_server()
Path(sys.argv[1]).write_text(str(forkserver._forkserver._forkserver_pid))
"""
    quiet = subprocess.DEVNULL  # a pipe would be read to its end, which is that of the server
    subprocess.run([sys.executable, "-c", code, tmp_path / "pid"], stdout=quiet, stderr=quiet, check=True, timeout=30)
    pid, deadline = int((tmp_path / "pid").read_text()), time.monotonic() + 1  # its imports take longer
    while process_status(pid) not in (None, "Z") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process_status(pid) in (None, "Z")
