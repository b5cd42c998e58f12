"""Which version of what its parts compute this package holds.

A part's version stands in the identity of every cell that uses the part, so that a change of numbers trains those cells
anew and no other. Whoever changes what a part computes raises its version here by hand; rounding is no change. A test
holds the numbers of small cells with every part against those that were pinned when the versions were last raised.
"""

from collections.abc import Mapping
from typing import Any

EVERY = "training"
"""The name of what all cells have in common: initial streams, the order of batches, the steps, evaluation's NLL."""

VERSIONS: dict[str, int] = {}
"""Versions by the name of a part's class, or EVERY; a part that is not listed has version 1."""


def behaviour_of(config: Any) -> dict[str, int]:
    """The versions above 1 of the parts that a resolved configuration names."""
    return {name: version for name, version in sorted(VERSIONS.items()) if version > 1 and name in parts_of(config)}


def parts_of(config: Any) -> set[str]:
    """The names of the classes of a resolved configuration, and EVERY."""
    found = {EVERY}
    if isinstance(config, Mapping):
        if isinstance(config.get("class_path"), str):
            found.add(config["class_path"])
        for inner in config.values():
            found |= parts_of(inner)
    return found
