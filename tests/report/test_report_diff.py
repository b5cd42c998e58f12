"""A report that would say less than the one it replaces is named, and writes nothing unasked."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lm.cli import main
from lm.config.tree import ReportWouldShrinkError
from lm.report.report_diff import missing_content, missing_csv_content
from lm.report.write import write_report
from lm.store.store import Store

MakeExperiment = Callable[..., Path]
CELLS: dict[str, list[Any]] = {"base": [2.0, 2.1, 1.9, 2.05], "arm": [1.7, 1.85, 1.68, 1.8]}
PAGE = """# A title

| arm | n | NLL ↓ | difference [joint 95 % interval] | steps |
| --- | --- | --- | --- | --- |
| base\\_1 | 3 | 2.0 | - | 1 |
| a\\|b | 3 | 1.9 | **-0.1 \\[-0.2, -0.0\\]** | 0.5 |

- A note.

## Training

| arm | steps [95 % interval] |
| --- | --- |
| a\\|b | 0.5 |

## Figures

![learning curve](learning_curve.png)
![reliability](reliability.png)

## All measurements

| metric | arm | n | mean |
| --- | --- | --- | --- |
| NLL | base\\_1 | 3 | 2.0 |
| NLL | a\\|b | 3 | 1.9 |
| ECE | base\\_1 | 3 | 0.1 |
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("joint 95 %", "95 %"),
        ("[joint 95 % interval]", "[95 % interval]"),
        ("- A note.\n", ""),
        ("1.9 |", "1.8 |"),
        ("| base\\_1 | 3 | 2.0 | - | 1 |", "| base\\_1 | 6 | 2.0 | 0 | 1 |"),
        ("**-0.1 \\[-0.2, -0.0\\]**", "-0.1 \\[-0.3, +0.1\\]"),
        ("## Figures", "## More\n\n| a |\n| --- |\n| 1 |\n\n## Figures"),
        ("| 3 |", "| 3, 1 diverged |"),
    ],
)
def test_what_says_as_much_in_other_words_loses_nothing(old: str, new: str) -> None:
    assert old in PAGE
    assert missing_content(PAGE, PAGE.replace(old, new)) == []
    assert missing_content("", PAGE) == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("## Training", "## Else", ["the section 'Training'"]),
        ("| steps |", "| other |", ["the column 'steps' of the first table"]),
        ("![reliability](reliability.png)\n", "", ["the figure reliability"]),
        ("1.9 |", "- |", ["1 entry of 'NLL ↓' of the first table", "1 entry of 'mean' of All measurements"]),
        ("**-0.1 \\[-0.2, -0.0\\]**", "-", ["1 entry of 'difference' of the first table"]),
        ("| ECE | base\\_1 | 3 | 0.1 |\n", "", ["the row 'ECE' of All measurements"]),
        ("| NLL | a\\|b | 3 | 1.9 |", "| NLL | c | 3 | 1.9 |", ["the row 'NLL a|b' of All measurements"]),
        ("| base\\_1 | 3 | 2.0 | -", "| base\\_1 | 2, 1 missing | 2.0 | -", ["cells behind 1 row of the first table"]),
        ("| arm | steps [95 % interval] |\n| --- | --- |\n| a\\|b | 0.5 |\n", "", ["the table of 'Training'"]),
    ],
)
def test_what_is_lost_is_named(old: str, new: str, words: list[str]) -> None:
    assert old in PAGE
    if "ECE" in old:  # then the metric alone tells the rows apart no more
        words = ["the row 'ECE base_1' of All measurements"]
    assert missing_content(PAGE, PAGE.replace(old, new)) == words


def test_the_best_trials_of_a_search_may_change_and_their_columns_not() -> None:
    assert missing_content(PAGE, PAGE.replace("base\\_1", "other"), rows=False) == []
    assert missing_content(PAGE, PAGE.replace("| mean |", "| sd |"), rows=False) == [
        "the column 'mean' of All measurements"
    ]


def test_a_csv_is_compared_by_its_rows_and_columns() -> None:
    before = "arm,metric,n,p\na,nll,3,0.5\nb,nll,3,\n"
    assert missing_csv_content(before, before, "x.csv") == missing_csv_content("", before, "x.csv") == []
    assert missing_csv_content(before, "arm,metric,n\na,nll,3\nb,nll,3\n", "x.csv") == ["the column 'p' of x.csv"]
    assert missing_csv_content(before, before.replace("0.5", ""), "x.csv") == ["1 entry of 'p' of x.csv"]
    assert missing_csv_content("a" * 200_000, before, "x.csv") == []
    assert missing_csv_content(before, before.replace("b,", "c,"), "x.csv") == ["the row 'b' of x.csv"]


def without_curves(folder: Path) -> None:
    for path in Store(folder.parent).cells.glob("*/history.csv"):
        path.unlink()


def kept(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_report_without_the_curves_of_the_one_before_writes_nothing(
    experiment: MakeExperiment, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = experiment(CELLS)
    assert main(["report", str(folder)]) == 0
    assert main(["report", str(folder)]) == 0
    before = kept(folder)
    without_curves(folder)
    capsys.readouterr()
    assert main(["report", str(folder)]) == 1
    assert kept(folder) == before
    said = capsys.readouterr()
    assert "A demonstration" in said.out
    (line,) = said.err.splitlines()
    assert line == (
        f"lm: {folder}/table.md: the report that is there has what the new one lacks: "
        "the section 'Training needed to be as good as the baseline', "
        'the column "steps to the baseline\'s loss" of the first table, the figures learning_curve, gradient_norm '
        "(the curves of 8 of 8 cells are not there); nothing was written, --replace writes the new one"
    )
    assert main(["report", str(folder), "--replace"]) == 0
    assert "steps to the baseline" not in (folder / "table.md").read_text()
    assert "(the curves of 8 of 8 cells are not there)\n" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_report_without_the_records_of_the_one_before_writes_nothing(experiment: MakeExperiment) -> None:
    folder = experiment(CELLS)
    assert main(["report", str(folder)]) == 0
    before = kept(folder)
    (Store(folder.parent).directory("arm-1") / "record.json").unlink()
    assert main(["report", str(folder)]) == 1
    assert kept(folder) == before


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_report_of_an_ablation_is_written_and_says_what_it_lacks(
    experiment: MakeExperiment, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, quiet = experiment(CELLS), Console(file=io.StringIO(), width=200)
    manifest = json.loads((folder / "experiment.json").read_text())
    fewer = {**manifest, "seeds": [0, 1]}
    fewer["arms"] = {
        arm: {**of, "cells": {seed: of["cells"][seed] for seed in "01"}} for arm, of in manifest["arms"].items()
    }
    (folder / "experiment.json").write_text(json.dumps(fewer))
    write_report(folder, quiet)
    (folder / "experiment.json").write_text(json.dumps(manifest))
    write_report(folder, quiet)
    assert capsys.readouterr().err == "", "more seeds lack nothing"
    assert "seeds 0, 1, 2, 3" in (folder / "table.md").read_text()
    without_curves(folder)
    with pytest.raises(ReportWouldShrinkError):
        write_report(folder, quiet, replace=False)
    assert "## Training" in (folder / "table.md").read_text()
    write_report(folder, quiet)
    assert "(the curves of 8 of 8 cells are not there)\n" in capsys.readouterr().err
    assert "## Training" not in (folder / "table.md").read_text()
