"""Paired comparisons against scipy, against enumeration and against worked examples."""

import itertools
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lm.analysis import (
    ALPHA,
    Results,
    circumstances,
    compare,
    curves,
    holm,
    load,
    one_tokenizer,
    paired,
    seeds_needed,
    sign_flip_p,
    smallest_p,
    t_interval,
    unpaired,
    value,
    verdict,
)
from lm.config import InputError
from lm.results import FORMAT, QUANTITIES

MakeExperiment = Callable[..., Path]
BASE = [2.0, 2.1, 1.9, 2.05, 2.2, 1.95]
BETTER = [1.7, 1.85, 1.68, 1.8, 1.92, 1.66]
MIXED = [2.1, 2.0, 1.95, 2.0, 2.3, 1.9]


def row(table: pd.DataFrame, arm: str, metric: str = "nll") -> Any:
    (found,) = table[(table.arm == arm) & (table.metric == metric)].itertuples()
    return found


def differences(left: list[float], right: list[float]) -> list[float]:
    return [a - b for a, b in zip(left, right, strict=True)]


# statistics


@pytest.mark.parametrize("n", [2, 3, 6, 20])
def test_the_interval_is_scipys(n: int) -> None:
    sample = np.random.default_rng(n).normal(0.3, 1.0, n).tolist()
    expected = stats.ttest_1samp(sample, 0).confidence_interval(0.95)
    assert t_interval(sample) == pytest.approx((expected.low, expected.high), rel=1e-12)
    wide = stats.ttest_1samp(sample, 0).confidence_interval(0.99)
    assert t_interval(sample, 0.99) == pytest.approx((wide.low, wide.high), rel=1e-12)


def test_the_interval_of_equal_values_is_a_point_and_of_fewer_than_two_nothing() -> None:
    assert t_interval([0.5, 0.5, 0.5]) == (0.5, 0.5)
    assert all(map(math.isnan, t_interval([0.5])))
    assert all(map(math.isnan, t_interval([])))


def enumerated_p(sample: list[float]) -> float:
    """The share of all sign patterns whose mean is at least as far from zero as the one seen."""
    flips = itertools.product((1, -1), repeat=len(sample))
    sums = [abs(math.fsum(sign * x for sign, x in zip(signs, sample, strict=True))) for signs in flips]
    return sum(total >= abs(math.fsum(sample)) * (1 - 1e-12) for total in sums) / len(sums)


@pytest.mark.parametrize("n", [2, 3, 5, 8, 11])
def test_the_sign_flip_p_is_the_share_of_all_patterns(n: int) -> None:
    random = np.random.default_rng(n)
    for shift in (0.0, 0.5, 2.0):
        sample = random.normal(shift, 1.0, n).tolist()
        assert sign_flip_p(sample) == pytest.approx(enumerated_p(sample), rel=1e-12)


@pytest.mark.parametrize("sample", [[1.0, 2.0, 3.0], [1.0, 1.0, -1.0, 2.0], [0.1] * 6, [0.0, 0.0, 1.0], [-1e-9, -3e-9]])
def test_ties_count_as_at_least_as_far(sample: list[float]) -> None:
    assert sign_flip_p(sample) == pytest.approx(enumerated_p(sample), rel=1e-12)


def test_one_pair_says_nothing() -> None:
    assert sign_flip_p([0.3]) == enumerated_p([0.3]) == 1.0


def test_no_pair_has_no_p_and_no_difference_has_p_one() -> None:
    assert math.isnan(sign_flip_p([]))
    assert sign_flip_p([0.0, 0.0, 0.0]) == 1.0


def test_beyond_enumeration_the_p_is_close_to_exact_and_never_zero() -> None:
    sample = np.random.default_rng(0).normal(0.5, 1.0, 15).tolist()
    exact = enumerated_p(sample)
    assert sign_flip_p(sample) == pytest.approx(exact, abs=5 * math.sqrt(exact / 9999))
    assert sign_flip_p(sample) == sign_flip_p(sample)
    assert 0 < sign_flip_p([1.0 + i / 100 for i in range(20)]) < 1e-3


@pytest.mark.parametrize("n", range(1, 12))
def test_the_smallest_p_is_that_of_differences_all_of_one_sign(n: int) -> None:
    assert smallest_p(n) == pytest.approx(enumerated_p([1.0 + i for i in range(n)]), rel=1e-12)


