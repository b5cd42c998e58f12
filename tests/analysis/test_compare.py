"""Paired comparisons against scipy and against worked examples."""

import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from messages import CheckMessage, Refused
from records import BASE, BETTER, MIXED, MakeExperiment, blank
from scipy import stats

from lm.analysis.comparability import changes_in_words
from lm.analysis.compare import WITHHELD, compare
from lm.analysis.results import (
    Records,
    curves,
    data_order_mismatches,
    load,
    one_tokenizer,
    paired,
    provenance_differences,
    value,
)
from lm.stats.power import detectable
from lm.stats.sequential import repeated_interval, sequential, stage_alpha
from lm.stats.tests import ALPHA, effect_size, equivalence_p, sign_flip_interval, sign_flip_p, t_interval
from lm.stats.verdicts import Comparison, confirm
from lm.store.formats import MANIFEST
from lm.store.metrics import METRICS
from lm.store.record import Record

CLAIM_OF_BETER = {"claim": "x", "metric": "nll", "relation": "lower", "contrast": {"beter": 1.0, "base": -1.0}}


def row(table: pd.DataFrame, arm: str, metric: str = "nll") -> Any:
    (found,) = table[(table.arm == arm) & (table.metric == metric)].itertuples()
    return found


def differences(left: list[float], right: list[float]) -> list[float]:
    return [a - b for a, b in zip(left, right, strict=True)]


# verdicts


@pytest.mark.parametrize(
    "cells",
    [
        {"base": BASE, "better": BETTER, "gone": [1.9] + [None] * 5},
        {"base": [*BASE, 2.0, 2.0], "better": [*BETTER, 1.7, 1.8], "other": [*BETTER, "diverged", "failed"]},
    ],
    ids=["one pair", "fewer pairs"],
)
def test_verdicts_claim_exactly_the_significant_differences(
    experiment: MakeExperiment, cells: dict[str, list[Any]]
) -> None:
    table = compare(load(experiment(cells)))
    claims = table.verdict.str.match("(better|worse|higher|lower)")
    assert (claims == (table.p_adjusted <= ALPHA)).all()
    assert (claims == table.significant).all()


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
        assert (found.plain_low, found.plain_high) == pytest.approx((interval.low, interval.high), rel=1e-9)
        assert found.p == pytest.approx(
            stats.permutation_test((by_hand,), np.mean, permutation_type="samples").pvalue, rel=1e-12
        )
    assert row(table, "better").p_adjusted == pytest.approx(2 * 2 / 2**6)
    assert row(table, "mixed").p_adjusted == min(1.0, 2 * row(table, "mixed").p)


def test_the_baseline_comes_first_and_is_compared_with_nothing(experiment: MakeExperiment) -> None:
    results = load(experiment({"a": MIXED, "base": BASE}, baseline="base"))
    assert results.arms == ["base", "a"]
    found = row(compare(results), "base")
    assert (found.verdict, found.pairs) == ("baseline", 0)
    assert all(map(math.isnan, (found.difference, found.low, found.high, found.plain_low, found.p, found.p_adjusted)))


def test_every_quantity_is_compared_in_the_order_of_the_tables(experiment: MakeExperiment) -> None:
    table = compare(load(experiment({"base": BASE, "mixed": MIXED})))
    measured = {"nll", "bits_per_byte", "accuracy", "ece", "train_loss", "gradient_norm"}
    measured |= {"parameters", "tokens", "train_seconds", "tokens_per_second", "peak_memory"}
    assert list(dict.fromkeys(table.metric)) == [name for name in METRICS if name in measured]
    assert row(table, "mixed", "accuracy").mean == pytest.approx(statistics.mean(1 / x for x in MIXED), rel=1e-12)
    assert row(table, "mixed", "tokens_per_second").mean == 2500.0


def own(arm: str, seed: int, record: dict[str, Any]) -> None:
    """Measures what no table knows, and something at a length."""
    record["metrics"] |= {"my_metric": 2 * record["metrics"]["nll"], "nll@64": 1.0}


