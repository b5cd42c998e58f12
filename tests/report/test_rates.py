"""Loss over learning rates: sensitivity counted out by hand, the best rate, what is marked, what is drawn."""

import io
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from messages import CheckMessage, Refused
from records import MakeExperiment
from rich.console import Console

import lm
from lm.analysis.rates import (
    at_rivals,
    choice_shifts,
    rate_curve,
    regret_bounds,
    sensitivity_difference,
    sensitivity_of,
)
from lm.analysis.results import Records, load
from lm.report.tuning import DESCRIBED, RATE_COLUMNS, Rates, rates_of, rates_section
from lm.report.write import write_report
from lm.store.files import to_json, write_atomic
from lm.store.formats import RATES

UNTRAINED = math.log(100)
"""The vocabulary of the invented cells."""

GRID: dict[str, list[Any]] = {
    "base.lr0.001": [2.5, 2.6],
    "base.lr0.01": [2.0, 2.1],
    "base.lr0.1": ["diverged", 2.2],
    "arm.lr0.001": [2.4, 2.5],
    "arm.lr0.01": [2.2, 2.2],
    "arm.lr0.1": [1.9, 1.8],
}
CELLS: dict[str, list[Any]] = {"base": [2.0, 2.1], "arm": [1.7, 1.85]}


@pytest.mark.parametrize(("headline", "bounds"), [("nll", (0.1, 0.3)), ("accuracy", (0.3, 0.1))])
def test_each_arm_at_its_best_rate_would_only_be_better(headline: str, bounds: tuple[float, float]) -> None:
    """An arm that gains lowers the difference where less is better; a baseline that gains raises it."""
    rates = {"arm": {"regret": 0.1}, "base": {"regret": 0.3}}
    results = cast(Records, SimpleNamespace(manifest={"rates": rates}, headline=headline))
    assert regret_bounds(results, {"arm": 1.0, "base": -1.0}) == bounds
    assert regret_bounds(results, {"arm": -2.0}) == ((0.0, 0.2) if headline == "nll" else (0.2, 0.0))
    assert regret_bounds(cast(Records, SimpleNamespace(manifest={}, headline=headline)), {"arm": 1.0}) == (0, 0)


def cells(arm: str, numbers: list[float]) -> dict[tuple[str, int], Any]:
    measured = [{"nll": number, "accuracy": number} for number in numbers]
    return {(arm, seed): {"status": "ok", "metrics": metrics} for seed, metrics in enumerate(measured)}


@pytest.mark.parametrize("headline", ["nll", "accuracy"])
def test_a_mean_may_lie_where_it_does_at_all_rivals(headline: str) -> None:
    """With arms at the rate or rival that is best for each, a sum lies within its ends over all of their pairs."""
    draw, seeds = np.random.default_rng(0), 8
    losses = {(arm, rate): draw.normal(size=seeds).tolist() for arm in ("arm", "base", "third") for rate in range(3)}
    manifest: Any = {"seeds": list(range(seeds)), "metric": headline, "rates": {"third": {"regret": 0.3}}}
    results = Records(manifest, {}, cast(Any, None))
    for arm in ("arm", "base", "third"):
        results.records.update(cells(arm, losses[arm, 0]))
        if arm != "third":
            results.rivals[arm] = {float(rate): cells(arm, losses[arm, rate]) for rate in (1, 2)}
    weights = {"arm": 2.0, "base": -1.0, "third": -1.0}
    at_ends = at_rivals(results, weights)
    assert at_ends is not None
    assert list(map(len, at_ends)) == [2, 2], "each end is reached by one of the arms alone"
    means = {
        rates: np.mean(2 * np.array(losses["arm", rates[0]]) - np.array(losses["base", rates[1]]) - losses["third", 0])
        for rates in itertools.product(range(3), repeat=2)
    }
    of_arm, of_base = [(rate, 0) for rate in range(3)], [(0, rate) for rate in range(3)]
    down, up = (of_arm, of_base) if headline == "nll" else (of_base, of_arm)
    below = means[0, 0] - min(means[pair] for pair in down)
    above = max(means[pair] for pair in up) - means[0, 0]
    third = (0.0, 0.3) if headline == "nll" else (0.3, 0.0)
    assert choice_shifts(results, weights) == pytest.approx((below + third[0], above + third[1]))
    results.rivals.update({str(n): {float(rate): {} for rate in range(3)} for n in range(9)})
    many = {**weights, **{str(n): 1.0 for n in range(9)}}
    assert at_rivals(results, many) is None, "no more pairings than can be judged"


