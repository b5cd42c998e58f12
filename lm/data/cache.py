"""The cache of prepared text: entries are written once, never changed, checked before use and rebuilt if damaged.

An entry is a folder; `sums.json` in it has a checksum of every other file.
`ENTRY.checked` beside it has sizes and times of its files as they were found sound. While these stay, nothing is read.
"""

import contextlib
import ctypes
import errno
import hashlib
import os
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tokenizers

from lm.config.tree import InputError
from lm.data.public import digest
from lm.store.files import DISK_FULL, read_json, to_json, with_path, write_atomic
from lm.store.locks import locked
from lm.store.user_cache import cache_folder as cache_folder

SUMS, FACTS = "sums.json", "facts.json"
PROGRESS = "progress.json"  # how far an entry has been written, which another process takes up
TARGETS = "targets.json"  # size and time of each file outside an entry that holds its ids
KEPT_BYTES = 2**26  # bytes from which on an entry that is half written is kept when its writing fails
TICK = 0.02  # seconds within which the time of a file may stay the same while it changes


class DamageError(Exception):
    """Damage of an entry of the cache; the message says which."""


def keep_compiled_code() -> None:
    """Make torch.compile, imported after this, keep its code in the cache; a folder set by the user stays."""
    folder = cache_folder() / "inductor"
    existing = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if existing.is_dir() and os.access(existing, os.W_OK):
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder.absolute()))
        os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "1")