def test_unknown_metrics_are_compared_under_their_names(experiment: MakeExperiment) -> None:
    table = compare(load(experiment({"base": BASE, "mixed": MIXED}, own)))
    assert list(dict.fromkeys(table.metric))[-2:] == ["my_metric", "nll@64"]
    found = row(table, "mixed", "my_metric")
    assert found.mean == pytest.approx(2 * statistics.mean(MIXED), rel=1e-12)
    assert (found.verdict, found.pairs) == (row(table, "mixed", "gradient_norm").verdict, 6)


def test_better_follows_the_direction_of_each_quantity(experiment: MakeExperiment) -> None:
    base, better = [*BASE, 2.0, 2.05], [*BETTER, 1.7, 1.75]
    for baseline, arm in (("base", "better"), ("better", "base")):
        cells = {"base": base, "better": better}
        table = compare(load(experiment(cells, baseline=baseline, secondary=["accuracy"])))
        verdict = "better" if arm == "better" else "worse"
        assert [row(table, arm, quantity).verdict for quantity in ("nll", "accuracy")] == [verdict] * 2


@pytest.mark.slow
def test_only_declared_quantities_have_a_verdict(experiment: MakeExperiment) -> None:
    base, better = [*BASE, 2.0, 2.05], [*BETTER, 1.7, 1.75]
    table = compare(load(experiment({"base": base, "better": better, "other": better}, confirmatory=["better"])))
    for arm in ("better", "other"):
        for other in table[(table.arm == arm) & (table.metric != "nll")].itertuples():
            assert (other.verdict, other.significant, other.interval) == ("-", False, "plain")
            assert all(map(math.isnan, (other.p, other.p_adjusted, other.q, other.p_equivalent, other.detectable)))
    found = row(table, "better", "accuracy")
    assert (found.low, found.high) == t_interval([1 / x - 1 / y for x, y in zip(better, base, strict=True)])
    assert (row(table, "better").verdict, row(table, "better").p_adjusted) == ("better", 2 / 2**8)
    two = compare(load(experiment({"base": base, "better": better}, secondary=["accuracy"])))
    for quantity in ("nll", "accuracy"):
        found = row(two, "better", quantity)
        assert (found.verdict, found.p_adjusted) == ("better", 2 * 2 / 2**8)
    assert row(two, "better", "ece").verdict == "-"


def test_unjudged_quantities_stay_a_dash_with_lost_seeds(
    experiment: MakeExperiment, check_message: CheckMessage
) -> None:
    table = compare(load(experiment({"base": BASE, "better": [*BETTER[:5], "diverged"]})))
    check_message(row(table, "better").verdict)
    assert row(table, "better", "accuracy").verdict == "-"


# intervals


def test_joint_intervals_invert_the_test_at_each_share(experiment: MakeExperiment) -> None:
    cells = {"base": [*BASE, 2.0, 2.05], "better": [*BETTER, 1.7, 1.75], "mixed": [*MIXED, 2.1, 2.0]}
    table = compare(load(experiment(cells)))
    for arm in ("better", "mixed"):
        found, by_hand = row(table, arm), differences(cells[arm], cells["base"])
        assert found.interval == "joint"
        assert (found.low, found.high) == sign_flip_interval(by_hand, ALPHA / 2)
        assert (found.plain_low, found.plain_high) == t_interval(by_hand)


@pytest.mark.parametrize(("arms", "n"), [(1, 6), (2, 8)])
def test_joint_intervals_exclude_zero_exactly_with_a_verdict(arms: int, n: int) -> None:
    random = np.random.default_rng([arms, n])
    seen = set()
    for _ in range(40):
        family = [Comparison(row, p=sign_flip_p(row)) for row in random.normal(0.9, 1.0, (arms, n)).tolist()]
        confirm(family)
        for one in family:
            assert (one.low > 0 or one.high < 0) == one.significant == (one.verdict.kind in ("higher", "lower"))
            seen.add(one.significant)
    assert seen == {True, False}


