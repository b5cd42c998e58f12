"""The report of a ladder that trains its sizes at several lengths."""

import csv
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from ladders import DATA_GAIN, make_ladder, make_lengths
from messages import CheckMessage, Refused
from pages import Page

import lm
from lm.analysis.ladder import LadderResults, lines_of, load_ladder
from lm.cli import main
from lm.report.figures.picture import draw
from lm.report.figures.static_pages import ladder_chart
from lm.report.ladder import (
    EXTRAPOLATED,
    LadderReport,
    gain,
    ladder_answer,
    overview_section,
    rung_section,
    size_length_section,
    trend_section,
    trend_table,
    worth_section,
    worth_table,
)
from lm.report.render import is_bold, markdown_page
from lm.report.web.page import page as page_of
from lm.stats.compute_gain import Gain
from lm.stats.trend import Estimate

pytestmark = pytest.mark.slow

PARTIAL = {"s": (10, 20, 40), "m": (10, 20), "l": (10,)}


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> LadderResults:
    """Three sizes, each at three lengths."""
    return load_ladder(make_lengths(tmp_path_factory.mktemp("grid")))


@pytest.fixture(scope="module")
def partial(tmp_path_factory: pytest.TempPathFactory) -> LadderResults:
    """Three sizes at one length, and the smallest of them at more."""
    return load_ladder(make_lengths(tmp_path_factory.mktemp("partial"), PARTIAL))


def test_size_and_length_are_told_apart(grid: LadderResults, check_message: CheckMessage) -> None:
    section = size_length_section(grid)
    base, arm = section.rows
    assert base[0] == "base"
    assert base[3:] == ["-"] * 3
    assert grid.apart is not None
    gains = grid.apart.gains["arm", "l.x20"]
    assert gains.data.log.low < math.log(DATA_GAIN) < gains.data.log.high
    assert gains.parameters.log.value > 0
    assert arm[4].startswith(f"{math.exp(gains.data.log.value):.2f} [")
    assert arm[4].endswith(EXTRAPOLATED)
    check_message([re.sub(r"\d+([.,]\d+)+", "#", note) for note in section.notes])
    assert f"## {section.title}\n" in markdown_page(LadderReport(grid).sections())
    Page(html := page_of(LadderReport(grid).body())).require_safe()
    assert section.title in html


def test_table_has_length_and_three_gains_by_rung(grid: LadderResults) -> None:
    rows = list(csv.DictReader(io.StringIO(str(LadderReport(grid).files()["table.csv"]))))
    assert [row["tokens_per_parameter"] for row in rows] == [
        str(ratio) for _ in "sml" for ratio in (5, 10, 20) for _ in "ba"
    ]
    for row in rows[1::2]:
        assert int(row["tokens"]) == int(row["parameters"]) * int(row["tokens_per_parameter"])
        assert float(row["gain_data_low"]) < float(row["gain_data"]) < float(row["gain_data_high"])
        assert float(row["gain_data"]) == pytest.approx(DATA_GAIN, abs=0.05)
        assert float(row["gain_compute"]) == pytest.approx(float(row["gain"]), abs=0.05)
    assert rows[0]["gain_data"] == ""


def test_trends_stay_within_one_length_or_size(
    grid: LadderResults, partial: LadderResults, check_message: CheckMessage
) -> None:
    lines = [(line.along, len(line.rungs)) for line in partial.lines]
    assert lines == [("size", 3), ("size", 2), ("size", 1), ("length", 3), ("length", 2)]
    check_message([line.at for line in partial.lines])
    check_message(grid.lines[0].at)
    rows = trend_section(partial).rows
    check_message([row[1] for row in rows])
    assert all("(exploratory)" in row[3] for row in rows[2:])
    assert [is_bold(row) for row in rows] == [True] * 2 + [False] * 3
    table = trend_table(partial)
    assert table["along"].tolist() == ["size"] * 4 + ["length"] * 2
    check_message(ladder_answer(partial))
    law = {row[0]: row[-1] for row in rung_section(partial).rows}
    assert [name for name in law if law[name] != "-"] == ["s", "m", "l"]


def test_trend_of_one_length_is_that_of_its_ladder(tmp_path: Path, partial: LadderResults) -> None:
    """The main line of a ladder of lengths has the numbers of the ladder that it alone would be."""
    folder = make_lengths(tmp_path, PARTIAL)
    content = json.loads((folder / "ladder.json").read_text())
    content["rungs"] = [rung for rung in content["rungs"] if rung["tokens_per_parameter"] == 10]
    for rung in content["rungs"]:
        for key in ("size", "tokens_per_parameter", "sizes"):
            del rung[key]
    (folder / "ladder.json").write_text(json.dumps(content))
    alone = load_ladder(folder)
    assert alone.apart is None
    assert trend_section(alone).rows[0][2] == trend_section(partial).rows[0][2]
    gains = {row[0]: row[4] for row in worth_section(partial).rows}
    assert [row[4] for row in worth_section(alone).rows] == [gains[name] for name in ("s", "m", "l")]
    assert "tokens_per_parameter" not in worth_table(alone)
    law = rung_section(alone).notes[0].removesuffix(".")
    assert rung_section(partial).notes[0] == f"{law} at {partial.lines[0].at}."


