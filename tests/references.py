"""The committed references, whose experiments lie in folders with their cells or in packs."""

import functools
import json
from pathlib import Path
from typing import Any

from conftest import ROOT

from lm.store.archive import CELLS, ENDING, Archive, read_archive

REFERENCE = ROOT / "results" / "reference"


KINDS = {
    "experiment.json": "manifests",
    "study.json": "manifests",
    "record.json": "records",
    "config.yaml": "configurations",
}


@functools.cache
def packs() -> list[Archive]:
    """The committed packs, of which nothing but the index is read."""
    return [read_archive(pack) for pack in sorted(REFERENCE.glob(f"*{ENDING}"))]


def folders(name: str) -> list[str]:
    """The experiments, searches or cells with a file of this name: what `named` has, without reading the files."""
    paths = [*REFERENCE.glob(f"{CELLS}/*/{name}"), *REFERENCE.glob(f"*/{name}")]
    paths += [Path(file) for pack in packs() for file in pack.files]
    return sorted({path.parent.name for path in paths if path.name == name})


@functools.cache
def named(name: str) -> dict[str, str]:
    """The text of every file of this name, by the experiment, the search or the cell that it lies in."""
    found = {path.parent.name: path.read_text(encoding="utf-8") for path in REFERENCE.glob(f"*/{name}")}
    found.update({path.parent.name: path.read_text(encoding="utf-8") for path in REFERENCE.glob(f"{CELLS}/*/{name}")})
    for pack in packs():
        contents = pack.contents(KINDS[name])
        found.update(
            {Path(path).parent.name: content.decode() for path, content in contents if Path(path).name == name}
        )
    return dict(sorted(found.items()))


@functools.cache
def records() -> dict[str, dict[str, Any]]:
    """The records by the ids of their cells."""
    return {cell: json.loads(text) for cell, text in named("record.json").items()}