@pytest.mark.parametrize("unit", [0.1, 1e-9])
def test_ties_and_rounding_do_not_part_verdict_and_interval(unit: float) -> None:
    for row in ([1, 1, 1, 1, 1, -5], [1, 2, 3, 4, 5, -1], [0, 0, 1, 1, 1, 1, 1, 1]):
        sample = [unit * value for value in row]
        (one,) = family = [Comparison(sample, p=sign_flip_p(sample))]
        confirm(family)
        assert (one.low > 0 or one.high < 0) == one.significant


@pytest.mark.extra
@pytest.mark.parametrize(("arms", "n"), [(1, 6), (3, 8), (7, 9)])
@pytest.mark.parametrize("effects", [(0.0,), (0.0, 30.0)])
def test_joint_intervals_cover_the_truth_together(arms: int, n: int, effects: tuple[float, ...]) -> None:
    random, experiments, covered = np.random.default_rng([arms, n, 1]), 300, 0
    truth = [effects[place % len(effects)] for place in range(arms)]
    for _ in range(experiments):
        cells = random.normal(size=(arms, n)) - random.normal(size=n) + np.array(truth)[:, None]
        family = [Comparison(row, p=sign_flip_p(row)) for row in cells.tolist()]
        confirm(family)
        covered += all(one.low <= true <= one.high for one, true in zip(family, truth, strict=True))
    assert covered >= stats.binom.ppf(1e-4, experiments, 1 - ALPHA)


def test_too_few_seeds_have_no_joint_interval_and_say_so(experiment: MakeExperiment) -> None:
    found = row(compare(load(experiment({"base": BASE[:3], "better": BETTER[:3]}))), "better")
    assert (found.low, found.high, found.interval) == (-math.inf, math.inf, "joint")
    assert (found.plain_low, found.plain_high) == t_interval(differences(BETTER[:3], BASE[:3]))


def test_identical_cells_leave_no_interval_open(experiment: MakeExperiment) -> None:
    found = row(compare(load(experiment({"base": BASE[:3], "same": BASE[:3]}))), "same")
    assert (found.low, found.high, found.verdict, found.significant) == (0.0, 0.0, "identical", False)


# counting


def test_lost_cells_are_counted_and_enter_no_mean(experiment: MakeExperiment) -> None:
    cells = {"base": [2.0, 2.1, "failed", 2.3, 2.4], "arm": [1.0, "diverged", 1.2, None, 1.4]}
    results = load(experiment(cells))
    table = compare(results)
    found = row(table, "arm")
    assert (found.n, found.diverged, found.failed, found.missing) == (3, 1, 0, 1)
    assert found.mean == pytest.approx(statistics.mean([1.0, 1.2, 1.4]), rel=1e-12)
    assert (row(table, "base").n, row(table, "base").failed) == (4, 1)
    assert paired(results, "arm", "nll") == [(1.0, 2.0), (1.4, 2.4)]
    assert (found.pairs, found.difference) == (2, pytest.approx(-1.0, rel=1e-12))


def test_costs_of_diverged_cells_enter_no_mean(experiment: MakeExperiment) -> None:
    results = load(experiment({"base": [2.0, 2.1, 2.2], "arm": [1.0, "diverged", 1.2]}))
    found, expected = (row(compare(results), arm, "train_seconds") for arm in ("arm", "base"))
    assert (found.n, found.mean, found.pairs, found.difference) == (2, expected.mean, 2, 0.0)


def test_an_arm_that_never_went_well_is_compared_with_nothing(
    experiment: MakeExperiment, check_message: CheckMessage
) -> None:
    found = row(compare(load(experiment({"base": BASE, "arm": ["diverged"] * 6}))), "arm")
    assert (found.n, found.diverged, found.pairs) == (0, 6, 0)
    check_message(found.verdict)
    assert math.isnan(found.mean)


def test_a_quantity_that_was_not_measured_is_nan() -> None:
    record: Record = {**blank(), "metrics": {"nll": 1, "perplexity": None}, "cost": {"tokens": 5}}
    assert (value(record, "nll"), value(record, "tokens")) == (1.0, 5.0)
    assert math.isnan(value(record, "perplexity"))
    assert math.isnan(value(record, "ece"))
    assert math.isnan(value(blank(), "ece"))


