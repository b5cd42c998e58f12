"""What a killed command leaves in the folder for temporary files."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from lm.execution import temp_cleanup
from lm.execution.temp_cleanup import MARK, mark_owner, remove_stale_tempdirs, stale_tempdirs_removed
from lm.store import lease_holder

pytestmark = pytest.mark.skipif(not lease_holder.PROC.exists(), reason="nobody says when a process began")


def test_folders_of_killed_commands_go_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        patch.setattr(lease_holder, "_machine_digest", lambda: "00000000")
        mark_owner(elsewhere)
    mark_owner(tmp_path / "no such folder")
    remove_stale_tempdirs()
    kept = sorted(folder for folder in folders if folder != killed)
    assert sorted(tmp_path.iterdir()) == kept
    with stale_tempdirs_removed():  # of a command that is killed while this one is at work
        killed.mkdir()
        (killed / f"{MARK}{ended.pid}-1-{lease_holder._machine_digest()}").touch()
    assert sorted(tmp_path.iterdir()) == kept


def test_a_folder_that_goes_meanwhile_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folders = [tmp_path / f"pymp-{number}" for number in range(3)]
    for folder in folders:
        folder.mkdir()
        mark_owner(folder)

    def end(_: str) -> bool:  # all other commands end while one's folder is looked at
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        return False

    monkeypatch.setattr(temp_cleanup, "is_of_exited_process", end)
    remove_stale_tempdirs()
    assert list(tmp_path.iterdir()) == []
