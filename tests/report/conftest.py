"""Experiments whose arms nobody vouches for, a search, and pages without the script that draws."""

import json
from pathlib import Path
from typing import Any

import pytest
from records import ARM_NAMES, CELLS, IMAGE, SCRIPT, MakeExperiment
from searches import LR, make_search, trial

from lm.report.web import gallery


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
    """The script that draws is a line, which is enough for all but a browser, and tests that use `library`."""
    if not {"library", "chromium"} & {*request.fixturenames}:
        monkeypatch.setattr(gallery, "library", lambda: "window.vegaEmbed = 1;")


@pytest.fixture
def library() -> str:
    """The script that draws, where it is installed."""
    pytest.importorskip("vl_convert", reason="charts are drawn by vl-convert-python")
    return gallery.library()


@pytest.fixture
def search(tmp_path: Path) -> Path:
    """The folder of a search with six trials, the first of them pruned."""
    reported = {"reported": {"50": 3.0, "100": 2.5}}
    trials = [trial(0, None, "pruned", lr=0.1, kind=IMAGE) | reported]
    trials += [trial(at, [2.0 + (at - 3) ** 2], lr=0.1 / (at + 1), kind=IMAGE) | reported for at in range(1, 6)]
    space = {"lr": {**LR, "low": 1e-3, "high": 1.0}, "kind": {"choices": [IMAGE, "b"]}}
    return make_search(tmp_path / "search", trials, space, title=SCRIPT, trials=6)
