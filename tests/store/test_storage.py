"""Disks that are full or fail."""

import errno
import os
import zipfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from messages import CheckMessage

from lm.store.files import (
    PARTIAL_CHECKPOINT,
    disk_error,
    explain_disk_error,
    is_intact,
    save_checkpoint,
    write_atomic,
)
from lm.training.adapter import InPlace

FULL = OSError(errno.ENOSPC, "No space left on device", "/out/x")


def test_the_disk_behind_an_error_is_found() -> None:
    wrapped = RuntimeError("cannot save")
    wrapped.__cause__ = FULL
    assert disk_error(FULL) is FULL
    assert disk_error(wrapped) is FULL
    for other in (RuntimeError("no"), OSError("no"), FileNotFoundError(errno.ENOENT, "no"), None):
        assert disk_error(other) is None
    circle = RuntimeError("a")
    circle.__cause__ = circle
    assert disk_error(circle) is None


@pytest.mark.parametrize(
    "error",
    [
        FULL,
        OSError(errno.EROFS, "Read-only file system", "/out/x"),
        OSError(errno.EFBIG, "File too large", "/out/x"),
        OSError(errno.EACCES, "Permission denied", "/out/x"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
    ],
    ids=["full", "read-only", "too large", "denied", "quota"],
)
def test_a_failing_disk_is_explained_in_a_line(check_message: CheckMessage, error: OSError) -> None:
    check_message(explain_disk_error(error, "the same command takes up where this one stopped"))


def test_a_full_disk_is_named_and_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_atomic(tmp_path / "a.json", "old")
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomic(tmp_path / "a.json", "new")
    assert caught.value.filename == str(tmp_path / "a.json")
    assert os.listdir(tmp_path) == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "old"


@pytest.mark.parametrize("umask", [0o002, 0o077])
def test_a_file_is_readable_by_whom_the_umask_allows(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_atomic(tmp_path / "a.json", "")
    finally:
        os.umask(before)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.parametrize("name", ["a.json", "last.ckpt"])
def test_a_file_is_on_the_disk_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    done: list[tuple[str, int]] = []
    replace = os.replace

    def sync_and_note(file: int) -> None:
        done.append(("sync", os.fstat(file).st_size))

    def rename_and_note(old: Path, new: Path) -> None:
        done.append(("rename", os.stat(old).st_size))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", sync_and_note)
    monkeypatch.setattr(os, "replace", rename_and_note)
    if name == "a.json":
        write_atomic(tmp_path / name, "content")
    else:
        save = partial(InPlace().save_checkpoint, {"weights": torch.zeros(3)})
        save_checkpoint(SimpleNamespace(save_checkpoint=save, is_global_zero=True, strategy=ALONE), tmp_path / name)
    size = (tmp_path / name).stat().st_size
    assert done == [("sync", size), ("rename", size)]


ALONE = SimpleNamespace(broadcast=lambda said: said)


def trainer(fails: bool = False) -> SimpleNamespace:
    """Saves a checkpoint as Lightning may: bit by bit."""

    def save_checkpoint(path: Path) -> None:
        path.write_bytes(b"PK")
        if fails:
            raise FULL
        torch.save({"weights": torch.arange(1000.0)}, path)

    return SimpleNamespace(save_checkpoint=save_checkpoint, is_global_zero=True, strategy=ALONE)


def test_a_checkpoint_is_there_whole_or_as_it_was_before(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    save_checkpoint(trainer(), path)
    assert os.listdir(tmp_path) == ["last.ckpt"]
    with pytest.raises(OSError, match="No space left") as caught:
        save_checkpoint(trainer(fails=True), path)
    assert caught.value.filename == str(path), "not the temporary file it was copied from"
    assert is_intact(path)
    assert sorted(os.listdir(tmp_path)) == ["last.ckpt", PARTIAL_CHECKPOINT]
    save_checkpoint(trainer(), path)
    assert os.listdir(tmp_path) == ["last.ckpt"]


@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "text", "missing"])
def test_a_checkpoint_that_is_not_what_was_written_is_known(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "last.ckpt"
    save_checkpoint(trainer(), path)
    assert is_intact(path)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as parts:
        largest = max(parts.infolist(), key=lambda part: part.file_size)
    middle = largest.header_offset + len(whole) // 2
    changed = {
        "empty": b"",
        "cut": whole[: len(whole) // 2],
        "changed": whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :],
        "text": b"no checkpoint",
        "missing": whole,
    }
    path.write_bytes(changed[damage])
    if damage == "missing":
        path.unlink()
    assert not is_intact(path)
