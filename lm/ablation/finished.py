"""What became of the finished cells that a plan asks for, and which of them other code trained."""

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from lm import __version__
from lm.ablation.plan import Plan
from lm.analysis.comparability import ABBREVIATED, commit_of
from lm.store.record import Record
from lm.store.sources import canonical
from lm.store.store import Store
from lm.training.provenance import git_state, source_hash

MOST_NAMED = 3
"""Versions of the code that a line names."""


@dataclass(frozen=True)
class Finished:
    """The finished cells of a plan.

    Args:
        statuses: what became of each, by its id.
        others: the version in words of those that other code of this package trained, by id.
    """

    statuses: dict[str, str]
    others: dict[str, str]

    def reused(self, missing: Collection[str]) -> list[str]:
        """Return a line on the cells that other code trained; none where no such cell is used.

        Args:
            missing: ids of the cells that are about to be trained, again or not.
        """
        versions = [version for cell, version in self.others.items() if cell not in missing]
        if not versions:
            return []
        names, count = list(dict.fromkeys(versions)), len(versions)
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        cells, are = ("finished cell was", "it is") if count == 1 else ("finished cells were", "they are")
        return [
            f"{count} {cells} trained by other code: {', '.join(names[:MOST_NAMED])}{more}; {are} used without "
            "training again. To train all cells by this code, give another --out"
        ]


def finished_of(plan: Plan, store: Store) -> Finished:
    """Return what became of each finished cell of a plan; every record is read once, though there may be thousands.

    Raises:
        InputError: where a record is damaged, or a newer version wrote it.
    """
    statuses, others, here = dict[str, str](), dict[str, str](), functools.cache(git_state)
    for planned in plan.distinct:
        cell = planned.cell.id
        store.recover(cell)
        if store.finished(cell):
            record = store.record(cell)
            statuses[cell] = str(record["status"])
            if not _by_this_code(record, here):
                others[cell] = _version(record)
    return Finished(statuses, others)


def _by_this_code(record: Record, here: Any) -> bool:
    """Whether this code trained a cell; a record that keeps no hash of it goes by its commit, and `here` says ours."""
    origin: Mapping[str, Any] = record.get("provenance") or {}
    if (source := origin.get("source")) is not None:
        return canonical(source) == canonical(source_hash())
    git = origin.get("git") or {}
    if git.get("commit") is None:
        return origin.get("lm") == __version__ and here()["commit"] is None
    return not git.get("dirty") and here() == {"commit": git["commit"], "dirty": False}


def _version(record: Record) -> str:
    origin: Mapping[str, Any] = record.get("provenance") or {}
    git = origin.get("git") or {}
    if git.get("commit") is None:
        return f"lm {origin.get('lm', 'of an unknown version')}"
    return f"commit {commit_of({'commit': git['commit'], 'dirty': git.get('dirty')}, ABBREVIATED)}"
