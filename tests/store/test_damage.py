"""Damaged records and curves: named with cell and file, left out of every number; the rest of a report goes on."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import references
from messages import CheckMessage, Refused
from records import MakeExperiment, record

from lm.analysis.compare import compare
from lm.analysis.pace import steps_to_baseline_loss
from lm.analysis.results import Records, curves, load
from lm.report.figures.catalogue import FigureInputs
from lm.report.figures.training import learning_curve
from lm.report.notes import notes
from lm.report.sections import all_sections
from lm.report.tables import main_table, more_metrics
from lm.store.store import Store
from lm.store.validation import curve_checksum, validate_curve_text, validate_record, with_checksum

CELLS = {"base": [2.0, 2.1, 1.9], "arm": [1.7, 1.85, 1.68], "other": [1.8, 1.9, 1.7]}

# records -------------------------------------------------------------------------------------------------------------


def whole() -> dict[str, Any]:
    """A record with everything that a report may look into."""
    layers = {"entropy": [[0.5, 0.4], [0.3, 0.2]], "gradient_norm": {"mlp_in": [1.0, 2.0], "bias": [1.0, 2.0, 3.0]}}
    lengths = {"16": {"tokens": 32, "nll": 2.0, "sliding_nll": 1.9, "by_position": [2.0] * 16}, "32": {"error": "no"}}
    more = {
        "initial": layers,
        "final": layers,
        "flags": ["step 3: no"],
        "evaluations": {"lengths": lengths},
        "steps": 30,
    }
    return {**record("cell", 2.0, 0), **json.loads(json.dumps(more))}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The whole record with another value at a path; ... takes it away."""
    found: Any = whole()
    *way, last = [int(key) if key.isdecimal() and key not in ("16", "32") else key for key in path.split("/")]
    inner: Any = found
    for key in way:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return dict(found)


DAMAGES = [
    ("id", 3),
    ("status", "well"),
    ("status", ...),
    ("metrics", [1]),
    ("metrics", {}),
    ("metrics/nll", "2.0"),
    ("metrics/ece", [0.1]),
    ("metrics/ece", math.nan),
    ("evaluations/more", {"text": [math.inf]}),
    ("metrics/ece", 10**400),
    ("metrics/ece", True),
    ("cost/tokens", {"a": 1}),
    ("provenance/packages", ...),
    ("data/tokenizer", 7),
    ("data/unigram_nll", "3.1"),
    ("evaluated/tokens", 1.5),
    ("evaluated", ...),
    ("pairing", None),
    ("flags", "step 3"),
    ("steps", -1),
    ("initial/entropy/0/1", "x"),
    ("initial/entropy/1", [0.3]),
    ("final/entropy", [[0.3, 0.2]]),
    ("final/gradient_norm/mlp_in", {"a": "b"}),
    ("reliability/accuracy", [0.1]),
    ("evaluations/lengths/16/nll", "2"),
    ("evaluations/lengths/16/by_position", ...),
    ("evaluations/lengths/32", 2.0),
    ("format", ...),
    ("provenance/git", {"commit": "c"}),
    ("provenance/code", {"own.Part": {"known_by": "k", "git": True}}),
    ("provenance/checkpoint", {"bytes": -1, "sha256": "x"}),
    ("evaluations/lengths", [1]),
    ("pairing/batches", "2"),
    ("reliability/count", [10, None]),
    ("reliability/accuracy", 3),
]


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_every_committed_record_is_valid() -> None:
    assert validate_record(whole()) == ""
    for outcome in ("diverged", "failed"):
        assert validate_record(record("cell", outcome, 0)) == ""
    assert {validate_record(found) for found in references.records().values()} == {""}


@pytest.mark.parametrize(("path", "value"), DAMAGES, ids=lambda x: str(x)[:30])
def test_a_damaged_record_is_named(tmp_path: Path, refused: Refused, path: str, value: Any) -> None:
    file = Store(tmp_path).directory("arm-1") / "record.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({**changed(path, value), "id": value if path == "id" else "arm-1"}))
    with refused():
        Store(tmp_path).record("arm-1", needed=True)


@pytest.mark.parametrize(
    "content",
    [
        json.dumps({**changed("metrics/nll", "2.0"), "id": "arm-1"}),
        *("", "{", '{"format": 1, "status": "o', "[" * 10**5, "\xff"),
        *("null", "[1]", '"text"'),
    ],
    ids=["text", "empty", "brace", "cut", "deep", "no text", "null", "list", "string"],
)
def test_a_damaged_or_truncated_record_enters_nothing(
    experiment: MakeExperiment, check_message: CheckMessage, content: str
) -> None:
    folder = experiment(CELLS)
    (Store(folder.parent).directory("arm-1") / "record.json").write_bytes(content.encode("latin-1"))
    assert_left_out(load(folder), "cells/arm-1/record.json", check_message)


@pytest.mark.parametrize("other", ["base-1", "other-0", "arm-0"])
def test_swapped_records_are_excluded_by_their_ids(
    experiment: MakeExperiment, check_message: CheckMessage, other: str
) -> None:
    folder = experiment(CELLS)
    files = [Store(folder.parent).directory(cell) / "record.json" for cell in ("arm-1", other)]
    first, second = [file.read_bytes() for file in files]
    files[0].write_bytes(second)
    files[1].write_bytes(first)
    results = load(folder)
    table = compare(results)
    lines = [line for line in notes(results, table) if line.startswith("Warning: ")]
    check_message([results.corrupt_records["arm", 1], *lines])
    assert [path in " ".join(lines) for path in ("cells/arm-1/record.json", f"cells/{other}/record.json")] == [True] * 2
    assert results.records["arm", 1] is None
    arm, seed = other.split("-")
    assert results.records[arm, int(seed)] is None
    (mean,) = table[(table.arm == "arm") & (table.metric == "nll")]["mean"]
    assert mean == pytest.approx({"arm": 1.68}.get(arm, (1.7 + 1.68) / 2), rel=1e-12)


