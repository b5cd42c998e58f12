"""The cache of prepared text: entries are written once, never changed, checked before use and rebuilt if damaged.

An entry is a folder; `sums.json` in it has a checksum of every other file. One without is sound if its parts agree.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tokenizers

from lm.config.tree import InputError
from lm.store.answers import cache_folder as cache_folder
from lm.store.files import DISK_FULL, read_json, to_json, with_path
from lm.store.locks import locked

SUMS = "sums.json"


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


def ensure_entry(folder: Path, check: Callable[[Path], None], write: Callable[[Path], None]) -> None:
    """Fill an entry unless it is filled; one in which `check` raises DamageError is rebuilt, with a warning.

    `write` fills a folder that becomes the entry. Raises InputError where the cache cannot be written to.
    """
    with cache_io_errors():
        if find_damage(folder, check) is None:
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(Path(f"{folder}.lock"), f"{folder}, which another process prepares"):
            damage = find_damage(folder, check)
            if damage is None:
                return
            if folder.exists():
                warn_rebuilt(folder, damage)
            for stale in folder.parent.glob(f".{folder.name}.*"):  # nobody else works on these: the lock is held
                shutil.rmtree(stale, ignore_errors=True)
            temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
            try:
                write(temporary)
                sums = {path.name: check_sum(path) for path in sorted(temporary.iterdir())}
                (temporary / SUMS).write_text(to_json(sums), encoding="utf-8")
                shutil.rmtree(folder, ignore_errors=True)
                os.replace(temporary, folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)


def find_damage(folder: Path, check: Callable[[Path], None]) -> str | None:
    """Describe the damage of an entry; None where every file is what was written and `check` finds none."""
    try:
        for name, expected in stored_json(folder / SUMS).items() if (folder / SUMS).is_file() else ():
            if not (folder / str(name)).is_file():
                raise DamageError(f"{name} is missing")
            if check_sum(folder / str(name)) != expected:
                raise DamageError(f"{name} is not what was written")
        check(folder)
    except DamageError as damage:
        return str(damage)
    return None


def warn_rebuilt(path: Path, damage: str) -> None:
    """Print that something in the cache is rebuilt."""
    print(f"{path}: damaged ({damage}); made again", file=sys.stderr)


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


def check_ids(ids: np.ndarray, name: str, vocabulary: int) -> None:
    """Raise DamageError where an array does not hold ids of the vocabulary."""
    if ids.ndim != 1 or ids.dtype.kind != "u":
        raise DamageError(f"{name} holds {ids.dtype} of shape {ids.shape}, expected ids")
    if len(ids) and int(ids.max()) >= vocabulary:
        raise DamageError(f"{name} holds id {int(ids.max())}, beyond the vocabulary of {vocabulary}")


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
