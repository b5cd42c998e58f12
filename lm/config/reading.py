"""Readers of what the YAML files of experiments and searches share, and of the files that come with the package."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from lm.config.imported import add_module_folder
from lm.config.keys import Also
from lm.config.plain import shown
from lm.config.tree import InputError, Tree, dotted_changes, load_yaml, nearest, override, path_name

RESERVED = ("cells",)  # names that no report may have: folders of the store
MOST_SEEDS = 1000  # largest number of seeds; more are a typing error

Seeds = (
    Annotated[int, Also(minimum=1, maximum=MOST_SEEDS)]
    | Annotated[str, Also(pattern=r"^\s*[0-9]+(\s*[-,]\s*[0-9]*)*\s*$")]
    | Annotated[list[Annotated[int, Also(minimum=0)]], Also(minItems=1, maxItems=MOST_SEEDS, uniqueItems=True)]
)
"""Type of seeds in a file: a number of them, a text or a list."""

SEEDS = "a number of seeds (6 for 0 to 5), a list of whole numbers below 2**64 (0,1,2 or [6] or '6,'), or a range (0-5)"
"""Description of seeds, for messages."""

SEED = re.compile(r"([0-9]{1,20})(?:\s*-\s*([0-9]{1,20}))?")


def load_config(source: object) -> Tree:
    """Read a file, a shipped name or a mapping as a configuration; raise InputError if it cannot be read.

    Modules beside a file can be imported then. A file with a `base` holds only what differs: dotted paths, or sections
    with some of their settings.
    """
    if isinstance(source, Mapping):
        return _with_bases(Path("config"), content=source)
    if not isinstance(source, str | Path):
        raise InputError(f"config: expected a YAML file, a name or a mapping, found {shown(source)}")
    return _with_bases(resolve_file(Path(source), "configuration"))


def _with_bases(path: Path, below: tuple[Path, ...] = (), content: Mapping[str, Any] | None = None) -> Tree:
    """Read the file at `path`, or take its content, and apply it to its base; `below` are the files that named it."""
    tree = content
    if tree is None:
        add_module_folder(path.parent)
        tree, file = load_yaml(path), path.resolve()
        if file in below:
            raise InputError(f"{path}: base: names itself, by way of {below[-1]}")
        require_kind(tree, path, "configuration")
        below = (*below, file)
    if "base" not in tree:
        return dict(tree)
    changes = dict(dotted_changes({key: value for key, value in tree.items() if key != "base"}))
    return override(_with_bases(_base_named(tree["base"], path), below), changes)


def _base_named(base: object, path: Path) -> Path:
    """Return the base file of the one at `path`: relative to it, or a shipped one by its bare name."""
    if not isinstance(base, str):
        raise InputError(f"{path}: base: expected the path of a YAML file, found {shown(base)}")
    if "/" not in base and not base.endswith((".yaml", ".yml")) and not os.path.lexists(path.parent / base):
        files = shipped_files("configuration")
        if base not in files:
            hint = f"{nearest(base, list(files))} Choose from {', '.join(files) or 'none'}, or give a YAML file"
            raise InputError(f"{path}: base: no configuration {shown(base)} is shipped.{hint}")
        return files[base]
    return path.parent / base


def report_name(path: Path, tier: str = "") -> str:
    """Return the name of the report's folder for a file; raise InputError if the file's name cannot be one."""
    name = path_name(f"{path.stem}.{tier}" if tier else path.stem, f"{path}: the file's name")
    if name in RESERVED:
        raise InputError(f"{path}: {name!r} is the folder of all cells; give the file another name")
    return name


def read_base(tree: Mapping[str, Any], path: Path) -> Tree:
    """Read the `base` of a file and apply its `common` changes; raise InputError if either cannot be read."""
    base = _with_bases(_base_named(tree["base"], path))
    return override(base, tree.get("common") or {})


def read_seeds(value: Any, path: str) -> list[int]:
    """Return the seeds that a file or a command line names; raise InputError for anything else.

    The value is a number of seeds (6: seeds 0 to 5), a list of seeds, or text: `0,1,2`, `6,` or `0-5`.
    """
    ranges: list[range] = []
    if isinstance(value, str):
        matches = [SEED.fullmatch(part.strip()) for part in value.strip().removesuffix(",").split(",")]
        if all(matches):
            ranges = [range(int(match[1]), int(match[2] or match[1]) + 1) for match in matches if match]
        if value.strip().isdecimal():
            ranges = [range(first.start) for first in ranges]
    elif type(value) is int:
        ranges = [range(value)]
    elif isinstance(value, list | range) and all(type(seed) is int for seed in value):
        ranges = [range(seed, seed + 1) for seed in value]
    number = sum(max(0, part.stop - part.start) for part in ranges)
    if number > MOST_SEEDS:
        raise InputError(f"{path}: expected {MOST_SEEDS} seeds at most, found {number}")
    seeds = [seed for part in ranges for seed in part]
    if not seeds or not all(0 <= seed < 2**64 for seed in seeds):
        raise InputError(f"{path}: expected {SEEDS}, found {shown(value)}")
    if len(set(seeds)) != len(seeds):
        raise InputError(f"{path}: a seed is given twice in {shown(value)}")
    return seeds


PACKAGE = Path(__file__).resolve().parents[1]
WHEEL_FOLDER = "shipped"  # of an installed package, into which setup.py copies the files at the top of a clone
STUDIES = "studies"  # folder beside the experiments to learn from, with rates, recipes and controls
FAMILIES = "families"  # folder beside the bases: published models in small, which are configurations too

SHIPPED_FOLDERS = {"experiment": "experiments", "sweep": "sweeps", "configuration": "experiments/bases"}
COMMAND_BY_KIND = {"experiment": "lm ablate", "sweep": "lm sweep", "configuration": "lm fit"}
"""Folder of each kind of file, below the clone or the wheel's folder, and the command that reads it."""


