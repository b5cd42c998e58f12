"""Results as an old version left them, in `tests/old`: read, reported, and none of their cells trained again."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from helpers import cells_line
from messages import CheckMessage

import lm.training.train
from lm.analysis.results import load
from lm.cli import main
from lm.store.formats import MANIFEST, RECORD
from lm.store.validation import validate_record

OLD = ROOT / "tests" / "old"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The experiment's folder in a copy, from which commands are run; training is refused."""
    shutil.copytree(OLD, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a cell is trained")

    monkeypatch.setattr(lm.training.train, "train", refused)
    return Path("results/old")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_its_files_are_of_the_oldest_shapes() -> None:
    manifest = json.loads((OLD / "results/old/experiment.json").read_text())
    assert manifest["format"] == 1
    assert not {"tier", "secondary", "confirmatory", "claims", "design"} & manifest.keys()
    records = [json.loads(path.read_text()) for path in OLD.glob("results/cells/*/record.json")]
    assert len(records) == 4
    for record in records:
        assert record["format"] == 1
        assert not {"initial", "final", "flags", "evaluations", "curve"} & record.keys()
        assert not {"precision", "code"} & record["provenance"].keys()


def test_it_is_read_as_if_this_version_had_written_it() -> None:
    results = load(OLD / "results/old")
    assert results.manifest["format"] == MANIFEST.version
    assert (results.arms, results.confirmatory, results.judged) == (["gelu", "relu"], ["relu"], ["nll"])
    assert (results.corrupt_records, results.corrupt_curves) == ({}, {})
    for record in results.of("gelu") + results.of("relu"):
        assert record["format"] == RECORD.version
        assert validate_record(record) == ""


@pytest.mark.slow
def test_its_report_is_written_over_the_old_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(folder.parent)
    assert main(["report", str(folder)]) == 0
    said = capsys.readouterr()
    assert "1.9075" in said.out
    page = (folder / "table.md").read_text()
    assert "| gelu | 2 | 1.9075 ± 0.0015 | - | baseline |" in page
    assert "| relu | 2 | 1.9154 ± 0.0042 |" in page
    assert (folder / "learning_curve.svg").is_file()
    after = contents(folder.parent)
    assert {name: content for name, content in after.items() if "/old/" not in name} == {
        name: content for name, content in before.items() if "/old/" not in name
    }, "cells stay as they were"


def test_nothing_of_it_is_trained_again(
    folder: Path, capsys: pytest.CaptureFixture[str], check_message: CheckMessage
) -> None:
    before = contents(folder.parent)
    assert main(["ablate", "old.yaml", "--out", "results", "--plan"]) == 0
    check_message(cells_line(capsys.readouterr().out))
    assert contents(folder.parent) == before


def test_a_seed_more_is_all_that_would_be_trained(
    folder: Path, capsys: pytest.CaptureFixture[str], check_message: CheckMessage
) -> None:
    assert main(["ablate", "old.yaml", "--out", "results", "--seeds", "3", "--plan"]) == 0
    check_message(cells_line(capsys.readouterr().out))


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_same_command_reports_the_old_cells(
    folder: Path, capsys: pytest.CaptureFixture[str], check_message: CheckMessage
) -> None:
    for name in ("table.md", "table.csv"):
        (folder / name).unlink()
    before = {name for name in contents(folder.parent) if "/cells/" in name}
    assert main(["ablate", "old.yaml", "--out", "results", "--underpowered"]) == 0
    check_message(cells_line(capsys.readouterr().err))
    assert "| relu | 2 | 1.9154 ± 0.0042 |" in (folder / "table.md").read_text()
    assert json.loads((folder / "experiment.json").read_text())["format"] == MANIFEST.version
    assert {name for name in contents(folder.parent) if "/cells/" in name and "/.leases/" not in name} == before