@pytest.fixture
def over_rates(experiment: MakeExperiment) -> Callable[..., Path]:
    """Makes the folder of an experiment with a grid of three rates; its arms at their best have the same cells."""

    def make(grid: dict[str, list[Any]] = GRID) -> Path:
        folder = experiment({**CELLS, **grid})
        whole = json.loads((folder / "experiment.json").read_text())
        for name, arms in (("demo", CELLS), ("demo.tuned", CELLS), ("demo.lr_curve", grid)):
            kept = {arm: whole["arms"][arm] for arm in arms}
            part = {**whole, "name": name, "arms": kept, "baseline": next(iter(arms)), "confirmatory": []}
            write_atomic(folder.with_name(name) / "experiment.json", to_json(part))
        names = {arm: {rate: f"{arm}.lr{rate}" for rate in ("0.001", "0.01", "0.1")} for arm in CELLS}
        of_arms = {arm: {"shared": 0.01, "best": 0.01, "names": of_arm} for arm, of_arm in names.items()}
        described = {"experiment": "demo.lr_curve", "arms": of_arms}
        write_atomic(folder / DESCRIBED, to_json(RATES.stamped(described)))
        return folder

    return make


def found(folder: Path) -> Rates:
    rates = rates_of(load(folder), folder)
    assert rates is not None
    return rates


def test_sensitivity_is_the_mean_over_log_rates_less_the_best() -> None:
    assert sensitivity_of([1, 10, 100], [2.0, 1.0, 2.0], 5.0) == pytest.approx(0.5)
    assert sensitivity_of([1, 10, 100], [2.0, 1.0, math.inf], 3.0) == pytest.approx((1.5 + 2.0) / 2 - 1)
    assert sensitivity_of([1, 10, 100], [9.0, 1.0, 9.0], 3.0) == pytest.approx(1.0), "no worse than knowing nothing"
    assert sensitivity_of([1, 10, 100], [1.5, 1.5, 1.5], 3.0) == 0
    uneven = sensitivity_of([1, 10, 1000], [2.0, 1.0, 3.0], 5.0)
    fine = np.geomspace(1, 1000, 3001)
    between = np.interp(np.log(fine), np.log([1, 10, 1000]), [2.0, 1.0, 3.0])
    assert uneven == pytest.approx(float(np.trapezoid(between, dx=1 / 3000)) - 1, rel=1e-6)
    assert math.isnan(sensitivity_of([1, 10, 100], [2.0, math.nan, 1.0], 5.0))


def test_rates_with_lost_runs_are_never_best(over_rates: Callable[..., Path]) -> None:
    folder = over_rates({**GRID, "base.lr0.1": ["diverged", 0.1], "arm.lr0.1": ["failed", 0.1]})
    base, arm = found(folder).curves.values()
    assert (base.best, arm.best, base.edge, arm.edge) == (1, 1, "", "")
    assert base.lost_r == arm.lost_r == (0, 0, 1)
    first = ((2.5 + 2.0) / 2 + (2.0 + UNTRAINED) / 2) / 2 - 2.0
    assert base.sensitivity_s[0] == pytest.approx(first), "a run that diverged counts as untrained"
    assert np.isnan(arm.sensitivity_s).tolist() == [True, False], "one that failed says nothing"
    pairs = arm.sensitivity_s[1] - base.sensitivity_s[1]
    mean, low, high = sensitivity_difference(arm, base)
    assert mean == pytest.approx(pairs)
    assert math.isnan(low)
    assert math.isnan(high)
    lost = over_rates({name: ["diverged", 2.0] for name in GRID})
    curve = found(lost).curves["arm"]
    assert (curve.best, curve.edge) == (None, "")
    assert rates_section(load(lost), found(lost)).rows[0][2] == "none"


