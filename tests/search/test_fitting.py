"""What keeps a search or an experiment from being carried out is said by its plan."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import RUN, refusal
from messages import Refused, RefusedCommand
from optuna.trial import create_trial

from lm.ablation.design import read_design
from lm.ablation.experiment import load_experiment
from lm.config.components import resolve
from lm.search.space import read_space
from lm.search.spec import load_sweep
from lm.search.study import open_study
from lm.search.sweep import check_search, check_space
from lm.training.run import RunConfig

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


ENDS: list[dict[str, Any]] = [
    {"optim.lr": {"low": 0, "high": 0.1}},
    {"optim.lr": {"low": -0.1, "high": 0.1}},
    {"model.dropout": {"low": 0, "high": 1}},
    {"model.norm.eps": {"low": 0, "high": 1e-5}},
    {"optim.schedule.warmup": {"low": 0, "high": 100, "int": True}},
    {"model.heads": {"low": 1, "high": 3, "int": True}},
    {"model.mlp": {"choices": ["GELU", {"class_path": "ReLU", "space": {"expansion": {"low": 0, "high": 1}}}]}},
]


@pytest.mark.parametrize("space", ENDS, ids=lambda space: str(space)[:40])
def test_the_ends_of_every_range_are_built(space: dict[str, Any], refused: Refused) -> None:
    with refused():
        check_space(read_space(space, "space"), RUN)


def test_a_value_that_fits_only_other_values_is_accepted() -> None:
    space = read_space({"model.width": {"choices": [16, 24]}, "model.heads": {"choices": [2, 3, 12]}}, "space")
    check_space(space, {**RUN})


@pytest.mark.parametrize(
    "changes",
    [
        {"sampler": {"name": "qmc", "qmc_type": "x"}},
        {"sampler": {"name": "qmc", "scramble": 5}},
        {"sampler": {"name": "tpe", "n_startup_trials": -1}},
        {"sampler": {"name": "tpe", "n_startup_trials": 1.5}},
        {"sampler": {"name": "nsga2", "population_size": 1}},
        {"sampler": {"name": "nsga2", "crossover_prob": 1.1}},
        {"sampler": {"name": "tpe", "seed": 2**32}},
        {"pruner": {"name": "median", "interval_steps": 0}},
        {"trials": 10**18},
        {"trials": 10**5, "seeds": 2},
        {"space": {"model.layers": {"low": 1, "high": 10**9, "int": True}}, "sampler": "grid"},
        {"space": {"optim.lr": {"low": 0, "high": 1e9, "step": 1}}, "sampler": "grid", "trials": None},
        {"space": {"model.layers": {"low": 1, "high": 1e300, "int": True}}},
        {"space": {"optim.lr": {"low": -1e308, "high": 1e308}}},
        {"space": {"optim.lr": {"low": 0, "high": 1, "step": 1e-320}}},
        {"base": ["a"]},
        {"title": {"a": 1}},
        {"storage": "sqlite:////no/such/folder\0/x.db"},
        {"storage": "x" * 300},
        {"storage": "."},
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_search_that_cannot_be_carried_out_is_refused(
    tmp_path: Path, changes: dict[str, Any], refused: Refused
) -> None:
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    with refused():
        check_search(load_sweep(write(tmp_path, SWEEP, **changes), {}), tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} - set(before) <= {"base.yaml", "spec.yaml"}


def test_a_plan_refuses_a_journal_of_another_search(tmp_path: Path, refused: Refused) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    first = load_sweep(write(tmp_path, SWEEP), {})
    settings = resolve(first.tree, RunConfig)["trainer"]
    with open_study(first, folder, settings, parallel=False) as shared:
        shared.study.add_trial(create_trial(value=1.0))
    check_search(first, folder)
    with refused():
        check_search(load_sweep(write(tmp_path, SWEEP), {"model.width": 32}), folder)


@pytest.mark.parametrize("url", ["sqlite://host:port/study", "sqlite+nothing:///x.db"])
def test_a_storage_that_sqlalchemy_refuses_is_one_line(tmp_path: Path, url: str) -> None:
    with refusal(f"storage: {url!r}: "):
        check_search(load_sweep(write(tmp_path, SWEEP, storage=url), {}), tmp_path / "out")


@pytest.mark.parametrize(
    "changes",
    [
        {"seeds": [2**64]},
        {"seeds": {"min": 2, "max": 10, "stages": 10**9}},
        {"arms": {f"a{index}": {} for index in range(2000)}, "baseline": "a0"},
        {"tiers": {"../../x": {"seeds": 1}}},
        {"metric": "nll@" + "9" * 500},
        {"notes": [1]},
    ],
    ids=lambda value: str(value)[:60],
)
def test_an_experiment_that_cannot_be_carried_out_is_refused(
    tmp_path: Path, changes: dict[str, Any], refused: Refused
) -> None:
    with refused():
        load_experiment(write(tmp_path, EXPERIMENT, **changes), {})


@pytest.mark.parametrize("tree", [EXPERIMENT, SWEEP], ids=["experiment", "sweep"])
@pytest.mark.parametrize("name", ["cells.yaml", ".hidden.yaml", "a b.yaml", "x" * 230 + ".yaml"])
def test_the_name_of_a_file_is_a_valid_folder(
    tmp_path: Path, tree: dict[str, Any], name: str, refused: Refused
) -> None:
    load = load_sweep if "space" in tree else load_experiment
    with refused():
        load(write(tmp_path, tree, name), {})


def test_a_fraction_of_very_many_factors_is_refused_at_once(refused: Refused) -> None:
    def factors(count: int) -> dict[str, Any]:
        return {f"f{index}": {f"l{index}": {}, f"h{index}": {}} for index in range(count)}

    with refused():
        read_design({"kind": "fractional", "factors": factors(40)}, "design")
    with refused():
        read_design({"kind": "fractional", "factors": factors(16)}, "design")
    with refused():
        read_design({"kind": "one_at_a_time", "factors": factors(2000)}, "design")


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--workers", "99999999999"],
        ["--checkpoint-seconds", "nan"],
        ["--checkpoint-seconds", "-1"],
        ["--out", "x" * 300],
        ["--out", "a\0b"],
        ["--seeds", "0,1" * 5000],
        ["--set", "optim.lr=.nan"],
        ["--optim.lr", "1" + "0" * 400],
        ["--set", ".".join("a" * 3000) + "=1"],
        ["--seeds", "[" * 3000],
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_command_line_that_cannot_be_used_is_one_line(
    tmp_path: Path, arguments: list[str], refused_command: RefusedCommand
) -> None:
    refused_command(["ablate", write(tmp_path, EXPERIMENT), "--plan", *arguments])
