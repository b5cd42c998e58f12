"""`lm compare`: what it prints and writes of runs made elsewhere."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from messages import CheckMessage, RefusedCommand

from lm.analysis.external.runs import UNCHECKED, CompareRequest, compare_runs, gather
from lm.analysis.external.trackers import read
from lm.cli import main
from lm.report.external import ExternalReport
from lm.report.figures.picture import draw
from lm.report.figures.static_pages import differences, every_run

Said = pytest.CaptureFixture[str]
BASE = [2.0, 2.1, 1.9, 2.05, 2.2, 1.95]
NEW = [1.7, 1.85, 1.68, 1.8, 1.92, 1.66]
LEVEL = [one + (-1) ** place / 1000 for place, one in enumerate(BASE)]
ODD = ["2.3", "nan", "2.2", "inf", "2.2"]
IMAGE = "<img src=x onerror=alert(1)>"


def table(folder: Path, arms: dict[str, list[float] | list[str]], shift: int = 0) -> Path:
    """A CSV file of these losses, with an accuracy; seeds of each arm begin `shift` after the one before."""
    lines = ["arm,seed,loss,accuracy"]
    for place, (arm, losses) in enumerate(arms.items()):
        lines += [f"{arm},{seed + shift * place},{loss},{seed / 8 + place / 4}" for seed, loss in enumerate(losses)]
    path = folder / "runs.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def said(capsys: Said) -> str:
    """What was printed, on one line."""
    return " ".join(capsys.readouterr().out.split())


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def test_several_arms_are_used_alone(tmp_path: Path, capsys: Said, refused_command: RefusedCommand) -> None:
    path = table(tmp_path, {"plain": BASE, "new": NEW, "odd": ODD})
    command = ["compare", str(path), "--baseline", "odd", "--metric", "loss", "--only", "arm=odd", "--only"]
    assert main([*command, "arm=new", "--json"]) == 0
    assert {row["arm"] for row in json.loads(capsys.readouterr().out)["comparisons"]} == {"odd", "new"}
    refused_command([*command, "arm=newer"])


def test_the_terminal_shows_results_and_what_is_unchecked(
    tmp_path: Path, capsys: Said, check_message: CheckMessage, refused_command: RefusedCommand
) -> None:
    path = table(tmp_path, {"plain": BASE, "new": NEW, "odd": ODD})
    refused_command(["compare", path, "--baseline", "plain", "--metric", "loss", "--only", "arm=new"])
    assert main(["compare", str(path), "--baseline", "plain", "--metric", "loss"]) == 0
    check_message(re.sub("[━┏┳┓┡╇┩└┴┘─]", "", said(capsys)).split(". "))


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_matching_seeds_are_paired_and_others_reported_unpaired(
    tmp_path: Path, capsys: Said, check_message: CheckMessage
) -> None:
    path = table(tmp_path, {"plain": BASE, "new": NEW}, shift=3)
    assert main(["compare", str(path), "--baseline", "plain", "--metric", "loss"]) == 0
    answer, *sentences = (text := said(capsys)).split(". ")
    check_message(re.sub(r"0\.\d+, 0\.\d+", "N, N", answer))
    check_message(re.findall(r"│ ([^│]*unpaired[^│]*) │", text))
    check_message([sentence for sentence in sentences if "Welch" in sentence])
    assert "sign-flip" not in text
    for losses, more, word in ((NEW, [], "│ better │"), (LEVEL, ["--margin", "0.01"], "equivalent within 0.01")):
        table(tmp_path, {"plain": BASE, "new": losses})
        assert main(["compare", str(path), "--baseline", "plain", "--metric", "loss", *more]) == 0
        text = said(capsys)
        assert word in text
        check_message([sentence for sentence in text.split(". ") if "sign-flip" in sentence])
        assert "unpaired" not in text
    table(tmp_path, {"plain": BASE, "new": NEW}, shift=3)
    for option, word in (("--higher-is-better", "worse"), ("--metric", "better")):
        assert main(["compare", str(path), "--baseline", "plain", "--metric", "loss", option, "loss"]) == 0
        assert f"│ {word} (unpaired" in said(capsys)


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws nothing, which takes its time."""
    monkeypatch.setattr("lm.report.figures.picture.render", lambda figure: {"png": b"picture", "svg": b"picture"})


