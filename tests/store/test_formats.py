"""Files that older versions wrote are read as if this one had written them."""

import copy
import io
import json
from pathlib import Path
from typing import Any, cast

import pytest
import references
from helpers import RUN
from messages import Refused
from records import MakeExperiment
from rich.console import Console

from lm.analysis.comparability import provenance_of
from lm.analysis.compare import compare
from lm.analysis.results import load
from lm.execution.estimate import Stopwatch
from lm.report.write import write_report
from lm.store.formats import MANIFEST, RECORD, Format
from lm.store.record import Record
from lm.store.validation import validate_record
from lm.training.cell import check

LATER = {
    "initial": ("initial", "final", "flags", "evaluations", "curve"),
    "evaluations": ("evaluations", "curve"),
    "curve": ("curve",),
}
"""What records of older shapes lack, by the first of it."""

WITHOUT_CURVE = Path(__file__).with_name("record_without_curve.json")
"""A record of a shape that no reference has any more."""


def by_shape() -> dict[str, dict[str, Any]]:
    """A record of each shape that there has been, by the parts that it lacks of those above."""
    found: dict[str, dict[str, Any]] = {}
    for record in (json.loads(WITHOUT_CURVE.read_text(encoding="utf-8")), *references.records().values()):
        shape = next((name for name in LATER if name not in record), "none")
        found.setdefault(shape if record["format"] == 1 else "new", record)
    return found


@pytest.mark.parametrize("shape", [*LATER, "none"])
def test_a_record_of_each_shape_is_read_whole(shape: str) -> None:
    old = by_shape()[shape]
    new = RECORD.read(copy.deepcopy(old), Path("record.json"))
    assert new["format"] == RECORD.version
    assert {*LATER["initial"], "reliability", "error", "diverged", "steps"} <= set(new)
    assert validate_record(new) == ""
    assert new["evaluations"] == old.get("evaluations", {})
    assert new["flags"] == old.get("flags", [])
    assert {name: part for name, part in new.items() if name in old and name not in ("format", "provenance")} == {
        name: part for name, part in old.items() if name not in ("format", "provenance")
    }
    assert new["provenance"].keys() - old["provenance"].keys() <= {"precision", "code"}
    assert RECORD.read(new, Path("record.json")) == new


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_manifest_from_before_the_inference_was_declared_is_read(experiment: MakeExperiment) -> None:
    base, arm = [2.0, 2.1, 1.9, 2.05, 2.2, 1.95, 2.02], [1.7, 1.85, 1.68, 1.8, 1.92, 1.66, 1.73]
    folder = experiment({"base": base, "arm": arm, "other": base}, notes="")
    today = json.loads((folder / "experiment.json").read_text())
    kept = ("name", "title", "notes", "baseline", "metric", "seeds", "arms")
    old = {"format": 1, **{key: today[key] for key in kept if key in today}}
    (folder / "experiment.json").write_text(json.dumps(old))
    results = load(folder)
    assert results.confirmatory == ["arm", "other"]
    assert results.judged == ["nll"]
    table = compare(results)
    assert table[(table.arm == "arm") & (table.metric == "nll")].verdict.item() == "better"
    write_report(folder, Console(file=io.StringIO()))


def test_every_manifest_of_the_references_is_read() -> None:
    for name, text in references.named("experiment.json").items():
        assert MANIFEST.read(json.loads(text), Path(name))["format"] == MANIFEST.version


@pytest.mark.parametrize("found", [0, 3, "1", None, True, 1.5], ids=repr)
def test_another_version_is_one_line(refused: Refused, found: Any) -> None:
    with refused():
        Format("thing", 2, {1: dict}).read({"format": found}, Path("a.json"))


def test_versions_are_taken_step_by_step() -> None:
    steps = {1: lambda content: {**content, "a": 1}, 2: lambda content: {**content, "b": content["a"] + 1}}
    assert Format("thing", 3, steps).read({"format": 1}, Path()) == {"format": 3, "a": 1, "b": 2}
    assert Format("thing", 3, steps).read({"format": 2, "a": 5}, Path()) == {"format": 3, "a": 5, "b": 6}


def test_missing_provenance_is_shown_as_not_recorded() -> None:
    shapes = by_shape()
    old = provenance_of(cast(Record, RECORD.read(shapes["initial"], Path("r"))))
    new = provenance_of(cast(Record, RECORD.read(shapes["none"], Path("r"))))
    assert old.keys() == new.keys()
    assert old["precision"] == "not recorded"
    assert new["precision"] == "32-true"


def test_step_times_from_before_they_had_a_format_are_read(tmp_path: Path) -> None:
    cell = check(RUN)
    path = tmp_path / "seconds.json"
    path.write_text(json.dumps({cell.id: 0.25}))
    assert Stopwatch(path)(cell) == 0.25


@pytest.mark.parametrize(
    "content", ["[]", '{"format": 1}', '{"format": 1, "seconds": []}', '{"cell": "x"}', '{"cell": 0}']
)
def test_damaged_step_times_are_one_line(tmp_path: Path, refused: Refused, content: str) -> None:
    path = tmp_path / "seconds.json"
    path.write_text(content)
    with refused():
        Stopwatch(path)(check(RUN))
