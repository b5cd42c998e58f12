"""The report of a search, against Optuna's own fronts and a variance that is known."""

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import optuna
import pandas as pd
import pytest
from matplotlib.figure import Figure
from messages import CheckMessage, Refused
from pages import Page
from rich.console import Console
from searches import LR, make_search, trial

from lm.cli import main
from lm.report import study as studies
from lm.report.figures.picture import draw, render_all
from lm.report.figures.searches import FIGURES, history, parallel_coordinates, pareto
from lm.report.search import SearchReport, best_line
from lm.report.study import (
    ABSENT,
    Importance,
    Study,
    best_section,
    edge,
    importances,
    load_study,
    notes,
    position,
    shares,
    warnings_of,
)
from lm.report.web.page import page as page_of
from lm.report.write import write_report
from lm.store.formats import SEARCH

WIDTH = {"low": 16, "high": 96, "log": False, "step": 16, "int": True}
KIND = {"choices": ["Alibi", "Rope"]}
BASE = {"low": 100.0, "high": 1e5, "log": True, "step": None, "int": False}
SPACE: dict[str, dict[str, Any]] = {"lr": LR, "width": WIDTH, "kind": KIND, "kind.Rope.base": BASE}


def drawn(count: int, seed: int = 0, objectives: int = 1) -> list[dict[str, Any]]:
    """Trials drawn evenly from the space, with values that are random numbers."""
    generator = np.random.default_rng(seed)
    found = []
    for number in range(count):
        params: dict[str, Any] = {
            "lr": float(10 ** generator.uniform(-4, -1)),
            "width": int(16 * generator.integers(1, 7)),
            "kind": ["Alibi", "Rope"][number % 2],
        }
        if number % 2:
            params["kind.Rope.base"] = float(10 ** generator.uniform(2, 5))
        found.append(trial(number, generator.normal(size=objectives).round(1).tolist(), **params))
    return found


def write(folder: Path, trials: list[dict[str, Any]], space: dict[str, Any] = SPACE, **changes: Any) -> Path:
    return make_search(folder, trials, space, **changes)


@pytest.mark.parametrize("ways", [["lower"], ["higher"], ["lower", "lower"], ["lower", "higher"]])
def test_the_best_are_those_that_optuna_finds(tmp_path: Path, ways: list[str]) -> None:
    trials = drawn(40, objectives=len(ways))
    names = ["nll", "accuracy"][: len(ways)]
    study = load_study(write(tmp_path, trials, objectives=dict(zip(names, ways, strict=True))))
    lower, higher = optuna.study.StudyDirection.MINIMIZE, optuna.study.StudyDirection.MAXIMIZE
    directions = [lower if way == "lower" else higher for way in ways]
    theirs = optuna.create_study(directions=directions)
    theirs.add_trials([optuna.trial.create_trial(values=one["values"]) for one in trials])
    expected = {one.number for one in theirs.best_trials}
    if len(ways) > 1:
        assert set(study.best.number) == expected
    values = study.best[names[0]].tolist()
    assert values == sorted(values, reverse=ways[0] == "higher")
    assert study.best.number.iloc[0] in expected


def test_only_complete_trials_are_ranked(tmp_path: Path, check_message: CheckMessage) -> None:
    others = [trial(1, None, "pruned", lr=0.01), trial(2, None, "failed", lr=0.01), trial(3, None, "open")]
    study = load_study(write(tmp_path, [trial(0, [2.0], lr=0.02, width=32, kind="Alibi"), *others]))
    assert study.best.number.tolist() == [0]
    lines = notes(study)
    check_message(lines[0])
    check_message(lines[1])


def test_a_study_of_another_version_or_none_is_refused(tmp_path: Path, refused: Refused) -> None:
    with refused():
        load_study(tmp_path)
    with refused():
        load_study(write(tmp_path, [], format=SEARCH.version + 1))


