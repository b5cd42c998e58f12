"""A report that would say less than the one it replaces is named, and writes nothing unasked."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lm.cli import main
from lm.config.tree import LessError
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
        ("- A note.\n", ""),
        ("1.9 |", "1.8 |"),
        ("## Figures", "## More\n\n| a |\n| --- |\n| 1 |\n\n## Figures"),
        ("## All measurements", "## Costs"),
    ],
)
def test_a_page_with_other_words_or_more_sections_loses_nothing(old: str, new: str) -> None:
    assert old in PAGE
    assert missing_content(PAGE, PAGE.replace(old, new)) == []
    assert missing_content("", PAGE) == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("## Training", "## Else", ["the section 'Training'"]),
        ("![reliability](reliability.png)\n", "", ["the figure reliability"]),
    ],
)
def test_lost_sections_and_figures_are_named(old: str, new: str, words: list[str]) -> None:
    assert missing_content(PAGE, PAGE.replace(old, new)) == words


def test_a_csv_is_compared_by_its_rows_and_columns() -> None:
    before = "arm,metric,n,p\na,nll,3,0.5\nb,nll,3,\n"
    assert missing_csv_content(before, before, "x.csv") == missing_csv_content("", before, "x.csv") == []
    assert missing_csv_content(before, "arm,metric,n\na,nll,3\nb,nll,3\n", "x.csv") == ["the column 'p' of x.csv"]
    assert missing_csv_content(before, before.replace("0.5", ""), "x.csv") == ["1 entry of 'p' of x.csv"]
    assert missing_csv_content("a" * 200_000, before, "x.csv") == []
    assert missing_csv_content(before, before.replace("b,", "c,"), "x.csv") == ["the row 'b' of x.csv"]
    assert missing_csv_content(before, before.replace("b,nll,3", "b,nll,2"), "x.csv") == ["runs behind 1 row of x.csv"]


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
        f"lm: {folder}/table.md: the existing report has what the new one lacks: "
        "the figures learning_curve, gradient_norm "
        "(the curves of 8 of 8 cells are missing); nothing was written, --replace writes the new one"
    )
    assert main(["report", str(folder), "--replace"]) == 0
    assert "steps vs baseline" not in (folder / "table.md").read_text()
    assert "(the curves of 8 of 8 cells are missing)\n" in capsys.readouterr().err


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
    assert "4 seeds (0-3)" in (folder / "table.md").read_text()
    without_curves(folder)
    with pytest.raises(LessError):
        write_report(folder, quiet, replace=False)
    assert "steps vs baseline" in (folder / "table.md").read_text()
    write_report(folder, quiet)
    assert "(the curves of 8 of 8 cells are missing)\n" in capsys.readouterr().err
    assert "steps vs baseline" not in (folder / "table.md").read_text()