@pytest.mark.parametrize(
    ("given", "adjusted"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.5, 0.6], [1.0, 1.0]),
        ([0.03], [0.03]),
        ([0.02, 0.02, 0.02], [0.06, 0.06, 0.06]),
        ([], []),
    ],
)
def test_holm_worked_by_hand(given: list[float], adjusted: list[float]) -> None:
    assert holm(given) == pytest.approx(adjusted, rel=1e-12)


def test_holm_is_between_no_correction_and_bonferronis_and_keeps_the_order() -> None:
    p = np.random.default_rng(0).uniform(0, 0.3, 9)
    adjusted = np.array(holm(p.tolist()))
    assert (adjusted >= p).all()
    assert (adjusted <= np.minimum(1, 9 * p) + 1e-15).all()
    assert (np.diff(adjusted[np.argsort(p)]) >= 0).all()


def test_holm_leaves_out_what_was_not_tested() -> None:
    found = holm([0.01, math.nan, 0.04])
    assert found[::2] == pytest.approx([0.02, 0.04], rel=1e-12)
    assert math.isnan(found[1])


@pytest.mark.parametrize(("comparisons", "seeds"), [(1, 6), (2, 7), (3, 7), (4, 8), (10, 9)])
def test_seeds_needed_are_the_fewest_that_can_reach_significance(comparisons: int, seeds: int) -> None:
    assert seeds_needed(comparisons) == seeds
    assert smallest_p(seeds) * comparisons <= ALPHA < smallest_p(seeds - 1) * comparisons


# verdicts


@pytest.mark.parametrize("better", ["lower", "higher", None])
@pytest.mark.parametrize("pairs", [1, 2, 3, 4, 5])
def test_no_verdict_claims_what_so_few_seeds_cannot_show(pairs: int, better: str | None) -> None:
    for difference in (-10.0, 0.0, 10.0):
        said = verdict(difference, 0.0, pairs, 1, better)
        assert "cannot reach significance (6 could)" in said


@pytest.mark.parametrize(
    ("difference", "p", "better", "said"),
    [
        (-0.1, 0.03, "lower", "better"),
        (0.1, 0.03, "lower", "worse"),
        (0.1, 0.03, "higher", "better"),
        (-0.1, 0.03, "higher", "worse"),
        (0.1, 0.03, None, "higher"),
        (-0.1, 0.05, None, "lower"),
        (-0.1, 0.051, "lower", "inconclusive"),
        (-0.1, math.nan, "lower", "inconclusive"),
        (math.nan, math.nan, "lower", "no pair to compare"),
    ],
)
def test_the_verdict_says_which_way_and_only_where_the_test_found_it(
    difference: float, p: float, better: str | None, said: str
) -> None:
    assert verdict(difference, p, 8, 1, better) == said


def test_three_seeds_are_never_enough_for_a_claim(experiment: MakeExperiment) -> None:
    table = compare(load(experiment({"base": [2.0, 2.1, 1.9], "far": [0.1, 0.2, 0.1], "near": [2.0, 2.1, 1.8]})))
    assert not table.verdict.isin(["better", "worse", "higher", "lower"]).any()
    assert (table.p_holm.dropna() > ALPHA).all()


@pytest.mark.parametrize(
    "cells",
    [
        {"base": BASE, "better": BETTER, "gone": ["diverged"] * 6},
        {"base": BASE, "better": BETTER, "gone": [None] * 6},
        {"base": BASE, "better": BETTER, "gone": [1.9] + [None] * 5},
        {"base": [*BASE, 2.0, 2.0], "better": [*BETTER, 1.7, 1.8], "other": [*BETTER, "diverged", "failed"]},
    ],
    ids=["diverged", "missing", "one pair", "fewer pairs"],
)
def test_a_difference_is_significant_if_and_only_if_the_verdict_claims_one(
    experiment: MakeExperiment, cells: dict[str, list[Any]]
) -> None:
    table = compare(load(experiment(cells)))
    claims = table.verdict.isin(["better", "worse", "higher", "lower"])
    assert (claims == (table.p_holm <= ALPHA)).all()


# results


