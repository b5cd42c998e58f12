"""The answer of an experiment in a sentence: what is best, by how much and how sure."""

from typing import Any

import pytest
from messages import CheckMessage
from records import MakeExperiment

from lm.analysis.compare import compare
from lm.analysis.results import Records, load
from lm.report.answer import answer, directed, most_certain
from lm.report.tables import compared

NOISE = [0.0, 0.01, -0.01, 0.02, -0.02, 0.005, -0.005, 0.0]
BASE = [2.0, 2.1, 2.2, 2.3, 2.4, 2.5, 2.6, 2.7]
SHIFTS = {"base": 0.0, "better": -0.2, "best": -0.3, "worse": 0.3, "worst": 0.5, "level": 0.001}
ARMS: dict[str, list[Any]] = {
    arm: [loss + shift + noise * (arm != "base") for loss, noise in zip(BASE, NOISE, strict=True)]
    for arm, shift in SHIFTS.items()
}
ARMS["unsure"] = [1.0, 3.0, 1.2, 3.3, 2.2, 2.1, 2.0, 3.1]
ARMS["leader"] = [0.1, 3.0, 0.2, 2.9, 0.1, 2.7, 0.1, 0.1]
ARMS["lost"] = [None] * 8


@pytest.fixture(autouse=True)
def _healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """No curve is read for the health of an arm, which takes half of the time."""
    monkeypatch.setattr(Records, "health", property(lambda self: dict.fromkeys(self.arms, "")))


def answered(make: MakeExperiment, *arms: str, seeds: int = 8, **manifest: Any) -> str:
    results = load(make({arm: ARMS[arm][:seeds] for arm in ("base", *arms)}, **manifest))
    return answer(results, compare(results))


LEAD = "better is better than base by 0.200 [0.188, 0.213] nats/token, 8 seeds; not certain: "
TWO = "best and better are better than base, by 0.200 to 0.300 nats/token, 8 seeds; their order among themselves is"
SURE = "better is better than base by 0.200 [0.190, 0.210] nats/token, 8 seeds"
NOTHING = "Nothing is certain: in the mean unsure is better than base by 0.113 "
CERTAIN = {
    "better": f"{SURE}.",
    "worse": "worse is worse than base by 0.300 [0.290, 0.310] nats/token, 8 seeds.",
    "better best worse": f"{TWO} not tested; worse: worse.",
    "unsure better": f"{LEAD}unsure.",
    "leader better": f"{LEAD}leader, though ahead of it in the mean.",
    "leader best better": f"{TWO} not tested; not certain: leader, though ahead of them in the mean.",
    "unsure worse worst": (
        "worse and worst are worse than base, by 0.300 to 0.500 nats/token, 8 seeds; not certain: unsure."
    ),
    "unsure": f"{NOTHING}[-0.650, 0.800] nats/token, 8 seeds: inconclusive.",
    "lost": "Nothing is certain: no arm can be compared with base yet.",
    "": "One arm, compared with nothing: validation NLL 2.3500 ± 0.2449, 8 seeds.",
}
"""Answers of experiments that confirm these arms."""


@pytest.mark.parametrize("arms", CERTAIN)
def test_what_is_certain_is_said_with_its_size(experiment: MakeExperiment, arms: str) -> None:
    assert answered(experiment, *arms.split(), confirmatory=arms.split()) == CERTAIN[arms]


@pytest.mark.parametrize(
    ("arms", "manifest"),
    [
        ("better", {"confirmatory": []}),
        ("better best", {"confirmatory": ["better"]}),
        ("unsure", {"confirmatory": []}),
        ("level", {"margin": {"nll": 0.05}}),
        ("better", {"seeds": 3}),
    ],
    ids=["explored", "confirmed first", "explored mean", "equal", "few seeds"],
)
def test_what_limits_an_answer_is_said(
    experiment: MakeExperiment, arms: str, manifest: dict[str, Any], check_message: CheckMessage
) -> None:
    check_message(answered(experiment, *arms.split(), **manifest))


def test_of_many_arms_of_a_kind_the_last_are_counted(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    names = ["better", *(f"better_{number}" for number in range(4))]
    results = load(experiment({"base": ARMS["base"]} | dict.fromkeys(names, ARMS["better"]), confirmatory=[]))
    check_message(answer(results, compare(results)))


def test_arms_that_did_the_same_are_identical(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    results = load(experiment({"base": ARMS["base"], "same": ARMS["base"], "better": ARMS["better"]}))
    table = compare(results)
    assert answer(results, table) == f"{SURE.replace('190', '188').replace('210', '213')}; identical: same."
    check_message(answer(results, table[table.arm != "better"]))
    assert [directed(row) == "" for row in compared(table, "nll")] == [False, True]


def test_every_clause_marks_what_is_exploratory(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    arms = ("better", "worse", "level")
    found = answered(experiment, *arms, confirmatory=["better"], margin={"nll": 0.05})
    check_message(found)
    mixed = answered(experiment, "level", "unsure", confirmatory=["unsure"], margin={"nll": 0.05})
    check_message(mixed)


def test_the_answer_tells_runs_that_were_lost(experiment: MakeExperiment) -> None:
    lost = {"better": [*ARMS["better"][:7], "diverged"], "unsure": [*ARMS["unsure"][:7], "diverged"]}
    told = "7 seeds (on 7 of 8 seeds; 1 diverged)"
    for arm, ending in (("better", f"nats/token, {told}."), ("unsure", f"nats/token, {told}: inconclusive.")):
        results = load(experiment({"base": ARMS["base"], arm: lost[arm]}))
        assert answer(results, compare(results)).endswith(ending)


def test_arms_that_lost_runs_count_their_own_pairs(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    arms = {arm: ARMS[arm] for arm in ("base", "best", "better")} | {"better": [*ARMS["better"][:7], None]}
    results = load(experiment(arms))
    check_message(answer(results, compare(results)))


def test_a_verdict_of_an_unhealthy_arm_is_not_certain(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    results = load(experiment({arm: ARMS[arm] for arm in ("base", "better")}))
    table = compare(results)
    ill = table.verdict.where(table.verdict != "better", "better (better unhealthy: a layer never trained)")
    check_message(answer(results, table.assign(verdict=ill)))
    table = compare(load(experiment({arm: ARMS[arm] for arm in ("base", "level")}, margin={"nll": 0.05})))
    ill = table.verdict.where(
        table.verdict != "equivalent within 0.05", "equivalent within 0.05 (level unhealthy: flat)"
    )
    check_message(answer(results, table.assign(verdict=ill)))


def test_a_quantity_without_a_better_direction_is_higher_or_lower(
    experiment: MakeExperiment, check_message: CheckMessage
) -> None:
    def sized(arm: str, seed: int, record: dict[str, Any]) -> None:
        record["metrics"]["parameters"] = 1000.0 + (seed + 100) * (arm != "base")

    results = load(experiment({arm: ARMS[arm] for arm in ("base", "better")}, sized, metric="parameters"))
    check_message(answer(results, compare(results)))


def test_certain_arms_among_many_are_chosen_in_order(experiment: MakeExperiment) -> None:
    results = load(experiment({arm: ARMS[arm] for arm in ("base", "unsure", "worse", "best")}))
    rows = compared(compare(results), "nll")
    assert [row.arm for row in most_certain(rows, 2)] == ["best", "worse"]
    assert [row.arm for row in most_certain(rows, 3)] == ["best", "unsure", "worse"]
