"""What a pack may hold: an allow-list by pattern, for each kind of folder, held when one is written and when read."""

import fnmatch
from collections.abc import Collection, Iterable, Mapping

from lm.config.tree import InputError, nearest
from lm.store.documents import FILE, TEST_FILE
from lm.store.store import LOG
from lm.store.thin_curves import THIN_NAME

CELLS = "cells"
EXPERIMENT, STUDY, LADDER = "experiment.json", "study.json", "ladder.json"
JOURNAL = "study.journal"

TWINS = (".tuned", ".lr_curve", ".orders")
"""Ends of the names of the experiments that were made of another: each arm at its best, over learning rates, and the
baseline in several orders of the data."""

OF_A_CELL = {
    "record.json": "records",
    "config.yaml": "configurations",
    "history.csv": "curves",
    THIN_NAME: "curves",
    FILE: "others",
    TEST_FILE: "others",
    "code/module.*.py": "others",
    "code/changes.diff": "others",
    "bleu_*.json": "others",
    "translation_*.txt": "others",
}
"""What of a finished cell goes into a pack, and of which kind it is: no weights, and a log only of what went wrong."""

OF_AN_EXPERIMENT = (
    EXPERIMENT,
    "seconds.json",
    "tune/tuned.json",
    f"tune/*/{STUDY}",
    f"tune/*/{JOURNAL}",
    "lr_curve.json",
)
OF_A_STUDY = (STUDY, JOURNAL, "seconds.json")
OF_A_TWIN = (EXPERIMENT,)
OF_A_LADDER = (LADDER,)
"""What of the folder of each goes into a pack, beside its cells; a folder may be of more than one kind."""


def pattern_of(inside: str, patterns: Iterable[str]) -> str | None:
    """Return the first pattern that a path matches, name by name; None where it matches none of them.

    Args:
        inside: a path with `/` between its names; a `*` of a pattern stands for part of one name.
        patterns: such as `tune/*/study.json`.
    """
    names = inside.split("/")
    for pattern in patterns:
        parts = pattern.split("/")
        if len(parts) == len(names) and all(map(fnmatch.fnmatchcase, names, parts)):
            return pattern
    return None


def check_members(members: Mapping[str, Iterable[str]], name: str, where: str) -> None:
    """Check that a pack holds nothing but what `lm pack` puts there.

    Args:
        members: for each kind of file its paths, `cells/ID/...` or `FOLDER/...`.
        name: of the experiment, the search or the ladder in the pack.
        where: the pack, for messages.

    Raises:
        InputError: naming the first file that is on no list, or that lies among files of another kind.
    """
    paths = {path for files in members.values() for path in files}
    folders = {path.split("/")[0] for path in paths}
    for kind, files in members.items():
        for path in files:
            folder, _, inside = path.partition("/")
            if folder == CELLS:
                inside, of = inside.partition("/")[2], {**OF_A_CELL, LOG: "others"}
            else:
                of = dict.fromkeys(_patterns(folder, name, paths, folders), "manifests")
            pattern = pattern_of(inside, of)
            if pattern is None:
                place = "the folder of a cell" if folder == CELLS else folder
                raise InputError(
                    f"{where}: {path}: no pack holds such a file; expected in {place}: {', '.join(of)}."
                    f"{nearest(inside, [*of])}"
                )
            if of[pattern] != kind:
                raise InputError(f"{where}: {path}: lies among {kind}, expected among {of[pattern]}")


def _patterns(folder: str, name: str, paths: Collection[str], folders: Collection[str]) -> tuple[str, ...]:
    """Return what may lie in a folder beside the cells: what its manifests make of it."""
    of_another = any(folder.endswith(end) and folder.removesuffix(end) in folders for end in TWINS)
    if f"{name}/{LADDER}" in paths and folder == name:
        return OF_A_LADDER
    if of_another or folder in {name + end for end in TWINS}:
        return OF_A_TWIN
    as_study = OF_A_STUDY if f"{folder}/{STUDY}" in paths else ()
    as_experiment = OF_AN_EXPERIMENT if f"{folder}/{EXPERIMENT}" in paths or not as_study else ()
    return tuple(dict.fromkeys([*as_experiment, *as_study]))