@pytest.mark.usefixtures("_quick")
def test_the_folder_holds_tables_figures_and_a_page(tmp_path: Path, check_message: CheckMessage) -> None:
    path, out = table(tmp_path, {"plain": BASE, IMAGE: NEW}), tmp_path / "out"
    command = ["compare", str(path), "--baseline", "plain", "--metric", "loss,accuracy", "--out", str(out)]
    assert main(command) == 0
    figures = [f"{name}.{kind}" for name in ("differences", "runs") for kind in ("png", "svg")]
    assert sorted(one.name for one in out.iterdir()) == sorted(
        ["cells.csv", *figures, "report.html", "table.csv", "table.md"]
    )
    page, html = (out / "table.md").read_text(), (out / "report.html").read_text()
    assert IMAGE not in page
    assert IMAGE not in html
    assert html.count('class="chart"') == 2
    check_message(re.findall('<p class="answer">(.*?)</p>', html))
    assert "accuracy ↑" in html
    assert all(UNCHECKED in one for one in (page, html))
    assert "![differences](differences.png)" in page
    assert main([*command[:-3], "loss", "--out", str(out)]) == 0
    check_message([line for line in (out / "table.md").read_text().splitlines() if "Student's" in line])


@pytest.mark.extra
@pytest.mark.parametrize("shift", [0, 3])
def test_figures_show_every_run_and_are_the_same_every_time(shift: int, tmp_path: Path) -> None:
    path = table(tmp_path, {"plain": BASE, "new": NEW, "odd": ODD}, shift)
    runs = gather(read(path), CompareRequest("plain", ("loss", "accuracy")))
    compared = compare_runs(runs)
    charts = differences(runs, compared), every_run(runs)
    forest, every = (draw(chart) for chart in charts if chart is not None)
    for axes, quantity in zip(every.axes, ("loss", "accuracy"), strict=True):
        dots = [value for line in axes.lines if line.get_marker() != "None" for value in np.asarray(line.get_ydata())]
        found = [runs.value(arm, seed, quantity) for arm in runs.arms for seed in runs.seeds]
        assert sorted(one for one in dots if np.isfinite(one)) == sorted(one for one in found if np.isfinite(one))
        assert len([line for line in axes.lines if line.get_marker() == "None"]) == (0 if shift else 6)
    (marks,) = [
        [float(np.asarray(line.get_xdata())[0]) for line in axes.lines if line.get_marker() == "D"]
        for axes in forest.axes[:1]
    ]
    assert marks == compared[(compared.metric == "loss") & compared.difference.notna()].difference.tolist()
    report = ExternalReport(runs, compared)
    assert report.files() == report.files()


@pytest.mark.usefixtures("_quick")
def test_the_cells_that_are_written_compare_to_the_same(tmp_path: Path, capsys: Said) -> None:
    path, out = table(tmp_path, {"plain": BASE, "new": NEW, "odd": ODD}), tmp_path / "out"
    asked = ["--baseline", "plain", "--metric", "loss", "--json"]
    assert main(["compare", str(path), *asked[:-1], "--out", str(out)]) == 0
    capsys.readouterr()
    found = []
    for one in (path, out / "cells.csv"):
        assert main(["compare", str(one), *asked]) == 0
        found.append(json.loads(capsys.readouterr().out)["comparisons"])
    pd.testing.assert_frame_equal(*(pd.DataFrame(one).query("metric == 'loss'") for one in found))


@pytest.mark.usefixtures("_quick")
def test_arms_that_a_spreadsheet_would_run_are_written_as_texts(tmp_path: Path, capsys: Said) -> None:
    names: dict[str, list[float] | list[str]] = {"plain": BASE, "=1+1": NEW, "@SUM(A1)": ODD}
    path, out = table(tmp_path, names), tmp_path / "out"
    command = ["--baseline", "plain", "--metric", "loss", "--json"]
    assert main(["compare", str(path), *command[:-1], "--out", str(out)]) == 0
    for name in ("table.csv", "cells.csv"):
        texts = [cell for row in csv.reader(io.StringIO((out / name).read_text())) for cell in row]
        assert {"'=1+1", "'@SUM(A1)"} <= set(texts), name
        assert not [cell for cell in texts if cell[:1] in ("=", "@")], name
    capsys.readouterr()
    assert main(["compare", str(out / "cells.csv"), *command]) == 0
    assert {one["arm"] for one in json.loads(capsys.readouterr().out)["comparisons"]} == set(names)


def test_the_folder_of_an_experiment_is_not_written_to(tmp_path: Path, refused_command: RefusedCommand) -> None:
    path = table(tmp_path, {"plain": BASE, "new": NEW})
    (tmp_path / "experiment.json").write_text("{}")
    refused_command(["compare", path, "--baseline", "plain", "--metric", "loss", "--out", tmp_path])
    assert not (tmp_path / "table.md").exists()


@pytest.mark.parametrize(
    "more",
    [
        ["--higher-is-better", "los"],
        ["--margin", "-1"],
        ["--margin", "nan"],
        ["--only", "arm"],
        ["--json", "--out", "out"],
        ["--paired", "--unpaired"],
        ["--unpaired", "--margin", "1"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_asked_for_is_one_line(more: list[str], tmp_path: Path, refused_command: RefusedCommand) -> None:
    path = table(tmp_path, {"plain": BASE, "new": NEW})
    refused_command(["compare", path, "--baseline", "plain", "--metric", "loss", *more])