def test_tables_and_figures_show_at_most_24_parameters(tmp_path: Path) -> None:
    names = [f"p{index}" for index in range(40)]
    trials = [{**trial(number, [2.0 - number]), "params": dict.fromkeys(names, 0.01)} for number in range(3)]
    study = load_study(write(tmp_path, trials, space=dict.fromkeys(names, LR)))
    chart, axes = FIGURES["slices"](study), FIGURES["parallel_coordinates"](study)
    assert chart is not None
    assert axes is not None
    assert (len(chart.panels), len(axes.panels[0].x.names)) == (24, 24)
    columns = best_section(study).columns
    assert columns[2:] == names[:24]
    assert any("24 of 40 parameters" in line for line in notes(study))
    important = replace(study, ranked=("p39",))
    assert list(important.shown_space) == [*names[:23], "p39"]
    assert not any("parameters:" in line for line in notes(load_study(write(tmp_path, drawn(2)))))


# edges ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "described", "expected"),
    [
        (1e-4, LR, "low"),
        (10**-3.86, LR, "low"),  # 4.7 % of three decades
        (10**-3.84, LR, None),
        (0.06, LR, None),  # though 60 % along, counted evenly, it is 93 % along in logarithms
        (0.08, LR, "high"),
        (16, WIDTH, "low"),
        (32, WIDTH, None),
        (96, WIDTH, "high"),
        (None, LR, None),
        (float("nan"), LR, None),
        ("Rope", KIND, None),
    ],
)
def test_the_edge_of_a_range_is_five_percent(value: Any, described: dict[str, Any], expected: str | None) -> None:
    assert edge(value, described) == expected


def test_a_best_or_front_at_an_edge_is_warned_of(tmp_path: Path, check_message: CheckMessage) -> None:
    trials = [trial(0, [1.0], lr=0.0999, width=48, kind="Alibi"), trial(1, [2.0], lr=0.01, width=16, kind="Alibi")]
    (line,) = warnings_of(load_study(write(tmp_path, trials)))
    check_message(line)
    trials = [trial(n, [n, -n], lr=0.01, width=width, kind="Alibi") for n, width in enumerate([16, 16, 48])]
    found = warnings_of(load_study(write(tmp_path, trials, objectives={"nll": "lower", "ece": "lower"})))
    check_message([line.split(":")[1] for line in found])


def even(name: str) -> dict[str, dict[str, Any]]:
    return {name: {"low": 0.0, "high": 1.0, "log": False, "step": None, "int": False}}


@pytest.mark.extra
def test_shares_are_those_of_a_sum_whose_variance_is_known() -> None:
    line = np.linspace(0, 1, 15)
    frame = pd.DataFrame(itertools.product(line, line), columns=["a", "b"])
    frame["nll"] = 2 * frame.a + frame.b  # variances 4 : 1
    found = shares(frame, "nll", {**even("a"), **even("b")}, seed=0)
    np.testing.assert_allclose(found, [0.8, 0.2], atol=0.02)


@pytest.mark.extra
def test_intervals_hold_the_estimate_and_are_the_same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "RESAMPLES", 12)
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"a": generator.random(30), "b": generator.random(30)})
    frame["nll"] = 3 * frame.a + frame.b
    space = {**even("b"), **even("a")}
    found = importances(frame, ["nll"], space)
    assert isinstance(found, dict)
    assert [row.name for row in found["nll"]] == ["a", "b"]
    assert sum(row.share for row in found["nll"]) == pytest.approx(1)
    assert all(0 <= row.low < row.high <= 1 for row in found["nll"])
    assert found["nll"][0].low > 0.5
    assert importances(frame, ["nll"], space) == found


