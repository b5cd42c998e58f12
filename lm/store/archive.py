"""Packs: one file that holds many small ones, and the files that it may hold.

A pack is a zip file whose bytes depend on its files alone. `pack.json` in it says which files there are; their contents
lie one after another in a few members, each of one kind, compressed as a whole with xz, so that what cells have in
common is stored once. Contents are kept as they are, byte for byte. Whoever made a pack, nothing in it is run, and none
of it reaches a path or a size that was not checked before.
"""

import contextlib
import fnmatch
import io
import json
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lm.config.tree import InputError, nearest, path_name, require_regular
from lm.store.documents import FILE, TEST_FILE, file_of
from lm.store.files import DISK_ERRORS, to_json, write_atomic
from lm.store.formats import PACK
from lm.store.record import PackManifest
from lm.store.store import LOG
from lm.store.thin_curves import THIN_NAME
from lm.store.validation import check_shape

ENDING = ".lmpack"
INDEX = "pack.json"
KINDS = ("manifests", "records", "configurations", "curves", "others")
"""Kinds of files; the member `<kind>.xz` holds those of a kind."""

LARGEST = 2 << 30  # bytes of a pack's files together
LARGEST_FILE = 256 << 20
LARGEST_INDEX = 64 << 20
MEMORY = 256 << 20  # bytes that decompression may take
FAULTS = (zipfile.BadZipFile, lzma.LZMAError, zlib.error, struct.error, EOFError)
DAMAGE = (*FAULTS, RuntimeError, ValueError, LookupError, OverflowError)
"""Errors of reading a zip file that is damaged, cut short or made to deceive."""


@dataclass(frozen=True)
class Archive:
    """A pack whose index was read and checked."""

    path: Path
    name: str  # of the experiment, the search or the ladder in it
    members: dict[str, list[tuple[str, int]]]  # the files of each kind in order: their paths, and their sizes in bytes

    @property
    def files(self) -> list[str]:
        """The paths of all files, `cells/ID/record.json` or `NAME/experiment.json`."""
        return [name for files in self.members.values() for name, _ in files]

    @property
    def cells(self) -> list[str]:
        """The ids of the cells, each of which has a record."""
        return list(dict.fromkeys(name.split("/")[1] for name in self.files if name.startswith(f"{CELLS}/")))

    def contents(self, *kinds: str) -> Iterator[tuple[str, bytes]]:
        """Yield the path and content of every file, or of those of some kinds. Raises InputError for a damaged pack."""
        with _damage_explained(self.path), zipfile.ZipFile(self.path) as parts:
            for kind in [kind for kind in self.members if not kinds or kind in kinds]:
                decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
                total, at = sum(size for _, size in self.members[kind]), 0
                whole = decompressor.decompress(parts.read(f"{kind}.xz"), total + 1)  # whatever it was compressed from
                for name, size in self.members[kind]:
                    if at + size > len(whole):
                        raise InputError(f"{self.path}: is damaged: {kind}.xz ends within {name}")
                    yield name, whole[at : at + size]
                    at += size
                if len(whole) > total or not decompressor.eof or decompressor.unused_data:
                    raise InputError(f"{self.path}: is damaged: {kind}.xz holds more than its files, or is cut short")

    def extract(self, folder: Path) -> None:
        """Write every file below an empty folder. Raises InputError where the pack is damaged."""
        for name, content in self.contents():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "xb") as file:
                file.write(content)


