"""With --trusted-only no code runs that is not part of lm, whatever names it."""

import sys
from pathlib import Path

import pytest
import yaml
from helpers import Capture, Patch, refused
from messages import Refused, RefusedCommand

from lm.cli import main
from lm.config.imported import current_folder_modules, trusted_only
from lm.inference.finished import find_components

OWN = "raise AssertionError('this was run')\n"
EXPERIMENT = {"base": "char_tiny", "baseline": "a", "seeds": 6, "arms": {"a": {}, "b": {"model.mlp": "stranger.Own"}}}
SWEEP = {"base": "char_tiny", "trials": 2, "common": {"model.mlp": "stranger.Own"}}
SPACE = {"optim.lr": {"low": 1.0e-4, "high": 1.0e-2, "log": True}}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A folder with a module of a stranger's, and files that name it."""
    (tmp_path / "stranger.py").write_text(OWN)
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({**SWEEP, "space": SPACE}))
    (tmp_path / "one.yaml").write_text("base: char_tiny\nmodel.mlp: stranger.Own\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "stranger", raising=False)
    return tmp_path


COMMANDS = (
    ["fit", "one.yaml"],
    ["fit", "char_tiny", "--model.mlp", "stranger.Own"],
    ["count", "one.yaml"],
    ["ablate", "experiment.yaml", "--plan"],
    ["sweep", "sweep.yaml", "--plan"],
    ["diff", "one.yaml", "one.yaml"],
)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_every_command_that_builds_refuses_a_class_of_a_strangers(
    place: Path, capsys: Capture, arguments: list[str], refused_command: RefusedCommand
) -> None:
    for given in ([*arguments, "--trusted-only"], ["--trusted-only", *arguments]):
        refused_command(given)
    assert "stranger" not in sys.modules
    assert main(arguments) == 2
    assert "AssertionError: this was run" in capsys.readouterr().err, "without it the module is imported"


def test_a_class_of_another_package_is_refused_by_path(place: Path, capsys: Capture) -> None:
    command = ["count", "char_tiny", "--trusted-only", "--optim.optimizer"]
    refused(capsys, [*command, "torch.optim.SGD"], "optim.optimizer: 'torch.optim.SGD'")
    assert main([*command, "SGD"]) == 0


def test_a_run_with_foreign_classes_is_refused_before_import(place: Path, refused: Refused) -> None:
    before = list(sys.path)
    with trusted_only(), current_folder_modules(), refused():
        find_components({"model": {"class_path": "stranger.Own"}}, place)
    assert sys.path == before
    with current_folder_modules():
        assert str(place) in sys.path