def test_importances_take_parameters_and_values_that_vary_and_a_package(
    monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    def asked(b: float, nll: float) -> str:
        frame = pd.DataFrame({"a": [0.1, 0.2], "b": [0.5, b], "nll": [1.0, nll]})
        return str(importances(frame, ["nll"], {**even("a"), **even("b")}))

    check_message(asked(0.5, 2.0))
    check_message(asked(0.6, 1.0))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_message(asked(0.6, 2.0))


def test_positions_run_along_the_axis() -> None:
    assert position(1e-4, LR) == 0
    assert position(10**-2.5, LR) == pytest.approx(0.5)
    assert position(56, WIDTH) == pytest.approx(0.5)
    assert [position(kind, KIND) for kind in KIND["choices"]] == [0, 1]
    assert position(None, LR) == position(float("nan"), LR) == ABSENT


def picture(study: Study, name: str) -> Figure:
    """The picture of one figure of a search."""
    chart = FIGURES[name](study)
    assert chart is not None
    return draw(chart)


def test_figures_draw_every_complete_trial(tmp_path: Path) -> None:
    trials = [*drawn(12, objectives=2), trial(12, None, "pruned", lr=0.01, width=16, kind="Alibi")]
    study = load_study(write(tmp_path, trials, objectives={"nll": "lower", "parameters": "lower"}))
    figure = picture(study, "slices")
    by_label = {
        axes.get_xlabel(): np.asarray(axes.get_lines()[0].get_xydata()) for axes in figure.axes if axes.get_visible()
    }
    np.testing.assert_array_equal(by_label["lr"], [[t["params"]["lr"], t["values"][0]] for t in trials[:12]])
    assert len(by_label["kind.Rope.base"]) == 6
    figure = picture(study, "parallel_coordinates")
    crossing = [line for line in figure.axes[0].get_lines() if np.size(line.get_xdata()) == 4]
    assert len(crossing) == 12
    assert sum(np.asarray(line.get_ydata())[3] == ABSENT for line in crossing) == 6
    figure = picture(study, "pareto")
    front = figure.axes[0].get_lines()[1].get_xydata()
    np.testing.assert_array_equal(front, study.best.sort_values("parameters")[["parameters", "nll"]])
    assert figure.axes[0].get_xlabel() == "parameters"


def test_what_there_is_nothing_to_draw_for_is_left_out(tmp_path: Path) -> None:
    two = {"nll": "lower", "parameters": "lower"}
    none = load_study(write(tmp_path / "none", [trial(0, None, "pruned", lr=0.01, width=16, kind="Alibi")]))
    assert [make(none) for make in FIGURES.values()] == [None] * len(FIGURES)
    one = load_study(write(tmp_path / "one", drawn(1)))
    assert parallel_coordinates(one) is None, "one line says nothing of how parameters go together"
    assert pareto(one) is None
    both = load_study(write(tmp_path / "both", drawn(3, objectives=2), objectives=two))
    assert history(both) is None, "no trial of a front is the best so far"


def test_running_bests_follow_the_direction_and_wide_fronts_are_logarithmic(tmp_path: Path) -> None:
    trials = [trial(n, [value], lr=0.01, width=16, kind="Alibi") for n, value in enumerate([0.3, 0.5, 0.2, 0.6])]
    for way, expected in (("lower", [0.3, 0.3, 0.2, 0.2]), ("higher", [0.3, 0.5, 0.5, 0.6])):
        figure = picture(load_study(write(tmp_path / way, trials, objectives={"accuracy": way})), "history")
        assert np.asarray(figure.axes[0].get_lines()[1].get_ydata()).tolist() == expected
    for name, sizes, scale in (("wide", (10, 200), "log"), ("narrow", (10, 90), "linear")):
        trials = [trial(n, [-n, size], lr=0.01, width=16, kind="Alibi") for n, size in enumerate(sizes)]
        study = load_study(write(tmp_path / name, trials, objectives={"nll": "lower", "parameters": "lower"}))
        assert picture(study, "pareto").axes[0].get_xscale() == scale


@pytest.mark.slow
@pytest.mark.parametrize("objectives", [{"nll": "lower"}, {"nll": "lower", "accuracy": "higher"}])
def test_figures_are_written_where_there_is_something_to_draw(tmp_path: Path, objectives: dict[str, str]) -> None:
    study = load_study(write(tmp_path, drawn(4, objectives=len(objectives)), objectives=objectives))
    other = "history" if len(objectives) > 1 else "pareto"
    found = render_all(SearchReport(study, "").charts(), SearchReport.usual)
    assert list(found) == [name for name in FIGURES if name not in (other, "tuning_curves")]
    for files in found.values():
        assert files["png"].startswith(b"\x89PNG")
        assert ElementTree.fromstring(files["svg"].decode()).tag.endswith("svg")


def report(folder: Path) -> tuple[str, str]:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    write_report(folder, console)
    return (folder / "table.md").read_text(), console.export_text()


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_report_holds_the_best_the_counts_and_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "RESAMPLES", 2)
    trials = drawn(12)
    best = min(trials, key=lambda one: (one["values"][0], one["number"]))
    page, text = report(write(tmp_path, trials, seeds=[0, 4]))
    assert page.startswith("# A \\*search\\*\n")
    first = page.split("| --- |")[-1].splitlines()[1]
    assert first.startswith(f"| {best['number']} | {best['values'][0]:.4f} | {best['params']['lr']:.4g} |")
    for words in (
        "12 of 40 trials: 12 complete.",
        "mean over seeds 0, 4",
        "sampler tpe (seed 3), pruner none",
        "The best of 12 looks better than it is",
        "Exploratory",
        "fANOVA",
        "bootstrap",
    ):
        assert words in page
        assert words in text
    csv = pd.read_csv(tmp_path / "trials.csv")
    assert csv["nll"].tolist() == [one["values"][0] for one in trials]
    assert csv["kind.Rope.base"].isna().sum() == 6


