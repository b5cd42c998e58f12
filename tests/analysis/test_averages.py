"""Means over the last validations: what they are, where they are refused, and what is said of their noise."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiment_files import write_experiment
from messages import CheckMessage, Refused

from lm.ablation.experiment import Experiment, load_experiment
from lm.ablation.plan import make_plan
from lm.analysis.compare import compare
from lm.analysis.results import load, value
from lm.report.notes import average_notes
from lm.store.metrics import describe, parse_average

CELLS = {"base": [2.0, 2.2, 2.1], "better": [1.8, 1.9, 1.7]}


@pytest.fixture
def folder(experiment: Callable[..., Path]) -> Path:
    """Results judged by a mean of two; the curves are of validations at steps 10, 20 and 30, `nll` + 10 / step."""
    return experiment(CELLS, metric="nll~2")


def test_the_headline_is_the_mean_of_last_validations(folder: Path, check_message: CheckMessage) -> None:
    results = load(folder)
    for (arm, seed), record in results.records.items():
        assert record is not None
        nll = CELLS[arm][seed]
        assert value(record, "nll~2") == pytest.approx((nll + 10 / 20 + nll + 10 / 30) / 2, rel=1e-12)
        assert value(record, "nll") == nll
    row = compare(results).set_index(["arm", "metric"]).loc[("better", "nll~2")]
    assert row.n == 3
    assert row.difference == pytest.approx(np.mean(CELLS["better"]) - np.mean(CELLS["base"]), rel=1e-12)
    check_message(row.verdict)


def test_curves_with_too_few_validations_are_unmeasured(folder: Path) -> None:
    short, gone = (folder.parent / "cells" / cell / "history.csv" for cell in ("base-0", "better-1"))
    short.write_text("step,validation_nll,gradient_norm\n30,2.1,0.1\n")
    gone.unlink()
    results = load(folder)
    found = {key: value(record, "nll~2") for key, record in results.records.items() if record is not None}
    assert sorted(key for key, one in found.items() if np.isnan(one)) == [("base", 0), ("better", 1)]


def test_the_report_says_what_averaging_did_to_the_noise(folder: Path, check_message: CheckMessage) -> None:
    bumps = {"base-0": 0.3, "better-1": -0.2}
    for cell, bump in bumps.items():  # at the last validation alone
        path = folder.parent / "cells" / cell / "history.csv"
        lines = path.read_text().splitlines()
        step, nll, *rest = lines[-1].split(",")
        path.write_text("\n".join([*lines[:-1], ",".join([step, str(float(nll) + bump), *rest])]) + "\n")
    plain = np.array(CELLS["better"]) - np.array(CELLS["base"])
    moved = np.array([-0.3, -0.2, 0.0])
    alone, mean = (plain + moved).std(ddof=1), (plain + moved / 2).std(ddof=1)
    (line,) = average_notes(load(folder))
    check_message(line.replace(f"{mean:.5f}", "MEAN").replace(f"{alone:.5f}", "ALONE"))


def test_nothing_is_said_where_nothing_is_averaged(experiment: Callable[..., Path]) -> None:
    assert list(average_notes(load(experiment(CELLS)))) == []


@pytest.mark.parametrize(
    ("name", "found"),
    [("nll~3", ("nll", 3)), ("ece~12", ("ece", 12)), ("nll~1", None), ("nll~03", None), ("mce~3", None), ("nll", None)],
)
def test_a_name_says_what_is_averaged(name: str, found: tuple[str, int] | None) -> None:
    assert parse_average(name) == found
    if found is not None:
        assert describe(name).better == describe(found[0]).better


def planned(folder: Path, **changes: Any) -> Experiment:
    return load_experiment(write_experiment(folder, baseline="a", **changes), {}, None, "")


@pytest.mark.parametrize(
    "settings",
    [
        {"metric": "nll~4"},
        {"secondary": ["ece~9"]},
        {"metric": "mce~2"},
        {"metric": "nll~3", "tune": {"space": {"optim.lr": {"low": 0.001, "high": 0.01}}, "trials": 4, "seeds": [7]}},
        {"metric": "nll@8", "common": {"evaluate.lengths": [8]},
          "tune": {"space": {"optim.lr": {"low": 0.001, "high": 0.01}}, "trials": 4, "seeds": [7]}},
    ],
)  # fmt: skip
def test_what_cannot_be_averaged_is_refused_by_the_plan(
    tmp_path: Path, refused: Refused, settings: dict[str, Any]
) -> None:
    with refused():
        make_plan(planned(tmp_path, seeds=[0, 1], arms={"a": {}, "b": {"model.block": "PostNorm"}}, **settings))
