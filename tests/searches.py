"""Searches of invented trials, for the tests that read them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from helpers import RUN

from lm.config.tree import Tree
from lm.store.files import to_json, write_atomic
from lm.store.formats import SEARCH

LR = {"low": 1e-4, "high": 1e-1, "log": True, "step": None, "int": False}


def trial(number: int, values: Sequence[float] | None, state: str = "complete", **params: Any) -> dict[str, Any]:
    """What a search keeps of a trial; one that failed says why."""
    reason = "no luck" if state == "failed" else None
    found = {"number": number, "state": state, "params": params, "values": values and [*values], "reason": reason}
    return found | {"cells": {"0": "c"}, "seconds": 1.5, "reported": {}}


def write_sweep(folder: Path, name: str = "small", trainer: Tree | None = None, **changes: Any) -> Path:
    """Write a search over the tests' small base, whose trainer may be changed, with its keys (None: left out)."""
    (folder / "base.yaml").write_text(yaml.safe_dump({**RUN, "trainer": {**RUN["trainer"], **(trainer or {})}}))
    tree = {"base": "base.yaml", "space": {"optim.lr": {"low": 0.1, "high": 1.0}}, "trials": 3, **changes}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in tree.items() if value is not None}, sort_keys=False))
    return path


def make_search(folder: Path, study: list[dict[str, Any]], space: dict[str, Any], **changes: Any) -> Path:
    """The folder of a search with these trials."""
    method = {"sampler": {"name": "tpe", "seed": 3}, "pruner": {"name": "none", "seed": 0}, "from_trial": 0}
    manifest: dict[str, Any]
    manifest = {"name": "demo", "title": "A *search*", "notes": "", "objectives": {"nll": "lower"}, "space": space}
    manifest |= {"trials": 40, "seeds": [0], "methods": [method], "study": study, "format": SEARCH.version}
    write_atomic(folder / "study.json", to_json(manifest | changes))
    return folder
