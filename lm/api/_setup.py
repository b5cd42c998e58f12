"""Steps that every call which trains or opens a model runs first."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lm.config.imported import current_folder_modules
from lm.config.imported import trusted_only as trusted
from lm.execution.machine import require_run_settings


def prepare(out: str | Path, checkpoint_seconds: float, workers: int | None = None, hang_minutes: float = 0.0) -> Path:
    """Check the output folder and settings, and set up the compile cache, before torch is imported.

    Returns the folder. Raises InputError where it cannot be written, or for invalid numbers.
    """
    from lm.data.cache import keep_compiled_code

    require_run_settings(Path(out), checkpoint_seconds, workers, hang_minutes)
    keep_compiled_code()
    return Path(out)


@contextlib.contextmanager
def user_modules(trusted_only: bool) -> Iterator[None]:
    """Let modules in the current folder be imported meanwhile; with `trusted_only` none but those of `lm`."""
    with trusted(trusted_only, "trusted_only=True"), current_folder_modules():
        yield


def to_plain(value: Any) -> Any:
    """Convert NumPy numbers, tuples, ranges and paths in a setting to what a YAML file would hold."""
    if isinstance(value, Mapping):
        return {key: to_plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | range):
        return [to_plain(inner) for inner in value]
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return os.fspath(value) if isinstance(value, os.PathLike) else value
