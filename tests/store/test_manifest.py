"""A damaged manifest is named with the place of the damage, before anything is made of it."""

import copy
import json
from pathlib import Path
from typing import Any

import fuzz
import pytest
import references

from lm.analysis.results import load
from lm.config.tree import InputError
from lm.report.study import load_study
from lm.store.formats import MANIFEST, SEARCH
from lm.store.record import Manifest, StudyManifest
from lm.store.validation import check_shape


@pytest.mark.parametrize("name", references.named("experiment.json"))
def test_the_manifests_of_this_repository_are_whole(name: str) -> None:
    found = json.loads(references.named("experiment.json")[name])
    check_shape(MANIFEST.read(found, Path(name)), Manifest, Path(name), "")


@pytest.mark.parametrize("name", references.named("study.json"))
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
    ("place", "value", "words"),
    [
        (["title"], None, "title: is damaged, found None"),
        (["seeds"], [0, "1"], r"seeds\[1\]: is damaged, found '1'"),
        (["seeds"], KeyError, "seeds: is damaged, found nothing"),
        (["arms", "b"], 3, r"arms\.b: is damaged, found 3"),
        (["arms", "b", "cells", "0"], [], r"arms\.b\.cells\.0: is damaged, found \[\]"),
        (["arms", "b", "cells", "0"], "../../x", "cannot name a file"),
        (["arms", "b", "changes", "model.block"], ["a"], r"changes\.model\.block\[1\]: is damaged, found nothing"),
        (["margin", "nll"], True, r"margin\.nll: is damaged, found True"),
        (["claims", 0, "contrast", "a"], float("nan"), r"claims\[0\]\.contrast\.a: is damaged, found nan"),
        (["notes"], json.loads("[" * 300 + "]" * 300), "experiment.json: the whole: is damaged"),
        (["claims", 0, "more"], 1, r"claims\[0\]: is damaged, found the name 'more'"),
    ],
)
def test_a_damaged_manifest_of_an_experiment_is_named(tmp_path: Path, place: list[Any], value: Any, words: str) -> None:
    (tmp_path / "experiment.json").write_text(json.dumps(damaged(fuzz.MANIFEST, place, value)))
    with pytest.raises(InputError, match=words):
        load(tmp_path)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (["study", 0, "params"], [], r"study\[0\]\.params: is damaged"),
        (["study", 1, "values"], [1.0, 2.0], "trial 1 has the values"),
        (["study", 1, "values"], None, "trial 1 has the values None"),
        (["study", 2, "state"], "done", "trial 2 is done"),
        (["study", 2, "params", "model.norm"], "T5Bias", "trial 2 has model.norm='T5Bias'"),
        (["study", 2, "params", "optim.lr"], "T5Bias", "trial 2 has optim.lr='T5Bias'"),
        (["space", "optim.lr", "low"], 0, "space.optim.lr holds nothing"),
        (["objectives"], {"nl": "lower"}, "objectives hold nl: lower"),
        (["methods"], [], "methods or seeds are empty"),
        (["seeds"], [], "methods or seeds are empty"),
    ],
)
def test_a_damaged_study_is_named(tmp_path: Path, place: list[Any], value: Any, words: str) -> None:
    (tmp_path / "study.json").write_text(json.dumps(damaged(fuzz.STUDY, place, value)))
    with pytest.raises(InputError, match=words):
        load_study(tmp_path)
