"""Disks that are full or fail."""

import errno
import os
import zipfile
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


def test_a_checkpoint_in_a_folder_takes_the_place_of_another(tmp_path: Path) -> None:
    def folder(path: Path) -> None:
        path.mkdir()
        (path / f"shard-{len(os.listdir(tmp_path))}").touch()

    for _ in range(2):
        save_checkpoint(
            SimpleNamespace(save_checkpoint=folder, is_global_zero=True, strategy=ALONE), tmp_path / "last.ckpt"
        )
    assert os.listdir(tmp_path) == ["last.ckpt"]
    assert os.listdir(tmp_path / "last.ckpt") == ["shard-2"]


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