def test_means_spreads_and_paired_differences_are_those_of_the_values(experiment: MakeExperiment) -> None:
    table = compare(load(experiment({"base": BASE, "better": BETTER, "mixed": MIXED})))
    for arm, values in (("base", BASE), ("better", BETTER), ("mixed", MIXED)):
        found = row(table, arm)
        assert (found.n, found.diverged, found.failed, found.missing) == (6, 0, 0, 0)
        assert found.mean == pytest.approx(statistics.mean(values), rel=1e-12)
        assert found.sd == pytest.approx(statistics.stdev(values), rel=1e-12)
    for arm, values in (("better", BETTER), ("mixed", MIXED)):
        found, by_hand = row(table, arm), differences(values, BASE)
        assert found.pairs == 6
        assert found.difference == pytest.approx(statistics.mean(by_hand), rel=1e-12)
        interval = stats.ttest_rel(values, BASE).confidence_interval(0.95)
        assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
        assert found.p == pytest.approx(enumerated_p(by_hand), rel=1e-12)
    assert row(table, "better").p_holm == pytest.approx(2 * 2 / 2**6)
    assert row(table, "mixed").p_holm == row(table, "mixed").p


def test_the_baseline_comes_first_and_is_compared_with_nothing(experiment: MakeExperiment) -> None:
    results = load(experiment({"a": MIXED, "base": BASE}, baseline="base"))
    assert results.arms == ["base", "a"]
    found = row(compare(results), "base")
    assert (found.verdict, found.pairs) == ("baseline", 0)
    assert all(map(math.isnan, (found.difference, found.low, found.high, found.p, found.p_holm)))


def test_every_quantity_is_compared_in_the_order_of_the_tables(experiment: MakeExperiment) -> None:
    table = compare(load(experiment({"base": BASE, "mixed": MIXED})))
    assert list(dict.fromkeys(table.metric)) == list(QUANTITIES)
    assert row(table, "mixed", "accuracy").mean == pytest.approx(statistics.mean(1 / x for x in MIXED), rel=1e-12)
    assert row(table, "mixed", "tokens_per_second").mean == 2500.0


def test_a_better_arm_is_called_better_whichever_way_the_quantity_runs(experiment: MakeExperiment) -> None:
    table = compare(load(experiment({"base": BASE, "better": BETTER})))
    for quantity in ("nll", "bits_per_byte", "train_loss", "accuracy"):
        assert row(table, "better", quantity).verdict == "better"
    table = compare(load(experiment({"base": BASE, "better": BETTER}, baseline="better")))
    assert {row(table, "base", quantity).verdict for quantity in ("nll", "accuracy")} == {"worse"}


def test_diverged_failed_and_missing_cells_are_counted_and_enter_no_mean(experiment: MakeExperiment) -> None:
    cells = {"base": [2.0, 2.1, "failed", 2.3, 2.4], "arm": [1.0, "diverged", 1.2, None, 1.4]}
    results = load(experiment(cells))
    table = compare(results)
    found = row(table, "arm")
    assert (found.n, found.diverged, found.failed, found.missing) == (3, 1, 0, 1)
    assert found.mean == pytest.approx(statistics.mean([1.0, 1.2, 1.4]), rel=1e-12)
    assert (row(table, "base").n, row(table, "base").failed) == (4, 1)
    assert paired(results, "arm", "nll") == [(1.0, 2.0), (1.4, 2.4)]
    assert (found.pairs, found.difference) == (2, pytest.approx(-1.0, rel=1e-12))


@pytest.mark.parametrize("quantity", ["tokens_per_second", "train_seconds", "peak_memory", "tokens"])
def test_what_a_diverged_cell_cost_enters_no_mean_and_no_difference(experiment: MakeExperiment, quantity: str) -> None:
    results = load(experiment({"base": [2.0, 2.1, 2.2], "arm": [1.0, "diverged", 1.2]}))
    found, expected = row(compare(results), "arm", quantity), row(compare(results), "base", quantity)
    assert (found.n, found.mean, found.pairs, found.difference) == (2, expected.mean, 2, 0.0)


def test_an_arm_that_never_went_well_is_compared_with_nothing(experiment: MakeExperiment) -> None:
    found = row(compare(load(experiment({"base": BASE, "arm": ["diverged"] * 6}))), "arm")
    assert (found.n, found.diverged, found.pairs, found.verdict) == (0, 6, 0, "no pair to compare")
    assert math.isnan(found.mean)


@pytest.mark.parametrize("finished", [0, 1, 2])
def test_an_experiment_under_way_can_be_compared(experiment: MakeExperiment, finished: int) -> None:
    left: list[float | None] = [None] * (6 - finished)
    found = row(compare(load(experiment({"base": BASE[:finished] + left, "arm": BETTER[:finished] + left}))), "arm")
    assert (found.n, found.missing, found.pairs) == (finished, 6 - finished, finished)


