"""The committed references, whose experiments lie in folders with their cells or in packs."""

import functools
import json
from pathlib import Path
from typing import Any

from conftest import ROOT

from lm.store.archive import CELLS, ENDING, read_archive

REFERENCE = ROOT / "results" / "reference"


@functools.cache
def files() -> dict[str, str]:
    """Records, configurations and manifests as text, by their paths as they are in a folder of results."""
    found = {}
    for pattern in (f"{CELLS}/*/record.json", f"{CELLS}/*/config.yaml", "*/experiment.json", "*/study.json"):
        for path in REFERENCE.glob(pattern):
            found[path.relative_to(REFERENCE).as_posix()] = path.read_text(encoding="utf-8")
    for pack in sorted(REFERENCE.glob(f"*{ENDING}")):
        contents = read_archive(pack).contents("manifests", "records", "configurations")
        found.update({name: content.decode() for name, content in contents})
    return dict(sorted(found.items()))


def named(name: str) -> dict[str, str]:
    """The text of every file of this name, by the experiment, the search or the cell that it lies in."""
    return {Path(path).parent.name: text for path, text in files().items() if Path(path).name == name}


def records() -> dict[str, dict[str, Any]]:
    """The records by the ids of their cells."""
    return {cell: json.loads(text) for cell, text in named("record.json").items()}
