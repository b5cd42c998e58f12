"""Costs are told beside the baseline's, and marked where an arm does not declare what is off."""

from collections.abc import Callable
from typing import Any

import pytest
from messages import CheckMessage
from records import MakeExperiment

from lm.analysis.compare import compare
from lm.analysis.results import load
from lm.report.notes import brief_notes
from lm.report.sections import cost_notes, cost_section, made_under, relative, unlike_pairs

CELLS: dict[str, list[Any]] = {"base": [2.0, 2.1, 1.9], "arm": [1.9, 2.0, 1.8]}


def change(**by: float) -> Callable[[str, int, dict[str, Any]], None]:
    """Multiplies costs of the arm."""

    def altered(arm: str, seed: int, record: dict[str, Any]) -> None:
        record["steps"] = 100
        for name, factor in by.items() if arm == "arm" else ():
            holder = record if name == "steps" else record["cost"]
            scaled = holder[name] * factor
            holder[name] = int(scaled) if name == "steps" else scaled

    return altered


def test_every_cost_that_was_measured_has_a_column(experiment: MakeExperiment) -> None:
    section = cost_section(load(experiment(CELLS, change(parameters=1.1, tokens=1.005, steps=0.5))))
    assert section.columns == ["arm", "parameters", "tokens seen", "steps", "training seconds"]
    assert section.rows == [
        ["base", "1,000", "5,000", "100", "2.0"],
        ["arm", "1,100 (+10.0 % !)", "5,025 (+0.5 %)", "50 (-50.0 % !)", "2.0 (same)"],
    ]


@pytest.mark.parametrize(
    ("factor", "declared"), [(1.032, []), (1.032, ["parameters"]), (1.032, ["tokens"]), (1.0099, []), (0.9, [])]
)
def test_only_what_is_off_and_not_declared_is_marked(
    experiment: MakeExperiment, factor: float, declared: list[str], check_message: CheckMessage
) -> None:
    results = load(experiment(CELLS, change(parameters=factor), declared={"arm": declared}))
    off, found = relative(results, "arm", "parameters")
    assert off == pytest.approx(factor - 1)
    assert found == bool(cost_notes(results)) == (abs(factor - 1) > 0.01 and "parameters" not in declared)
    check_message(cost_notes(results))


@pytest.mark.parametrize(
    ("equal", "marked"), [("steps", {"steps", "tokens"}), ("tokens", {"tokens"}), ("flops", set()), ("seconds", set())]
)
def test_steps_that_pay_for_something_held_equal_are_not_marked(
    experiment: MakeExperiment, equal: str, marked: set[str]
) -> None:
    results = load(experiment(CELLS, change(steps=0.5, tokens=0.5), equal=equal))
    assert {name for name in ("steps", "tokens", "parameters") if relative(results, "arm", name)[1]} == marked


@pytest.mark.parametrize(
    ("seconds", "marked"), [([2.2, 2.21, 2.19], True), ([2.2, 2.9, 1.6], False), ([2.01] * 3, False)]
)
def test_seconds_are_marked_only_where_noise_does_not_explain_them(
    experiment: MakeExperiment, seconds: list[float], marked: bool
) -> None:
    def timed(arm: str, seed: int, record: dict[str, Any]) -> None:
        record["cost"]["train_seconds"] = seconds[seed] if arm == "arm" else 2.0

    results = load(experiment(CELLS, timed))
    assert relative(results, "arm", "train_seconds")[1] == marked
    assert ["no loss at a number of steps" in note for note in cost_notes(results)] == [True] * marked
    assert "costs" not in " ".join(brief_notes(results, compare(results)))


def test_seconds_beside_another_cost_explain_nothing(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    def dearer(arm: str, seed: int, record: dict[str, Any]) -> None:
        change(parameters=1.5)(arm, seed, record)
        record["cost"]["train_seconds"] = 2.2 if arm == "arm" else 2.0

    results = load(experiment(CELLS, dearer))
    check_message(cost_notes(results))
    assert "costs differ" in " ".join(brief_notes(results, compare(results)))


def test_a_diverged_run_is_not_one_that_cost_less(experiment: MakeExperiment) -> None:
    rows = cost_section(load(experiment({"base": [2.0, 2.1, 1.9], "arm": [1.9, "diverged", 1.8]}, change()))).rows
    assert rows[1] == ["arm", "1,000 (same)", "5,000 (same)", "100 (same)", "2.0 (same)"]
    rows = cost_section(load(experiment({"base": [2.0], "arm": [2.0]}, change(parameters=2)))).rows
    assert rows[1][1] == "2,000 (+100.0 % !)"
    rows = cost_section(load(experiment({"base": [2.0], "arm": ["diverged"]}, change()))).rows
    assert rows[1] == ["arm", "-", "-", "-", "-"]


def test_provenance_is_summarised_for_each_arm(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    def moved(arm: str, seed: int, record: dict[str, Any]) -> None:
        record["provenance"]["git"] = {"commit": "0123456789abcdef", "dirty": (arm, seed) == ("arm", 0)}
        record["provenance"]["precision"] = None  # as of an older version
        if (arm, seed) == ("arm", 2):
            record["provenance"] |= {"device": "gpu", "threads": 2}

    results = load(experiment(CELLS, moved))
    check_message([*made_under(results), *unlike_pairs(results)])
    assert unlike_pairs(load(experiment(CELLS))) == []


@pytest.mark.parametrize(("device", "warned"), [("x86_64, AVX2", True), ("NVIDIA H200", False)])
def test_another_number_of_threads_is_told_where_a_processor_adds(
    experiment: MakeExperiment, device: str, warned: bool
) -> None:
    def threaded(arm: str, seed: int, record: dict[str, Any]) -> None:
        record["provenance"] |= {"device": device, "threads": 2 if (arm, seed) == ("arm", 1) else 1}

    assert ["threads on seed 1" in line for line in unlike_pairs(load(experiment(CELLS, threaded)))] == [True] * warned
