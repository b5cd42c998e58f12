"""Disks that are full, cannot be written to or give back what they were not given: no result of any run."""

import errno
import os
import shutil
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

from lm.config.tree import InputError
from lm.store.leases import guarding

FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
BROKEN = frozenset((*FULL, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE))
"""What a disk may do to a run at any time."""

REFUSED = frozenset((errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG))
"""What keeps a file from being written until somebody changes what was asked for, or what lies there."""


def trouble(error: BaseException | None) -> OSError | None:
    """The failure of a disk behind an error, if there is one."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, OSError) and error.errno in BROKEN:
            return error
        seen.add(id(error))
        error = error.__cause__
    return None


def named(error: OSError, path: object) -> OSError:
    """The error with the file that it is about, which the system leaves out where writing fails."""
    return OSError(error.errno, error.strerror or str(error), str(path))


def temporary_folder() -> str:
    """Return the folder for temporary files. Raises InputError where none of those that the system has can be used."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        tried = error.strerror.partition("[")[2].rstrip("]") if error.strerror else ""
        raise InputError(
            f"TMPDIR: temporary files can be written nowhere, tried {tried or 'all folders there are'}; make room, or "
            "name a folder that can be written to, as in TMPDIR=/var/tmp"
        ) from None


def explain(error: OSError, then: str) -> str:
    """The error in a line: where, what, and what to do about it; `then` says what the same command would do next."""
    where = "" if error.filename is None else f"{error.filename}: "
    room = "; make room" if error.errno in FULL else ""
    if error.errno == errno.EFBIG:
        room = "; allow larger files: `ulimit -f` shows the limit, and a file system may have one"
    again = f"; {then}" if error.errno in BROKEN else ""
    return f"{where}{error.strerror}{room}{again}"


# checkpoints ---------------------------------------------------------------------------------------------------------

SAVING = "saving.ckpt"
"""A checkpoint not yet written to its end."""

BEFORE = "before.ckpt"
"""The checkpoint before, while one that is a folder takes its place: no folder can be replaced in one step."""


def discard(path: Path) -> None:
    """Leaves no file and no folder at `path`."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def put(found: Path, path: Path) -> None:
    """Puts a checkpoint, a file or a folder, in the place of the one at `path`; `put_back` undoes half of it."""
    if not (path.is_dir() or found.is_dir()):
        os.replace(found, path)
        return
    before = path.with_name(BEFORE)
    discard(before)
    if path.exists():
        os.replace(path, before)
    os.replace(found, path)
    discard(before)


def put_back(path: Path) -> None:
    """Leaves the checkpoint before at `path`, where the one that was to take its place did not come to lie there."""
    before = path.with_name(BEFORE)
    if before.exists() and not path.exists():
        os.replace(before, path)
    discard(before)


def save(trainer: Any, path: Path) -> None:
    """Leaves a Lightning checkpoint at `path`, whole or not at all: Lightning may copy it there from another disk.

    Raises:
        LostError: where a lease of this process guards the folder, and another has taken it over.
    """
    lease = guarding(path.parent)  # of the first process, alone
    room = path.parent if lease is None else lease.room(path.parent)
    try:
        if trainer.is_global_zero:
            discard(room / SAVING)  # of a try that was killed
        saving = Path(trainer.strategy.broadcast(str(room / SAVING)))
        trainer.save_checkpoint(saving)
        if trainer.is_global_zero:
            if lease is not None:
                lease.check()
            put(saving, path)
    except OSError as error:  # of a copy, the second file is the one being written
        if lease is not None and isinstance(error, FileNotFoundError):
            lease.check()
        raise named(error, error.filename2 or path) from error


def intact(path: Path) -> bool:
    """Whether a checkpoint is what was written: torch keeps a check sum of each of its parts."""
    try:
        with zipfile.ZipFile(path) as parts:
            return parts.testzip() is None
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError):
        return False
