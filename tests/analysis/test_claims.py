"""Claims are borne out, refuted or left open as the numbers are, and wrong ones are refused."""

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_experiment
from messages import CheckMessage, Refused
from records import BASE, BETTER, MakeExperiment, blank, inside
from scipy import stats

from lm.analysis.answers import Answer, adjust_p, answer_claim, decide
from lm.analysis.claims import UNKNOWN, Claim, ClaimNode, measured, read_claim
from lm.analysis.results import Records, load, value
from lm.config.nodes import read_section
from lm.report.claims import answers, claims_section, row, tally
from lm.stats.tests import ALPHA, holm, median_interval, sign_flip_interval, sign_flip_p
from lm.store.record import Record

NEAR = [2.001, 2.099, 1.902, 2.049, 2.2, 1.949]


@pytest.fixture(scope="module")
def three() -> Iterator[Records]:
    """The results of three arms, which no test changes."""
    with tempfile.TemporaryDirectory() as folder:
        yield load(make_experiment(Path(folder), {"base": BASE, "better": BETTER, "near": NEAR}))


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
        (Claim("x", "nll", "range", {"base": 1.0}, low=2.0, high=2.3), "inconclusive"),
        (Claim("x", "nll", "range", {"base": 1.0}, low=3.0, high=4.0), "not reproduced"),
        (Claim("x", "nll", "range", {"base": 1.0}, low=1.5, high=2.5), "reproduced"),
        (Claim("x", "nll", "range", {"base": 1.0}, high=1.5), "not reproduced"),
        (Claim("x", "nll", "range", {"base": 1.0}, low=2.0), "inconclusive"),
        (Claim("x", "parameters", "range", {"base": 1.0}, low=1000, high=1000, exact=True), "reproduced"),
        (Claim("x", "nll", "less", {"base": 1.0}, margin=2.2, exact=True), "not reproduced"),
    ],
)
def test_verdicts(three: Records, claim: Claim, verdict: str) -> None:
    assert answer_claim(three, claim).verdict == verdict


def test_less_and_greater_claims_test_the_paired_mean(three: Records) -> None:
    found = answer_claim(three, against_base("better", "less", margin=-0.2))
    by_hand = np.subtract(BETTER, BASE)
    assert found.estimate == pytest.approx(np.mean(by_hand), rel=1e-12)
    assert (found.low, found.high) == pytest.approx(sign_flip_interval(by_hand.tolist()), rel=1e-9)
    assert found.p == sign_flip_p((by_hand + 0.2).tolist())
    assert found.seeds == 6


def test_range_claims_test_the_median(three: Records) -> None:
    found = answer_claim(three, Claim("x", "nll", "range", {"base": 1.0}, low=1.5))
    assert found.estimate == np.median(BASE)
    assert (found.low, found.high) == median_interval(BASE)
    assert found.p == 2.0**-6


def test_a_contrast_weighs_several_arms(three: Records) -> None:
    claim = Claim("x", "nll", "less", {"better": 0.5, "near": 0.5, "base": -1.0})
    expected = np.mean(0.5 * np.array(BETTER) + 0.5 * np.array(NEAR) - np.array(BASE))
    assert answer_claim(three, claim).estimate == pytest.approx(expected, rel=1e-12)


def test_a_slope_is_that_of_logarithms(three: Records) -> None:
    sizes = {"base": 1.0, "better": 2.0, "near": 4.0}
    claim = Claim("x", "nll", "slope", over=sizes, low=-1, high=1)
    by_hand = [
        stats.linregress(np.log(list(sizes.values())), np.log(values)).slope
        for values in zip(BASE, BETTER, NEAR, strict=True)
    ]
    found = answer_claim(three, claim)
    assert found.estimate == pytest.approx(np.median(by_hand), rel=1e-9)
    assert found.verdict == "reproduced"


@pytest.mark.parametrize("seeds", [1, 4])
@pytest.mark.parametrize(
    "claim",
    [
        against_base("better", "equivalent", margin=9.0),
        Claim("x", "nll", "range", {"base": 1.0}, low=0.0, high=9.0),
        Claim("x", "nll", "range", {"base": 1.0}, high=0.0),
        Claim("x", "nll", "slope", over={"base": 1.0, "better": 2.0}, low=-1, high=1),
    ],
)
def test_a_range_a_slope_and_an_equivalence_need_five_seeds(
    experiment: MakeExperiment, claim: Claim, seeds: int, check_message: CheckMessage
) -> None:
    found = answer_claim(load(experiment({"base": BASE[:seeds], "better": BETTER[:seeds]})), claim)
    assert found.verdict == "not enough seeds"
    check_message(found.note)
    assert (found.low, found.high) == (-math.inf, math.inf)
    enough = answer_claim(load(experiment({"base": BASE[:5], "better": BETTER[:5]})), claim)
    assert enough.verdict == ("not reproduced" if claim.high == 0 else "reproduced")


