"""A damaged manifest is named with the place of the damage, before anything is made of it."""

import copy
import json
from pathlib import Path
from typing import Any

import fuzz
import pytest
import references
from messages import Refused

from lm.analysis.results import load
from lm.report.study import load_study
from lm.store.formats import MANIFEST, SEARCH
from lm.store.record import Manifest, StudyManifest
from lm.store.validation import check_shape


@pytest.mark.parametrize("name", references.folders("experiment.json"))
def test_the_manifests_of_this_repository_are_whole(name: str) -> None:
    found = json.loads(references.named("experiment.json")[name])
    check_shape(MANIFEST.read(found, Path(name)), Manifest, Path(name), "")


@pytest.mark.parametrize("name", references.folders("study.json"))
def test_the_studies_of_this_repository_are_whole(name: str, tmp_path: Path) -> None:
    text = references.named("study.json")[name]
    check_shape(SEARCH.read(json.loads(text), Path(name)), StudyManifest, Path(name), "")
    (tmp_path / "study.json").write_text(text)
    load_study(tmp_path)


def damaged(tree: dict[str, Any], place: list[Any], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(tree)
    node: Any = changed
    for step in place[:-1]:
        node = node[step]
    if value is KeyError:
        del node[place[-1]]
    else:
        node[place[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["title"], None),
        (["seeds"], [0, "1"]),
        (["seeds"], KeyError),
        (["arms", "b"], 3),
        (["arms", "b", "cells", "0"], []),
        (["arms", "b", "cells", "0"], "../../x"),
        (["arms", "b", "changes", "model.block"], ["a"]),
        (["margin", "nll"], True),
        (["claims", 0, "contrast", "a"], float("nan")),
        (["notes"], json.loads("[" * 300 + "]" * 300)),
        (["claims", 0, "more"], 1),
    ],
)
def test_a_damaged_manifest_of_an_experiment_is_named(
    tmp_path: Path, refused: Refused, place: list[Any], value: Any
) -> None:
    (tmp_path / "experiment.json").write_text(json.dumps(damaged(fuzz.MANIFEST, place, value)))
    with refused():
        load(tmp_path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["study", 0, "params"], []),
        (["study", 1, "values"], [1.0, 2.0]),
        (["study", 1, "values"], None),
        (["study", 2, "state"], "done"),
        (["study", 2, "params", "model.norm"], "T5Bias"),
        (["study", 2, "params", "optim.lr"], "T5Bias"),
        (["space", "optim.lr", "low"], 0),
        (["objectives"], {"nl": "lower"}),
        (["methods"], []),
        (["seeds"], []),
        (["study", 1, "values"], [None]),
    ],
)
def test_a_damaged_study_is_named(tmp_path: Path, refused: Refused, place: list[Any], value: Any) -> None:
    (tmp_path / "study.json").write_text(json.dumps(damaged(fuzz.STUDY, place, value)))
    with refused():
        load_study(tmp_path)
