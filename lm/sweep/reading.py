"""What the files of experiments and of searches have in common."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from lm.config import InputError, Tree, load_yaml, override, path_name
from lm.keys import Also
from lm.plain import shown

RESERVED = ("cells",)
"""Names of folders beside those of the reports."""

MOST_SEEDS = 1000
"""More are a slip of the pen."""

Seeds = (
    Annotated[int, Also(minimum=1, maximum=MOST_SEEDS)]
    | Annotated[list[Annotated[int, Also(minimum=0)]], Also(minItems=1, maxItems=MOST_SEEDS, uniqueItems=True)]
)
"""Seeds, or how many there are."""


def report_name(path: Path, tier: str = "") -> str:
    """The name of the folder that the report of the file at `path` goes to. Raises InputError."""
    name = path_name(f"{path.stem}.{tier}" if tier else path.stem, f"{path}: the file's name")
    if name in RESERVED:
        raise InputError(f"{path}: {name!r} is the folder of all cells; give the file another name")
    return name


def read_mapping(value: Any, path: str) -> dict[str, Any]:
    """Dotted paths and what to put there. Raises InputError."""
    if not isinstance(value, Mapping):
        raise InputError(f"{path}: expected a mapping of dotted paths to values, found {shown(value)}")
    return {str(key): inner for key, inner in value.items()}


def read_base(tree: Mapping[str, Any], path: Path) -> Tree:
    """The configuration that the file at `path` names as its `base`, with its `common` changes. Raises InputError."""
    base = tree["base"]
    if not isinstance(base, str):
        raise InputError(f"{path}: base: expected the path of a YAML file, found {shown(base)}")
    return override(load_yaml(path.parent / base), read_mapping(tree.get("common") or {}, f"{path}: common"))


def read_text(tree: Mapping[str, Any], key: str, path: Path, default: str = "") -> str:
    """What a file at `path` says under `key`, as text. Raises InputError."""
    value = tree.get(key)
    if isinstance(value, Mapping | list):
        raise InputError(f"{path}: {key}: expected text, found {shown(value)}")
    return default if value is None else str(value)


def read_seeds(value: Any, path: str) -> list[int]:
    """Seeds from a list, or from how many there are. Raises InputError."""
    number = len(value) if isinstance(value, list) else value
    if isinstance(number, int) and number > MOST_SEEDS:
        raise InputError(f"{path}: expected {MOST_SEEDS} seeds at most, found {number}")
    seeds = list(range(value)) if isinstance(value, int) and not isinstance(value, bool) else value
    valid = isinstance(seeds, list) and seeds and all(type(seed) is int and 0 <= seed < 2**64 for seed in seeds)
    if not valid:
        found = shown(value)
        raise InputError(
            f"{path}: expected a number of seeds or a list of whole numbers from 0 below 2**64, found {found}"
        )
    if len(set(seeds)) != len(seeds):
        raise InputError(f"{path}: a seed is given twice in {shown(value)}")
    return list(seeds)
