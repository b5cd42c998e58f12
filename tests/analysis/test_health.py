"""Runs that were not fit to be compared are found, and only those; the report says so beside every verdict on them."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import yaml
from messages import CheckMessage
from records import BASE, BETTER, MakeExperiment, blank, inside

from lm.analysis import health
from lm.analysis.answers import answer_claim
from lm.analysis.claims import Claim
from lm.analysis.compare import compare
from lm.analysis.health import faults, last_tenth
from lm.analysis.results import load
from lm.report.claims import COLUMNS, row
from lm.report.render import is_bold
from lm.report.tables import AT_ONE_RATE, main_table, more_metrics
from lm.store.record import Record

Change = Callable[[dict[str, Any]], None]

GRADIENT = {"query": [0.02, 0.02, 0.02], "mlp_out": [0.1, 0.1, 0.1], "embedding": [1.0]}
ENTROPY = [[0.9, 0.99], [0.5, 0.2], [0.4, 0.3]]
HEALTHY: Record = {
    **blank(),
    "steps": 400,
    "metrics": {"clipped_share": 0.2},
    "initial": inside(GRADIENT, ENTROPY),
    "final": {**inside(GRADIENT, ENTROPY), "dead_share": [0.0, 0.1, 0.4]},
}


def put(*keys: Any) -> Change:
    """Sets the last of `keys` at the place that the others lead to."""
    *path, last, value = keys

    def change(record: dict[str, Any]) -> None:
        for key in path:
            record = record[key]
        record[last] = value

    return change


def both(*changes: Change) -> Change:
    def change(record: dict[str, Any]) -> None:
        for one in changes:
            one(record)

    return change


def gradient(moment: str, size: float) -> Change:
    """The gradient of the second block, as a share of the others', all of one size."""
    norms = {"query": [0.02, 0.02 * size, 0.02], "mlp_out": [0.1, 0.1 * size, 0.1], "embedding": [1.0]}
    return put(moment, "gradient_norm", norms)


BROKEN: dict[str, tuple[Change, Change, list[str]]] = {
    "uniform": (
        put("final", "entropy", 0, [0.981, 0.9999]),
        put("final", "entropy", 0, [0.979, 0.9999]),
        ["attention of layer 1 of 3 stays uniform"],
    ),
    "collapsed": (
        put("final", "entropy", 2, [0.001, 0.049]),
        put("final", "entropy", 2, [0.001, 0.051]),
        ["attention of layer 3 of 3 collapses"],
    ),
    "asleep": (
        both(gradient("initial", 0.9e-4), gradient("final", 0.9e-2)),
        both(gradient("initial", 1.1e-4), gradient("final", 0.9e-2)),
        ["block 2 of 3 gets next to no gradient"],
    ),
    "asleep at first": (
        both(gradient("initial", 0.9e-4), gradient("final", 0.9e-2)),
        both(gradient("initial", 0.9e-4), gradient("final", 1.1e-2)),
        ["block 2 of 3 gets next to no gradient"],
    ),
    "stopped": (
        put("final", "gradient_norm", {"query": [0.9e-4 * 0.02, 0.02, 0.02], "mlp_out": [0.9e-5, 0.1, 0.1]}),
        put("final", "gradient_norm", {"query": [1.1e-4 * 0.02, 0.02, 0.02], "mlp_out": [1.1e-5, 0.1, 0.1]}),
        ["1 of 3 blocks get next to no gradient any more"],
    ),
    "dead": (
        put("final", "dead_share", 1, 0.51),
        put("final", "dead_share", 1, 0.49),
        ["most hidden units of layer 2 of 3 are dead"],
    ),
    "idle": (
        put("final", "block_share", [0.3, 0.9 * health.BLOCK_SHARE, 0.4]),
        put("final", "block_share", [0.3, 1.1 * health.BLOCK_SHARE, 0.4]),
        ["block 2 of 3 adds next to nothing"],
    ),
    "frequencies": (
        both(put("data", "unigram_nll", 3.0), put("metrics", "nll", 2.95)),
        both(put("data", "unigram_nll", 3.0), put("metrics", "nll", 2.93)),
        ["the loss is no better than that of token frequencies"],
    ),
}
"""For each rule a change that breaks it, one that comes close, and what is said."""

CLIPPED = put("metrics", "clipped_share", 0.51)


