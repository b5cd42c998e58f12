"""Experiments whose arms nobody vouches for, a search, and pages without the script that draws."""

import json
from pathlib import Path
from typing import Any

import pytest
from records import ARM_NAMES, CELLS, IMAGE, SCRIPT, MakeExperiment

from lm.report.web import gallery
from lm.store.files import to_json, write_atomic
from lm.store.formats import SEARCH


def give_names(folder: Path) -> Path:
    """Give the arms of an experiment names that a browser would run; their cells are called otherwise."""
    described = json.loads((folder / "experiment.json").read_text(encoding="utf-8"))
    described["arms"] = {ARM_NAMES[arm]: one for arm, one in described["arms"].items()}
    if described.get("confirmatory"):
        described["confirmatory"] = [ARM_NAMES[arm] for arm in described["confirmatory"]]
    (folder / "experiment.json").write_text(json.dumps(described), encoding="utf-8")
    return folder


@pytest.fixture
def hostile(experiment: MakeExperiment) -> MakeExperiment:
    """Makes an experiment whose arms have names that a browser would run."""
    return lambda **manifest: give_names(experiment(CELLS, **manifest))


@pytest.fixture(scope="module")
def nasty(module_experiment: MakeExperiment) -> Path:
    """The folder of such an experiment, whose title, notes and command a browser would run too."""
    text = f"{IMAGE}{SCRIPT}"
    how: dict[str, Any] = {"title": text, "notes": text, "command": ["ablate", text], "secondary": ["accuracy"]}
    return give_names(module_experiment(CELLS, **how))


@pytest.fixture(autouse=True)
def _no_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script that draws is a line, which is enough for all but drawing, unless a test uses `library`."""
    if "library" not in request.fixturenames:
        monkeypatch.setattr(gallery, "library", lambda: "window.vegaEmbed = 1;")


@pytest.fixture
def library() -> str:
    """The script that draws, where it is installed."""
    pytest.importorskip("vl_convert", reason="charts are drawn by vl-convert-python")
    return gallery.library()


@pytest.fixture
def search(tmp_path: Path) -> Path:
    """The folder of a search with six trials, the first of them pruned."""
    trials = [
        {
            "number": at, "state": "complete" if at else "pruned", "params": {"lr": 0.1 / (at + 1), "kind": IMAGE},
            "values": [2.0 + (at - 3) ** 2] if at else None, "reason": None, "cells": {}, "seconds": 1.0,
            "reported": {"50": 3.0, "100": 2.5},
        }
        for at in range(6)
    ]  # fmt: skip
    space = {
        "lr": {"low": 1e-3, "high": 1.0, "log": True, "step": None, "int": False}, "kind": {"choices": [IMAGE, "b"]},
    }  # fmt: skip
    method = {"sampler": {"name": "tpe", "seed": 3}, "pruner": {"name": "none", "seed": 0}, "from_trial": 0}
    manifest = {
        "format": SEARCH.version, "name": "demo", "title": SCRIPT, "notes": "", "objectives": {"nll": "lower"},
        "space": space, "trials": 6, "seeds": [0], "methods": [method], "study": trials,
    }  # fmt: skip
    write_atomic(tmp_path / "search" / "study.json", to_json(manifest))
    return tmp_path / "search"