@pytest.mark.extra
def test_few_trials_have_no_importances_and_none_no_table(tmp_path: Path, check_message: CheckMessage) -> None:
    page, _ = report(write(tmp_path, drawn(9)))
    importance = str(SearchReport.load(tmp_path).importance)
    check_message(importance)
    assert importance in page
    page, _ = report(write(tmp_path, []))
    none_yet = notes(load_study(tmp_path))[0]
    check_message(none_yet)
    assert none_yet in page
    assert "| --- |" not in page


def paged(folder: Path, trials: list[dict[str, Any]], **changes: Any) -> str:
    return page_of(SearchReport(load_study(write(folder, trials, **changes)), "too few.").body())


def answer_of(page: str) -> str:
    (answer,) = re.findall('<p class="answer">(.*?)</p>', page)
    return str(answer)


def test_the_page_says_what_is_best_and_holds_every_trial(tmp_path: Path, check_message: CheckMessage) -> None:
    lost = [{**trial(7, None, "pruned"), "reported": {"50": 2.0, "100": 2.5}}]
    lost += [{**trial(8, None, "failed"), "reason": "it is <b>broken</b>"}]
    page = paged(tmp_path, [*drawn(7), *lost], title="<img src=x onerror=alert(1)>")
    study = load_study(tmp_path)
    assert answer_of(page) == best_line(study)
    check_message(answer_of(page).partition(", ")[0])
    assert page.count('<th data-v="') == 9
    lost_trials = page.partition('<section id="lost">')[2].partition("</section>")[0]
    check_message(re.findall("<td>(.*?)</td>", lost_trials))
    assert "<img src=x" not in page
    for name in ("verdict", "best", "importance", "table", "lost", "again"):
        assert f'<section id="{name}">' in page


def test_pages_exist_without_trials_and_for_two_objectives(tmp_path: Path, check_message: CheckMessage) -> None:
    check_message(answer_of(paged(tmp_path, [])))
    objectives = {"nll": "lower", "tokens_per_second": "higher"}
    page = paged(tmp_path, drawn(8, objectives=2), objectives=objectives)
    check_message(answer_of(page))
    assert "Pareto front" in page


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_search_charts_are_valid_vega_lite(tmp_path: Path) -> None:
    convert = pytest.importorskip("vl_convert", reason="charts are drawn by vl-convert-python")
    trials = [{**one, "reported": {"50": 2.0, "100": 1.5}} for one in drawn(12)]
    shares = {"nll": [Importance("lr", 0.5, 0.1, 0.9), Importance("width", 0.2, 0.0, 0.4)]}
    pages = [page_of(SearchReport(load_study(write(tmp_path, trials)), shares).body())]
    pages.append(paged(tmp_path, drawn(8, objectives=2), objectives={"nll": "lower", "ece": "lower"}))
    names: set[str] = set()
    for page in pages:
        specs = Page(page).json("specs")
        names |= specs.keys()
        for one in specs.values():
            for panel in one["panels"].values():
                sets = {name: [{"x": 1, "y": 1}] for name in panel["sets"]}
                assert convert.vegalite_to_vega({**panel["spec"], "datasets": sets, "width": 300})["marks"]
    assert names >= {"history", "tuning_curves", "importances", "pareto", "slices-0", "parallel_coordinates"}


def test_a_search_page_can_be_written_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "demo", drawn(3))
    assert main(["report", str(folder), "--format", "html"]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "study.json"]
    assert main(["report", str(folder), "--format", "latex"]) == 2
    write_report(folder, Console())
    assert (folder / "table.md").is_file()
