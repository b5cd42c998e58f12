"""What the files of experiments and of searches have in common."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from lm.config.imported import add_module_folder
from lm.config.keys import Also
from lm.config.plain import shown
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
    return _with_bases(resolve_file(path, "configuration"), ())


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
    add_module_folder(path.parent)
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
        known = shipped_files("configuration")
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


# shipped --------------------------------------------------------------------------------------------------------------

PACKAGE = Path(__file__).resolve().parents[1]
WHEEL_FOLDER = "shipped"
"""The folder of the installed package into which setup.py puts what lies at the top of a clone."""

SHIPPED_FOLDERS = {"experiment": "experiments", "sweep": "sweeps", "configuration": "experiments/bases"}
"""Where files of each kind lie, in a clone and in what ships alike."""

COMMAND_BY_KIND = {"experiment": "lm ablate", "sweep": "lm sweep", "configuration": "lm fit"}
"""What takes a file of each kind."""

KEYS_BY_KIND = {
    "experiment": ("arms", "design", "baseline", "claims", "confirmatory", "ladder", "lr_curve", "tune"),
    "sweep": ("space", "objectives", "sampler", "pruner"),
    "configuration": ("data", "model", "optim", "trainer", "evaluate", "seed", "data_seed"),
}
"""Keys at the top of a file of each kind that no other kind has."""


def shipped_files(kind: str) -> dict[str, Path]:
    """The files of a kind that come with the package, by name; none where it was installed without them."""
    for root in (PACKAGE / WHEEL_FOLDER, PACKAGE.parent):
        if (root / "experiments" / "bases").is_dir():
            return {path.stem: path for path in sorted((root / SHIPPED_FOLDERS[kind]).glob("*.yaml"))}
    return {}


def resolve_file(given: Path, kind: str) -> Path:
    """The file that is meant: the one at `given`, or where there is none the shipped one of that name.

    Raises:
        InputError: for a bare name that means neither, with the nearest.
    """
    if given.suffix or len(given.parts) != 1 or os.path.lexists(given):
        return given
    known = shipped_files(kind)
    if given.name in known:
        return known[given.name]
    if others := [other for other in SHIPPED_FOLDERS if given.name in shipped_files(other)]:
        raise InputError(_wrong_kind(given, others, kind))
    here = [path.name for path in sorted(Path().glob("*.yaml"))]
    raise InputError(
        f"{given}: no such file, and no {kind} of that name is shipped.{nearest(given.name, [*known, *here])} "
        f"Choose from {', '.join(known) or 'none'}, or give a YAML file"
    )


def require_kind(tree: Mapping[str, Any], path: Path, kind: str) -> None:
    """Raise InputError, with the command that takes it, where the file at `path` is of another kind than expected."""
    tops = {str(key).partition(".")[0] for key in tree}
    kinds = [one for one, marks in KEYS_BY_KIND.items() if tops.intersection(marks)]
    if kinds and kind not in kinds:
        raise InputError(_wrong_kind(path, kinds[:1], kind))


def _wrong_kind(path: Path, kinds: Sequence[str], expected: str) -> str:
    """Return the line for a file that is of other kinds than expected."""
    taken = (f"{_article(kind)}: {COMMAND_BY_KIND[kind]} {path}" for kind in kinds)
    return f"{path}: is {' and '.join(taken)}; expected {_article(expected)}"


def _article(kind: str) -> str:
    return f"an {kind}" if kind.startswith("e") else f"a {kind}"
