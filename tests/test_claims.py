"""Claims are borne out, refuted or left open as the numbers are, and wrong ones are refused."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from lm.analysis import Results, load, value
from lm.claims import Answer, Claim, answer, measured, read_claim
from lm.config import InputError

MakeExperiment = Callable[..., Path]
BASE = [2.0, 2.1, 1.9, 2.05, 2.2, 1.95]
BETTER = [1.7, 1.85, 1.68, 1.8, 1.92, 1.66]
NEAR = [2.001, 2.099, 1.902, 2.049, 2.2, 1.949]


def results(experiment: MakeExperiment, **more: list[Any]) -> Results:
    return load(experiment({"base": BASE, "better": BETTER, "near": NEAR, **more}))


def against_base(arm: str, relation: str, **options: Any) -> Claim:
    return Claim("x", "nll", relation, {arm: 1.0, "base": -1.0}, **options)


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        (against_base("better", "less"), "reproduced"),
        (against_base("better", "greater"), "not reproduced"),
        (against_base("near", "less"), "inconclusive"),
        (against_base("better", "less", margin=-0.2), "reproduced"),
        (against_base("better", "less", margin=-0.5), "not reproduced"),
        (against_base("near", "equivalent", margin=0.01), "reproduced"),
        (against_base("better", "equivalent", margin=0.01), "not reproduced"),
        (against_base("better", "equivalent", margin=0.27), "inconclusive"),
        (Claim("x", "nll", "range", {"base": 1.0}, low=1.5, high=2.5), "reproduced"),
        (Claim("x", "nll", "range", {"base": 1.0}, high=1.5), "not reproduced"),
        (Claim("x", "nll", "range", {"base": 1.0}, low=2.0), "inconclusive"),
        (Claim("x", "parameters", "range", {"base": 1.0}, low=1000, high=1000, exact=True), "reproduced"),
        (Claim("x", "nll", "less", {"base": 1.0}, margin=2.2, exact=True), "not reproduced"),
    ],
)
def test_verdicts(experiment: MakeExperiment, claim: Claim, verdict: str) -> None:
    assert answer(results(experiment), claim).verdict == verdict


def test_the_number_is_the_paired_mean_with_students_interval(experiment: MakeExperiment) -> None:
    found = answer(results(experiment), against_base("better", "less"))
    interval = stats.ttest_rel(BETTER, BASE).confidence_interval()
    assert found.estimate == pytest.approx(np.mean(np.subtract(BETTER, BASE)), rel=1e-12)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert found.seeds == 6


def test_a_contrast_weighs_several_arms(experiment: MakeExperiment) -> None:
    claim = Claim("x", "nll", "less", {"better": 0.5, "near": 0.5, "base": -1.0})
    expected = np.mean(0.5 * np.array(BETTER) + 0.5 * np.array(NEAR) - np.array(BASE))
    assert answer(results(experiment), claim).estimate == pytest.approx(expected, rel=1e-12)


def test_a_slope_is_that_of_logarithms(experiment: MakeExperiment) -> None:
    sizes = {"base": 1.0, "better": 2.0, "near": 4.0}
    claim = Claim("x", "nll", "slope", over=sizes, low=-1, high=1)
    by_hand = [
        stats.linregress(np.log(list(sizes.values())), np.log(values)).slope
        for values in zip(BASE, BETTER, NEAR, strict=True)
    ]
    found = answer(results(experiment), claim)
    assert found.estimate == pytest.approx(np.mean(by_hand), rel=1e-9)
    assert found.verdict == "reproduced"


def test_few_seeds_decide_nothing_that_has_noise(experiment: MakeExperiment) -> None:
    three = load(experiment({"base": BASE[:3], "better": BETTER[:3]}))
    found = answer(three, against_base("better", "less"))
    assert (found.verdict, found.note) == ("inconclusive", "3 seeds cannot decide (6 could)")
    one = load(experiment({"base": BASE[:1], "better": BETTER[:1]}))
    for claim in (against_base("better", "equivalent", margin=9.0), Claim("x", "nll", "range", {"base": 1.0}, low=0.0)):
        assert answer(one, claim).verdict == "inconclusive"


def test_diverged_arms_are_said_and_leave_the_seed_out(experiment: MakeExperiment) -> None:
    found = answer(results(experiment, bad=["diverged", *BETTER[1:]]), against_base("bad", "less"))
    assert found.seeds == 5
    assert found.note == "bad diverged on 1 of 6 seeds; 5 of 6 seeds enter; 5 seeds cannot decide (6 could)"
    gone = answer(results(experiment, bad=["diverged"] * 6), against_base("bad", "less"))
    assert gone.verdict == "inconclusive"
    assert math.isnan(gone.estimate)


RECORD: dict[str, Any] = {
    "status": "ok",
    "metrics": {"nll": 2.0, "nll@512": 3.0},
    "cost": {"parameters": 100},
    "initial": {"gradient_norm": {"mlp_out": [4.0, 2.0]}, "entropy": [[0.5, 0.7], [0.9, 0.9]]},
}


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("nll", 2.0),
        ("parameters", 100.0),
        ("initial/gradient_norm/mlp_out/-1", 2.0),
        ("initial/gradient_norm/mlp_out/-1 / initial/gradient_norm/mlp_out/0", 0.5),
        ("nll@512 - nll", 1.0),
        ("log nll@512 / nll", math.log(1.5)),
        ("initial/entropy", 0.75),
        ("initial/entropy/1", 0.9),
        ("initial/entropy/7", math.nan),
        ("initial/nothing", math.nan),
        ("nothing", math.nan),
        ("nothing / nll", math.nan),
    ],
)
def test_metrics_are_quantities_paths_or_two_of_them(metric: str, expected: float) -> None:
    assert measured(RECORD, metric) == pytest.approx(expected, nan_ok=True)


def test_a_run_that_did_not_end_well_has_no_numbers() -> None:
    assert math.isnan(value({**RECORD, "status": "diverged"}, "initial/entropy"))


GOOD = {"claim": "a", "metric": "nll", "relation": "less", "arm": "better"}


def test_a_claim_is_against_the_baseline_unless_it_says_otherwise() -> None:
    assert read_claim(GOOD, ["base", "better"], "base", "here").contrast == {"better": 1.0, "base": -1.0}
    alone = {**GOOD, "relation": "range", "low": 1}
    assert read_claim(alone, ["base", "better"], "base", "here").contrast == {"better": 1.0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"relation": "lesser"}, "relation: no 'lesser'. Did you mean less? Choose from less, greater"),
        ({"margn": 1}, "no key 'margn'. Did you mean margin?"),
        ({"arm": "beter"}, "arm: no arm 'beter'. Did you mean better?"),
        ({"against": "bsae"}, "against: no arm 'bsae'. Did you mean base?"),
        ({"relation": "equivalent"}, "margin is missing"),
        ({"relation": "equivalent", "margin": 0}, "expected a number above 0, found 0"),
        ({"relation": "range"}, "low or high is missing"),
        ({"relation": "slope"}, "over is missing"),
        ({"relation": "slope", "low": 0, "over": {"deep": 2}}, "over: no arm 'deep'"),
        ({"relation": "slope", "low": 0, "over": {"base": 2, "better": 2}}, "over: expected two different numbers"),
        ({"relation": "slope", "low": 0, "over": {"base": 0, "better": 2}}, "all above 0"),
        ({"relation": "range", "low": 2, "high": 1}, "low=2 is more than high=1"),
        ({"margin": float("nan")}, "margin: expected a number"),
        ({"exact": "no"}, "exact: expected true or false"),
        ({"margin": "x"}, "margin: expected a number, found 'x'"),
        ({"contrast": {"better": True}}, "contrast.better: expected a number"),
        ({"tier": "Z"}, "tier: no 'Z'; choose from C, G"),
        ({"metric": "nl"}, "metric: no quantity 'nl'. Did you mean nll?"),
        ({"metric": 5}, "metric: expected a quantity or a path"),
        ({"metric": "nll - nll@x"}, "no quantity 'nll@x'"),
        ({"metric": "intial/entropy"}, "no quantity 'intial/entropy'."),
    ],
)
def test_a_wrong_claim_is_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        read_claim({**GOOD, **changes}, ["base", "better"], "base", "here")
    assert words in str(caught.value)
    assert str(caught.value).startswith("here")


def test_expectations_read_as_they_were_claimed() -> None:
    assert against_base("a", "less", margin=0.1).expected() == "< 0.1"
    assert against_base("a", "equivalent", margin=0.02).expected() == "within ±0.02"
    assert Claim("x", "nll", "range", low=1.0).expected() == "≥ 1"
    assert Claim("x", "nll", "slope", low=-1, high=1).expected() == "≥ -1, ≤ 1"
    assert isinstance(Answer(Claim("x", "nll", "range"), "inconclusive", 0, 0, 0, 0).note, str)
