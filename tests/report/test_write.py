"""A report reads every file once, whatever is made of it."""

import io
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest
from records import MakeExperiment
from rich.console import Console

from lm.analysis.curve import curve_table
from lm.analysis.pace import steps_to_baseline_loss
from lm.cli import main
from lm.report.write import update_report, write_report
from lm.store import user_cache
from lm.store.files import read_json, to_json, write_atomic


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file of a cell is read, as text and as a table."""
    counts: Counter[str] = Counter()
    text, table = Path.read_text, pd.read_csv

    def counted(kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Path, *arguments: Any, **options: Any) -> Any:
            counts["/".join([*path.parts[-2:], kind])] += 1
            return real(path, *arguments, **options)

        return call

    monkeypatch.setattr(Path, "read_text", counted("text", text))
    monkeypatch.setattr(pd, "read_csv", counted("table", table))
    return counts


def test_every_record_and_every_curve_is_read_once(
    experiment: MakeExperiment, read: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lm.report.figures.picture.render", lambda *_: {})  # the bytes of a figure take longest
    folder = experiment({"base": [2.0, 2.1, 1.9], "arm": [1.9, 1.8, 1.7]})
    read.clear()  # of making them
    steps = Mock(wraps=steps_to_baseline_loss)
    monkeypatch.setattr("lm.report.experiment.steps_to_baseline_loss", steps)
    write_report(folder, Console(file=io.StringIO(), width=200))
    assert steps.call_count == 1, "the steps to the baseline's loss are computed once for all tables"
    cells = [f"{arm}-{seed}" for arm in ("base", "arm") for seed in range(3)]
    ways = ("record.json/text", "config.yaml/text", "history.csv/text", "history.csv/table")  # texts for damage
    of_cells = {name: count for name, count in read.items() if name.partition("/")[0] in cells}
    assert of_cells == {f"{cell}/{way}": 1 for cell in cells for way in ways}


def test_a_curve_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    path.write_text("step,a,a/part\n1,2.0,3.0\n")
    first = curve_table(path)
    assert curve_table(path) is first
    assert list(first.columns) == ["a"]
    assert list(curve_table(path, parts=True).columns) == ["a", "a/part"]
    path.write_text("step,a\n1,2.0\n2,3.0\n")
    assert curve_table(path)["a"].tolist() == [2.0, 3.0]


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_all_figures_are_written_where_requested(experiment: Callable[..., Path]) -> None:
    folder = experiment({"base": [2.0, 2.1], "arm": [1.9, 1.8]})
    usual = {"differences.png", "difference_curve.png", "learning_curve.png"}
    assert main(["report", str(folder)]) == 0
    assert {path.name for path in folder.glob("*.png")} == usual
    assert main(["report", str(folder), "--figures", "all"]) == 0
    assert {path.name for path in folder.glob("*.png")} == usual | {"reliability.png", "costs.png", "gradient_norm.png"}
    assert "![differences](differences.png)" in (folder / "table.md").read_text()


@pytest.mark.extra
@pytest.mark.usefixtures("undrawn")
def test_only_changed_files_or_cells_are_written_again(
    experiment: MakeExperiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(user_cache, "SLOW", ())
    monkeypatch.setattr(user_cache, "_versions", [])
    monkeypatch.setattr("lm.report.figures.picture.render", lambda *_: {"png": b"a picture"})
    folder = experiment({"base": [2.0, 2.1, 1.9], "arm": [1.9, 1.8, 1.7]})

    def updated() -> list[str]:
        """Return the names of the files that a report writes, and check that it prints its table."""
        before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
        console = Console(file=io.StringIO(), width=200)
        update_report(folder, console)
        assert isinstance(console.file, io.StringIO)
        assert "arm" in console.file.getvalue()
        return sorted(path.name for path in folder.iterdir() if path.stat().st_mtime_ns != before.get(path))

    written = updated()
    assert {"report.html", "table.md", "table.csv", "differences.png"} <= set(written)
    assert updated() == []
    (folder / "table.md").write_text("another text")
    assert updated() == written
    (folder / "report.html").unlink()
    assert updated() == written
    assert updated() == []
    record = next((folder.parent / "cells").glob("*/record.json"))
    record.touch()
    assert updated() == written
    assert updated() == []
    in_orders = read_json(folder / "experiment.json") | {"name": "demo.orders"}
    write_atomic(folder.with_name("demo.orders") / "experiment.json", to_json(in_orders))
    assert updated() == written, "the report now reads the runs in several orders too"
