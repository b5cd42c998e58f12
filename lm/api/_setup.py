"""What calls that train or open models do first."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lm.config.imported import own_modules
from lm.config.imported import trusted_only as trusted
from lm.execution.machine import require_run_settings


def prepare(out: str | Path, checkpoint_seconds: float, workers: int | None = None, hang_minutes: float = 0.0) -> Path:
    """Where cells go, before torch is imported. Raises InputError where they cannot, or for numbers that cannot be."""
    from lm.data.cache import keep_compiled_code

    require_run_settings(Path(out), checkpoint_seconds, workers, hang_minutes)
    keep_compiled_code()
    return Path(out)


@contextlib.contextmanager
def user_modules(trusted_only: bool) -> Iterator[None]:
    """Modules in the current folder are found while a call lasts, or with `trusted_only` none but those of `lm`."""
    with trusted(trusted_only, "trusted_only=True"), own_modules():
        yield


def to_plain(value: Any) -> Any:
    """A setting as a file would hold it, of one that a program worked out: NumPy's numbers, tuples, ranges, paths."""
    if isinstance(value, Mapping):
        return {key: to_plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | range):
        return [to_plain(inner) for inner in value]
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return os.fspath(value) if isinstance(value, os.PathLike) else value