def configured(optimizer: str, algorithm: str | None = None, **options: Any) -> dict[str, Any]:
    """The parts of a resolved configuration that say what clipping does."""
    return {
        "optim": {"optimizer": {"class_path": optimizer, "init_args": options}},
        "trainer": {"gradient_clip_algorithm": algorithm},
    }


def changed(change: Change) -> Record:
    record = copy.deepcopy(HEALTHY)
    change(cast(dict[str, Any], record))
    return record


@pytest.mark.parametrize("name", BROKEN)
def test_each_fault_is_found_beyond_its_bound_and_not_before(name: str) -> None:
    broken, close, said = BROKEN[name]
    assert faults(changed(broken)) == said
    assert faults(changed(close)) == []


SEES_SCALE: list[tuple[dict[str, Any], bool]] = [
    (configured("SGD", momentum=0.9), True),
    (configured("AdamW", weight_decay=0.1), False),
    (configured("MuonAdamW"), False),
    (configured("Adam", weight_decay=0.0), False),
    (configured("Adam", weight_decay=0.1), True),
    (configured("Adam", weight_decay=0.1, decoupled_weight_decay=True), False),
    (configured("my_parts.AdamW"), True),
    (configured("AdamW", algorithm="value"), True),
    ({}, True),
    ({"optim": ["AdamW"], "trainer": "value"}, True),
    ({"optim": {"optimizer": {"class_path": ["AdamW"], "init_args": 3}}}, True),
]
"""Configurations, and whether the steps of a run depend on the scale of its gradients."""


@pytest.mark.parametrize(("configuration", "sees_scale"), SEES_SCALE)
def test_clipping_matters_to_optimisers_that_see_gradient_scale(
    configuration: dict[str, Any], sees_scale: bool
) -> None:
    said = ["most steps are clipped"] if sees_scale else []
    assert faults(changed(CLIPPED), None, lambda: configuration) == said
    assert faults(changed(put("metrics", "clipped_share", 0.49)), None, lambda: configuration) == []


def test_declarations_of_user_optimisers_come_from_the_record(check_message: CheckMessage) -> None:
    own = lambda: configured("my_parts.Lion")  # noqa: E731
    assert faults(changed(both(CLIPPED, put("ignores_gradient_scale", True))), None, own) == []
    check_message(faults(changed(both(CLIPPED, put("ignores_gradient_scale", False))), None, own))


def test_the_configuration_is_read_only_where_most_steps_are_clipped() -> None:
    def unread() -> dict[str, Any]:
        raise AssertionError

    assert faults(HEALTHY, None, unread) == []


@pytest.mark.parametrize(("best", "said"), [(2.9, []), (2.0, ["the loss is no better than that of token frequencies"])])
def test_reaching_the_optimum_of_a_source_is_no_fault(best: float, said: list[str]) -> None:
    reached = both(
        put("data", "unigram_nll", 3.0), put("metrics", "nll", 2.99), put("metrics", "excess_nll", 2.99 - best)
    )
    assert faults(changed(reached)) == said


@pytest.mark.parametrize(("share", "said"), [(0.06, ["the loss is still falling at the end"]), (0.04, [])])
def test_a_loss_that_still_falls_is_found(share: float, said: list[str]) -> None:
    final, fall = 2.0, 3.0
    losses = {40: 4.0, 360: final + share * fall, 400: final}
    curve = pd.DataFrame({"validation_nll": losses, "train_loss": {10: final + fall, 400: 1.9}}).sort_index()
    assert last_tenth(curve, 400) == pytest.approx(share)
    assert faults(HEALTHY, curve) == said


def test_the_last_tenth_is_read_between_validations() -> None:
    """Validated every 100 of 1,000 steps, and every 300, on a straight line: a tenth of the fall either way."""
    for interval in (100, 500):
        steps = np.arange(interval, 1001, interval)
        curve = pd.DataFrame({"validation_nll": pd.Series(3 - steps / 1000, steps), "train_loss": pd.Series({0: 3.0})})
        assert last_tenth(curve, 1000) == pytest.approx(0.1)


@pytest.mark.parametrize(
    "curve",
    [
        None,
        pd.DataFrame({"train_loss": {10: 3.0}}),
        pd.DataFrame({"validation_nll": {50: 3.0, 300: 2.0}, "train_loss": {10: 3.0}}),
        pd.DataFrame({"validation_nll": {50: 3.0, 400: 3.0}, "train_loss": {10: 3.0}}),
    ],
    ids=["not kept", "no validation", "ends early", "no fall"],
)
def test_a_curve_that_does_not_say_is_no_fault(curve: pd.DataFrame | None) -> None:
    assert math.isnan(last_tenth(curve, 400))
    assert faults(HEALTHY, curve) == []


