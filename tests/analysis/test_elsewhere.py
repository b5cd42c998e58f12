"""Runs made elsewhere say what the same numbers say in an experiment, and unpaired ones say that they are."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from messages import CheckMessage, Refused
from records import MakeExperiment
from scipy import stats

from lm.analysis.compare import compare
from lm.analysis.external.runs import CompareRequest, Runs, arms_of_unequal_spread, compare_runs, gather
from lm.analysis.external.trackers import read
from lm.analysis.results import load
from lm.analysis.tidy import cells
from lm.report.tables import as_csv
from lm.stats.unpaired import unpaired_p

Arms = dict[str, dict[Any, Any]]
BASE = [2.0, 2.1, 1.9, 2.05, 2.2, 1.95, 2.02]
BETTER = [1.7, 1.85, 1.68, 1.8, 1.92, 1.66, 1.71]
MIXED = [2.1, 2.0, 1.95, 2.0, 2.3, 1.9, 2.0]


def runs_of(folder: Path, rows: list[tuple[Any, ...]], asked: CompareRequest, columns: str = "arm,seed,loss") -> Runs:
    path = folder / "runs.csv"
    path.write_text("\n".join([columns, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return gather(read(path), asked)


def rows_of(arms: Arms) -> list[tuple[Any, ...]]:
    return [(arm, seed, value) for arm, values in arms.items() for seed, value in values.items()]


def row(table: pd.DataFrame, arm: str, metric: str = "loss") -> Any:
    (found,) = table[(table.arm == arm) & (table.metric == metric)].itertuples()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arms", "manifest"),
    [
        ({"base": BASE, "better": BETTER}, {"secondary": ["accuracy"]}),
        ({"base": BASE, "better": [*BETTER[:5], "diverged", None], "few": [*MIXED[:3], *["failed"] * 4]}, {}),
        ({"base": BASE, "near": [one + 1e-3 for one in BASE]}, {"margin": {"nll": 0.01}}),
    ],
    ids=["several quantities", "lost", "margin"],
)
def test_the_cells_of_an_experiment_say_what_its_report_says(
    arms: dict[str, list[Any]], manifest: dict[str, Any], experiment: MakeExperiment, tmp_path: Path
) -> None:
    results = load(experiment(arms, **manifest))
    path = tmp_path / "cells.csv"
    path.write_text(as_csv(cells(results)), encoding="utf-8")
    margin = manifest.get("margin", {}).get("nll", math.nan)
    runs = gather(read(path), CompareRequest("base", tuple(results.judged), margin=margin))
    mine, theirs = (table.set_index(["metric", "arm"]).sort_index() for table in (compare_runs(runs), compare(results)))
    assert {name for name, _ in mine.index} == {name for name, _ in theirs.index}
    shared = [name for name in theirs.columns if name in mine.columns]
    assert set(theirs.columns) - set(shared) == {"health"}
    pd.testing.assert_frame_equal(mine[shared], theirs[shared], check_exact=True)
    assert runs.paired
    assert not runs.assumed


def test_matching_seeds_are_paired_and_others_missing(tmp_path: Path, check_message: CheckMessage) -> None:
    arms: Arms = {"plain": dict(enumerate(BASE)), "new": {**dict(enumerate(BETTER[:6])), 0: "nan", 1: "-inf"}}
    runs = runs_of(tmp_path, rows_of(arms), CompareRequest("plain", ("loss",)))
    found = row(compare_runs(runs), "new")
    assert runs.paired
    assert (found.n, found.diverged, found.missing, found.pairs) == (4, 2, 1, 4)
    assert found.difference == pytest.approx(np.mean(np.subtract(BETTER[2:6], BASE[2:6])))
    check_message(found.verdict)


def test_the_order_of_the_rows_changes_nothing(tmp_path: Path) -> None:
    rows = rows_of({"plain": dict(enumerate(BASE)), "new": dict(enumerate(BETTER))})
    asked = CompareRequest("plain", ("loss",))
    one, other = (compare_runs(runs_of(tmp_path, order, asked)) for order in (rows, rows[::-1]))
    pd.testing.assert_frame_equal(one, other, check_exact=True)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lm.stats.unpaired.detectable_unpaired", lambda n, m, sd, alpha: math.inf)


def test_unmatched_seeds_are_tested_unpaired(tmp_path: Path, check_message: CheckMessage) -> None:
    arms = {"plain": dict(enumerate(BASE)), "new": {seed + 4: one for seed, one in enumerate(BETTER)}}
    table = compare_runs(runs_of(tmp_path, rows_of(arms), CompareRequest("plain", ("loss",))))
    found = row(table, "new")
    check_message(found.verdict)
    assert (found.design, found.interval, found.missing, found.pairs) == ("unpaired", "joint", 0, 0)
    assert found.difference == pytest.approx(np.mean(BETTER) - np.mean(BASE))
    assert found.p == unpaired_p(BETTER, BASE)
    welch = stats.ttest_ind(BETTER, BASE, equal_var=False).confidence_interval(0.95)
    assert (found.plain_low, found.plain_high) == pytest.approx((welch.low, welch.high))
    assert found.low < found.difference < found.high < 0


def test_unpaired_is_a_choice_and_takes_no_seeds(tmp_path: Path, refused: Refused, check_message: CheckMessage) -> None:
    rows = rows_of({"plain": dict(enumerate(BASE)), "new": dict(enumerate(BETTER))})
    found = row(compare_runs(runs_of(tmp_path, rows, CompareRequest("plain", ("loss",), pairing="unpaired"))), "new")
    check_message(found.verdict)
    asked = CompareRequest("plain", ("loss",), pairing="unpaired")
    seedless = runs_of(tmp_path, [(arm, value) for arm, _, value in rows], asked, columns="arm,loss")
    other = row(compare_runs(seedless), "new")
    check_message(other.verdict)
    assert (other.p, other.low, other.high) == (found.p, found.low, found.high)
    with refused():
        runs_of(tmp_path, [("plain", 1), ("new", 2)], CompareRequest("plain", ("loss",)), columns="arm,loss")


def test_pairing_can_be_forced_on_shared_seeds(tmp_path: Path, refused: Refused, check_message: CheckMessage) -> None:
    arms = {"plain": dict(enumerate(BASE)), "new": {seed + 1: one for seed, one in enumerate(BETTER)}}
    found = row(
        compare_runs(runs_of(tmp_path, rows_of(arms), CompareRequest("plain", ("loss",), pairing="paired"))), "new"
    )
    assert (found.pairs, found.missing, found.design) == (6, 1, "paired")
    check_message(found.verdict)
    arms["new"] = {seed + 100: one for seed, one in enumerate(BETTER)}
    with refused():
        runs_of(tmp_path, rows_of(arms), CompareRequest("plain", ("loss",), pairing="paired"))
    with refused():
        runs_of(tmp_path, rows_of(arms), CompareRequest("plain", ("loss",), margin=0.1))


def test_few_runs_that_are_not_paired_show_nothing(tmp_path: Path, check_message: CheckMessage) -> None:
    arms: Arms = {"plain": {0: 2.0, 1: 2.1, 2: 1.9}, "new": {5: 1.0, 6: 1.1, 7: 0.9}, "gone": {8: "nan"}}
    table = compare_runs(runs_of(tmp_path, rows_of(arms), CompareRequest("plain", ("loss",))))
    words = "3 runs against 3 cannot reach significance (5 against 5 could) (unpaired: seeds do not match)"
    assert row(table, "new").verdict == words
    check_message(row(table, "gone").verdict)


def test_unpaired_runs_without_a_second_quantity_are_counted(tmp_path: Path, check_message: CheckMessage) -> None:
    rows = [(arm, seed, 1.0 + seed, 1 - seed / 99) for arm in ("plain", "new") for seed in range(8)]
    rows = [(arm, seed, loss, math.nan if arm == "new" and seed % 2 else rate) for arm, seed, loss, rate in rows]
    asked = CompareRequest("plain", ("loss", "accuracy"), pairing="unpaired")
    table = compare_runs(runs_of(tmp_path, rows, asked, columns="arm,seed,loss,accuracy"))
    check_message(row(table, "new").verdict)
    check_message(row(table, "new", "accuracy").verdict)


def test_arms_of_unequal_spread_are_named(tmp_path: Path) -> None:
    wide = {seed + 10: 2 + (-1) ** seed * seed for seed in range(4)}
    arms = {"plain": dict(enumerate(BASE)), "wide": wide, "narrow": {20 + s: 1 + s / 100 for s in range(5)}}
    arms["alike"] = {30 + seed: value + 0.5 for seed, value in enumerate(BASE[1:])}
    runs = runs_of(tmp_path, rows_of(arms), CompareRequest("plain", ("loss",)))
    assert arms_of_unequal_spread(runs, "loss") == ["wide", "narrow"]


@pytest.mark.parametrize(
    ("metric", "how", "verdict"),
    [
        ("loss", {}, "better"),
        ("loss", {"default_direction": "higher"}, "worse"),
        ("loss", {"higher": ("loss",)}, "worse"),
        ("val/accuracy", {}, "worse"),
        ("eval_nll", {"default_direction": "higher"}, "better"),
        ("parameters", {}, "lower"),
    ],
)
def test_lower_is_better_unless_it_is_known_or_said_otherwise(
    metric: str, how: dict[str, Any], verdict: str, tmp_path: Path
) -> None:
    rows = rows_of({"plain": dict(enumerate(BASE)), "new": dict(enumerate(BETTER))})
    runs = runs_of(tmp_path, rows, CompareRequest("plain", (metric,), **how), columns=f"arm,seed,{metric}")
    assert row(compare_runs(runs), "new", metric).verdict == verdict
