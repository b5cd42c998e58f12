"""Experiments, sweeps and bases that come with the package, by name: in a clone at its top, in a wheel inside it."""

import os
from pathlib import Path

from lm.config.tree import InputError, nearest

PACKAGE = Path(__file__).resolve().parents[1]
WITHIN = "shipped"
"""The folder of the installed package into which setup.py puts what lies at the top of a clone."""

FOLDERS = {"experiment": "experiments", "sweep": "sweeps", "configuration": "experiments/bases"}
"""Where files of each kind lie, in a clone and in what ships alike."""


def shipped(kind: str) -> dict[str, Path]:
    """The files of a kind that come with the package, by name; none where it was installed without them."""
    for root in (PACKAGE / WITHIN, PACKAGE.parent):
        if (root / "experiments" / "bases").is_dir():
            return {path.stem: path for path in sorted((root / FOLDERS[kind]).glob("*.yaml"))}
    return {}


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
    here = [path.name for path in sorted(Path().glob("*.yaml"))]
    raise InputError(
        f"{given}: no such file, and no {kind} of that name is shipped.{nearest(given.name, [*known, *here])} "
        f"Choose from {', '.join(known) or 'none'}, or give a YAML file"
    )
