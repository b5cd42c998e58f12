"""What the files of experiments and of searches have in common."""

import re
from collections.abc import Mapping
from typing import Any

from lm.config import InputError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
"""What may name a folder."""

MOST_SEEDS = 1000
"""More are a slip of the pen."""


def read_mapping(value: Any, path: str) -> dict[str, Any]:
    """Dotted paths and what to put there. Raises InputError."""
    if not isinstance(value, Mapping):
        raise InputError(f"{path}: expected a mapping of dotted paths to values, found {value!r}")
    return {str(key): inner for key, inner in value.items()}


def read_seeds(value: Any, path: str) -> list[int]:
    """Seeds from a list, or from how many there are. Raises InputError."""
    number = len(value) if isinstance(value, list) else value
    if isinstance(number, int) and number > MOST_SEEDS:
        raise InputError(f"{path}: expected {MOST_SEEDS} seeds at most, found {number}")
    seeds = list(range(value)) if isinstance(value, int) and not isinstance(value, bool) else value
    valid = isinstance(seeds, list) and seeds and all(type(seed) is int and seed >= 0 for seed in seeds)
    if not valid:
        raise InputError(f"{path}: expected a number of seeds or a list of whole numbers from 0, found {value!r}")
    if len(set(seeds)) != len(seeds):
        raise InputError(f"{path}: a seed is given twice in {value!r}")
    return list(seeds)