def assert_left_out(results: Records, path: str, check_message: CheckMessage) -> None:
    table = compare(results)
    (row,) = table[(table.arm == "arm") & (table.metric == "nll")].itertuples()
    assert (row.n, row.damaged, row.missing, row.failed, row.pairs) == (2, 1, 0, 0, 2)
    assert row.mean == pytest.approx((1.7 + 1.68) / 2, rel=1e-12)
    assert "1 damaged" in row.verdict
    (line,) = [line for line in notes(results, table) if path in line]
    check_message(line.split(": ")[:4])  # behind it, what Python says of what is no JSON
    assert ["arm", "2, 1 damaged"] in [row[:2] for row in main_table(results, table).rows]


CURVE = "step,train_loss,validation_nll\n1,5.0,\n4,4.5,4.6\n8,4.0,4.1\n12,3.9,4.0\n16,3.8,3.9\n18,3.7,\n"
RUN = {"steps": 18}


def rows(*kept: int) -> str:
    lines = CURVE.splitlines(keepends=True)
    return "".join(lines[index] for index in (0, *kept))


@pytest.mark.parametrize(
    "content",
    [
        CURVE[:-1],
        CURVE[:-4],
        rows(1, 2, 3),
        rows(),
        "",
        CURVE.replace("4.1", "4,1"),
        CURVE.replace("4.1", "4.l"),
        CURVE.replace("8,4.0", "eight,4.0"),
        CURVE.replace("step", "stop"),
    ],
    ids=["end", "row", "rows", "head", "empty", "comma", "letter", "word", "column"],
)
def test_a_damaged_curve_is_detected_with_and_without_its_checksum(check_message: CheckMessage, content: str) -> None:
    assert validate_curve_text(CURVE, RUN) == ""
    check_message(validate_curve_text(content, RUN))
    assert validate_curve_text(content, {**RUN, "curve": curve_checksum(CURVE)})


def test_a_checksum_detects_any_change_of_a_curve(check_message: CheckMessage) -> None:
    record = {**RUN, "curve": curve_checksum(CURVE)}
    assert validate_curve_text(CURVE, record) == ""
    check_message([validate_curve_text(text, record) for text in (rows(1, 2), CURVE.replace("4.1", "4.2"))])


def broken(folder: Path, cell: str, seal: bool) -> Path:
    """Takes the last row of a cell's curve away; with a seal, one in the middle as well would do."""
    store = Store(folder.parent)
    path, file = store.history(cell), store.directory(cell) / "record.json"
    described = json.loads(file.read_text())
    more = {"curve": curve_checksum(path.read_text())} if seal else {"steps": 30}
    file.write_text(with_checksum({**described, **more}))
    assert not load(folder).corrupt_curves
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    return path


@pytest.mark.parametrize("seal", [True, False])
def test_results_of_a_damaged_curve_are_withheld(
    experiment: MakeExperiment, check_message: CheckMessage, seal: bool
) -> None:
    folder = experiment(CELLS)
    path = broken(folder, "arm-2", seal)
    results = load(folder)
    table, paces = compare(results), steps_to_baseline_loss(results)
    shown = more_metrics(results, table, paces)
    column = shown.columns.index("steps vs baseline")
    steps = {row[0]: row[column] for row in shown.rows}
    assert steps["arm"] == "-"
    assert steps["other"] != "-"
    assert curves(results, "arm", "validation_nll").empty
    assert [row[0] for section in all_sections(results, []) for row in section.rows].count("arm") == 1, "costs"
    chart = learning_curve(FigureInputs(results, table))
    assert chart is not None
    labels = [series.label for panel in chart.panels[:1] for series in panel.series]  # type: ignore[union-attr]
    assert labels == ["base (n=3)", "other (n=3)"]
    (line,) = [line for line in notes(results, table) if f"cells/{path.parent.name}/history.csv" in line]
    check_message(line)
    assert table[(table.arm == "arm") & (table.metric == "nll")].n.item() == 3, "the record is as good as it was"


def test_a_missing_curve_is_damage_unless_all_are_missing(
    experiment: MakeExperiment, check_message: CheckMessage
) -> None:
    folder = experiment(CELLS)
    for seed in range(3):
        Store(folder.parent).history(f"other-{seed}").unlink()
    Store(folder.parent).history("arm-1").unlink()
    results = load(folder)
    assert list(results.corrupt_curves) == ["arm-1"]
    check_message(results.corrupt_curves["arm-1"])
    assert [one.arm for one in steps_to_baseline_loss(results)] == []


@pytest.mark.parametrize("content", [b"\xff\xfe", b"step,validation_nll\n10,\0\n"])
def test_a_curve_that_is_no_text_is_reported(experiment: MakeExperiment, content: bytes) -> None:
    folder = experiment(CELLS)
    Store(folder.parent).history("arm-1").write_bytes(content)
    assert list(load(folder).corrupt_curves) == ["arm-1"]


def test_a_margin_of_zero_is_damage(experiment: Callable[..., Path], refused: Refused) -> None:
    with refused():
        load(experiment({"a": [2.0], "b": [1.9]}, margin={"nll": 0}))
