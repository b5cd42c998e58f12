"""Folders of results that others made: nothing in them may lead a reader, or a writer, to files outside."""

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from lm.config.tree import InputError


def require_own(out: Path, names: Sequence[str]) -> None:
    """Raises InputError where what lies below a folder is not its own: a link that leads out of it, a pipe, a device.

    A link that stays inside is followed, and what it leads to is looked at too. The folder itself may be a link:
    whoever named it knows it.

    Args:
        out: the folder, which nothing may lead out of.
        names: of what in it is looked at, down to the last file; what is not there is no fault.
    """
    top, seen = os.path.realpath(out), set[str]()
    waiting = [os.path.join(top, name) for name in names]
    while waiting:
        place = waiting.pop()
        if os.path.islink(place):
            real = os.path.realpath(place)
            if os.path.commonpath((real, top)) != top:
                raise InputError(
                    f"{_shown(place, top, out)}: is a link that leads out of {out}; expected a folder that holds its "
                    "own files: put what it leads to in its place"
                )
            place = real
        if place not in seen:
            seen.add(place)
            waiting += _below(place, top, out)


def _below(place: str, top: str, out: Path) -> Iterator[str]:
    """The folders and links in a folder."""
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.is_symlink() or entry.is_dir(follow_symlinks=False):
                    yield entry.path
                elif not entry.is_file(follow_symlinks=False) and _strange(entry.path):
                    raise InputError(f"{_shown(entry.path, top, out)}: is neither a file nor a folder; remove it")
    except OSError:  # not there, no folder, or not to be read: who reads it says so
        return


def _strange(path: str) -> bool:
    """Whether something is a pipe, a socket or a device, and still there."""
    try:
        return not stat.S_ISREG(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def _shown(place: str, top: str, out: Path) -> Path:
    """A place below a folder, as whoever named the folder would name it."""
    return out / os.path.relpath(place, top)