@contextlib.contextmanager
def cache_io_errors() -> Iterator[None]:
    """Turn an OSError of the cache into an InputError of one line. A full disk stays an OSError."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            raise
        problem = f"{error.strerror} ({error.filename})" if error.filename is not None else error.strerror
        remedy = "set LM_CACHE to a folder that can be used"
        raise InputError(f"the cache {cache_folder()}: {problem}; {remedy}") from None


def ensure_entry(folder: Path, expected: Mapping[str, Any], write: Callable[[Path], object]) -> None:
    """Fill an entry unless it is filled; one that is damaged, or of other facts, is rebuilt with a warning.

    `write` fills a folder that becomes the entry, perhaps one that a killed process has begun to fill. Raises
    InputError where the cache cannot be written to.
    """
    with cache_io_errors():
        if find_damage(folder, expected) is None:
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(Path(f"{folder}.lock"), f"{folder}, which another process prepares"):
            damage = find_damage(folder, expected)
            if damage is None:
                return
            if folder.exists():
                print(f"{folder}: damaged ({damage}); made again", file=sys.stderr)
            with being_built(folder.parent / f".{folder.name}.building") as building:
                write(building)
                move_entry(building, folder)
        with contextlib.suppress(AttributeError, OSError, TypeError):  # of other C libraries than GNU's
            ctypes.CDLL(None).malloc_trim(0)  # a hundred megabytes of freed pieces of text that it would keep


@contextlib.contextmanager
def being_built(building: Path) -> Iterator[Path]:
    """Fill a folder in the block; after a failure it stays if that saves work, for another process to take up."""
    building.mkdir(exist_ok=True)
    try:
        yield building
    finally:
        is_unfinished = (building / PROGRESS).is_file()
        if not is_unfinished or sum(path.stat().st_size for path in building.iterdir()) < KEPT_BYTES:
            shutil.rmtree(building, ignore_errors=True)


def move_entry(building: Path, folder: Path) -> None:
    """Make a folder that is filled the entry, with its checksums."""
    written_sums = stored_json(building / PROGRESS)["sums"] if (building / PROGRESS).is_file() else {}
    names = sorted(path.name for path in building.iterdir() if path.name not in (PROGRESS, SUMS))
    sums = {name: written_sums.get(name) or check_sum(building / name) for name in names}
    (building / SUMS).write_text(to_json(sums), encoding="utf-8")
    (building / PROGRESS).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(building, folder)
    _mark_sound(folder)


def find_damage(folder: Path, expected: Mapping[str, Any], thorough: bool = False) -> str | None:
    """Describe the damage of an entry; None where every file is what was written and the facts are as expected.

    Files are read only where they have changed since they were found sound, or if `thorough`.
    """
    try:
        if thorough or not _is_unchanged(folder):
            folder.with_name(f"{folder.name}.checked").unlink(missing_ok=True)
            for name, sum_of_file in stored_json(folder / SUMS).items():
                if not (folder / str(name)).is_file():
                    raise DamageError(f"{name} is missing")
                if check_sum(folder / str(name)) != sum_of_file:
                    raise DamageError(f"{name} is not what was written")
            _mark_sound(folder)
        if (folder / TARGETS).is_file():
            for name, status in stored_json(folder / TARGETS).items():
                path = folder / name
                if not path.is_file() or [path.stat().st_size, path.stat().st_mtime_ns] != status:
                    state = "another file now" if path.is_file() else "no longer there"
                    raise DamageError(f"{path.resolve()} is {state}")
        stored = stored_json(folder / FACTS) if expected else {}
        for key, value in expected.items():
            if stored.get(key) != value:
                raise DamageError(f"{FACTS} has {key}: {stored.get(key)!r}, expected {value!r}")
    except DamageError as damage:
        return str(damage)
    return None


def _sound(folder: Path) -> tuple[Path, dict[str, list[int]]]:
    """Return the file that an entry was found sound with these sizes and times, and those of its files now."""
    with os.scandir(folder) as files:
        now = {file.name: [file.stat().st_size, file.stat().st_mtime_ns] for file in files}
    return folder.with_name(f"{folder.name}.checked"), now


def _is_unchanged(folder: Path) -> bool:
    """Return True if the files of an entry have the sizes and times with which they were found sound."""
    with contextlib.suppress(OSError, DamageError):
        path, now = _sound(folder)
        return stored_json(path) == now
    return False


def _mark_sound(folder: Path) -> None:
    """Remember the files of an entry as sound, where the cache can be written to."""
    with contextlib.suppress(OSError):
        path, now = _sound(folder)
        newest = max((changed for _, changed in now.values()), default=0)
        time.sleep(min(TICK, max(0.0, TICK - (time.time_ns() - newest) / 1e9)))  # a later change has another time
        write_atomic(path, to_json(now))


def verify() -> Iterator[tuple[Path, int, str | None]]:
    """Read all texts and entries again; yield each path with its bytes, and its damage or change, or None."""
    with cache_io_errors():
        for manifest in sorted(cache_folder().glob("texts/*.json")):
            try:
                hashes = read_json(manifest).get("hashes", {})
            except (InputError, AttributeError):
                yield manifest, 0, "is no manifest; delete it, and its text is read again"
                continue
            for name, expected in hashes.items():
                if not os.path.isfile(name):
                    yield Path(name), 0, "is gone since it was read"
                else:
                    problem = None if digest(Path(name)) == expected else "has changed since it was read"
                    yield Path(name), os.path.getsize(name), problem
        for folder in sorted(path.parent for path in cache_folder().glob(f"*/*/{SUMS}")):
            damage = find_damage(folder, {}, thorough=True)
            size = sum(path.stat().st_size for path in folder.iterdir())
            yield folder, size, None if damage is None else f"{damage}; the next run that needs it makes it again"


def check_sum(path: Path) -> int:
    """Compute the CRC-32 of a file."""
    total = 0
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            total = zlib.crc32(data, total)
    return total


def stored_json(path: Path) -> dict[str, Any]:
    """Read a mapping stored in an entry. Raises DamageError where there is none."""
    try:
        content = read_json(path) if path.is_file() else None
    except InputError:
        content = None
    if not isinstance(content, dict):
        raise DamageError(f"{path.name} is {'no mapping' if path.is_file() else 'missing'}")
    return content


def stored_array(path: Path, mapped: bool = True) -> np.ndarray:
    """Read an array stored in an entry. Raises DamageError where it cannot be read to its end."""
    try:
        return np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except FileNotFoundError:
        raise DamageError(f"{path.name} is missing") from None
    except (ValueError, EOFError, SyntaxError, TypeError) as error:
        raise DamageError(f"{path.name} cannot be read: {' '.join(str(error).split())}") from None


def stored_tokenizer(path: Path, sha256: str) -> tokenizers.Tokenizer:
    """Read the tokenizer with this hash. Raises DamageError where the file holds none or another."""
    try:
        tokenizer = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DamageError(f"{path.name} is missing") from None
    except OSError:
        raise
    except Exception as error:  # the Rust side raises bare Exception
        raise DamageError(f"{path.name} is no tokenizer: {' '.join(str(error).split())}") from None
    if hashlib.sha256(tokenizer.to_str().encode()).hexdigest() != sha256:
        raise DamageError(f"{path.name} is another tokenizer")
    return tokenizer


def write_array(path: Path, array: np.ndarray) -> None:
    """Store an array by Python's own writing, which reports every byte that a disk does not take."""
    try:
        with path.open("wb") as file:
            np.lib.format.write_array(SimpleNamespace(write=file.write), array, allow_pickle=False)
    except OSError as error:
        raise with_path(error, path) from error


def damage_as_os_error(folder: Path, damage: DamageError) -> OSError:
    """Turn damage of an entry into the OSError that a run in progress fails with."""
    return OSError(errno.EIO, f"damaged ({damage})", str(folder))
