"""Designs give the arms they are named for, against statsmodels' and textbook properties."""

import itertools
from typing import Any

import numpy as np
import pytest
from messages import Refused

from lm.ablation.design import DesignNode, aliases, read_design
from lm.config.nodes import read_section

NORM = {"layer": {}, "rms": {"model.norm": "RMSNorm"}}
BLOCK = {"post": {"model.block": "PostNorm"}, "pre": {"model.block": "PreNorm"}}
MLP = {"relu": {"model.mlp": "ReLU"}, "gelu": {"model.mlp": "GELU"}, "swiglu": {"model.mlp": "SwiGLU"}}


def test_one_factor_at_a_time() -> None:
    design = read_design({"kind": "one_at_a_time", "factors": {"norm": NORM, "mlp": MLP}}, "here")
    assert design.baseline == "base"
    assert design.arms == {
        "base": {"model.mlp": "ReLU"},
        "rms": {"model.norm": "RMSNorm", "model.mlp": "ReLU"},
        "gelu": {"model.mlp": "GELU"},
        "swiglu": {"model.mlp": "SwiGLU"},
    }


def test_one_left_out_of_the_full_recipe() -> None:
    design = read_design({"kind": "leave_one_out", "factors": {"norm": NORM, "block": BLOCK}}, "here")
    assert design.baseline == "full"
    assert design.arms["full"] == {"model.norm": "RMSNorm", "model.block": "PreNorm"}
    assert design.arms["without_norm"] == {"model.block": "PreNorm"}
    assert design.arms["without_block"] == {"model.norm": "RMSNorm", "model.block": "PostNorm"}


def test_a_factorial_is_every_combination() -> None:
    design = read_design({"kind": "factorial", "factors": {"norm": NORM, "block": BLOCK, "mlp": MLP}}, "here")
    assert len(design.arms) == 12
    assert design.baseline == "layer+post+relu"
    assert {tuple(levels.values()) for levels in design.levels.values()} == set(itertools.product(NORM, BLOCK, MLP))
    assert design.arms["rms+pre+gelu"] == {"model.norm": "RMSNorm", "model.block": "PreNorm", "model.mlp": "GELU"}


def two(*names: str) -> dict[str, Any]:
    return {name: {f"{name}0": {}, f"{name}1": {f"optim.{name}": 1}} for name in names}


def signs(levels: dict[str, dict[str, str]]) -> np.ndarray:
    return np.array([[1 if level.endswith("1") else -1 for level in of.values()] for of in levels.values()])


@pytest.mark.parametrize("generators", [None, {"d": ["a", "b", "c"]}, {"c": ["a", "b"], "d": ["a"]}])
def test_a_fraction_is_balanced_and_holds_the_plain_arm(generators: Any) -> None:
    tree = {
        "kind": "fractional",
        "factors": two("a", "b", "c", "d"),
        **({"generators": generators} if generators else {}),
    }
    design = read_design(tree, "here")
    matrix = signs(design.levels)
    assert len(matrix) == 2 ** (4 - len(generators or {"d": 0}))
    assert (matrix.sum(0) == 0).all()
    assert design.arms[design.baseline] == {}
    assert (matrix == -1).all(1).sum() == 1


def test_the_half_fraction_of_four_confuses_pairs_of_interactions_only() -> None:
    design = read_design({"kind": "fractional", "factors": two("a", "b", "c", "d")}, "here")
    assert design.aliases == ["a x b = c x d", "a x c = b x d", "a x d = b x c"]
    matrix = signs(design.levels)
    for one, other in itertools.combinations(range(4), 2):
        assert matrix[:, one] @ matrix[:, other] == 0


def test_factors_of_a_fraction_may_have_names_that_yaml_reads_as_values() -> None:
    factors: dict[str, Any] = {factor: {f"{factor}_0": {}, f"{factor}_1": {}} for factor in ("y", "off", "1.0e-3")}
    tree = {"kind": "fractional", "factors": factors, "generators": {"1.0e-3": ["y", False]}}
    read = read_design(read_section(tree, DesignNode, "design"), "design")
    assert len(read.arms) == 4
    assert read.aliases == ["y = off x 1.0e-3", "off = y x 1.0e-3", "1.0e-3 = y x off"]


def test_aliases_are_the_products_that_are_equal_up_to_sign() -> None:
    factors, generators = ["a", "b", "c", "d", "e"], {"d": ["a", "b"], "e": ["a", "c"]}
    design = read_design({"kind": "fractional", "factors": two(*factors), "generators": generators}, "here")
    matrix = signs(design.levels)
    columns = {name: matrix[:, index] for index, name in enumerate(factors)}
    effects = [(f,) for f in factors] + list(itertools.combinations(factors, 2))
    product = {effect: np.prod([columns[f] for f in effect], axis=0) for effect in effects}
    groups = set()
    for effect in effects:
        same = [other for other in effects if abs(product[effect] @ product[other]) == len(matrix)]
        if len(same) > 1:
            groups.add(" = ".join(" x ".join(other) for other in same))
    assert set(aliases(factors, generators)) == groups


@pytest.mark.parametrize(
    "tree",
    [
        {"kind": "factorial", "factors": {"a": {"x": {}}}},
        {"kind": "factorial", "factors": two("a"), "generators": {"a": ["a"]}},
        {"kind": "fractional", "factors": {**two("a"), "mlp": MLP}},
        {"kind": "fractional", "factors": two("a", "b"), "generators": {"z": ["a"]}},
        {"kind": "fractional", "factors": two("a", "b", "c"), "generators": {"c": ["c"]}},
        {"kind": "one_at_a_time", "factors": {"n": NORM, "m": NORM}},
        {"kind": "leave_one_out", "factors": {"norm": NORM, "mlp": MLP}},
        {"kind": "factorial", "factors": {"n": NORM, "m": {"x": {"model.norm": "NoNorm"}, "y": {}}}},
    ],
)
def test_a_wrong_design_is_one_line(tree: Any, refused: Refused) -> None:
    with refused():
        read_design(read_section(tree, DesignNode, "here"), "here")
