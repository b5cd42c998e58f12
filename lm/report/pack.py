"""Experiments, searches and ladders as one file (`lm pack`, `lm unpack`), read like folders."""

import contextlib
import csv
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lm.analysis.results import read_manifest
from lm.analysis.runs import is_experiment_or_search, nearest_results
from lm.config.tree import InputError, path_name
from lm.store import files
from lm.store.archive import (
    CELLS,
    ENDING,
    EXPERIMENT,
    JOURNAL,
    LADDER,
    OF_A_CELL,
    REGISTRATION,
    STUDY,
    TWINS,
    Archive,
    looks_like_pack,
    pattern_of,
    read_archive,
    write_archive,
)
from lm.store.files import read_json, require_own
from lm.store.locks import is_of_exited_process, process_signature
from lm.store.store import LOG, Store
from lm.store.thin_curves import THIN_NAME, thin_curve

HISTORY = "history.csv"
BESIDE = ("seconds.json", REGISTRATION, JOURNAL, "tune/tuned.json", "lr_curve.json")
"""Files beside the manifest of an experiment or a search that was tuned or can be resumed."""

UNPACKING = ".unpack-"  # prefix of the name of the folder in which a process unpacks


def can_be_packed(folder: Path) -> bool:
    """Return True if a folder is that of an experiment, a search or a ladder."""
    return is_experiment_or_search(folder) or os.path.isfile(folder / LADDER)


def rungs_of(folder: Path) -> list[Path]:
    """Return the folders of a ladder's rungs; empty for others. Raises InputError where unreadable."""
    if not os.path.isfile(folder / LADDER):
        return []
    from lm.analysis.ladder import read_ladder  # takes half a second to import, and `lm.load` imports this file

    return [folder.with_name(rung["experiment"]) for rung in read_ladder(folder)["rungs"]]


def require_own_files(folder: Path) -> None:
    """Raise InputError where a file of an experiment or its cells leads out of its results folder."""
    whole = folder.resolve()
    rungs = (rung.name for rung in rungs_of(whole))
    require_own(whole.parent, [whole.name, *(whole.name + twin for twin in TWINS), *rungs, CELLS])


def cells_of(folder: Path) -> list[str]:
    """Return the ids of all cells of an experiment, with its tuning, of a search or of a ladder. Raises InputError."""
    if rungs := rungs_of(folder):
        return sorted({cell for rung in rungs for cell in cells_of(rung)})
    if os.path.isfile(folder / STUDY):
        from lm.report.study import load_study

        trials = load_study(folder).manifest["study"]
        cells: Iterable[str] = (cell for trial in trials for cell in (trial.get("cells") or {}).values())
    else:
        cells = [cell for arm in read_manifest(folder)["arms"].values() for cell in arm["cells"].values()]
        for below in (*sorted((folder / "tune").glob("*")), *(folder.with_name(folder.name + twin) for twin in TWINS)):
            cells += cells_of(below) if is_experiment_or_search(below) else []
    return sorted(set(cells))


