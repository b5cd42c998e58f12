"""Transfer of a cell and its results to and from a machine without a shared disk, as bytes in pieces."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lm.config.fingerprint import dotted_classes, source_files
from lm.config.imported import add_module_folder, import_object
from lm.config.tree import InputError, path_name
from lm.data.cache import DamageError, cache_folder, ensure_entry
from lm.store.files import PARTIAL_CHECKPOINT, write_atomic
from lm.store.side_files import PROGRESS_FILE as PROGRESS
from lm.training.cell import Cell, identity
from lm.training.train import Execution

PIECE = 32 * 2**20
"""Bytes of a file that are sent at a time."""

OWN = (PARTIAL_CHECKPOINT, PROGRESS)
"""Files of a work folder that are not sent, as they belong to one attempt."""

Files = Sequence[tuple[str, Sequence[Any]]]
"""Names of files below a folder, each with the references of its pieces."""


@dataclass(frozen=True)
class CellPackage:
    """A cell with all that another machine needs to train it.

    Args:
        cell: to be trained.
        execution: settings of training.
        name: of the cell in lines for the user.
        text: files of the prepared text.
        work: files of an earlier attempt.
        code: user modules by name, each with the name and content of its file.
    """

    cell: Cell
    execution: Execution
    name: str
    text: Files
    work: Files
    code: Sequence[tuple[str, str, bytes]]


# at the sender -------------------------------------------------------------------------------------------------------


def pieces(path: Path) -> Iterator[bytes]:
    """Yield the content of a file in pieces."""
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece


def files_below(folder: Path, put: Callable[[bytes], Any], leave: Sequence[str] = ()) -> Files:
    """Pass each piece of the files in a folder, except hidden ones, to `put`."""
    if not folder.is_dir():
        return []
    names = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    selected = [name for name in names if not _hidden(name) and str(name) not in leave]
    return [(name.as_posix(), [put(piece) for piece in pieces(folder / name)]) for name in selected]


def code_of(cell: Cell) -> list[tuple[str, str, bytes]]:
    """Return the user modules of a cell, sorted by name.

    Raises:
        InputError: if one has changed since the cell was planned.
    """
    files: dict[str, Path] = {}
    for name in dotted_classes(cell.config):
        files |= source_files(import_object(name, name))
    return [(module, path.name, path.read_bytes()) for module, path in sorted(files.items())]


# at the receiver -----------------------------------------------------------------------------------------------------


def unpack_cell(package: CellPackage, get: Callable[[Any], bytes], code: Path) -> Cell:
    """Write the files of a package, and return the cell with the paths of this machine.

    Args:
        package: that was sent.
        get: returns a piece from its reference.
        code: folder for the user modules.

    Raises:
        InputError: if the code or the version of this package makes it another cell.
    """
    for module, name, content in package.code:
        parts = module.split(".")
        path = code.joinpath(*(parts if name == "__init__.py" else parts[:-1]), name)
        if not path.is_file() or path.read_bytes() != content:  # a file written again would count as changed
            write_atomic(path, content)
    if package.code:
        add_module_folder(code)
    cell = package.cell
    if cell.facts is not None and package.text:
        source = Path(cell.facts.folder)
        folder = cache_folder() / path_name(source.parent.name, "text") / path_name(source.name, "text")
        ensure_entry(folder, _check_exists, lambda staging: unpack(package.text, get, staging))
        cell = replace(cell, facts=replace(cell.facts, folder=str(folder.resolve())))
    return cell


def check_same(cell: Cell, host: str) -> None:
    """Check that this machine would compute the same cell. Raises InputError."""
    if identity(cell.config, cell.facts) != cell.id:
        raise InputError(
            f"{host}: would compute another cell than was planned; install there the version of lm that is installed "
            "here, and none of the modules that the configuration names"
        )


def _check_exists(folder: Path) -> None:
    """Raise DamageError if the folder does not exist."""
    if not folder.is_dir():
        raise DamageError("missing")


def unpack(files: Files, get: Callable[[Any], bytes], folder: Path) -> None:
    """Write files below a folder."""
    for name, parts in files:
        path = below(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.writelines(map(get, parts))


def below(folder: Path, name: str) -> Path:
    """Return the path of a file in a folder. Raises InputError for a name that leads elsewhere."""
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise InputError(f"file of a cell: {name!r} leads out of its folder")
    return folder.joinpath(*parts)


def _hidden(path: Path) -> bool:
    """Return True if a part of the path begins with a dot."""
    return any(part.startswith(".") for part in path.parts)


# what comes back -----------------------------------------------------------------------------------------------------


class Changes:
    """Changes in the folder of a cell since the last call."""

    MARKS = ("last.ckpt", "outcome.json")
    """Files whose change is a reason to send all changes."""

    def __init__(self) -> None:
        self.sent: dict[str, tuple[int, int, int]] = {}

    def mark_sent(self, folder: Path) -> None:
        """Record that the other side has the files in the folder."""
        self.sent = {name: _stamp(folder / name) for name in self._names(folder)}

    def take(self, folder: Path, whole: bool) -> dict[str, bytes]:
        """Return the changed files: the progress alone, unless there is a new checkpoint or `whole` is set."""
        contents: dict[str, bytes] = {}
        names = self._names(folder)
        stamps = {name: _stamp(folder / name) for name in names}
        changed = {name for name in names if self.sent.get(name) != stamps[name]}
        if not (whole or changed & set(self.MARKS)):
            changed &= {PROGRESS}
        for name in sorted(changed):
            try:
                contents[name] = (folder / name).read_bytes()
            except FileNotFoundError:  # replaced or renamed meanwhile; the next call sends it
                continue
            self.sent[name] = stamps[name]
        return contents

    def _names(self, folder: Path) -> list[str]:
        if not folder.is_dir():
            return []
        paths = [Path(parent, name).relative_to(folder) for parent, _, files in os.walk(folder) for name in files]
        return [path.as_posix() for path in paths if not _hidden(path) and PARTIAL_CHECKPOINT not in path.parts]


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return 0, 0, 0
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def write_files(files: dict[str, bytes], folder: Path) -> None:
    """Write received files, the outcome last but one and the record last."""
    last = ("outcome.json", "record.json")
    for name in sorted(files, key=lambda name: (name in last, name)):
        write_atomic(below(folder, name), files[name])


def delete_other_files(folder: Path, names: Iterable[str]) -> None:
    """Delete all files but those of these names."""
    expected = set(names)
    for path in sorted(folder.rglob("*"), reverse=True):
        name = path.relative_to(folder)
        if path.is_file() and not _hidden(name) and name.as_posix() not in expected:
            path.unlink()