KEYS_BY_KIND = {
    "experiment": ("arms", "design", "baseline", "claims", "confirmatory", "ladder", "lr_curve", "tune"),
    "sweep": ("space", "objectives", "sampler", "pruner"),
    "configuration": ("data", "model", "optim", "trainer", "evaluate", "seed", "data_seed"),
}
"""Top-level keys that only one kind of file has."""


def shipped_files(kind: str) -> dict[str, Path]:
    """Return the files of a kind that come with the package, by name; none if it was installed without them."""
    for root in (PACKAGE / WHEEL_FOLDER, PACKAGE.parent):
        if (root / "experiments" / "bases").is_dir():
            return files_by_name(root / SHIPPED_FOLDERS[kind])
    return {}


def files_by_name(folder: Path) -> dict[str, Path]:
    """Map names of the YAML files in a folder, its `studies/` and the `families/` of bases to their paths, sorted."""
    places = [folder, folder / STUDIES, *([folder.parent / FAMILIES] if folder.name == "bases" else [])]
    paths = (path for place in places for path in place.glob("*.yaml"))
    return {path.stem: path for path in sorted(paths, key=lambda path: path.stem)}


def resolve_file(path: Path, kind: str) -> Path:
    """Return the file at `path`, or the shipped one of that name; raise InputError with the nearest name."""
    if path.suffix or len(path.parts) != 1 or os.path.lexists(path):
        return path
    files = shipped_files(kind)
    if path.name in files:
        return files[path.name]
    if others := [other for other in SHIPPED_FOLDERS if path.name in shipped_files(other)]:
        raise InputError(_wrong_kind(path, others, kind))
    here = [file.name for file in sorted(Path().glob("*.yaml"))]
    hint = f"{nearest(path.name, [*files, *here])} Choose from {', '.join(files) or 'none'}, or give a YAML file"
    raise InputError(f"{path}: no such file, and no {kind} of that name is shipped.{hint}")


def require_kind(tree: Mapping[str, Any], path: Path, kind: str) -> None:
    """Raise InputError, with the right command, if the file at `path` is of another kind than expected."""
    tops = {str(key).partition(".")[0] for key in tree}
    kinds = [name for name, keys in KEYS_BY_KIND.items() if tops.intersection(keys)]
    if kinds and kind not in kinds:
        raise InputError(_wrong_kind(path, kinds[:1], kind))


def _wrong_kind(path: Path, kinds: Sequence[str], expected: str) -> str:
    """Format the message for a file of other kinds than expected."""
    articles = {kind: f"{'an' if kind.startswith('e') else 'a'} {kind}" for kind in COMMAND_BY_KIND}
    readings = (f"{articles[kind]}: {COMMAND_BY_KIND[kind]} {path}" for kind in kinds)
    return f"{path}: is {' and '.join(readings)}; expected {articles[expected]}"