def _contents(folder: Path, thin: bool) -> dict[str, tuple[str, Path | bytes]]:
    """Return kind and path, or content, of each file in a pack, by its name there. Raises InputError."""
    store, name = Store(folder.parent), folder.name
    if rungs := rungs_of(folder):
        of_rungs = {inside: where for rung in rungs for inside, where in _contents(rung, thin).items()}
        return {f"{name}/{LADDER}": ("manifests", folder / LADDER), **of_rungs}
    arms = sorted(path.name for path in (folder / "tune").glob("*/"))
    beside = [*BESIDE, *(f"tune/{arm}/{file}" for arm in arms for file in (STUDY, JOURNAL))]
    manifests = [f"{name}/{file}" for file in (EXPERIMENT, STUDY, *beside)]
    manifests += [f"{name}{twin}/{EXPERIMENT}" for twin in TWINS]
    paths = {inside: folder.parent / inside for inside in manifests}
    contents: dict[str, tuple[str, Path | bytes]]
    contents = {inside: ("manifests", path) for inside, path in paths.items() if path.is_file()}
    for cell in cells_of(folder):
        if store.finished(cell):
            cell_folder = store.directory(cell)
            for inside, kind in _packed_files(cell_folder):
                if thin and inside == HISTORY:
                    history = cell_folder / inside
                    try:
                        thinned = thin_curve(history.read_text(encoding="utf-8"))
                    except (UnicodeDecodeError, ValueError, csv.Error) as error:
                        problem = f"is damaged ({error}); a thin pack needs curves that can be read"
                        raise InputError(f"{history}: {problem}") from None
                    contents[f"{CELLS}/{cell}/{THIN_NAME}"] = (kind, thinned)
                else:
                    contents[f"{CELLS}/{cell}/{inside}"] = (kind, cell_folder / inside)
    return contents


def _packed_files(folder: Path) -> Iterator[tuple[str, str]]:
    for path in (*folder.glob("*"), *folder.glob("code/*")):
        inside = path.relative_to(folder).as_posix()
        pattern = pattern_of(inside, OF_A_CELL)
        if pattern is not None and path.is_file():
            yield inside, OF_A_CELL[pattern]
    if (folder / LOG).is_file():
        with contextlib.suppress(InputError):
            record = read_json(folder / "record.json")
            if isinstance(record, dict) and record.get("status") == "ok":
                return
        yield LOG, "others"


def pack(folder: Path, path: Path | None = None, thin: bool = False) -> tuple[Archive, int]:
    """Write an experiment, a search or a ladder as one file, by default beside it; return it and the planned cells.

    `thin` shortens curves. Raises InputError without an experiment, or over a file that is no pack or holds more.
    """
    if not folder.exists():
        _refuse(folder)
    if not can_be_packed(folder):
        manifests = f"no {EXPERIMENT}, no {STUDY} and no {LADDER}"
        raise InputError(f"{folder}: holds {manifests}; expected a folder that `lm ablate` or `lm sweep` made")
    whole = folder.resolve()
    path = whole.with_name(whole.name + ENDING) if path is None else path
    path_name(whole.name, f"{folder}: the folder's name")
    require_own_files(folder)
    contents = _contents(whole, thin)
    if os.path.isfile(path):
        thin_forms = {name.replace(f"/{HISTORY}", f"/{THIN_NAME}") for name in contents}
        missing = sorted({*read_archive(path).files} - {*contents} - thin_forms)
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise InputError(f"{path}: holds {missing[0]}{more}, which {folder} lacks; delete it or choose --out")
    return write_archive(path, whole.name, contents), len(cells_of(whole))


@dataclass(frozen=True)
class ReportLocation:
    """The folder from which an experiment is read, and the folder of its report."""

    folder: Path  # folder of the experiment, with its cells beside it
    report: Path  # folder of its report
    pack: Path | None = None  # pack that it was read from; None for a folder


@contextlib.contextmanager
def open_results(source: Path, report: Path | None = None) -> Iterator[ReportLocation]:
    """Open the folder of an experiment, a search or a ladder, or a pack, which is unpacked meanwhile.

    A folder without a manifest stands for the pack beside it. A report lies in the folder, or beside the pack in
    one named after it, unless `report` is given. Raises InputError if `source` is neither.
    """
    path = source
    beside = source.with_name(source.name + ENDING) if source.name else source
    if not os.path.isfile(source) and not can_be_packed(source) and os.path.isfile(beside):
        path = beside
    if os.path.isdir(path):
        if can_be_packed(path):
            require_own_files(path)
        yield ReportLocation(path, report or path)
        return
    if not looks_like_pack(path):
        _refuse(path)
    named = path.with_name(path.name.removesuffix(ENDING)) if path.name.endswith(ENDING) else path.with_suffix("")
    if report is None and named == path:
        raise InputError(f"{path}: its name does not end in {ENDING}, so that its report has no place; give --out")
    archive = read_archive(path)
    with tempfile.TemporaryDirectory(prefix="lm-", dir=files.temporary_folder()) as root:
        try:
            _extracted(archive, Path(root))
            yield ReportLocation(Path(root) / archive.name, report or named, path)
        except InputError as error:
            raise InputError(str(error).replace(str(Path(root)), str(path))) from error


