"""Effects of factorial designs against contrasts of cell means by hand and against statsmodels' own formulas."""

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from messages import CheckMessage
from records import MakeExperiment
from scipy import stats
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm

from lm.ablation.design import read_design
from lm.analysis.effects import FactorEffect, effects, fit
from lm.analysis.results import load

Cells = list[tuple[int, dict[str, str], float]]
TWO = {"a": ["a0", "a1"], "b": ["b0", "b1"]}


def invented(levels: dict[str, list[str]], seeds: int = 4, noise: int = 0) -> Cells:
    """A full factorial with an effect of everything."""
    random = np.random.default_rng(noise)
    blocks = random.normal(size=seeds)
    means = {combination: random.normal() for combination in itertools.product(*levels.values())}
    return [
        (seed, dict(zip(levels, combination, strict=True)), blocks[seed] + mean + 0.1 * random.normal())
        for combination, mean in means.items()
        for seed in range(seeds)
    ]


def found(cells: Cells, levels: dict[str, list[str]], aliases: tuple[str, ...] = ()) -> dict[str, FactorEffect]:
    result = fit(cells, levels, aliases)
    assert result is not None
    return {one.name: one for one in result.effects}


def frame(cells: Cells) -> pd.DataFrame:
    return pd.DataFrame([{"seed": seed, "y": y, **levels} for seed, levels, y in cells])


def test_two_levels_are_contrasts_of_means_paired_by_seed(check_message: CheckMessage) -> None:
    cells = invented(TWO)
    y = {(seed, levels["a"][1] + levels["b"][1]): value for seed, levels, value in cells}
    effect = found(cells, TWO)
    of_a = [(y[s, "10"] + y[s, "11"] - y[s, "00"] - y[s, "01"]) / 2 for s in range(4)]
    of_b = [(y[s, "01"] + y[s, "11"] - y[s, "00"] - y[s, "10"]) / 2 for s in range(4)]
    of_both = [(y[s, "11"] - y[s, "01"]) - (y[s, "10"] - y[s, "00"]) for s in range(4)]
    for name, by_seed in (("a", of_a), ("b", of_b), ("a x b", of_both)):
        assert effect[name].estimate == pytest.approx(np.mean(by_seed), rel=1e-9)
    assert effect["a"].contrast == "a1 - a0"
    check_message(effect["a x b"].contrast)


