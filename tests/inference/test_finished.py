"""A finished run finds the classes of a user's own that it was trained with, or says where it looked."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from helpers import Patch
from messages import Refused

from lm.config.imported import current_folder_modules
from lm.config.tree import Tree
from lm.inference.finished import FinishedRun

MakeExperiment = Callable[..., Path]


def naming(module: str) -> Tree:
    """A configuration with a norm of one's own."""
    return {
        "model": {"class_path": "Decoder", "init_args": {"norm": {"class_path": f"{module}.Mine", "init_args": {}}}}
    }


@pytest.fixture
def run(experiment: MakeExperiment, tmp_path: Path, monkeypatch: Patch) -> Iterator[Path]:
    """A run in tmp_path/out of an experiment in tmp_path/project/sub, seen from an empty folder."""
    folder = experiment({"base": [2.0], "arm": [1.9]}, command=["ablate", "project/sub/mine.yaml", "--tier", "G"])
    (tmp_path / "project" / "sub").mkdir(parents=True)
    (tmp_path / "project" / "sub" / "mine.yaml").write_text("{}")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with current_folder_modules():
        yield folder.parent / "cells" / "arm-0"


@pytest.mark.parametrize("place", ["here", ".", "project/sub"])
def test_own_components_are_found_in_each_documented_folder(
    run: Path, place: str, tmp_path: Path, refused: Refused
) -> None:
    module = f"own_norm_in_{len(place)}"
    (run / "config.yaml").write_text(yaml.safe_dump(naming(module)))
    with refused():
        FinishedRun.at(run)
    (tmp_path / place / f"{module}.py").write_text("class Mine: ...\n")
    assert FinishedRun.at(run).config == naming(module)
    assert module not in sys.modules, "looking imports nothing"


def test_components_that_are_nowhere_are_a_line_with_the_places(run: Path, refused: Refused) -> None:
    (run / "config.yaml").write_text(yaml.safe_dump(naming("own_norm_of_nobody")))
    (run / "code").mkdir()
    with refused():
        FinishedRun.at(run)


def test_what_is_installed_is_looked_for_nowhere(run: Path) -> None:
    before = list(sys.path)
    (run / "config.yaml").write_text(yaml.safe_dump(naming("lm.model.norm")))
    FinishedRun.at(run)
    assert sys.path == before