@pytest.mark.parametrize("given", [None, ["diverged"]])
def test_the_headline_always_has_a_row(experiment: MakeExperiment, given: list[Any] | None) -> None:
    cells = given or [None]
    assert set(compare(load(experiment({"base": cells, "arm": cells}))).metric) == {"nll"}


def test_comparisons_have_bootstrap_effect_size_and_detectable_effect(experiment: MakeExperiment) -> None:
    found = row(compare(load(experiment({"base": BASE, "better": BETTER, "mixed": MIXED}))), "mixed")
    by_hand = differences(MIXED, BASE)
    done = stats.bootstrap((by_hand,), np.mean, method="BCa", rng=0).confidence_interval
    assert (found.bootstrap_low, found.bootstrap_high) == pytest.approx((done.low, done.high), rel=1e-12)
    assert found.effect == effect_size(by_hand).hedges
    # Six pairs have no p as small as 0.05 / 2, so nothing could have been found.
    assert found.detectable == math.inf
    found = row(compare(load(experiment({"base": BASE, "mixed": MIXED}))), "mixed")
    assert found.detectable == pytest.approx(detectable(6, statistics.stdev(by_hand)), rel=1e-12)


# families


def test_the_confirmatory_are_corrected_without_the_others(
    experiment: MakeExperiment, check_message: CheckMessage
) -> None:
    cells = {"base": BASE, "better": BETTER, "other": BETTER, "again": BETTER, "mixed": MIXED}
    table = compare(load(experiment(cells, confirmatory=["better"])))
    better, other, again, mixed = (row(table, arm) for arm in ("better", "other", "again", "mixed"))
    assert (better.family, better.p_adjusted, better.verdict) == ("confirmatory", pytest.approx(2 / 2**6), "better")
    assert math.isnan(better.q)
    expected = stats.false_discovery_control([other.p, again.p, mixed.p])
    assert (other.q, again.q, mixed.q) == pytest.approx(tuple(expected))
    assert math.isnan(other.p_adjusted)
    assert (other.family, other.significant) == ("exploratory", False)
    check_message(other.verdict)
    assert not table[table.family == "exploratory"].significant.any()


