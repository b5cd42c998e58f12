"""Faults that a small run survives: what it then comes to is what a run that was left alone comes to."""

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.faults import FAULTS
from faults.outcome import Finished, Outcome, differences, outcome
from faults.place import Place
from faults.run import Chaos, disturbed
from faults.trial import Trial

SEED = 0

Whole = tuple[Outcome, dict[str, float]]


@pytest.fixture
def short() -> Iterator[Path]:
    """Make a folder whose path leaves room for the name of a socket."""
    with tempfile.TemporaryDirectory(prefix="lm-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def whole() -> Whole:
    """Return what an undisturbed run comes to, and how long parts of it took."""
    with tempfile.TemporaryDirectory(prefix="lm-") as folder:
        return Chaos(Path(folder), SEED, lambda line: None).undisturbed(FAULTS["two"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "hits"),
    [
        pytest.param("three", {"two more commands beside the first": 1}, marks=pytest.mark.extra),
        pytest.param("leases", {}, marks=pytest.mark.extra),
        pytest.param("limit", {"the size of files": 1}, marks=pytest.mark.extra),
        pytest.param("clock", {"the clock": 1}, marks=pytest.mark.extra),
        pytest.param("full", {"the disk of the results": 1}, marks=pytest.mark.extra),
        pytest.param("read-only", {"the folder of the results": 1}, marks=pytest.mark.extra),
    ],
)
def test_a_run_that_is_disturbed_comes_to_the_same(short: Path, whole: Whole, name: str, hits: dict[str, int]) -> None:
    fault = FAULTS[name]
    if why := fault.lacking():
        pytest.skip(why)
    place = Place(short / "run", fault.sweep, fault.more)
    with Finished(place.out / "cells") as finished:
        trial = Trial(place, finished, random.Random(SEED), whole[1])
        assert disturbed(fault, trial, whole[0]) == []
    assert dict(trial.hits) == hits or (name == "leases" and trial.injected)


@pytest.mark.extra
def test_an_unusable_temporary_folder_changes_nothing(short: Path, whole: Whole) -> None:
    place = Place(short / "run")
    place.ended(place.start({"TMPDIR": "/proc/none"}))
    assert place.left_alive() == []
    assert differences(outcome(place), whole[0]) == []
