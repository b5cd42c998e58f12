"""Search spaces: what is drawn, what is listed, and how a wrong one is answered."""

import itertools
import math
from pathlib import Path
from typing import Any

import optuna
import pytest
from helpers import RUN
from messages import Refused
from searches import write_sweep

from lm.config.components import resolve
from lm.config.tree import override
from lm.search.space import read_space
from lm.search.spec import load_sweep
from lm.search.sweep import check_space
from lm.training.run import RunConfig

SPACE: dict[str, Any] = {
    "optim.lr": {"low": "1e-4", "high": 0.1, "log": True},
    "model.layers": {"low": 1, "high": 5, "step": 2, "int": True},
    "model.dropout": {"low": 0.0, "high": 0.5, "step": 0.25},
    "model.position": {
        "choices": ["Alibi", {"class_path": "Rope", "space": {"base": {"low": 100, "high": "1e5", "log": True}}}]
    },
}
GRID: dict[str, Any] = {
    "model.layers": {"low": 1, "high": 2, "int": True},
    "model.position": {
        "choices": [
            "Alibi",
            {"class_path": "Rope", "space": {"base": {"choices": [100, 500]}, "share": {"choices": [0.5, 1.0]}}},
        ]
    },
    "optim.lr": {"low": 0.1, "high": 0.3, "step": 0.1},
}


def trials(space: Any, count: int, seed: int = 0) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Parameters of trials drawn at random, and the changes they stand for."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    found = []
    for _ in range(count):
        trial = study.ask()
        changes = space.suggest(trial)
        found.append((dict(trial.params), changes))
    return found


def test_everything_drawn_lies_where_it_should_and_makes_a_configuration() -> None:
    space = read_space(SPACE, "space")
    drawn = trials(space, 100)
    for params, changes in drawn:
        assert 1e-4 <= changes["optim.lr"] <= 0.1
        assert changes["model.layers"] in (1, 3, 5)
        assert type(changes["model.layers"]) is int
        assert changes["model.dropout"] in (0.0, 0.25, 0.5)
        resolved = resolve(override(RUN, changes), RunConfig)
        position = resolved["model"]["init_args"]["position"]
        assert position["class_path"] == params["model.position"]
        if "model.position.Rope.base" in params:
            assert position["init_args"]["base"] == params["model.position.Rope.base"] == changes["model.position.base"]
            assert 100 <= changes["model.position.base"] <= 1e5
    logs = [math.log10(changes["optim.lr"]) for _, changes in drawn]
    assert sum(value < -2.5 for value in logs) == pytest.approx(50, abs=20)  # even in the logarithm


def test_an_option_is_drawn_only_where_its_choice_is_made() -> None:
    space = read_space(SPACE, "space")
    seen = set()
    for params, changes in trials(space, 50):
        seen.add(params["model.position"])
        assert ("model.position.Rope.base" in params) == (params["model.position"] == "Rope")
        assert ("model.position.base" in changes) == (params["model.position"] == "Rope")
    assert seen == {"Alibi", "Rope"}
    assert space.conditional
    assert not read_space({"optim.lr": {"choices": [1, 2]}}, "space").conditional


def test_what_was_drawn_gives_the_same_changes_again() -> None:
    space = read_space(SPACE, "space")
    for params, changes in trials(space, 20):
        assert space.suggest(optuna.trial.FixedTrial(params)) == changes


def test_a_grid_is_every_combination_once() -> None:
    space = read_space(GRID, "space")
    positions = [{"model.position": "Alibi"}] + [
        {"model.position": "Rope", "model.position.Rope.base": base, "model.position.Rope.share": share}
        for base, share in itertools.product(("100", "500"), ("0.5", "1.0"))
    ]
    expected = [
        {"model.layers": layers, **position, "optim.lr": rate}
        for layers, position, rate in itertools.product((1, 2), positions, (0.1, 0.2, 0.3))
    ]
    assert space.grid() == expected
    assert len(expected) == 30


def test_choices_may_be_nodes_with_options_lists_and_nothing() -> None:
    nodes = ["Alibi", {"class_path": "Rope", "init_args": {"base": 500}}, None, [1, 2], True, 3]
    space = read_space({"a.b": {"choices": nodes}}, "space")
    assert space.described() == {"a.b": {"choices": ["Alibi", "Rope(base=500)", "null", "[1,2]", "true", "3"]}}
    changes = [space.suggest(optuna.trial.FixedTrial(point)) for point in space.grid()]
    assert changes == [{"a.b": node} for node in nodes]


