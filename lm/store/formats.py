"""Versions of the files on disk, and migrations from older ones.

Every kind of file has a version of its own, its `format`. None is part of a cell's identity: a new layout gets a
migration from the one before it, and trained cells stay valid.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lm.config.plain import shown
from lm.config.tree import InputError

Content = dict[str, Any]
Step = Callable[[Content], Content]


@dataclass(frozen=True)
class Format:
    """A kind of file: its name, the version that is written, and migrations from each older version to the next."""

    name: str
    version: int
    steps: Mapping[int, Step] = field(default_factory=dict)

    def stamped(self, content: Mapping[str, Any]) -> Content:
        """Return the content of a file with its version."""
        return {"format": self.version, **{key: value for key, value in content.items() if key != "format"}}

    def read(self, content: Any, path: Path) -> Content:
        """Return content in the layout of this version; raise InputError for a newer layout, or without a version."""
        written = content.get("format") if isinstance(content, dict) else None
        if not isinstance(written, int) or isinstance(written, bool) or not 1 <= written <= self.version:
            newer = isinstance(written, int) and written > self.version
            remedy = "a newer version wrote it: use that one" if newer else "it is damaged, or another kind of file"
            expected = f"1 to {self.version}" if self.version > 1 else "1"
            as_written = "none" if written is None else shown(written)
            raise InputError(f"{path}: expected {self.name} of format {expected}, found {as_written}; {remedy}")
        for version in range(written, self.version):
            content = {**self.steps[version](content), "format": version + 1}
        return dict(content)


def nothing_recorded() -> Content:
    """Return the optional parts of a record, empty."""
    empty = ("error", "diverged", "steps", "evaluated", "pairing", "reliability", "initial", "final", "curve")
    return {**dict.fromkeys(empty), "flags": [], "evaluations": {}}


def _record_2(content: Content) -> Content:
    """Migrate a record from before measurements inside the model, evaluation at lengths and checksums of curves."""
    record = {**nothing_recorded(), **content}
    if isinstance(record.get("provenance"), dict):
        record["provenance"] = {"precision": None, "code": None, **record["provenance"]}
    return record


def _manifest_2(content: Content) -> Content:
    """Migrate a manifest from before inference was declared: all arms but the baseline are one family."""
    arms = content.get("arms")
    others = [arm for arm in arms if arm != content.get("baseline")] if isinstance(arms, dict) else []
    empty: Content = {"tier": "C", "secondary": [], "margin": {}, "confirmatory": others, "declared": {}, "axes": None}
    empty |= {"equal": "steps", "adaptive": None, "design": {"kind": "arms"}, "claims": [], "command": None}
    return {**empty, **content}


RECORD = Format("record", 2, {1: _record_2})
MANIFEST = Format("experiment", 2, {1: _manifest_2})
SEARCH = Format("study", 1)
TUNED = Format("tuning", 1)
REGISTERED = Format("registration", 1)
CELL = Format("cell", 1)
OUTCOME = Format("outcome", 1)
PROGRESS = Format("progress", 1)
TRIES = Format("tries", 1)
BRANCH = Format("branch", 1)
SECONDS = Format("step times", 1)
PACK = Format("pack", 1)
WAYS = Format("ways", 1)
RATES = Format("learning-rate curves", 1)
LADDER = Format("ladder", 1)
DOCUMENTS = Format("losses by document", 1)
THIN_CURVE = Format("thin curve", 1)
