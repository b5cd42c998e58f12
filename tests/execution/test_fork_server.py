"""The fork server: what it starts with, and what a killed command leaves in the folder for temporary files."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from helpers import Patch

from lm.execution import fork_server
from lm.execution.fork_server import MARK, make_tempdir, mark_owner, remove_stale_tempdirs, stale_tempdirs_removed
from lm.store import leases

names_processes = pytest.mark.skipif(not leases.PROC.exists(), reason="nobody says when a process began")


@names_processes
def test_only_folders_of_killed_commands_are_removed(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folders = [tmp_path / f"pymp-{name}" for name in ("mine", "another's", "killed", "elsewhere")]
    for folder in folders:
        folder.mkdir()
        (folder / "listener").touch()
    mine, _, killed, elsewhere = folders
    mark_owner(mine)
    ended = subprocess.Popen(["true"])
    ended.wait()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: ended.pid)
        mark_owner(killed)
        patch.setattr(leases, "_machine_digest", lambda: "00000000")
        mark_owner(elsewhere)
    mark_owner(tmp_path / "no such folder")
    made = make_tempdir("named")
    assert made.name.startswith("pymp-named-")
    folders.append(made)
    remove_stale_tempdirs()
    kept = sorted(folder for folder in folders if folder != killed)
    assert sorted(tmp_path.iterdir()) == kept
    with stale_tempdirs_removed():  # of a command that is killed while this one is at work
        killed.mkdir()
        (killed / f"{MARK}{ended.pid}-1-{leases._machine_digest()}").touch()
    assert sorted(tmp_path.iterdir()) == kept


@names_processes
def test_a_folder_removed_meanwhile_is_no_error(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folders = [tmp_path / f"pymp-{number}" for number in range(3)]
    for folder in folders:
        folder.mkdir()
        mark_owner(folder)

    def end(_: str) -> bool:  # all other commands end while one's folder is looked at
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        return False

    monkeypatch.setattr(fork_server, "is_of_exited_process", end)
    remove_stale_tempdirs()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
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