def _extracted(archive: Archive, folder: Path) -> None:
    try:
        archive.extract(folder)
    except OSError as error:  # the system names no file where writing fails
        raise files.with_path(error, error.filename or folder) from error


def _refuse(path: Path) -> None:
    """Raise InputError naming what is at the path instead of a folder or a pack."""
    if os.path.isfile(path):
        expected = f"a folder such as {path.parent}, or what `lm pack` made"
        raise InputError(f"{path}: is a file, and no pack; expected {expected}")
    if os.path.isdir(path):
        raise InputError(f"{path}: is a folder, and no pack; expected what `lm pack` made")
    what, folders = ("file", "") if path.name.endswith(ENDING) else ("folder", "a folder of results, or ")
    raise InputError(f"{path}: no such {what}; expected {folders}what `lm pack` made.{nearest_results(path, ENDING)}")


@dataclass(frozen=True)
class Unpacked:
    """The folder of an unpacked pack, and the ids of its cells by outcome; `conflicting` ones have another record."""

    folder: Path
    added: list[str] = field(default_factory=list)
    already_present: list[str] = field(default_factory=list)
    conflicting: list[str] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)

    @property
    def left_out(self) -> Iterator[str]:
        """Yield a line for each reason for which cells were left out."""
        reasons = ((self.conflicting, "there with another record, and kept"), (self.busy, "trained by another process"))
        for cells, reason in reasons:
            if cells:
                more = f" and {len(cells) - 3} more" if len(cells) > 3 else ""
                yield f"left out, as they are {reason}: {', '.join(cells[:3])}{more}"


def unpack(path: Path, out: Path) -> Unpacked:
    """Put the cells of a pack into OUT/cells and its experiments into OUT; existing files stay, and it can be repeated.

    Raises InputError if the file is no pack, or OUT holds another experiment of the same name; nothing is written then.
    """
    if not looks_like_pack(path):
        _refuse(path)
    archive, store = read_archive(path), Store(out)
    unpacked = Unpacked(out / archive.name)
    manifests = [name for name in archive.files if not name.startswith(f"{CELLS}/")]
    require_own(out, [*dict.fromkeys(name.split("/")[0] for name in manifests), CELLS])
    out.mkdir(parents=True, exist_ok=True)
    for left in out.glob(f"{UNPACKING}*"):
        if is_of_exited_process(left.name.removeprefix(UNPACKING).partition(".")[0]):  # which was killed
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{UNPACKING}{process_signature()}.", dir=out) as root:
        _extracted(archive, Path(root))
        for name in manifests:
            if (out / name).exists() and not _same(out / name, Path(root) / name):
                problem = f"is there and is another than in {path}; choose another folder with --out"
                raise InputError(f"{out / name}: {problem}")
        for cell in archive.cells:
            with store.claim(cell) as claimed:
                source, target = Path(root) / CELLS / cell, store.directory(cell)
                if target.exists():
                    equal = _same(target / "record.json", source / "record.json")
                    (unpacked.already_present if equal else unpacked.conflicting).append(cell)
                elif not claimed:
                    unpacked.busy.append(cell)
                else:
                    os.replace(source, target)
                    store.drop(cell)  # an attempt that was interrupted
                    unpacked.added.append(cell)
        for name in manifests:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(Path(root) / name, out / name)
    return unpacked


def _same(left: Path, right: Path) -> bool:
    return left.is_file() and left.read_bytes() == right.read_bytes()