def test_two_sizes_have_no_law_and_say_why(tmp_path: Path, check_message: CheckMessage) -> None:
    two = load_ladder(make_lengths(tmp_path, {"s": (5, 10), "m": (5, 10)}))
    section = size_length_section(two)
    assert [row[1:] for row in section.rows] == [["-"] * 5] * 2
    check_message(section.notes[0])
    _, printed = LadderReport(two).printed(80, everything=False)
    assert list(printed.notes) == list(section.notes[:2])  # of base and of arm
    assert worth_table(two).gain_data.isna().all()


@pytest.mark.extra
def test_loss_beyond_all_data_is_said_so(tmp_path: Path, check_message: CheckMessage) -> None:
    below = load_ladder(make_lengths(tmp_path, change=lambda arm, place, loss: loss - 0.45 * (arm == "arm")))
    row = size_length_section(below).rows[1]
    check_message(row[4])
    check_message(row[5])
    assert worth_table(below).gain_data.tolist()[-1] == math.inf


def test_infinite_gain_has_words_and_a_lower_bound(check_message: CheckMessage) -> None:
    log = Estimate(math.inf, math.log(3), math.inf)
    check_message(gain(Gain(log, "floor"), "beyond any size"))
    check_message(gain(Gain(log, "floor")))


@pytest.mark.extra
def test_lost_runs_of_a_length_are_told(tmp_path: Path, check_message: CheckMessage) -> None:
    found = load_ladder(
        make_lengths(tmp_path, change=lambda arm, at, loss: "diverged" if (arm, at) == ("arm", 4) else loss)
    )
    check_message([*worth_section(found).rows[4][2:]])
    assert found.apart is not None
    assert ("arm", "m.x10") not in found.apart.gains
    assert ("arm", "l.x20") in found.apart.gains


def test_figure_has_every_length(grid: LadderResults) -> None:
    left, right = draw(ladder_chart(grid)).axes
    assert len(left.containers) == 2
    assert [line.get_label() for line in right.lines if not str(line.get_label()).startswith("_")] == ["arm"]
    assert len(right.containers) == 9


def test_ladders_with_and_without_lengths_share_one_table(
    tmp_path: Path, grid: LadderResults, partial: LadderResults
) -> None:
    plain = load_ladder(make_ladder(tmp_path, seeds=(6, 6, 6)))
    section = overview_section([plain, grid])
    assert section.columns[2:11] == ["s", "s.x10", "s.x20", "m", "m.x10", "m.x20", "l", "l.x10", "l.x20"]
    assert section.rows[0][3] == "-"
    assert "-" not in section.rows[1][2:11]
    assert overview_section([partial]).columns[2:5] == ["s", "m", "l"], "other lengths are on no law, and have no gain"


def test_ladder_of_lengths_is_packed_and_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], check_message: CheckMessage
) -> None:
    folder = make_lengths(tmp_path / "results", {"s": (5, 10), "m": (5, 10)}, seeds=2)
    assert main(["pack", str(folder)]) == 0
    assert main(["unpack", f"{folder}.lmpack", "--out", str(tmp_path / "again")]) == 0
    for source in (f"{folder}.lmpack", tmp_path / "again" / "climb"):
        found = lm.load(source)
        assert isinstance(found, lm.Ladder)
        assert list(found.rungs) == ["s", "s.x10", "m", "m.x10"]
        assert set(found.worth.tokens_per_parameter) == {5, 10}
    capsys.readouterr()
    assert main(["trace", str(folder), "m.x10.arm"]) == 0
    check_message(capsys.readouterr().out.splitlines()[0])


@pytest.mark.parametrize(
    "change",
    [
        lambda rungs: rungs[0].pop("sizes"),
        lambda rungs: [rungs[0].pop(key) for key in ("size", "sizes", "tokens_per_parameter")],
        lambda rungs: rungs[1].update(tokens_per_parameter=-1),
        lambda rungs: rungs[1]["sizes"].pop("arm"),
        lambda rungs: rungs[1]["sizes"]["arm"].update(tokens=0),
    ],
)
def test_damaged_lengths_are_one_line(tmp_path: Path, change: Any, refused: Refused) -> None:
    folder = make_lengths(tmp_path, {"s": (5, 10), "m": (5, 10)}, seeds=1)
    content = json.loads((folder / "ladder.json").read_text())
    change(content["rungs"])
    (folder / "ladder.json").write_text(json.dumps(content))
    with refused():
        load_ladder(folder)


def test_main_line_has_most_sizes_then_the_longest() -> None:
    assert [line.along for line in lines_of([("", None), ("", 10.0)])] == [""]
    even = lines_of([("s", 5.0), ("s", 10.0), ("m", 5.0), ("m", 10.0)])
    assert even[0].rungs == [1, 3]
    most = lines_of([("s", 5.0), ("s", 10.0), ("m", 5.0)])
    assert most[0].rungs == [0, 2]
