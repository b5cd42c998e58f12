"""Reading, overriding and identifying configuration trees."""

import hashlib
import math
from pathlib import Path
from typing import Any

import pytest
from messages import CheckMessage, Refused

from lm.config.tree import (
    canonical,
    differences,
    flatten,
    load_yaml,
    nearest,
    override,
    parse_value,
    run_id,
)


def test_a_missing_file_is_answered_with_the_nearest_one(tmp_path: Path, refused: Refused) -> None:
    right, wrong = tmp_path / "some.yaml", tmp_path / "smoe.yaml"
    right.touch()
    with refused():
        load_yaml(wrong)


def test_a_value_on_the_command_line_is_read_as_yaml() -> None:
    texts = {"1": 1, "true": True, "null": None, "[1, 2]": [1, 2], "{a: b}": {"a": "b"}, "Rope": "Rope", "[1": "[1"}
    assert {text: parse_value(text) for text in texts} == texts


def test_the_nearest_choice_is_found_whatever_its_case(check_message: CheckMessage) -> None:
    check_message(nearest("alibi", ["Rope", "Alibi"]))
    assert nearest("zzzzzz", ["Rope", "Alibi"]) == ""
    assert nearest("Rope", ["Rope"]) == "", "the word itself helps nobody"


TREE: dict[str, Any] = {
    "model": {"position": {"class_path": "Rope", "init_args": {"base": 500}}, "norm": "LayerNorm", "width": 64},
    "optim": {"lr": 1, "optimizer": {"class_path": "AdamW", "init_args": {"betas": [0.9, 0.99], "fused": True}}},
}


def overridden(changes: dict[str, Any], path: str) -> Any:
    """What stands at `path` after `changes`."""
    node: Any = override(TREE, changes)
    for name in path.split("."):
        node = node[name]
    return node


@pytest.mark.parametrize(
    "changes",
    [
        {"optim.optimizer": "SGD"},
        {"optim.optimizer": {"class_path": "SGD"}},
        {"optim.optimizer.class_path": "SGD"},
        {"optim": {"optimizer": "SGD"}},
        {"optim": {"optimizer": {"class_path": "SGD"}}},
        {"optim": {"optimizer.class_path": "SGD"}},
    ],
)
def test_no_option_of_the_old_class_survives_a_new_one(changes: dict[str, Any]) -> None:
    assert overridden(changes, "optim.optimizer") in ("SGD", {"class_path": "SGD"})


def test_an_option_given_after_a_new_class_belongs_to_it() -> None:
    changes = {"optim.optimizer.class_path": "SGD", "optim.optimizer.momentum": 0.9}
    assert overridden(changes, "optim.optimizer") == {"class_path": "SGD", "init_args": {"momentum": 0.9}}


@pytest.mark.parametrize("path", ["model.position.base", "model.position.init_args.base"])
def test_init_args_may_be_left_out_of_a_path(path: str) -> None:
    assert overridden({path: 7}, "model.position") == {"class_path": "Rope", "init_args": {"base": 7}}


def test_options_of_components_without_arguments_are_set() -> None:
    assert overridden({"model.norm.eps": 1e-3}, "model.norm") == {"class_path": "LayerNorm", "init_args": {"eps": 1e-3}}
    tree = {"position": {"class_path": "Rope", "init_args": None}}  # `init_args:` with nothing behind it
    assert override(tree, {"position.base": 7}) == {"position": {"class_path": "Rope", "init_args": {"base": 7}}}


def test_a_mapping_given_for_a_section_is_merged_into_it() -> None:
    assert overridden({"model": {"width": 128, "position.base": 7}}, "model") == {
        "position": {"class_path": "Rope", "init_args": {"base": 7}},
        "norm": "LayerNorm",
        "width": 128,
    }


def test_a_mapping_given_for_a_component_changes_its_options_alone() -> None:
    tree = {"model": {"class_path": "Decoder", "init_args": {"width": 64, "mlp": "GELU"}}}
    nested = override(tree, {"model": {"width": 128, "layers": 2}})
    assert nested == override(tree, {"model.width": 128, "model.layers": 2})
    assert nested["model"]["init_args"] == {"width": 128, "mlp": "GELU", "layers": 2}
    other = {"class_path": "EncoderDecoder", "init_args": {"width": 8}}
    assert override(tree, {"model": other}) == {"model": other}
    position = {"position": {"class_path": "Rope", "init_args": {"base": 7}}}
    assert override(position, {"position": {"share": 0.5}})["position"]["init_args"] == {"base": 7, "share": 0.5}


def test_a_schedule_is_replaced_not_merged() -> None:
    tree = {"data": {"batch_size": {0: 8, 100: 16}}}
    assert override(tree, {"data.batch_size": {0: 4}}) == {"data": {"batch_size": {0: 4}}}


def test_a_list_is_replaced_not_merged() -> None:
    assert overridden({"optim.optimizer.betas": [0.5]}, "optim.optimizer.init_args.betas") == [0.5]


def test_overriding_leaves_the_tree_and_the_changes_alone() -> None:
    tree, changes = {"a": {"b": [1]}}, {"a": {"c": {"d": [2]}}}
    changed = override(tree, changes)
    changed["a"]["b"].append(0)
    changed["a"]["c"]["d"].append(0)
    assert (tree, changes) == ({"a": {"b": [1]}}, {"a": {"c": {"d": [2]}}})


def test_the_id_is_the_hash_of_sorted_compact_json() -> None:
    assert canonical({"b": [1, "é"], "a": None}) == '{"a":null,"b":[1,"é"]}'
    assert run_id({"b": [1, "é"], "a": None}) == hashlib.sha256('{"a":null,"b":[1,"é"]}'.encode()).hexdigest()
    assert run_id({"b": {"x": 1, "y": 2}}) == run_id({"b": {"y": 2, "x": 1}})


def test_the_id_changes_with_any_value() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"model.width": 65},
        {"model.position.base": 501},
        {"model.position": "Alibi"},
        {"optim.lr": None},
        {"optim.lr": 2},
        {"optim.optimizer.betas": [0.99, 0.9]},
        {"optim.optimizer.fused": False},
        {"seed": 0},
    ]
    assert len({run_id(override(TREE, change)) for change in changes}) == len(changes)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_json_cannot_hold_has_no_id(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        run_id({"a": value})


def test_a_flat_tree_names_components_by_their_class() -> None:
    assert flatten(TREE["optim"]) == {
        "lr": 1,
        "optimizer": "AdamW",
        "optimizer.betas": [0.9, 0.99],
        "optimizer.fused": True,
    }


def test_differences_are_the_paths_whose_values_differ() -> None:
    other = override(TREE, {"model.position": {"class_path": "Alibi", "init_args": {}}, "optim.lr": 2})
    assert differences(TREE, TREE) == {}
    assert differences(TREE, other) == {
        "model.position": ("Rope", "Alibi"),
        "model.position.base": (500, None),
        "optim.lr": (1, 2),
    }
