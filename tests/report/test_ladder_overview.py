"""Several ladders in one table."""

import csv
import io
from pathlib import Path

import pytest
from ladders import make_ladder, usual
from rich.console import Console

from lm.analysis.ladder import load_ladder
from lm.report.ladder_page import csv_worth, overview_section
from lm.report.render import markdown_section, print_section


def test_each_arm_is_a_row_with_gains_by_rung(tmp_path: Path) -> None:
    four, three = (
        load_ladder(make_ladder(tmp_path / "four")),
        load_ladder(make_ladder(tmp_path / "three", seeds=(6, 6, 6))),
    )
    both = [three, four]
    section = overview_section(both)
    assert section.columns == [
        *("ladder", "arm, against", "s", "m", "l", "xl"),
        *("gain with more compute", "difference with more compute", "forecast"),
    ]
    short, whole = section.rows
    assert short[:2] == whole[:2] == ["climb", "arm, base"]
    assert [float(cell) for cell in whole[2:6]] == pytest.approx([1.3] * 4, abs=0.1)
    assert short[5] == "-"
    assert whole[6:] == ["holds within a factor of 1.2", "holds within 0.02", "holds it"]
    assert short[8] == "-", "three rungs forecast nothing"


def test_what_an_arm_has_not_is_said(tmp_path: Path) -> None:
    lost = load_ladder(
        make_ladder(tmp_path / "lost", lambda arm, at, seed: usual(arm, at, seed) if arm == "base" else None)
    )
    (row,) = overview_section([lost]).rows
    assert row[2:] == ["-"] * 4 + ["no pair to compare"] * 2 + ["-"]
    floor = load_ladder(make_ladder(tmp_path / "floor", lambda arm, at, seed: usual(arm, at, seed) - (arm == "arm")))
    assert overview_section([floor]).rows[0][5] == "below the law's floor"


def test_page_file_and_terminal_hold_the_same_ladders(tmp_path: Path) -> None:
    found = [load_ladder(make_ladder(tmp_path))]
    page = "\n".join(markdown_section(overview_section(found)))
    assert "| climb | arm, base | 1.3" in page
    lines = list(csv.DictReader(io.StringIO(csv_worth(found))))
    assert [(line["ladder"], line["rung"], line["arm"]) for line in lines[:3]] == [
        ("climb", "s", "base"), ("climb", "s", "arm"), ("climb", "m", "base")
    ]  # fmt: skip
    console = Console(file=io.StringIO(), width=200)
    print_section(overview_section(found, "Worth"), console)
    assert "holds within a factor of 1.2" in console.file.getvalue()  # type: ignore[attr-defined]