def test_to_be_beyond_one_of_two_ends_takes_six_seeds(experiment: MakeExperiment) -> None:
    claim = against_base("better", "equivalent", margin=0.01)
    five = answer_claim(load(experiment({"base": BASE[:5], "better": BETTER[:5]})), claim)
    assert (five.verdict, five.note, five.p) == ("not enough seeds", "6 could decide", 2 / 2**5)
    six = answer_claim(load(experiment({"base": BASE, "better": BETTER})), claim)
    assert (six.verdict, six.p) == ("not reproduced", 2 / 2**6)


def test_exact_claims_need_two_seeds_and_one_refutes(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    one, two = (load(experiment({"base": BASE[:n], "better": BETTER[:n]})) for n in (1, 2))
    claim = against_base("better", "less", exact=True)
    alone = answer_claim(one, claim)
    assert alone.verdict == "not enough seeds"
    check_message(alone.note)
    assert answer_claim(two, claim).verdict == "reproduced"
    assert math.isnan(answer_claim(two, claim).p)
    assert answer_claim(one, against_base("better", "greater", exact=True)).verdict == "not reproduced"


def test_exact_claims_are_not_reproduced_on_survivors(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    results = load(experiment({"base": BASE, "better": [*BETTER[:2], *["diverged"] * 4]}))
    found = answer_claim(results, against_base("better", "less", exact=True))
    assert found.verdict == "inconclusive"
    check_message(found.note)
    assert answer_claim(results, against_base("better", "greater", exact=True)).verdict == "not reproduced"


@pytest.mark.parametrize("n", [5, 12])
@pytest.mark.parametrize("upwards", [True, False])
def test_skewed_noise_keeps_the_error_rate_of_range_claims(n: int, upwards: bool) -> None:
    noise = np.random.default_rng([n, 4]).lognormal(size=(600, n)) - 1
    claim = Claim("x", "nll", "range", {"base": 1.0}, low=0.0)
    samples = (noise if upwards else -noise).tolist()
    said = [decide(claim, sample).verdict for sample in samples]
    for wrong in ("reproduced", "not reproduced"):
        assert said.count(wrong) <= stats.binom.isf(1e-6, 600, ALPHA)


def test_diverged_arms_are_said_and_leave_the_seed_out(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    found = answer_claim(
        load(experiment({"base": BASE, "bad": ["diverged", *BETTER[1:]]})), against_base("bad", "less")
    )
    assert (found.seeds, found.verdict) == (5, "not enough seeds")
    check_message(found.note)
    gone = answer_claim(load(experiment({"base": BASE, "bad": ["diverged"] * 6})), against_base("bad", "less"))
    assert gone.verdict == "not enough seeds"
    check_message(gone.note)
    assert math.isnan(gone.estimate)


def given(kind: str, p: float, verdict: Any = "inconclusive") -> Answer:
    return Answer(Claim("x", "nll", "less", {"a": 1.0}, kind=kind), verdict, 0.1, -1.0, 1.0, 6, p=p)


def test_p_is_corrected_over_the_claims_of_a_kind() -> None:
    many = [given("published", 0.01), given("ours", 0.03), given("published", 0.04), given("identity", math.nan)]
    found = adjust_p(many)
    assert [one.p for one in found[:3]] == [0.01, 0.03, 0.04]
    assert [one.p_holm for one in found[:3:2]] == holm([0.01, 0.04])
    assert found[1].p_holm == 0.03
    assert math.isnan(found[3].p_holm)


def test_kinds_are_counted_apart_and_with_what_the_correction_leaves(check_message: CheckMessage) -> None:
    many = adjust_p(
        [
            given("ours", 0.03, "reproduced"),
            given("published", 0.01, "reproduced"),
            given("published", 0.03, "not reproduced"),
            given("published", 0.04, "reproduced"),
            given("published", 0.5),
            given("identity", math.nan, "reproduced"),
            given(UNKNOWN, 0.25, "not enough seeds"),
        ]
    )
    check_message(list(tally(many)))


def test_rows_show_corrected_p_and_unbounded_intervals(check_message: CheckMessage) -> None:
    (one,) = adjust_p([given("ours", 0.25, "not enough seeds")])
    assert row(one)[0] == "ours"
    assert row(one)[5:8] == ["0.25", "0.25", "0.25"]
    endless = Answer(one.claim, "not enough seeds", 0.1, -math.inf, math.inf, 3, "6 could decide", 0.25)
    assert row(endless)[3] == "0.1 [-∞, ∞]"
    check_message(row(endless)[8])


def test_a_manifest_from_before_the_kinds_is_of_none(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    old = {"claim": "x", "metric": "nll", "relation": "less", "contrast": {"better": 1.0, "base": -1.0}}
    found = answers(load(experiment({"base": BASE, "better": BETTER}, claims=[old])))
    assert [one.claim.kind for one in found] == [UNKNOWN]
    check_message(claims_section([("demo", one) for one in found]).notes[0])


RECORD: Record = {
    **blank(),
    "metrics": {"nll": 2.0, "nll@512": 3.0},
    "cost": {"parameters": 100},
    "initial": inside({"mlp_out": [4.0, 2.0]}, entropy=[[0.5, 0.7], [0.9, 0.9]]),
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


def read(tree: dict[str, Any]) -> Claim:
    return read_claim(read_section(tree, ClaimNode, "here"), ["base", "better"], "base", "here")


GOOD = {"claim": "a", "kind": "ours", "metric": "nll", "relation": "less", "arm": "better"}


def test_a_claim_is_against_the_baseline_unless_it_says_otherwise() -> None:
    assert read(GOOD).contrast == {
        "better": 1.0,
        "base": -1.0,
    }
    alone = {**GOOD, "relation": "range", "low": 1}
    assert read(alone).contrast == {"better": 1.0}


@pytest.mark.parametrize(
    ("changes", "has_sign"),
    [
        ({}, True),
        ({"relation": "range", "low": 1}, False),
        ({"relation": "range", "low": 1, "metric": "perplexity@64 / perplexity"}, False),
        ({"relation": "range", "low": 1, "metric": "log perplexity@64 / perplexity"}, True),
        ({"relation": "range", "low": 1, "metric": "nll@64 - nll"}, True),
        ({"contrast": {"base": 0.5, "better": 0.5}}, False),
        ({"relation": "slope", "low": 0, "over": {"base": 1, "better": 2}}, True),
    ],
    ids=str,
)
def test_a_level_or_a_ratio_cannot_change_sign(changes: dict[str, Any], has_sign: bool) -> None:
    assert read({**GOOD, **changes}).has_sign is has_sign


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "publishd"},
        {"arm": "beter"},
        {"against": "bsae"},
        {"arm": "base"},
        {"against": "better"},
        {"relation": "range", "low": 1, "against": "better"},
        {"relation": "equivalent"},
        {"relation": "equivalent", "margin": 0},
        {"relation": "range"},
        {"relation": "slope"},
        {"relation": "slope", "low": 0, "over": {"deep": 2}},
        {"relation": "slope", "low": 0, "over": {"base": 2, "better": 2}},
        {"relation": "slope", "low": 0, "over": {"base": 0, "better": 2}},
        {"relation": "range", "low": 2, "high": 1},
        {"contrast": {}},
        {"metric": "loss"},
        {"metric": "nl"},
        {"metric": "nll - nll@x"},
        {"metric": "intial/entropy"},
        {"arm": ...},
        {"kind": ...},
    ],
    ids=str,
)
def test_a_wrong_claim_is_one_line(refused: Refused, changes: dict[str, Any]) -> None:
    claim = {key: value for key, value in {**GOOD, **changes}.items() if value is not ...}
    with refused():
        read(claim)


def test_expectations_read_as_they_were_claimed() -> None:
    assert against_base("a", "less", margin=0.1).expected() == "< 0.1"
    assert against_base("a", "equivalent", margin=0.02).expected() == "within ±0.02"
    assert Claim("x", "nll", "range", low=1.0).expected() == "≥ 1"
    assert Claim("x", "nll", "slope", low=-1, high=1).expected() == "≥ -1, ≤ 1"
    assert isinstance(Answer(Claim("x", "nll", "range"), "inconclusive", 0, 0, 0, 0).note, str)


def test_claims_on_text_values_are_not_measured(three: Records, check_message: CheckMessage) -> None:
    found = answer_claim(three, Claim("x", "data/tokenizer", "range", {"base": 1.0}, low=0.0))
    assert (found.verdict, found.seeds) == ("not enough seeds", 0)
    check_message(found.note)


def test_damaged_cells_enter_no_claim_and_are_named(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    folder = experiment({"base": BASE, "better": BETTER})
    (folder.parent / "cells" / "better-2" / "record.json").write_text("{")
    found = answer_claim(load(folder), against_base("better", "less"))
    assert found.seeds == 5
    check_message(found.note)
