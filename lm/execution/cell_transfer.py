"""What a cell needs on a machine with which no disk is shared, and what comes back from there, as bytes in pieces."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lm.config.fingerprint import dotted_classes, sources
from lm.config.imported import imported, look_in
from lm.config.tree import InputError, path_name
from lm.data.cache import DamageError, cache_folder, filled
from lm.store.disk import SAVING
from lm.store.files import write_atomic
from lm.store.progress import FILE as PROGRESS
from lm.training.cell import Cell, identity
from lm.training.train import Execution

PIECE = 32 * 2**20
"""Bytes of a file that travel at a time."""

OWN = (SAVING, PROGRESS)
"""Files of a work folder of which another try knows nothing."""

Files = Sequence[tuple[str, Sequence[Any]]]
"""Names of files below a folder, with what their pieces can be had for."""


@dataclass(frozen=True)
class CellPackage:
    """A cell on its way.

    Args:
        cell: to be trained.
        execution: how.
        name: what people call it.
        text: the folder of the prepared text.
        work: what an earlier try left.
        code: a user's own modules by their names, each with its file's name and content.
    """

    cell: Cell
    execution: Execution
    name: str
    text: Files
    work: Files
    code: Sequence[tuple[str, str, bytes]]


# at the sender -------------------------------------------------------------------------------------------------------


def pieces(path: Path) -> Iterator[bytes]:
    """A file's content."""
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece


def files_below(folder: Path, put: Callable[[bytes], Any], leave: Sequence[str] = ()) -> Files:
    """All files in a folder but hidden ones, each piece handed to `put`."""
    if not folder.is_dir():
        return []
    names = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    wanted = [name for name in names if not _hidden(name) and str(name) not in leave]
    return [(name.as_posix(), [put(piece) for piece in pieces(folder / name)]) for name in wanted]


def code_of(cell: Cell) -> list[tuple[str, str, bytes]]:
    """The modules of a user's own that a cell takes, in the order of their names.

    Raises:
        InputError: where one was changed since the cell was planned.
    """
    found: dict[str, Path] = {}
    for name in dotted_classes(cell.config):
        found |= sources(imported(name, name))
    return [(module, path.name, path.read_bytes()) for module, path in sorted(found.items())]


# at the receiver -----------------------------------------------------------------------------------------------------


def unpack_cell(parcel: CellPackage, get: Callable[[Any], bytes], code: Path) -> Cell:
    """Puts down what came with a cell; returns the cell as it is to be trained here.

    Args:
        parcel: what has come.
        get: a piece, for what it can be had for.
        code: the folder for a user's own modules.

    Raises:
        InputError: where the cell is another one here, by the code or the version of this package.
    """
    for module, name, content in parcel.code:
        parts = module.split(".")
        path = code.joinpath(*(parts if name == "__init__.py" else parts[:-1]), name)
        if not path.is_file() or path.read_bytes() != content:  # one written anew would count as changed
            write_atomic(path, content)
    if parcel.code:
        look_in(code)
    cell = parcel.cell
    if cell.facts is not None and parcel.text:
        there = Path(cell.facts.folder)
        place = cache_folder() / path_name(there.parent.name, "text") / path_name(there.name, "text")
        filled(place, _there, lambda folder: unpack(parcel.text, get, folder))
        cell = replace(cell, facts=replace(cell.facts, folder=str(place.resolve())))
    return cell


def check_same(cell: Cell, host: str) -> None:
    """Raises InputError where this machine would compute another cell."""
    if identity(cell.config, cell.facts) != cell.id:
        raise InputError(
            f"{host}: would compute another cell than was planned; install there the version of lm that is installed "
            "here, and none of the modules that the configuration names"
        )


def _there(folder: Path) -> None:
    if not folder.is_dir():
        raise DamageError("missing")


def unpack(files: Files, get: Callable[[Any], bytes], folder: Path) -> None:
    """Writes files below a folder."""
    for name, parts in files:
        path = below(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.writelines(map(get, parts))


def below(folder: Path, name: str) -> Path:
    """Where a file of this name lies in a folder. Raises InputError for a name that leads elsewhere."""
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise InputError(f"file of a cell: {name!r} leads out of its folder")
    return folder.joinpath(*parts)


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


# what comes back -----------------------------------------------------------------------------------------------------


class Changes:
    """What has changed in the folder of a cell since it was looked at last."""

    MARKS = ("last.ckpt", "outcome.json")
    """Whose change is a reason to send everything."""

    def __init__(self) -> None:
        self.sent: dict[str, tuple[int, int, int]] = {}

    def sent_already(self, folder: Path) -> None:
        """What lies in the folder is known to the other side."""
        self.sent = {name: _stamp(folder / name) for name in self._names(folder)}

    def take(self, folder: Path, whole: bool) -> dict[str, bytes]:
        """Files that have changed, by their names; how far the cell is alone, unless there is a new checkpoint or the
        `whole` is asked for."""
        found: dict[str, bytes] = {}
        names = self._names(folder)
        stamps = {name: _stamp(folder / name) for name in names}
        changed = {name for name in names if self.sent.get(name) != stamps[name]}
        if not (whole or changed & set(self.MARKS)):
            changed &= {PROGRESS}
        for name in sorted(changed):
            try:
                found[name] = (folder / name).read_bytes()
            except FileNotFoundError:  # replaced or renamed meanwhile; the next look finds it
                continue
            self.sent[name] = stamps[name]
        return found

    def _names(self, folder: Path) -> list[str]:
        if not folder.is_dir():
            return []
        paths = [Path(place, name).relative_to(folder) for place, _, files in os.walk(folder) for name in files]
        return [path.as_posix() for path in paths if not _hidden(path) and SAVING not in path.parts]


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ino


def write_files(files: dict[str, bytes], folder: Path) -> None:
    """Writes what came back; that training has ended is said last, and the record after that."""
    last = ("outcome.json", "record.json")
    for name in sorted(files, key=lambda name: (name in last, name)):
        write_atomic(below(folder, name), files[name])


def forget_others(folder: Path, names: Iterable[str]) -> None:
    """Deletes what is not among these names."""
    kept = set(names)
    for path in sorted(folder.rglob("*"), reverse=True):
        name = path.relative_to(folder)
        if path.is_file() and not _hidden(name) and name.as_posix() not in kept:
            path.unlink()
