"""What every command says of itself, and settings that are given in fewer words."""

import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import Capture
from messages import RefusedCommand

from lm.cli import main
from lm.cli.commands import commands
from lm.cli.entry import SECTIONS, parsers, split_settings
from lm.config.reading import load_config
from lm.config.tree import override
from lm.training.run import RunConfig


@pytest.mark.parametrize("name", list(commands()))
def test_every_command_has_two_examples_that_it_takes(name: str, capsys: Capture) -> None:
    examples = commands()[name].examples
    assert len(examples) == 2
    for example in examples:
        program, *words = shlex.split(example)
        assert (program, words[0]) == ("lm", name)
        parsers()[0].parse_args(split_settings(words)[0])
    assert main(["help", name]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {example}\n" in text for example in examples)


def test_help_by_itself_lists_the_commands(capsys: Capture, refused_command: RefusedCommand) -> None:
    for arguments in (["help"], []):
        assert main(arguments) == 0
        text = capsys.readouterr().out
        assert all(f"\n    {name}" in text for name in commands())
    refused_command(["help", "abalte"])


@pytest.mark.parametrize(
    ("given", "overrides"),
    [
        (["fit", "a.yaml", "optim.lr=0.5", "seed=3"], {"optim.lr": 0.5, "seed": 3}),
        (["fit", "optim.lr=1", "a.yaml"], {"optim.lr": 1}),
        (["ablate", "a.yaml", "--plan", "model.width=8"], {"model.width": 8}),
        (["ablate", "a.yaml", "--set", "model.width=8", "model.layers=1"], {"model.width": 8, "model.layers": 1}),
        (
            ["ablate", "a.yaml", "--set=seeds=[1, 2]", "--optim.lr=1", "--data_seed", "3"],
            {"seeds": [1, 2], "optim.lr": 1, "data_seed": 3},
        ),
        (["fit", "a.yaml", "model.position={class_path: Rope}"], {"model.position": {"class_path": "Rope"}}),
        (["fit", "folder/a.b=c"], {}),
        (["fit", "a.yaml", "--out", "exp.lr=0.1"], {}),
        (["fit", "a.yaml", "--out", "exp", "optim.lr=1"], {"optim.lr": 1}),
        (["fit", "a.yaml", "--model", "parts.Own", "--model.extra", "2"], {"model": "parts.Own", "model.extra": 2}),
        (["fit", "a.yaml", "model=parts.Own", "data_seed=2"], {"model": "parts.Own", "data_seed": 2}),
        (["generate", "RUN", "--prompt", "a.b=c"], {}),
    ],
    ids=lambda value: " ".join(value),
)
def test_a_setting_needs_no_dashes(given: list[str], overrides: dict[str, Any]) -> None:
    assert split_settings(given)[1] == overrides


def test_every_key_of_a_configuration_is_a_setting() -> None:
    assert set(SECTIONS.split("|")) == {field.name for field in fields(RunConfig)}


def test_a_configuration_says_only_what_differs_from_its_base(tmp_path: Path) -> None:
    changes = {"base": "char_tiny", "model": {"width": 32, "norm": "RMSNorm"}, "optim.lr": 0.001}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({**changes, "data": {"init_args": {"context": 32}}}))
    expected = {"model.width": 32, "model.norm": "RMSNorm", "optim.lr": 0.001, "data.context": 32}
    assert load_config(tmp_path / "own.yaml") == override(load_config(Path("char_tiny")), expected)
    (tmp_path / "more.yaml").write_text("base: own.yaml\nseed: 4\n")
    assert load_config(tmp_path / "more.yaml") == override(load_config(tmp_path / "own.yaml"), {"seed": 4})
    mlp = {"class_path": "GELU", "init_args": {"expansion": 2}}
    (tmp_path / "whole.yaml").write_text(yaml.safe_dump({"base": "own.yaml", "model": {"mlp": mlp}}))
    assert load_config(tmp_path / "whole.yaml")["model"]["init_args"]["mlp"] == mlp