@pytest.mark.parametrize(
    "space",
    [
        [],
        {},
        {"optim.lr": 3},
        {"optim.lr": {"lo": 1, "high": 2}},
        {"optim.lr": {"low": 1}},
        {"optim.lr": {"low": 2, "high": 1}},
        {"optim.lr": {"low": "a", "high": 1}},
        {"optim.lr": {"low": True, "high": 2}},
        {"optim.lr": {"low": 0, "high": float("inf")}},
        {"optim.lr": {"low": 0, "high": 1, "log": True}},
        {"optim.lr": {"low": 1, "high": 2, "log": "yes"}},
        {"optim.lr": {"low": 1, "high": 2.5, "int": True}},
        {"optim.lr": {"low": 1, "high": 3, "log": True, "step": 1}},
        {"optim.lr": {"low": 0, "high": 1, "step": 0.3}},
        {"optim.lr": {"low": 0, "high": 1, "step": -1}},
        {"optim.lr": {"low": -1e27, "high": 0.5, "step": 0.1}},
        {"optim.lr": {"choices": []}},
        {"optim.lr": {"choices": [1, 1]}},
        {"optim.lr": {"choices": [1], "low": 2}},
        {"seed": {"choices": [1, 2]}},
        {"model.position": {"choices": [{"class_path": "Rope", "init_arg": {}}]}},
        {"model.position": {"choices": [{"class_path": "Rope", "init_args": 0}]}},
        {"optim.lr": {"low": "\u0661", "high": 2}},
        {"model.position": {"choices": [{"class_path": "Rope", "space": {"base": {"low": 1}}}]}},
        {"model.position": {"choices": ["Rope"]}, "model.position.base": {"low": 1, "high": 2}},
    ],
)
def test_a_wrong_space_is_answered_with_where_and_what(space: Any, refused: Refused) -> None:
    with refused():
        read_space(space, "space")


def test_an_endless_range_is_no_grid(refused: Refused) -> None:
    with refused():
        read_space({"optim.lr": {"low": 0, "high": 1}}, "space").grid()


@pytest.mark.parametrize(
    "space",
    [
        {"optim.lrr": {"low": 1, "high": 2}},
        {"model.layers": {"low": 1, "high": 8}},
        {"model.position": {"choices": ["Alibi", "Rpoe"]}},
        {"model.position": {"choices": [{"class_path": "Rope", "space": {"bas": {"low": 1, "high": 2}}}]}},
    ],
)
def test_misspelt_paths_and_names_are_found_before_anything_is_trained(space: Any, refused: Refused) -> None:
    with refused():
        check_space(read_space(space, "space"), RUN)


# sweep files ---------------------------------------------------------------------------------------------------------


def test_a_sweep_file_is_read_with_its_defaults(tmp_path: Path) -> None:
    spec = load_sweep(write_sweep(tmp_path, common={"trainer.max_steps": 9}), {"model.layers": 1})
    assert (spec.name, spec.title, spec.trials, spec.seeds) == ("small", "small", 3, [0])
    assert spec.objectives == {"nll": "lower"}
    assert (spec.sampler.name, spec.sampler.seed, spec.pruner.name) == ("tpe", 0, "none")
    assert spec.tree["trainer"]["max_steps"] == 9
    assert spec.tree["model"]["init_args"]["layers"] == 1


def test_directions_are_the_quantities_own_unless_given(tmp_path: Path) -> None:
    objectives = {"nll": None, "accuracy": None, "parameters": "lower"}
    spec = load_sweep(write_sweep(tmp_path, objectives=objectives), {})
    assert spec.objectives == {"nll": "lower", "accuracy": "higher", "parameters": "lower"}


def test_a_grid_has_one_trial_per_point(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, space=GRID, sampler="grid", trials=None)
    assert load_sweep(path, {}).trials == 30
    assert load_sweep(path, {}, trials=99).trials == 30
    assert load_sweep(path, {}, trials=4).trials == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"spaces": {}},
        {"space": None},
        {"base": "bse.yaml"},
        {"trials": 0},
        {"trials": None},
        {"seeds": [1, 1]},
        {"objectives": {"nl": "lower"}},
        {"objectives": {"nll": "down"}},
        {"objectives": {"parameters": None}},
        {"sampler": "tpee"},
        {"sampler": {"name": "tpe", "n_startup": 3}},
        {"sampler": {"name": "tpe", "seed": -1}},
        {"sampler": {"seed": 1}},
        {"sampler": "grid"},
        {"pruner": "medain"},
        {"pruner": {"name": "median", "seed": 1}},
        {"pruner": "median", "objectives": {"perplexity": "lower"}},
        {"pruner": "median", "objectives": {"nll": None, "accuracy": None}},
        {"sampler": "cmaes", "objectives": {"nll": None, "accuracy": None}},
    ],
)
def test_a_wrong_sweep_is_answered_with_the_nearest_right_one(
    tmp_path: Path, changes: dict[str, Any], refused: Refused
) -> None:
    with refused():
        load_sweep(write_sweep(tmp_path, **changes), {})


@pytest.mark.parametrize("key", ["optim.lr", "optim"])
def test_what_is_searched_cannot_be_set(tmp_path: Path, key: str, refused: Refused) -> None:
    with refused():
        load_sweep(write_sweep(tmp_path), {key: 1})


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[2].glob("sweeps/*.yaml")), ids=lambda path: path.stem)
def test_the_sweeps_of_this_repository_can_be_read_and_searched(path: Path) -> None:
    spec = load_sweep(path, {})
    check_space(spec.space, spec.tree)
