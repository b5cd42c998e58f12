"""The cache folder of a user, and answers that take long to compute, kept there as JSON for the code and its versions.

CACHE/answers/<kind>-<hash of the question>.json    version of the code, answer, and a checksum of both
"""

import contextlib
import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from lm.config.tree import InputError, run_id
from lm.store.files import read_json, to_json, write_atomic

PACKAGE = Path(__file__).parents[1]
VERSIONED = (
    *("torch", "lightning", "torchmetrics", "tokenizers", "numpy", "scipy", "jsonargparse", "datasets"),
    *("pandas", "matplotlib", "seaborn", "vl-convert-python"),
)
"""Installed packages that may change an answer."""
SLOW = ("torch", "lightning")  # modules whose import an answer saves
_versions: list[str] = []  # that of the code when it was last asked for before a module of SLOW was imported


def cache_folder() -> Path:
    """Return `$LM_CACHE`, or `lm` in the user's cache folder. Raises InputError for a user without a home folder."""
    if folder := os.environ.get("LM_CACHE"):
        return Path(folder)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lm"
    except RuntimeError:
        remedy = "name a folder for the cache, as in LM_CACHE=/var/tmp/lm"
        raise InputError(f"LM_CACHE: is not set, and this user has no home folder; {remedy}") from None


def code_version() -> str:
    """Hash the files of this package, Python's version, and those of the packages in VERSIONED."""
    digest = hashlib.sha256(f"{sys.version}\n{sys.platform}\n{_hash_of(tuple(_states(str(PACKAGE))))}\n".encode())
    for name in VERSIONED:
        with contextlib.suppress(metadata.PackageNotFoundError):
            digest.update(f"{name} {metadata.version(name)}\n".encode())
    return digest.hexdigest()


def _states(folder: str) -> Iterator[tuple[str, int, int]]:
    """Yield path, time of the last change and size of each file of a package, but for those of editors."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            with contextlib.suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False) and entry.name != "__pycache__":
                    yield from _states(entry.path)
                elif entry.is_file() and not entry.name.startswith("."):
                    state = entry.stat()
                    yield entry.path, state.st_mtime_ns, state.st_size


@functools.lru_cache(maxsize=2)
def _hash_of(files: tuple[tuple[str, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for path, _, _ in files:
        with contextlib.suppress(FileNotFoundError):
            content = Path(path).read_bytes()
            digest.update(f"{Path(path).relative_to(PACKAGE).as_posix()}\n{len(content)}\n".encode() + content)
    return digest.hexdigest()


def running_version() -> str | None:
    """Return the version of the code that this process runs; None where the files may be newer.

    Commands that import torch before their first question call this before they do.
    """
    is_clean = not any(name in sys.modules for name in SLOW)
    if not is_clean and not _versions:
        return None
    version = code_version()
    if is_clean:
        _versions[:] = [version]
    return version if _versions == [version] else None


def remember(kind: str, question: Any, compute: Callable[[], Any]) -> Any:
    """Return the stored answer to a question, or compute and store it.

    An answer of other code or of another version is computed anew, as is a damaged one, and in a process whose code may
    be older than the files. The cache is left alone if it cannot be used. JSON holds question and answer; the file's
    name begins with `kind`.
    """
    try:
        path, version = _path(kind, question), running_version()
    except UnicodeEncodeError:  # of a path that is no text
        version = None
    if version is None:
        return compute()
    with contextlib.suppress(InputError, OSError):
        content = read_json(path)
        if isinstance(content, dict) and content == _sealed(version, content.get("answer")):
            return content["answer"]
    answer = compute()
    if code_version() == version:  # no file was edited in the meantime
        with contextlib.suppress(OSError):
            write_atomic(path, to_json(_sealed(version, answer)))
    return answer


def forget(kind: str, question: Any) -> None:
    """Remove the stored answer to a question."""
    with contextlib.suppress(OSError):
        _path(kind, question).unlink()


def _path(kind: str, question: Any) -> Path:
    return cache_folder() / "answers" / f"{kind}-{run_id(question)[:32]}.json"


def _sealed(version: str, answer: Any) -> dict[str, Any]:
    return {"version": version, "answer": answer, "sha256": run_id([version, answer])}
