"""The versions of the files on disk, and how older ones are read.

Every kind of file has a version of its own, written into it as `format`. None of them is part of a cell's identity: a
new layout gets a migration from the one before it, and what was trained stays what it is.
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
    """A kind of file.

    Args:
        name: of the kind, in messages.
        version: that is written.
        steps: from each older version to the one after it.
    """

    name: str
    version: int
    steps: Mapping[int, Step] = field(default_factory=dict)

    def stamped(self, content: Mapping[str, Any]) -> Content:
        """What is written: the content with its version."""
        return {"format": self.version, **{key: value for key, value in content.items() if key != "format"}}

    def read(self, content: Any, path: Path) -> Content:
        """What was written, as this version would have written it. Raises InputError where it cannot be told."""
        found = content.get("format") if isinstance(content, dict) else None
        if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= self.version:
            newer = isinstance(found, int) and found > self.version
            remedy = "a newer version wrote it: use that one" if newer else "it is damaged, or another kind of file"
            raise InputError(f"{path}: {self.name} format {shown(found)}, expected 1 to {self.version}; {remedy}")
        for version in range(found, self.version):
            content = {**self.steps[version](content), "format": version + 1}
        return dict(content)


def _with(defaults: Mapping[str, Any]) -> Step:
    """Gives what is missing the value that stands for nothing."""
    return lambda content: {**defaults, **content}


def nothing_recorded() -> Content:
    """The parts of a record of which a cell may have nothing to say."""
    empty = ("error", "diverged", "steps", "evaluated", "pairing", "reliability", "initial", "final", "curve")
    return {**dict.fromkeys(empty), "flags": [], "evaluations": {}}


def _record_2(content: Content) -> Content:
    """Records from before models were looked at from inside, evaluated at lengths, or had their curve sealed."""
    found = {**nothing_recorded(), **content}
    if isinstance(found.get("provenance"), dict):
        found["provenance"] = {"precision": None, "code": None, **found["provenance"]}
    return found


def _manifest_2(content: Content) -> Content:
    """Manifests from before the inference was declared: every arm but the baseline is compared in one family."""
    arms = content.get("arms")
    others = [arm for arm in arms if arm != content.get("baseline")] if isinstance(arms, dict) else []
    empty: Content = {"tier": "C", "secondary": [], "margin": {}, "confirmatory": others, "declared": {}, "axes": None}
    empty |= {"equal": "steps", "adaptive": None, "design": {"kind": "arms"}, "claims": [], "command": None}
    return {**empty, **content}


RECORD = Format("record", 2, {1: _record_2})
MANIFEST = Format("experiment", 2, {1: _manifest_2})
SEARCH = Format("study", 1)
TUNED = Format("tuning", 1)
CELL = Format("cell", 1)
OUTCOME = Format("outcome", 1)
PROGRESS = Format("progress", 1)
TRIES = Format("tries", 1)
SECONDS = Format("step times", 1)
PACK = Format("pack", 1)
WAYS = Format("ways", 1)
RATES = Format("learning-rate curves", 1)
LADDER = Format("ladder", 1)
DOCUMENTS = Format("losses by document", 1)
THIN_CURVE = Format("thin curve", 1)