def test_a_quantity_that_was_not_measured_is_nan() -> None:
    record = {"metrics": {"nll": 1, "perplexity": None}, "cost": {"tokens": 5}}
    assert (value(record, "nll"), value(record, "tokens")) == (1.0, 5.0)
    assert math.isnan(value(record, "perplexity"))
    assert math.isnan(value(record, "ece"))
    assert math.isnan(value({}, "ece"))


# what a reader must know


def test_cells_that_saw_the_same_batches_are_paired(experiment: MakeExperiment) -> None:
    assert unpaired(load(experiment({"base": BASE, "arm": MIXED}))) == []


@pytest.mark.parametrize(
    ("section", "key", "changed"),
    [("pairing", "order", "another"), ("pairing", "batches", 11), ("data", "fingerprint", "g")],
)
def test_a_cell_that_saw_other_batches_is_reported(
    experiment: MakeExperiment, section: str, key: str, changed: object
) -> None:
    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        if (arm, seed) == ("arm", 2):
            record[section][key] = changed

    assert unpaired(load(experiment({"base": BASE, "arm": MIXED}, change))) == [
        "arm seed 2 saw other batches than the baseline"
    ]


def test_arms_with_another_tokenizer_are_not_paired_a_line_an_arm(experiment: MakeExperiment) -> None:
    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        if arm != "base":
            record["data"]["tokenizer"] = arm
        if arm == "bytes" and record["status"] == "ok":
            record["pairing"]["order"] = f"another order of seed {seed}"

    results = load(
        experiment({"base": [2.0, 2.1, 1.9], "bytes": [1.0, 1.1, "failed"], "same": [1.0, None, 1.2]}, change)
    )
    assert unpaired(results) == [
        "bytes seeds 0, 1 saw other batches than the baseline",
        "same seeds 0, 2 saw other batches than the baseline",
    ]
    assert not one_tokenizer(results)


def test_arms_with_one_tokenizer_are_told_from_arms_with_several(experiment: MakeExperiment) -> None:
    assert one_tokenizer(load(experiment({"base": BASE, "arm": [1.0, None, "failed"]})))


def test_circumstances_that_differ_between_cells_are_reported(experiment: MakeExperiment) -> None:
    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        if (arm, seed) == ("arm", 2):
            record["provenance"]["packages"]["torch"] = "3"
            record["provenance"]["git"]["commit"] = "d"

    assert circumstances(load(experiment({"base": BASE, "arm": MIXED}))) == {}
    found = circumstances(load(experiment({"base": BASE, "arm": MIXED}, change)))
    assert found == {"commit": ["c", "d"], "torch version": ["2", "3"]}


def test_curves_have_a_row_a_step_and_a_column_a_seed_that_went_well(experiment: MakeExperiment) -> None:
    results = load(experiment({"base": BASE, "arm": [1.0, "diverged", 3.0, None, "failed", 2.0]}))
    expected = pd.DataFrame(
        {seed: {step: nll + 10 / step for step in (10, 20, 30)} for seed, nll in ((0, 1.0), (2, 3.0), (5, 2.0))}
    )
    pd.testing.assert_frame_equal(curves(results, "arm", "validation_nll"), expected, check_names=False)
    assert curves(results, "arm", "no such column").empty


# loading


def test_loading_finds_every_record(experiment: MakeExperiment) -> None:
    results = load(experiment({"base": [2.0, None], "arm": ["failed", 1.0]}))
    assert {cell: found and found["status"] for cell, found in results.records.items()} == {
        ("base", 0): "ok",
        ("base", 1): None,
        ("arm", 0): "failed",
        ("arm", 1): "ok",
    }
    assert [record["id"] for record in results.of("arm")] == ["arm-0", "arm-1"]


@pytest.mark.parametrize("place", [".", "../demo", "../../out/demo"])
def test_a_folder_is_the_same_however_it_is_named(
    experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    folder = experiment({"base": BASE, "arm": MIXED})
    monkeypatch.chdir(folder)
    here: Results = load(Path(place))
    assert here.records == load(folder).records


def test_a_folder_without_an_experiment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path)
    assert str(caught.value).startswith(
        f"{tmp_path}: holds no experiment.json; expected a folder that `lm ablate` made"
    )


def test_an_experiment_of_another_version_is_refused(experiment: MakeExperiment) -> None:
    folder = experiment({"base": BASE}, format=FORMAT + 1)
    with pytest.raises(InputError, match=f"format {FORMAT + 1}, expected {FORMAT}; it was written by another version"):
        load(folder)