def test_one_factor_of_two_levels_is_the_paired_t_test() -> None:
    cells = invented({"a": ["a0", "a1"]}, seeds=6)
    low, high = ([y for _, levels, y in cells if levels["a"] == level] for level in ("a0", "a1"))
    (effect,) = found(cells, {"a": ["a0", "a1"]}).values()
    oracle = stats.ttest_rel(high, low)
    interval = oracle.confidence_interval(0.95)
    assert effect.estimate == pytest.approx(np.mean(high) - np.mean(low), rel=1e-9)
    assert (effect.low, effect.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert (effect.p, effect.f) == pytest.approx((oracle.pvalue, oracle.statistic**2), rel=1e-8)
    assert effect.q == effect.p


@pytest.mark.parametrize("missing", [0, 3], ids=["balanced", "cells missing"])
def test_f_tests_are_those_of_a_type_two_table(missing: int) -> None:
    levels = {"a": ["a0", "a1", "a2"], "b": ["b0", "b1"], "c": ["c0", "c1"]}
    cells = invented(levels)[missing:]
    oracle = anova_lm(ols("y ~ C(seed) + (C(a, Sum) + C(b, Sum) + C(c, Sum)) ** 2", frame(cells)).fit(), typ=2)
    effect = found(cells, levels)
    for one in effect.values():
        row = oracle.loc[":".join(f"C({factor}, Sum)" for factor in one.name.split(" x "))]
        assert (one.f, one.p) == pytest.approx((row["F"], row["PR(>F)"]), rel=1e-7, abs=1e-12)
        assert one.freedom == (row["df"], oracle.loc["Residual", "df"])
    p = [one.p for one in effect.values()]
    assert [one.q for one in effect.values()] == pytest.approx(list(stats.false_discovery_control(p)), rel=1e-12)


@pytest.mark.parametrize("missing", [0, 2], ids=["balanced", "cells missing"])
def test_intervals_of_two_levels_are_those_of_a_formula(missing: int) -> None:
    cells = invented(TWO)[missing:]
    data = frame(cells)
    data["x"], data["z"] = ((data[name].str[1] == "1") - 0.5 for name in "ab")
    oracle = ols("y ~ C(seed) + x + z + x:z", data).fit()
    for name, term in (("a", "x"), ("b", "z"), ("a x b", "x:z")):
        effect = found(cells, TWO)[name]
        assert effect.estimate == pytest.approx(oracle.params[term], rel=1e-8)
        assert (effect.low, effect.high) == pytest.approx(tuple(oracle.conf_int().loc[term]), rel=1e-8)


def test_more_levels_have_means() -> None:
    levels = {"a": ["a0", "a1", "a2"], "b": ["b0", "b1"]}
    cells = invented(levels)
    effect = found(cells, levels)
    expected = frame(cells).groupby("a").y.mean()
    assert effect["a"].means == pytest.approx(dict(expected), rel=1e-9)
    assert math.isnan(effect["a"].estimate)
    assert effect["b"].means == {}
    assert math.isnan(effect["a x b"].estimate)
    assert effect["a x b"].freedom[0] == 2


def test_a_fraction_lists_what_it_cannot_tell_apart() -> None:
    factors = {name: {f"{name}0": {}, f"{name}1": {name: 1}} for name in "abc"}
    design = read_design({"kind": "fractional", "factors": factors}, "design")
    levels = {name: [f"{name}0", f"{name}1"] for name in "abc"}
    random = np.random.default_rng(0)
    cells = [(seed, arm, random.normal()) for arm in design.levels.values() for seed in range(4)]
    result = fit(cells, levels, design.aliases)
    assert result is not None
    assert {one.name: one.aliases for one in result.effects} == {"a": ["b x c"], "b": ["a x c"], "c": ["a x b"]}
    assert result.left_out == ["a x b", "a x c", "b x c"]


def test_too_few_cells_give_no_effect() -> None:
    assert fit(invented(TWO, seeds=1), TWO, ()) is None
    assert fit([], TWO, ()) is None


def design_of(cells: dict[str, list[Any]], kind: str) -> dict[str, Any]:
    arms = {
        arm: {
            "changes": {},
            "levels": dict(zip("ab", arm.split("+"), strict=True)),
            "cells": {str(seed): f"{arm}-{seed}" for seed in range(len(outcomes))},
        }
        for arm, outcomes in cells.items()
    }
    return {"design": {"kind": kind, "aliases": []}, "arms": arms}


ARMS: dict[str, list[Any]] = {
    "a0+b0": [2.0, 2.1, 1.9],
    "a1+b0": [1.7, 1.9, 1.6],
    "a0+b1": [2.1, 2.1, "diverged"],
    "a1+b1": [1.7, 1.8, None],
}


def test_the_cells_of_an_experiment_that_went_well_are_fitted(experiment: MakeExperiment) -> None:
    result = effects(load(experiment(ARMS, **design_of(ARMS, "factorial"))))
    assert result is not None
    assert result.cells == 10
    cells = [
        (seed, dict(zip("ab", arm.split("+"), strict=True)), outcome)
        for arm, outcomes in ARMS.items()
        for seed, outcome in enumerate(outcomes)
        if isinstance(outcome, float)
    ]
    expected = fit(cells, TWO, ())
    assert expected is not None
    for one, other in zip(result.effects, expected.effects, strict=True):
        assert (one.name, one.contrast) == (other.name, other.contrast)
        assert (one.estimate, one.low, one.high) == pytest.approx((other.estimate, other.low, other.high), rel=1e-9)


def test_only_factors_that_are_crossed_have_effects(experiment: MakeExperiment) -> None:
    assert effects(load(experiment(ARMS, **design_of(ARMS, "one_at_a_time")))) is None
    assert effects(load(experiment(ARMS))) is None


def test_losses_per_token_of_several_tokenizers_have_no_effects(experiment: MakeExperiment) -> None:
    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        record["data"]["tokenizer"] = arm

    described = design_of(ARMS, "factorial")
    assert effects(load(experiment(ARMS, change, **described))) is None
    assert effects(load(experiment(ARMS, change, metric="bits_per_byte", **described))) is not None
