"""The arithmetic of a comparison, on clocks that are made up."""

import itertools

import pytest

from benchmarks.cells import portions
from benchmarks.ratios import alternate, quartiles, spread, timed
from benchmarks.rows import rows_of
from benchmarks.scale import OVER, limited


def test_ways_are_taken_in_turn_and_every_other_round_backwards() -> None:
    taken: list[str] = []

    def way(name: str) -> float:
        taken.append(name)
        return float(len(taken))

    found = alternate({name: lambda name=name: way(name) for name in "abc"}, rounds=3, warm=1)  # type: ignore[misc]
    assert "".join(taken) == "abc" + "cba" + "abc" + "cba"
    assert found == {"a": [6.0, 7.0, 12.0], "b": [5.0, 8.0, 11.0], "c": [4.0, 9.0, 10.0]}


def test_a_machine_that_slows_down_evenly_changes_no_ratio() -> None:
    """Each step takes longer than the one before; one way is twice as long as the other all the same."""
    now = itertools.count(100)
    found = alternate({"once": lambda: float(next(now)), "twice": lambda: 2.0 * next(now)}, rounds=40)
    ratio = spread(found["twice"], found["once"])
    assert ratio is not None
    assert ratio["median"] == pytest.approx(2.0, rel=1e-3)


def test_seconds_are_the_mean_over_the_times() -> None:
    clock = iter([10.0, 16.0])
    done: list[int] = []
    assert timed(lambda: done.append(1), times=3, clock=lambda: next(clock))() == 2.0
    assert len(done) == 3


def test_a_ratio_is_of_pairs_of_the_same_round() -> None:
    """The medians of both sides alone would give 3."""
    assert spread([1.0, 6.0, 30.0, 8.0, 5.0], [1.0, 3.0, 10.0, 2.0, 1.0]) == {
        "median": 3.0,
        "low": 2.0,
        "high": 4.0,
        "rounds": 5,
    }
    rows = rows_of("group", {"a": [2.0, 4.0], "b": [4.0, 8.0]}, "a")
    assert [row["value"] for row in rows] == [3.0, 6.0]
    assert [row["ratio"] and row["ratio"]["median"] for row in rows] == [1.0, 2.0]


def test_nothing_measured_has_no_ratio_and_one_measurement_no_width() -> None:
    assert spread([], []) is None
    assert quartiles([3.0]) == (3.0, 3.0, 3.0)


def test_the_portions_of_a_cell_add_up_to_the_command() -> None:
    records = [
        {"provenance": {"seconds": 10.0}, "cost": {"train_seconds": 5.0, "evaluation_seconds": 2.0}},
        {"provenance": {"seconds": 6.0}, "cost": {"train_seconds": 4.0, "evaluation_seconds": 1.0}},
    ]
    found = portions(records, wall=20.0)
    assert sum(found.pop("all of it")) == 20.0
    assert found == {
        "training": [5.0, 4.0],
        "evaluation": [2.0, 1.0],
        "the rest in its process": [3.0, 1.0],
        "its share of what the command does besides": [2.0, 2.0],
    }


def test_a_limit_that_is_overrun_is_told() -> None:
    kept, broken = limited("plan", "some", 5.0, 10.0), limited("plan", "some", 15.0, 10.0)
    assert (kept["note"], broken["note"]) == ("", OVER)
    assert broken["ratio"] is not None
    assert broken["ratio"]["median"] == 1.5
