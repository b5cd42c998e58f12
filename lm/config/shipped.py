"""Experiments, sweeps and bases that come with the package, by name: in a clone at its top, in a wheel inside it."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm.config.tree import InputError, nearest

PACKAGE = Path(__file__).resolve().parents[1]
WITHIN = "shipped"
"""The folder of the installed package into which setup.py puts what lies at the top of a clone."""

FOLDERS = {"experiment": "experiments", "sweep": "sweeps", "configuration": "experiments/bases"}
"""Where files of each kind lie, in a clone and in what ships alike."""

STUDIES = "studies"
"""Folder beside the experiments to learn from, with rates, recipes and controls."""

COMMANDS = {"experiment": "lm ablate", "sweep": "lm sweep", "configuration": "lm fit"}
"""What takes a file of each kind."""

MARKS = {
    "experiment": ("arms", "design", "baseline", "claims", "confirmatory", "ladder", "lr_curve", "tune"),
    "sweep": ("space", "objectives", "sampler", "pruner"),
    "configuration": ("data", "model", "optim", "trainer", "evaluate", "seed", "data_seed"),
}
"""Keys at the top of a file of each kind that no other kind has."""


def shipped(kind: str) -> dict[str, Path]:
    """The files of a kind that come with the package, by name; none where it was installed without them."""
    for root in (PACKAGE / WITHIN, PACKAGE.parent):
        if (root / "experiments" / "bases").is_dir():
            return files_by_name(root / FOLDERS[kind])
    return {}


def files_by_name(folder: Path) -> dict[str, Path]:
    """Map the names of the YAML files in a folder and in its `studies/` to their paths, in the order of the names."""
    paths = (path for place in (folder, folder / STUDIES) for path in place.glob("*.yaml"))
    return {path.stem: path for path in sorted(paths, key=lambda path: path.stem)}


def file_named(given: Path, kind: str) -> Path:
    """The file that is meant: the one at `given`, or where there is none the shipped one of that name.

    Raises:
        InputError: for a bare name that means neither, with the nearest.
    """
    if given.suffix or len(given.parts) != 1 or os.path.lexists(given):
        return given
    known = shipped(kind)
    if given.name in known:
        return known[given.name]
    if others := [other for other in FOLDERS if given.name in shipped(other)]:
        raise InputError(_of_kind(given, others, kind))
    here = [path.name for path in sorted(Path().glob("*.yaml"))]
    raise InputError(
        f"{given}: no such file, and no {kind} of that name is shipped.{nearest(given.name, [*known, *here])} "
        f"Choose from {', '.join(known) or 'none'}, or give a YAML file"
    )


def require_kind(tree: Mapping[str, Any], path: Path, kind: str) -> None:
    """Raise InputError, with the command that takes it, where the file at `path` is of another kind than expected."""
    tops = {str(key).partition(".")[0] for key in tree}
    kinds = [one for one, marks in MARKS.items() if tops.intersection(marks)]
    if kinds and kind not in kinds:
        raise InputError(_of_kind(path, kinds[:1], kind))


def _of_kind(path: Path, kinds: Sequence[str], expected: str) -> str:
    """Return the line for a file that is of other kinds than expected."""
    taken = (f"{_article(kind)}: {COMMANDS[kind]} {path}" for kind in kinds)
    return f"{path}: is {' and '.join(taken)}; expected {_article(expected)}"


def _article(kind: str) -> str:
    return f"an {kind}" if kind.startswith("e") else f"a {kind}"