def test_the_best_rate_maximises_higher_is_better_metrics(over_rates: Callable[..., Path]) -> None:
    folder = over_rates()
    grid = load(folder.with_name("demo.lr_curve"))
    grid.manifest["metric"] = "accuracy"
    for (arm, _), record in grid.records.items():
        if record is not None and record["status"] == "ok":
            record["metrics"]["accuracy"] = 0.9 if arm == "arm.lr0.001" else 0.5
    assert rate_curve(grid, {rate: f"arm.lr{rate}" for rate in (0.001, 0.01, 0.1)}).best == 0


def test_best_rates_at_the_grid_edge_are_marked(over_rates: Callable[..., Path], check_message: CheckMessage) -> None:
    folder = over_rates()
    results, rates = load(folder), found(folder)
    base, arm = (dict(zip(RATE_COLUMNS, row, strict=True)) for row in rates_section(results, rates).rows)
    assert (base["best rate"], base["verdict"]) == ("0.01", "baseline")
    assert arm["best rate"] == "0.1"
    check_message(arm["verdict"])
    check_message([note for note in rates_section(results, rates).notes if note.startswith(("base: ", "arm: "))])


@pytest.mark.slow
def test_the_report_has_table_figure_and_page(over_rates: Callable[..., Path]) -> None:
    folder, console = over_rates(), Console(file=io.StringIO(), width=200)
    write_report(folder, console, everything=True)
    page = (folder / "table.md").read_text()
    assert "## Learning rates" in page
    assert "![lr curve](lr_curve.png)" in page
    assert (folder / "lr_curve.png").is_file()
    assert "Learning rates" in console.file.getvalue()  # type: ignore[attr-defined]
    assert 'id="learning"' in (folder / "report.html").read_text()


def test_lost_runs_are_crosses_and_the_best_rates_stars(
    over_rates: Callable[..., Path], check_message: CheckMessage
) -> None:
    figure = lm.figure(lm.load(over_rates()), "lr_curve")
    drawn = [(line.get_marker(), np.asarray(line.get_xydata())) for line in figure.axes[0].get_lines()]
    lines = {(marker, tuple(points[:, 0].tolist())): points[:, 1].tolist() for marker, points in drawn}
    assert set(lines) == {
        ("o", (0.001, 0.01)), ("*", (0.01,)), ("x", (0.1,)), ("s", (0.001, 0.01, 0.1)), ("*", (0.1,))
    }  # fmt: skip
    (axes,) = figure.axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.001", "0.01", "0.1"]
    assert axes.get_legend() is None, "it stands below, where it hides no point"
    check_message([text.get_text() for text in figure.legends[0].get_texts()])
    assert lines["x", (0.1,)] == [pytest.approx(UNTRAINED)]
    assert axes.get_xlabel() == "optim.lr"


@pytest.mark.parametrize(
    "arms",
    [{}, {"base": {}}, {"base": 3, "arm": 4}, [], None, {arm: {"names": {}, "shared": 1} for arm in ("base", "arm")}],
)
def test_a_damaged_description_is_one_line(over_rates: Callable[..., Path], arms: Any, refused: Refused) -> None:
    folder = over_rates()
    write_atomic(folder / DESCRIBED, to_json(RATES.stamped({"experiment": "demo.lr_curve", "arms": arms})))
    with refused():
        rates_of(load(folder), folder)