def test_an_exploratory_arm_is_lower_and_not_better(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    table = compare(load(experiment({"base": BASE, "better": BETTER}, confirmatory=[], secondary=["accuracy"])))
    check_message([row(table, "better", quantity).verdict for quantity in ("nll", "accuracy")])
    table = compare(load(experiment({"base": BASE[:3], "better": BETTER[:3]}, confirmatory=[])))
    check_message(row(table, "better").verdict)
    assert not table.verdict.str.contains("better|worse").any()


def test_equivalence_is_adjusted_within_the_family(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    near = [x + d for x, d in zip(BASE, [0.01, -0.02, 0.015, -0.01, 0.0, 0.01], strict=True)]
    nearer = [x + d for x, d in zip(BASE, [0.01, -0.01, 0.01, -0.01, 0.01, -0.01], strict=True)]
    cells = {"base": BASE, "near": near, "nearer": nearer}
    table = compare(load(experiment(cells, margin={"nll": 0.05})))
    one, other = row(table, "near"), row(table, "nearer")
    by_hand = [equivalence_p(differences(arm, BASE), 0.05) for arm in (near, nearer)]
    assert (one.p_equivalent, other.p_equivalent) == pytest.approx((2 * max(by_hand), 2 * min(by_hand)))
    assert (one.margin, one.verdict) == (0.05, "equivalent within 0.05")
    assert math.isnan(row(table, "near", "accuracy").p_equivalent)
    explored = row(compare(load(experiment(cells, margin={"nll": 0.05}, confirmatory=["near"]))), "nearer")
    check_message(explored.verdict.rpartition(" ")[0])


def test_an_arm_that_is_lost_keeps_its_share_of_alpha(experiment: MakeExperiment) -> None:
    cells: dict[str, list[Any]] = {
        "base": BASE,
        "better": BETTER,
        "near": [x + 0.01 for x in BASE],
        "lost": ["diverged"],
    }
    table = compare(load(experiment(cells, margin={"nll": 9.0})))
    found, by_hand = row(table, "better"), differences(BETTER, BASE)
    assert found.p_adjusted == 3 * found.p
    assert (found.low, found.high) == sign_flip_interval(by_hand, ALPHA / 3)
    assert found.p_equivalent == 3 * equivalence_p(by_hand, 9.0)


def test_seeds_in_stages_are_judged_by_the_sequential_test(
    experiment: MakeExperiment, check_message: CheckMessage
) -> None:
    adaptive = {"looks": [6, 8], "maximum": 8}
    base, better = [*BASE, 2.0, 2.1], [*BETTER, 1.75, 1.8]
    table = compare(load(experiment({"base": base, "better": better}, adaptive=adaptive)))
    found, look = row(table, "better"), sequential(differences(better, base), [6, 8], 8)
    assert look is not None
    assert (found.p, found.level) == (look.p, look.level)
    assert found.significant == look.rejected
    check_message(found.verdict)
    assert (found.low, found.high) == repeated_interval(differences(better, base), [6, 8], 8)
    assert found.interval == "repeated"
    assert math.isnan(found.p_adjusted)
    assert row(table, "better", "accuracy").verdict == "-"


def test_in_stages_every_confirmatory_arm_has_its_share_of_alpha(experiment: MakeExperiment) -> None:
    cells = {"base": [*BASE, 2.0, 2.1], "better": [*BETTER, 1.75, 1.8], "mixed": [*MIXED, 2.1, 2.0]}
    adaptive = {"looks": [8], "maximum": 8}
    for confirmatory in (["better"], ["better", "mixed"]):
        table = compare(load(experiment(cells, adaptive=adaptive, confirmatory=confirmatory)))
        look = sequential(differences(cells["better"], cells["base"]), [8], 8, ALPHA / len(confirmatory))
        assert look is not None
        found, by_hand = row(table, "better"), differences(cells["better"], cells["base"])
        assert found.level == look.level
        assert (found.low, found.high) == repeated_interval(by_hand, [8], 8, ALPHA / len(confirmatory))
        assert look.level <= ALPHA / len(confirmatory)


def test_staged_equivalence_tests_at_the_level_of_the_look(experiment: MakeExperiment) -> None:
    base = [*BASE, 2.0, 2.1]
    near = [x + 0.01 * (-1) ** place for place, x in enumerate(base)]
    cells = {"base": base, "near": near}
    for looks, margin, said in (
        ([8], 0.02, "equivalent within 0.02"),
        ([8], 0.009, "inconclusive"),
        ([7, 8], 0.02, "equivalent within 0.02"),
    ):
        table = compare(load(experiment(cells, adaptive={"looks": looks, "maximum": 8}, margin={"nll": margin})))
        assert row(table, "near").verdict == said
        assert (row(table, "near").p_equivalent <= stage_alpha(8, looks, 8)) == said.startswith("equivalent")


def test_staged_verdicts_name_too_few_seeds(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    cells = {"base": BASE[:4], "better": BETTER[:4], "near": BASE[:4]}
    table = compare(load(experiment(cells, adaptive={"looks": [4], "maximum": 4}, margin={"nll": 9.0})))
    check_message(row(table, "better").verdict)


@pytest.mark.parametrize(
    "trained",
    [3, 7, 8],
)
def test_a_sequential_test_is_silent_until_it_may_speak(
    experiment: MakeExperiment, trained: int, check_message: CheckMessage
) -> None:
    left: list[Any] = [None] * (8 - trained)
    base, mixed = [*BASE, 2.0, 2.1][:trained], [*MIXED, 2.1, 2.05][:trained]
    cells = {"base": base + left, "mixed": mixed + left}
    check_message(row(compare(load(experiment(cells, adaptive={"looks": [6, 8], "maximum": 8}))), "mixed").verdict)


def test_staged_tests_stop_before_a_missing_cell(experiment: MakeExperiment) -> None:
    cells = {"base": BASE, "better": [*BETTER[:4], None, BETTER[5]]}
    assert row(compare(load(experiment(cells, adaptive={"looks": [5, 6], "maximum": 6}))), "better").pairs == 4


def test_pairs_beyond_the_last_look_enter_nothing(experiment: MakeExperiment) -> None:
    found = {}
    for count, later in ((6, []), (8, [9.0, 9.0])):
        cells = {"base": [*BASE, 2.0, 2.1][:count], "better": [*BETTER, *later], "same": [*BASE, *later]}
        table = compare(load(experiment(cells, adaptive={"looks": [6, 12], "maximum": 12}, confirmatory=["better"])))
        found[count] = row(table, "better")
    for name in ("pairs", "difference", "low", "high", "plain_low", "effect", "bootstrap_low", "level"):
        assert getattr(found[8], name) == getattr(found[6], name)


def test_a_difference_has_the_direction_of_its_look(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    cells = {"base": [*BASE, 2.0, 2.1, 2.2], "turned": [*BETTER, 1.9, 9.0, 9.0]}
    found = row(compare(load(experiment(cells, adaptive={"looks": [7, 9], "maximum": 9}))), "turned")
    check_message(found.verdict)
    assert found.difference > 0


def test_identical_arms_in_stages_are_called_so(experiment: MakeExperiment) -> None:
    table = compare(load(experiment({"base": BASE, "same": BASE}, adaptive={"looks": [6, 8], "maximum": 8})))
    assert row(table, "same").verdict == "identical"


# what stands in the way of a verdict


def test_an_arm_that_diverged_is_never_better_without_saying_so(
    experiment: MakeExperiment, check_message: CheckMessage
) -> None:
    base, better = [*BASE, 2.0, 2.05], [*BETTER, 1.7, 1.75]
    found = row(compare(load(experiment({"base": base, "better": [*better[:7], "diverged"]}))), "better")
    check_message(found.verdict)
    expected = stats.binomtest(1, 8).proportion_ci(0.95, method="exact")
    assert (found.lost_rate, found.lost_low, found.lost_high) == (1 / 8, expected.low, expected.high)
    found = row(
        compare(load(experiment({"base": ["failed", *base[1:]], "better": [*better[:7], "diverged"]}))), "better"
    )
    check_message(found.verdict)


def test_per_token_verdicts_are_withheld_where_tokenizers_differ(
    experiment: MakeExperiment, check_message: CheckMessage
) -> None:
    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        if arm == "bytes":
            record["data"]["tokenizer"] = "bytes"

    base, better = [*BASE, 2.0, 2.05], [*BETTER, 1.7, 1.75]
    table = compare(load(experiment({"base": base, "bytes": better}, change, secondary=["bits_per_byte"])))
    quantities = ("nll", "accuracy", "ece", "train_loss", "tokens_per_second")
    found = [row(table, "bytes", quantity) for quantity in quantities]
    assert not any(one.significant for one in found)
    assert all(math.isnan(getattr(one, name)) for one in found for name in WITHHELD)
    (said,) = {one.verdict for one in found}
    check_message(said)
    assert row(table, "bytes", "bits_per_byte").verdict == "better"


@pytest.mark.parametrize(("name", "place"), [("commit", "git"), ("torch version", "packages"), ("device", "")])
def test_confounded_provenance_withholds_the_verdict(
    experiment: MakeExperiment, name: str, place: str, check_message: CheckMessage
) -> None:
    def change(only: set[int]) -> Callable[[str, int, dict[str, Any]], None]:
        def altered(arm: str, seed: int, record: dict[str, Any]) -> None:
            if arm == "better" and seed in only:
                holder = record["provenance"][place] if place else record["provenance"]
                holder[name.removesuffix(" version")] = "other"

        return altered

    table = compare(load(experiment({"base": BASE, "better": BETTER}, change(set(range(6))))))
    check_message(row(table, "better").verdict)
    assert not table.significant.any()
    table = compare(load(experiment({"base": BASE, "better": BETTER}, change(set(range(5))))))
    beside = "" if name == "device" else f" (cells differ among themselves in {name})"
    assert row(table, "better").verdict == f"better{beside}"


@pytest.mark.parametrize("dirty", [False, True])
def test_code_is_its_source_where_all_records_have_it(
    experiment: MakeExperiment, dirty: bool, check_message: CheckMessage
) -> None:
    """A commit may have changed a page of the docs, and a checkout with changes may have been edited in between."""

    def change(source: dict[str, str], commit: str) -> Callable[[str, int, dict[str, Any]], None]:
        def altered(arm: str, seed: int, record: dict[str, Any]) -> None:
            record["provenance"]["git"] = {"commit": commit if arm == "better" else "c", "dirty": dirty}
            record["provenance"] |= {"source": source[arm]} if arm in source else {}

        return altered

    def verdict(source: dict[str, str], commit: str) -> str:
        results = load(experiment({"base": BASE, "better": BETTER}, change(source, commit)))
        return str(row(compare(results), "better").verdict)

    assert verdict({"base": "s", "better": "s"}, "d") == "better"
    check_message(verdict({"base": "s", "better": "t"}, "c"))
    assert verdict({"better": "t"}, "c") == "better", "the baseline is older, and knows its commit alone"
    check_message(verdict({"better": "t"}, "d"))


def test_a_circumstance_that_the_arm_is_about_withholds_nothing(
    experiment: MakeExperiment, check_message: CheckMessage
) -> None:
    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        record["provenance"]["precision"] = {"base": "32-true", "better": "bf16-mixed"}[arm]

    folder = experiment({"base": BASE, "better": BETTER}, change)
    results = load(folder)
    check_message(row(compare(results), "better").verdict)
    results.manifest["arms"]["better"]["changes"] = {"trainer.precision": ("32-true", "bf16-mixed")}
    assert row(compare(results), "better").verdict == "better"


# what a reader must know


@pytest.mark.parametrize(
    ("section", "key", "changed"),
    [("pairing", "order", "another"), ("pairing", "batches", 11), ("data", "fingerprint", "g")],
)
def test_a_cell_that_saw_other_batches_is_reported(
    experiment: MakeExperiment, section: str, key: str, changed: object, check_message: CheckMessage
) -> None:
    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        if (arm, seed) == ("arm", 2):
            record[section][key] = changed

    assert data_order_mismatches(load(experiment({"base": BASE, "arm": MIXED}))) == []
    check_message(data_order_mismatches(load(experiment({"base": BASE, "arm": MIXED}, change))))


def test_arms_with_other_tokenizers_are_not_paired(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        if arm != "base":
            record["data"]["tokenizer"] = arm
        if arm == "bytes" and record["status"] == "ok":
            record["pairing"]["order"] = f"another order of seed {seed}"

    results = load(
        experiment({"base": [2.0, 2.1, 1.9], "bytes": [1.0, 1.1, "failed"], "same": [1.0, None, 1.2]}, change)
    )
    check_message(data_order_mismatches(results))
    assert not one_tokenizer(results)
    assert one_tokenizer(load(experiment({"base": BASE, "arm": [1.0, None, "failed"]})))


def test_circumstances_that_differ_between_cells_are_reported(experiment: MakeExperiment) -> None:
    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        if (arm, seed) == ("arm", 2):
            record["provenance"]["packages"]["torch"] = "3"
            record["provenance"]["git"]["commit"] = "d"

    assert provenance_differences(load(experiment({"base": BASE, "arm": MIXED}))) == {}
    found = provenance_differences(load(experiment({"base": BASE, "arm": MIXED}, change)))
    assert found == {"commit": ["c", "d"], "torch version": ["2", "3"]}


def test_curves_have_step_rows_and_successful_seed_columns(experiment: MakeExperiment) -> None:
    results = load(experiment({"base": BASE, "arm": [1.0, "diverged", 3.0, None, "failed", 2.0]}))
    expected = pd.DataFrame(
        {seed: {step: nll + 10 / step for step in (10, 20, 30)} for seed, nll in ((0, 1.0), (2, 3.0), (5, 2.0))}
    )
    pd.testing.assert_frame_equal(curves(results, "arm", "validation_nll"), expected, check_names=False)
    assert curves(results, "arm", "no such column").empty


# loading


def test_a_folder_is_the_same_however_it_is_named(experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = experiment({"base": BASE, "arm": MIXED})
    monkeypatch.chdir(folder)
    here: Records = load(Path("../../out/demo"))
    assert here.records == load(folder).records


def test_a_folder_without_an_experiment_is_refused(tmp_path: Path, refused: Refused) -> None:
    with refused():
        load(tmp_path)


def test_an_experiment_of_another_version_is_refused(experiment: MakeExperiment, refused: Refused) -> None:
    folder = experiment({"base": BASE}, format=MANIFEST.version + 1)
    with refused():
        load(folder)


MANIFEST_ARM = {"changes": {}, "cells": {str(seed): "cell" for seed in range(6)}}
WRONG_CLAIMS: list[dict[str, Any]] = [
    {"relation": "range"},
    {"relation": "rnage", "low": 1.0},
    {"relation": "less", "metric": "steps ahead"},
    {"relation": "slope", "low": 1.0, "over": {"base": 1.0}},
    {"relation": "slope", "low": 1.0, "over": {"base": 1.0, "better": 0.0}},
]
WRONG_STAGES: list[dict[str, Any]] = [{"looks": []}, {"maximum": 0}, {"maximum": 100_000}]


@pytest.mark.parametrize(
    "changes",
    [
        {"title": None},
        {"seeds": 6},
        {"arms": []},
        {"baseline": "gone"},
        {"seeds": [0, 99]},
        {"claims": [CLAIM_OF_BETER]},
        *({"claims": [{"claim": "x", "metric": "nll", "contrast": {"base": 1.0}, **wrong}]} for wrong in WRONG_CLAIMS),
        *({"adaptive": {"looks": [6], "maximum": 6, **wrong}} for wrong in WRONG_STAGES),
        {"ways": {"chosen": {"compile": True}}},
        {"arms": {arm: {**MANIFEST_ARM, "levels": {arm: "on"}} for arm in ("base", "better")}},
    ],
)
def test_a_manifest_that_was_changed_by_hand_is_refused(
    experiment: MakeExperiment, refused: Refused, changes: dict[str, Any]
) -> None:
    folder = experiment({"base": BASE, "better": BETTER})
    path = folder / "experiment.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with refused():
        load(folder)


def test_a_manifest_with_a_seed_twice_is_refused(experiment: MakeExperiment, refused: Refused) -> None:
    folder = experiment({"base": BASE[:2], "better": BETTER[:2]})
    path = folder / "experiment.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "seeds": [0, 0, 1]}))
    with refused():
        load(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optim.lr": [0.1, 0.2], "seed": [0, None]}, ["optim.lr: 0.1 -> 0.2", "seed: 0 -> None"]),
        ({"model.attention.scale": ["1/sqrt(d_k)", "none"]}, ["model.attention.scale: 1/sqrt(d_k) -> none"]),
        (
            {
                "model.layers.1,3.mlp": ["GELU", "Experts"],
                "model.layers.1,3.mlp.active": [None, 2],
                "model.layers.1,3.mlp.approximate": ["none", None],
                "model.layers.1,3.mlp.hidden": [4, 2.5],
                "model.mlps": [1, 2],
            },
            [
                "model.layers.1,3.mlp: GELU -> Experts (active 2, hidden 4 -> 2.5, without approximate)",
                "model.mlps: 1 -> 2",
            ],
        ),
        (
            {"model": ["Decoder", "Mine"], "model.norm": ["LayerNorm", "RMSNorm"], "model.norm.bias": [True, None]},
            ["model: Decoder -> Mine (norm LayerNorm -> RMSNorm, without norm.bias)"],
        ),
    ],
)
def test_settings_of_a_part_stand_behind_its_class(changes: dict[str, Any], words: list[str]) -> None:
    assert changes_in_words(changes) == words
