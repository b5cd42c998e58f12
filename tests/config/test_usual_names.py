"""Usual names of settings, commands and options: what they stand for exists, and a wrong one is answered with it."""

import re
from pathlib import Path

import pytest
from helpers import RUN
from messages import RefusedCommand

from lm.ablation.experiment import ExperimentFile
from lm.cli.commands import commands
from lm.cli.entry import parsers
from lm.config.components import catalogue, resolve
from lm.config.keys import keys
from lm.config.tree import InputError
from lm.config.usual_names import suggest, suggest_setting, usual_names
from lm.search.space import ChoicesNode, Distribution
from lm.search.spec import SweepFile
from lm.store.metrics import METRICS
from lm.training.run import RunConfig

GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
COMPONENTS = catalogue(RunConfig)
SETTINGS = {f"{kind}.{option}" for kind, members in COMPONENTS.items() for m in members for option in m["options"]}
OWNED = {(f"{kind}.{o}", m["name"]) for kind, members in COMPONENTS.items() for m in members for o in m["options"]}
KINDS = ("settings", "metrics", "commands", "options", "keys")


@pytest.mark.parametrize("path", usual_names("settings"))
def test_each_usual_name_stands_for_what_exists(path: str) -> None:
    place, _, name = path.partition(" of ")[0].partition(": ")
    if name:
        assert name in [member["name"] for member in COMPONENTS[place]]
    else:
        owner = path.partition(" of ")[2] or None
        assert (place, owner) in OWNED or (owner is None and place in {*SETTINGS, *COMPONENTS, "seed"})


@pytest.mark.parametrize("kind", KINDS)
def test_no_usual_name_stands_for_two_things(kind: str) -> None:
    every = [re.sub("[-_ .]", "", name.lower()) for names in usual_names(kind).values() for name in names]
    assert [name for name in every if every.count(name) > 1] == []


def test_usual_names_of_commands_and_options_stand_for_some() -> None:
    accepted = {option for parser in parsers()[1].values() for option in parser._option_string_actions}
    others = usual_names("commands")
    assert others.keys() <= commands().keys()
    assert not {name for names in others.values() for name in names} & commands().keys()
    assert usual_names("options").keys() <= accepted
    assert usual_names("metrics").keys() <= METRICS.keys()
    known = {key for node in (ExperimentFile, SweepFile, Distribution, ChoicesNode) for key in keys(node)}
    assert usual_names("keys").keys() <= known
    assert not {name for names in usual_names("keys").values() for name in names} & {*keys(ExperimentFile)}


def test_the_glossary_lists_every_usual_name() -> None:
    rows = dict(re.findall(r"^\| `([^`]+)` \| (`.*`) \|$", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE))
    listed = [
        (f"lm {ours}" if kind == "commands" else ours, names)
        for kind in KINDS
        for ours, names in usual_names(kind).items()
    ]
    assert rows == {ours: ", ".join(f"`{name}`" for name in names) for ours, names in listed}


@pytest.mark.parametrize("written", ["GQA", "gqa", "grouped-query attention", "Grouped_Query_Attention"])
def test_case_and_hyphens_of_a_usual_name_make_no_difference(written: str) -> None:
    assert suggest_setting(written, ["GroupedQuery", "MultiQuery"]) == " Did you mean GroupedQuery?"
    assert suggest_setting(written, ["PreNorm"]) == " Did you mean model.attention: GroupedQuery?"


def test_a_name_that_nobody_uses_has_the_nearest_choice() -> None:
    assert suggest_setting("Rpoe", ["Rope", "Alibi"]) == " Did you mean Rope?"
    assert suggest("zzz", ["Rope", "Alibi"], "keys") == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "char_tiny"],
        ["help", "tune"],
        ["count", "char_tiny", "model.attention=MLA"],
        ["count", "char_tiny", "model.position=NoPE"],
        ["count", "char_tiny", "model.mlp=MoE"],
        ["count", "char_tiny", "model.d_model=64"],
        ["count", "char_tiny", "data.block_size=64"],
        ["count", "char_tiny", "optim.weight_decay=0.1"],
        ["fit", "char_tiny", "--learning_rate", "1e-3"],
        ["fit", "char_tiny", "--gradient-accumulation-steps", "2"],
        ["ablate", "quickstart", "--dry-run"],
        ["ablate", "quickstart", "--n_embd", "64"],
        ["report", "quickstart", "--n_embd", "64"],
        ["report", "quickstart", "--output_dir", "elsewhere"],
    ],
    ids=" ".join,
)
def test_a_usual_name_is_answered_with_ours(arguments: list[str], refused_command: RefusedCommand) -> None:
    refused_command(arguments)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("lr", "optim.lr"), ("width", "model.width"), ("optimizer", "optim.optimizer"), ("seeed", "seed")],
)
def test_a_setting_without_its_section_is_named_with_it(name: str, meant: str) -> None:
    with pytest.raises(InputError) as refusal:
        resolve({**RUN, name: 3}, RunConfig)
    assert f" Did you mean {meant}? " in str(refusal.value)