@pytest.mark.parametrize("shares", [[None, None], 0.001, [[0.001]], {"a": 0.001}])
def test_missing_or_malformed_shares_break_no_rule(shares: Any) -> None:
    assert faults(changed(put("final", "block_share", shares))) == []


@pytest.mark.parametrize("change", [put("steps", 49), put("status", "diverged"), put("final", {}), put("metrics", {})])
def test_short_lost_and_sparse_runs_break_no_rule(change: Change) -> None:
    assert faults(changed(change)) == []


def break_arm(name: str, fault: Change = CLIPPED) -> Callable[[str, int, dict[str, Any]], None]:
    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        record["steps"] = 400
        if arm == name:
            fault(record)

    return change


@pytest.mark.parametrize("ill", ["", "base", "arm"])
def test_unhealthy_arms_are_marked_and_never_bold(experiment: MakeExperiment, ill: str) -> None:
    results = load(experiment({"base": BASE, "arm": BETTER}, break_arm(ill)))
    table = compare(results)
    rows = main_table(results, table).rows
    assert {row[0]: row[4] for row in rows} == {
        f"arm{' !' * (ill == 'arm')}": "better",
        f"base{' !' * (ill == 'base')}": "baseline",
    }
    assert list(map(is_bold, rows)) == [not ill, False]
    expected = {name: "most steps are clipped" if name == ill else "healthy" for name in ("base", "arm")}
    assert {row[0]: row[1] for row in more_metrics(results, table).rows} == expected


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        (["diverged"] * 6, "no run ended well"),
        (["diverged", "failed"], "no run ended well"),
        ([None] * 6, "no run yet"),
    ],
)
def test_arms_without_a_finished_run_are_not_healthy(
    experiment: MakeExperiment, outcomes: list[float | str | None], words: str
) -> None:
    cells = {"base": BASE, "arm": [*outcomes, *[None] * (6 - len(outcomes))], "better": BETTER}
    results = load(experiment(cells, confirmatory=["better"]))
    table = compare(results)
    health = {row[0]: row[1] for row in more_metrics(results, table).rows}
    assert health == {"base": "healthy", "arm": words, "better": "healthy"}
    assert {row[0]: is_bold(row) for row in main_table(results, table).rows} == {
        "better": True,
        "base": False,
        "arm": False,
    }


def test_nothing_is_bold_beside_a_lost_baseline(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    results = load(experiment({"base": ["diverged"] * 6, "arm": BETTER}))
    table = compare(results)
    check_message([row[1] for row in more_metrics(results, table).rows])
    assert not any(map(is_bold, main_table(results, table).rows))


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_the_configuration_of_a_cell_says_what_clipping_did(
    experiment: MakeExperiment, optimizer: str, check_message: CheckMessage
) -> None:
    results = load(experiment({"base": BASE, "arm": BETTER}, break_arm("arm")))
    for seed in range(6):
        path = results.store.directory(f"arm-{seed}") / "config.yaml"
        path.write_text(yaml.safe_dump(configured(optimizer)))
    check_message([f"{arm}: {fault}" for arm, fault in results.health.items()])


@pytest.mark.parametrize("exact", [False, True])
def test_answers_to_claims_name_unhealthy_arms(
    experiment: MakeExperiment, exact: bool, check_message: CheckMessage
) -> None:
    results = load(experiment({"base": BASE, "arm": BETTER}, break_arm("base")))
    found = answer_claim(results, Claim("x", "nll", "less", {"arm": 1.0, "base": -1.0}, exact=exact))
    assert found.verdict == "reproduced"
    check_message(found.note)
    beside = row(replace(found, at_one_rate=found))[COLUMNS.index(AT_ONE_RATE)]
    assert str(beside) == f"reproduced, {found.estimate:.4g}{'' if exact else ' (unhealthy)'}"


def test_the_curve_of_a_run_is_looked_at(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    """The curves of the fixture fall by a tenth of a nat in every third of the run."""
    folder = experiment({"base": BASE, "arm": BETTER}, break_arm(""))
    path = load(folder).store.history("arm-0")
    path.write_text("step,train_loss,validation_nll\n10,3.0,\n200,,2.9\n400,,2.0\n")
    check_message(sorted(set(compare(load(folder)).health)))
