"""What the files of experiments and of searches have in common."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from lm.config.imported import look_in
from lm.config.keys import Also
from lm.config.plain import shown
from lm.config.shipped import file_named, require_kind, shipped
from lm.config.tree import InputError, Tree, is_component, join, load_yaml, nearest, override, path_name

RESERVED = ("cells",)
"""Names of folders beside those of the reports."""

MOST_SEEDS = 1000
"""More are a slip of the pen."""

Seeds = (
    Annotated[int, Also(minimum=1, maximum=MOST_SEEDS)]
    | Annotated[str, Also(pattern=r"^\s*[0-9]+(\s*[-,]\s*[0-9]*)*\s*$")]
    | Annotated[list[Annotated[int, Also(minimum=0)]], Also(minItems=1, maxItems=MOST_SEEDS, uniqueItems=True)]
)
"""Seeds, or how many there are."""

SEEDS = "a number of seeds (6 for 0 to 5), a list of whole numbers below 2**64 (0,1,2 or [6] or '6,'), or a range (0-5)"
"""How seeds are given, in a file and on the command line."""

SEED = re.compile(r"([0-9]{1,20})(?:\s*-\s*([0-9]{1,20}))?")


def load_config(path: Path) -> Tree:
    """The configuration in the file at `path`, or in the shipped one of that name; components beside it are found.

    Where the file names a `base`, it holds only what differs: dotted paths, or sections with some of their settings.

    Raises:
        InputError: where there is no such file, or nothing in it that can be read.
    """
    return _with_bases(file_named(path, "configuration"), ())


def config_of(given: object) -> Tree:
    """The configuration of a file or a shipped name, or the one in a mapping, whose `base` is relative to this folder.

    Raises:
        InputError: where it is neither, or cannot be read.
    """
    if isinstance(given, str | Path):
        return load_config(Path(given))
    if not isinstance(given, Mapping):
        raise InputError(f"config: expected a YAML file, a name or a mapping, found {shown(given)}")
    return _on_base(given, Path("config"), ())


def _with_bases(path: Path, below: tuple[Path, ...]) -> Tree:
    look_in(path.parent)
    tree, place = load_yaml(path), path.resolve()
    if place in below:
        raise InputError(f"{path}: base: names itself, by way of {below[-1]}")
    require_kind(tree, path, "configuration")
    return _on_base(tree, path, (*below, place))


def _on_base(tree: Mapping[str, Any], path: Path, below: tuple[Path, ...]) -> Tree:
    """What was read at `path`, put over the base that it names; `below` are the files that led there."""
    if "base" not in tree:
        return dict(tree)
    changes = dict(_changes({key: value for key, value in tree.items() if key != "base"}, ""))
    return override(_with_bases(_base_named(tree["base"], path), below), changes)


def _changes(tree: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """What a mapping changes, by dotted path; a component, which names its class, replaces what is there."""
    for key, value in tree.items():
        place = join(path, str(key))
        if isinstance(value, Mapping) and value and not is_component(value):
            yield from _changes(value, place)
        else:
            yield place, value


def _base_named(base: object, path: Path) -> Path:
    """The file that the one at `path` names as its base: relative to it, or a shipped one by its bare name."""
    if not isinstance(base, str):
        raise InputError(f"{path}: base: expected the path of a YAML file, found {shown(base)}")
    if "/" not in base and not base.endswith((".yaml", ".yml")) and not os.path.lexists(path.parent / base):
        known = shipped("configuration")
        if base not in known:
            raise InputError(
                f"{path}: base: no configuration {shown(base)} is shipped.{nearest(base, list(known))} "
                f"Choose from {', '.join(known) or 'none'}, or give a YAML file"
            )
        return known[base]
    return path.parent / base


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


def read_changes(value: Any, path: str) -> dict[str, Any]:
    """Return what a mapping that may be left out holds: nothing for null, and for null alone. Raises InputError."""
    return {} if value is None else read_mapping(value, path)


def read_base(tree: Mapping[str, Any], path: Path) -> Tree:
    """The configuration that the file at `path` names as its `base`, with its `common` changes. Raises InputError."""
    base = _with_bases(_base_named(tree["base"], path), ())
    return override(base, read_changes(tree.get("common"), f"{path}: common"))


def read_text(tree: Mapping[str, Any], key: str, path: Path, default: str = "") -> str:
    """What a file at `path` says under `key`, as text. Raises InputError."""
    value = tree.get(key)
    if isinstance(value, Mapping | list):
        raise InputError(f"{path}: {key}: expected text, found {shown(value)}")
    return default if value is None else str(value)


def read_seeds(value: Any, path: str) -> list[int]:
    """Seeds as a file or a command line gives them.

    Args:
        value: a number of seeds (6: seeds 0 to 5), a list of seeds, or text: `0,1,2`, `6,` or `0-5`.
        path: where it was given.

    Raises:
        InputError: for anything else, with what is accepted; and for a seed given twice or more than MOST_SEEDS.
    """
    seeds: Any = _from_text(value, path) if isinstance(value, str) else value
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        seeds = range(_counted(seeds, path))
    valid = isinstance(seeds, list | range) and seeds and all(type(seed) is int and 0 <= seed < 2**64 for seed in seeds)
    if not valid:
        raise InputError(f"{path}: expected {SEEDS}, found {shown(value)}")
    _counted(len(seeds), path)
    if len(set(seeds)) != len(seeds):
        raise InputError(f"{path}: a seed is given twice in {shown(value)}")
    return list(seeds)


def _counted(number: int, path: str) -> int:
    """A number of seeds that is not too large. Raises InputError."""
    if number > MOST_SEEDS:
        raise InputError(f"{path}: expected {MOST_SEEDS} seeds at most, found {number}")
    return number


def _from_text(text: str, path: str) -> list[int] | int | None:
    """The seeds of `0,1,2`, `6,` or `0-5`, or the number `6`; None for anything else. Raises InputError."""
    if re.fullmatch(r"\s*[0-9]{1,20}\s*", text):
        return int(text)
    parts = text.strip().removesuffix(",").split(",")
    _counted(len(parts), path)
    seeds: list[int] = []
    for part in parts:
        found = SEED.fullmatch(part.strip())
        if found is None:
            return None
        first, last = int(found[1]), int(found[2] or found[1])
        _counted(len(seeds) + last - first + 1, path)
        seeds += range(first, last + 1)
    return seeds
