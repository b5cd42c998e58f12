"""What keeps a search or an experiment from being carried out is said by its plan."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import RUN, Capture, refusal, refused

from lm.ablation.design import read_design
from lm.ablation.experiment import load_experiment
from lm.config.tree import InputError
from lm.search.space import read_space
from lm.search.spec import load_sweep
from lm.search.sweep import check_search, check_space

SWEEP: dict[str, Any] = {
    "base": "base.yaml",
    "space": {"optim.lr": {"low": 0.001, "high": 0.1, "log": True}},
    "trials": 3,
}
EXPERIMENT: dict[str, Any] = {"base": "base.yaml", "baseline": "a", "arms": {"a": {}, "b": {}}, "seeds": 2}


def write(folder: Path, tree: dict[str, Any], name: str = "spec.yaml", **changes: Any) -> Path:
    """A sweep or an experiment with `changes`, and its base."""
    (folder / "base.yaml").write_text(yaml.safe_dump(RUN))
    (folder / name).write_text(yaml.safe_dump({**tree, **changes}))
    return folder / name


ENDS: list[tuple[dict[str, Any], list[str]]] = [
    ({"optim.lr": {"low": 0, "high": 0.1}}, ["optim.lr=0", "lr=0.0 must be"]),
    ({"optim.lr": {"low": -0.1, "high": 0.1}}, ["optim.lr=-0.1"]),
    ({"model.dropout": {"low": 0, "high": 1}}, ["model.dropout=1.0", "[0, 1)"]),
    ({"model.norm.eps": {"low": 0, "high": 1e-5}}, ["model.norm.eps=0.0", "eps=0.0"]),
    ({"optim.schedule.warmup": {"low": 0, "high": 100, "int": True}}, ["optim.schedule.warmup=100", "12 steps"]),
    ({"model.heads": {"low": 1, "high": 3, "int": True}}, ["model.heads=1", "must divide"]),
    (
        {"model.mlp": {"choices": ["GELU", {"class_path": "ReLU", "space": {"expansion": {"low": 0, "high": 1}}}]}},
        ["model.mlp.expansion=0.0"],
    ),
]


@pytest.mark.parametrize(("space", "words"), ENDS, ids=lambda value: str(value)[:40])
def test_the_ends_of_every_range_are_built(space: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError, match=r"^space: ") as caught:
        check_space(read_space(space, "space"), RUN)
    for word in words[-1:]:
        assert word in str(caught.value)


def test_a_value_that_fits_only_other_values_is_accepted() -> None:
    space = read_space({"model.width": {"choices": [16, 24]}, "model.heads": {"choices": [2, 3, 12]}}, "space")
    check_space(space, {**RUN})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sampler": {"name": "qmc", "qmc_type": "x"}}, ["sampler.qmc_type", "sobol, halton", "'x'"]),
        ({"sampler": {"name": "qmc", "scramble": 5}}, ["sampler.scramble", "False, True"]),
        ({"sampler": {"name": "tpe", "n_startup_trials": -1}}, ["sampler.n_startup_trials", "from 0"]),
        ({"sampler": {"name": "tpe", "n_startup_trials": 1.5}}, ["sampler.n_startup_trials", "whole number"]),
        ({"sampler": {"name": "nsga2", "population_size": 1}}, ["sampler.population_size", "from 2"]),
        ({"sampler": {"name": "nsga2", "crossover_prob": 1.1}}, ["sampler.crossover_prob", "from 0.0 to 1.0"]),
        ({"sampler": {"name": "tpe", "seed": 2**32}}, ["sampler.seed"]),
        ({"pruner": {"name": "median", "interval_steps": 0}}, ["pruner.interval_steps", "from 1"]),
        ({"trials": 10**18}, ["trials", "100,000 cells"]),
        ({"trials": 10**5, "seeds": 2}, ["trials", "100,000 cells"]),
        ({"space": {"model.layers": {"low": 1, "high": 10**9, "int": True}}, "sampler": "grid"}, ["points"]),
        ({"space": {"optim.lr": {"low": 0, "high": 1e9, "step": 1}}, "sampler": "grid", "trials": None}, ["points"]),
        ({"space": {"model.layers": {"low": 1, "high": 1e300, "int": True}}}, ["2**53"]),
        ({"space": {"optim.lr": {"low": -1e308, "high": 1e308}}}, ["no finite number"]),
        ({"space": {"optim.lr": {"low": 0, "high": 1, "step": 1e-320}}}, ["too small"]),
        ({"base": ["a"]}, ["base", "['a']"]),
        ({"title": {"a": 1}}, ["title", "expected text"]),
        ({"storage": "sqlite://host:port/study"}, ["storage", "no URL"]),
        ({"storage": "sqlite+nothing:///x.db"}, ["storage"]),
        ({"storage": "sqlite:////no/such/folder\0/x.db"}, ["storage"]),
        ({"storage": "x" * 300}, ["storage", "too long"]),
        ({"storage": "."}, ["storage", "expected a plain file"]),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_search_that_cannot_be_carried_out_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: list[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    with refusal(*words):
        check_search(load_sweep(write(tmp_path, SWEEP, **changes), {}), tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} - set(before) <= {"base.yaml", "spec.yaml"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seeds": [2**64]}, ["seeds[0]", "64 bits"]),
        ({"seeds": {"min": 2, "max": 10, "stages": 10**9}}, ["seeds.stages", "to 1000"]),
        ({"arms": {f"a{index}": {} for index in range(2000)}, "baseline": "a0"}, ["arms", "at most 1024"]),
        ({"tiers": {"../../x": {"seeds": 1}}}, ["tiers", "cannot name a file"]),
        ({"metric": "nll@" + "9" * 5000}, ["metric", "no quantity"]),
        ({"notes": [1]}, ["notes", "expected text"]),
    ],
    ids=lambda value: str(value)[:60],
)
def test_an_experiment_that_cannot_be_carried_out_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: list[str]
) -> None:
    with refusal(*words):
        load_experiment(write(tmp_path, EXPERIMENT, **changes), {})


@pytest.mark.parametrize("tree", [EXPERIMENT, SWEEP], ids=["experiment", "sweep"])
@pytest.mark.parametrize("name", ["cells.yaml", ".hidden.yaml", "a b.yaml", "x" * 230 + ".yaml"])
def test_the_name_of_a_file_is_a_valid_folder(tmp_path: Path, tree: dict[str, Any], name: str) -> None:
    load = load_sweep if "space" in tree else load_experiment
    with pytest.raises(InputError, match=r"cannot name a file|is the folder of all cells|a name of"):
        load(write(tmp_path, tree, name), {})


def test_a_fraction_of_very_many_factors_is_refused_at_once() -> None:
    def factors(count: int) -> dict[str, Any]:
        return {f"f{index}": {f"l{index}": {}, f"h{index}": {}} for index in range(count)}

    with pytest.raises(InputError, match="40 factors, expected 16 at most"):
        read_design({"kind": "fractional", "factors": factors(40)}, "design")
    with pytest.raises(InputError, match="32768 arms, expected 1024 at most"):
        read_design({"kind": "fractional", "factors": factors(16)}, "design")
    with pytest.raises(InputError, match="arms, expected 1024 at most"):
        read_design({"kind": "one_at_a_time", "factors": factors(2000)}, "design")


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workers", "99999999999"], ["--workers", "1024 at most"]),
        (["--checkpoint-seconds", "nan"], ["--checkpoint-seconds", "nan"]),
        (["--checkpoint-seconds", "-1"], ["--checkpoint-seconds", "-1"]),
        (["--out", "x" * 300], ["--out", "too long"]),
        (["--out", "a\0b"], ["--out", "no name"]),
        (["--seeds", "0,1" * 5000], ["--seeds"]),
        (["--set", "optim.lr=.nan"], ["optim.lr", "finite"]),
        (["--optim.lr", "1" + "0" * 400], ["optim", "too large"]),
        (["--set", ".".join("a" * 3000) + "=1"], ["3000 names"]),
        (["--seeds", "[" * 3000], ["--seeds"]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_command_line_that_cannot_be_used_is_one_line(
    tmp_path: Path, capsys: Capture, arguments: list[str], words: list[str]
) -> None:
    refused(capsys, ["ablate", write(tmp_path, EXPERIMENT), "--plan", *arguments], *words, longest=1000)
