"""Relations of claims, and what each compares a number with, in an experiment's file and in its manifest."""

import math
from collections.abc import Mapping
from typing import Any

from lm.config.nodes import one_of
from lm.config.tree import InputError

RELATIONS = ("less", "greater", "equivalent", "range", "slope")
NEEDS = {"equivalent": ("margin",), "slope": ("over",)}
STEPS_AHEAD = "steps ahead"  # metric of a claim: the last steps of training for which one arm stays ahead of another


def check_numbers(tree: Mapping[str, Any], path: str) -> None:
    """Raise InputError naming `path` where a claim, of a file or a manifest, lacks what its relation compares with."""
    relation, over = tree["relation"], tree.get("over")
    low, high = tree.get("low", -math.inf), tree.get("high", math.inf)
    for key in NEEDS.get(relation, ()):
        if key not in tree:
            raise InputError(f"{path}: {key} is missing; a claim of {relation} needs it")
    if relation == "equivalent" and not tree["margin"] > 0:
        raise InputError(f"{path}.margin: expected a number above 0, found {tree['margin']:zg}")
    if relation in ("range", "slope") and not {"low", "high"} & tree.keys():
        raise InputError(f"{path}: low or high is missing; a claim of {relation} needs one of them or both")
    if low > high:
        raise InputError(f"{path}: low={low:zg} is more than high={high:zg}")
    if over and (len(set(over.values())) < 2 or min(over.values()) <= 0):
        raise InputError(f"{path}.over: expected two different numbers or more, found {over!r}")


def check_pace(metric: str, contrast: Mapping[str, float], path: str) -> None:
    """Raise InputError naming `path` where the steps ahead are not those of one arm to another."""
    if metric == STEPS_AHEAD and sorted(contrast.values()) != [-1, 1]:
        raise InputError(f"{path}.metric: {STEPS_AHEAD} compares two arms; give arm and against, and no slope")


def check_recorded(claim: Mapping[str, Any], path: str) -> None:
    """Raise InputError naming `path` where a claim of a manifest is none that its experiment's file could have held."""
    one_of(claim["relation"], RELATIONS, f"{path}.relation", "relation")
    check_numbers(claim, path)
    check_pace(claim["metric"], claim.get("contrast", {}), path)