@contextlib.contextmanager
def _damage_explained(path: Path) -> Iterator[None]:
    """Turn the errors of reading a damaged file into an InputError of one line."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_ERRORS or error.filename not in (None, path, str(path)):
            raise  # of the disk, or of a file that is written meanwhile
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except DAMAGE as error:
        raise InputError(f"{path}: is damaged, or no pack: {error or type(error).__name__}") from None


def write_archive(path: Path, name: str, files: Mapping[str, tuple[str, Path | bytes]]) -> Archive:
    """Write a pack, whole or not at all; the same contents give the same bytes.

    `files` has for each path in the pack its kind, one of KINDS, and its path on disk or content. Raises InputError if
    a file cannot be read, or the pack would be one that is refused when it is read.
    """
    members: dict[str, list[tuple[str, int]]] = {}
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED) as parts:
        for kind in [kind for kind in KINDS if any(of == kind for of, _ in files.values())]:
            compressor, members[kind] = lzma.LZMACompressor(lzma.FORMAT_XZ), []
            with parts.open(_member(f"{kind}.xz"), "w", force_zip64=True) as member:
                for inside, source in sorted((inside, source) for inside, (of, source) in files.items() if of == kind):
                    content = source if isinstance(source, bytes) else b""
                    if isinstance(source, Path):
                        with _damage_explained(source):
                            require_regular(source)
                            content = source.read_bytes()
                    member.write(compressor.compress(content))
                    members[kind].append((inside, len(content)))
                member.write(compressor.flush())
        index = PackManifest(format=PACK.version, name=name, members=members)
        check_index(index, path)
        parts.writestr(_member(INDEX), to_json(PACK.stamped(index)), zipfile.ZIP_DEFLATED)
    write_atomic(path, whole.getvalue())
    return Archive(path, name, members)


def _member(name: str) -> zipfile.ZipInfo:
    """Return the metadata of a member, the same on all machines and at all times."""
    member = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    member.create_system, member.external_attr = 3, 0o644 << 16
    return member


def looks_like_pack(path: Path) -> bool:
    """Return True if a file claims to be a pack, by its name or its first bytes."""
    if path.name.endswith(ENDING) or not os.path.isfile(path):
        return os.path.isfile(path)
    with open(path, "rb") as file:
        return file.read(4) == b"PK\3\4"


def read_archive(path: Path) -> Archive:
    """Read and check the index of a pack; raise InputError for a file that `lm pack` does not make, or a newer one."""
    with _damage_explained(path):
        require_regular(path)
        with zipfile.ZipFile(path) as parts:
            names = parts.namelist()
            if INDEX not in names:
                raise InputError(f"{path}: holds no {INDEX}; expected a file that `lm pack` made")
            for member in parts.infolist():
                methods = {zipfile.ZIP_STORED} | ({zipfile.ZIP_DEFLATED} if member.filename == INDEX else set())
                if member.compress_type not in methods or member.flag_bits & 1:  # others unfold without a bound
                    raise InputError(f"{path}: is damaged: {member.filename} is stored as no pack stores it")
            if parts.getinfo(INDEX).file_size > LARGEST_INDEX:
                raise InputError(f"{path}: {INDEX} is larger than {LARGEST_INDEX:,} bytes; no pack is")
            try:
                index: Any = json.loads(parts.read(INDEX).decode("utf-8"))
            except RecursionError:
                raise InputError(f"{path}: {INDEX} is nested too deeply") from None
    index = PACK.read(index, path)
    check_shape(index, PackManifest, path, "ask for the pack again")
    check_index(cast(PackManifest, index), path)
    if sorted(names) != sorted([INDEX, *(f"{kind}.xz" for kind in index["members"])]):
        raise InputError(f"{path}: is damaged: holds {', '.join(sorted(names))}, which its index does not list")
    members = {kind: [(name, size) for name, size in files] for kind, files in index["members"].items()}
    return Archive(path, index["name"], members)


CELLS = "cells"
EXPERIMENT, STUDY, LADDER = "experiment.json", "study.json", "ladder.json"
JOURNAL, REGISTRATION = "study.journal", "registration.json"
# of all learning rates, of all arms at one, and of rates that may be as good as an arm's best
CURVE, SHARED, RIVALS = ".lr_curve", ".shared", ".rivals"
BUDGET = ".budget_"  # before the percents of training of a shorter experiment
# ends of the names of experiments that were made of another
TWINS = (".tuned", SHARED, CURVE, RIVALS, ".orders", *(f"{BUDGET}{percent}" for percent in range(1, 100)))

OF_A_CELL = {
    "record.json": "records",
    "config.yaml": "configurations",
    **dict.fromkeys(("history.csv", THIN_NAME), "curves"),
    **dict.fromkeys((FILE, TEST_FILE, file_of("*@*"), "code/module.*.py", "code/changes.diff"), "others"),
    **dict.fromkeys(("bleu_*.json", "translation_*.txt"), "others"),
}
"""Files of a finished cell in a pack with their kinds: no weights, and a log only of a run that failed."""

OF_TUNING = ("tune/tuned.json", f"tune/*/{STUDY}", f"tune/*/{JOURNAL}")
OF_AN_EXPERIMENT = (EXPERIMENT, REGISTRATION, "seconds.json", *OF_TUNING, "lr_curve.json")
OF_A_STUDY = (STUDY, JOURNAL, "seconds.json")
"""Files of each folder in a pack, beside its cells; a folder may be of more than one kind."""


def pattern_of(inside: str, patterns: Iterable[str]) -> str | None:
    """Return the first pattern, such as `tune/*/study.json`, that a path matches, name by name; None without one."""
    names = inside.split("/")
    for pattern in patterns:
        parts = pattern.split("/")
        if len(parts) == len(names) and all(map(fnmatch.fnmatchcase, names, parts)):
            return pattern
    return None


def check_index(index: PackManifest, path: Path) -> None:
    """Raise InputError for an index with a file that `lm pack` does not put among those of its kind."""
    name = path_name(index["name"], f"{path}: name")
    files = [(kind, file, size) for kind, of_kind in index["members"].items() for file, size in of_kind]
    paths = {file for _, file, _ in files}
    if len(paths) < len(files):
        raise InputError(f"{path}: is damaged: a file is there twice")
    folders = {file.split("/")[0] for file in paths}
    patterns = {folder: _patterns(folder, name, folders, paths) for folder in folders}
    for kind, file, size in files:
        folder, *parts = [path_name(part, f"{path}: a file's path") for part in file.split("/")]
        if any("/".join([folder, *parts[:depth]]) in paths for depth in range(len(parts))):
            raise InputError(f"{path}: is damaged: {file} lies in a file")
        inside, allowed = "/".join(parts[folder == CELLS :]), patterns[folder]
        if (pattern := pattern_of(inside, allowed)) is None:
            expected = f"expected in {'the folder of a cell' if folder == CELLS else folder}: {', '.join(allowed)}"
            hint = f"{expected}.{nearest(inside, [*allowed])}" if allowed else f"expected {CELLS}, {name} or {name}.*"
            raise InputError(f"{path}: {file}: no pack holds such a file; {hint}")
        if allowed[pattern] != kind:
            raise InputError(f"{path}: {file}: lies among {kind}, expected among {allowed[pattern]}")
        if not 0 <= size <= LARGEST_FILE:
            raise InputError(f"{path}: {file}: {size:,} bytes, expected {LARGEST_FILE:,} at most")
    if (total := sum(size for _, _, size in files)) > LARGEST:
        raise InputError(f"{path}: {total:,} bytes unpacked, expected {LARGEST:,} at most")
    if not {f"{name}/{file}" for file in (EXPERIMENT, STUDY, LADDER)} & paths:
        raise InputError(f"{path}: holds no experiment, no search and no ladder called {name}")
    cells = {"/".join(file.split("/")[:2]) for file in paths if file.startswith(f"{CELLS}/")}
    if incomplete := sorted(cell for cell in cells if f"{cell}/record.json" not in paths):
        raise InputError(f"{path}: is damaged: {incomplete[0]} has no record")


def _patterns(folder: str, name: str, folders: Collection[str], paths: Collection[str]) -> dict[str, str]:
    """Return the patterns of files in a folder of a pack with their kinds; none if no pack has the folder."""
    is_ladder = f"{name}/{LADDER}" in paths
    if folder == CELLS:
        return {**OF_A_CELL, LOG: "others"}
    if folder == name and is_ladder:
        return {LADDER: "manifests"}
    if any(folder == of + end for of in (name, *folders) for end in TWINS):
        return {EXPERIMENT: "manifests"}
    if folder == name or (is_ladder and folder.startswith(f"{name}.")):
        as_study = OF_A_STUDY if f"{folder}/{STUDY}" in paths else ()
        as_experiment = OF_AN_EXPERIMENT if f"{folder}/{EXPERIMENT}" in paths or not as_study else ()
        return dict.fromkeys([*as_experiment, *as_study], "manifests")
    return {}
