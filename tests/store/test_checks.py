"""Records are checked, not believed: against themselves, their checksum and the files beside them."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import references
from messages import CheckMessage, Refused
from records import MakeExperiment, record
from rich.console import Console

from lm.analysis.compare import compare
from lm.analysis.results import load
from lm.cli import main
from lm.inference.finished import FinishedRun
from lm.report.notes import notes
from lm.report.write import write_report
from lm.store.documents import KEPT, described, packed
from lm.store.files import write_atomic
from lm.store.store import DamagedError, Store
from lm.store.validation import (
    record_checksum,
    validate_checkpoint,
    validate_checksum,
    validate_numbers,
    with_checksum,
)

CELLS = {"base": [2.0, 2.1, 1.9], "arm": [1.7, 1.85, 1.68]}
TOKENS = np.full(40, 30)


@pytest.fixture
def folder(experiment: MakeExperiment, tmp_path: Path) -> Path:
    """An experiment whose cells keep losses by document of both splits, and say how many steps they were to make."""

    def keep(arm: str, seed: int, stored: dict[str, Any]) -> None:
        work = Store(tmp_path / "out").work(stored["id"])
        nll = stored["metrics"]["nll"]
        stored["metrics"] |= {"test_nll": nll + 0.1, "perplexity": float(np.exp(nll))}
        for quantity, (part, file) in KEPT.items():
            losses = stored["metrics"][quantity] + 0.2 * np.random.default_rng(0).normal(size=40)
            losses += stored["metrics"][quantity] - losses.mean()
            content = packed(losses * TOKENS, TOKENS)
            write_atomic(work / file, content)
            stored[part] = described(content, "document", 1, 40)
        write_atomic(
            work / "config.yaml", "evaluate:\n  max_steps: 7\ntrainer:\n  x:\n    max_steps: 3\n  max_steps: 30\n"
        )
        stored |= {"steps": 30, "final": {"residual_norm": [1.0, 2.5]}}

    return experiment(CELLS, keep)


def edit(folder: Path, path: str, value: Any, seal: str) -> None:
    """Writes another value into the record of arm 1, and a checksum that matches, none, or leaves the one there."""
    file = Store(folder.parent).directory("arm-1") / "record.json"
    content = json.loads(file.read_text())
    *way, last = path.split("/")
    inner = content
    for key in way:
        inner = inner[key]
    inner[last] = value
    if seal == "none":
        del content["provenance"]["checksum"]
    file.write_text(with_checksum(content) if seal == "matching" else json.dumps(content))


def assert_left_out(folder: Path, check_message: CheckMessage) -> None:
    results = load(folder)
    table = compare(results)
    (row,) = table[(table.arm == "arm") & (table.metric == "nll")].itertuples()
    assert results.harmed
    assert (row.n, row.damaged, row.mean) == (2, 1, pytest.approx((1.7 + 1.68) / 2, rel=1e-12))
    (line,) = [line for line in notes(results, table) if "cells/arm-1/record.json" in line]
    check_message([re.sub(r"(\.\d{4})\d+", r"\1", text) for text in (results.corrupt_records["arm", 1], line)])


EDITS = [
    ("metrics/nll", -1.0),
    ("metrics/nll", 1e300),
    ("metrics/nll", 1.85 + 1e-4),
    ("metrics/test_nll", 1.95 + 1e-4),
    ("metrics/accuracy", 1.7),
    ("metrics/ece", -1),
    ("metrics/perplexity", 6.3),
    ("cost/parameters", -5),
    ("steps", 31),
    ("diverged", {"step": 3}),
    ("error", "loss not finite"),
]


@pytest.mark.parametrize(("path", "value"), EDITS, ids=lambda found: str(found)[:24])
def test_a_record_that_disagrees_with_itself_enters_no_number(
    folder: Path, check_message: CheckMessage, path: str, value: Any
) -> None:
    edit(folder, path, value, "none" if path == "steps" else "matching")
    assert_left_out(folder, check_message)


@pytest.mark.parametrize(
    ("path", "value"),
    [("final/residual_norm", [1.0, 3.5]), ("cost/tokens", 5001), ("flags", ["a"]), ("status", "failed")],
)
def test_what_only_the_checksum_can_tell_is_called_edited(
    folder: Path, refused: Refused, check_message: CheckMessage, path: str, value: Any
) -> None:
    edit(folder, path, value, "stale")
    with refused(DamagedError):
        Store(folder.parent).record("arm-1")
    assert_left_out(folder, check_message)
    edit(folder, path, value, "matching")
    assert Store(folder.parent).record("arm-1")


def test_records_without_checksum_are_read(folder: Path) -> None:
    edit(folder, "flags", ["step 3: no"], "none")
    results = load(folder)
    assert not results.harmed
    assert results.records["arm", 1] is not None


def test_written_records_match_their_checksum(tmp_path: Path) -> None:
    store = Store(tmp_path)
    odd: Any = {
        **record("a", 2.0, 0),
        "evaluations": {"lengths": {}, "x": {"é\u2028": [1e-7, 2**70, (1, 2)], "1": None}},
    }
    assert store.finish("a", odd)["evaluations"] == odd["evaluations"]
    file = store.directory("a") / "record.json"
    written = json.loads(file.read_text())
    assert written["provenance"]["checksum"] == record_checksum(written)
    assert validate_checksum(json.loads(json.dumps(written, indent=7, sort_keys=True))) == ""
    found = store.record("a")
    assert "checksum" not in found["provenance"]
    found["evaluations"]["more"] = {"nll": 2.0}
    store.rewrite("a", found)
    assert store.record("a") == found
    assert validate_checksum(json.loads(file.read_text())) == ""


def test_records_hold_the_hash_of_their_checkpoint(tmp_path: Path, refused: Refused) -> None:
    store = Store(tmp_path)
    for cell, content in (("a", b"weights"), ("b", None)):
        store.work(cell).mkdir(parents=True)
        if content is not None:
            (store.work(cell) / "final.ckpt").write_bytes(content)
        store.finish(cell, record(cell, 2.0, 0))
    found, checkpoint = store.record("a"), store.directory("a") / "last.ckpt"
    assert found["provenance"]["checkpoint"] == {"bytes": 7, "sha256": hashlib.sha256(b"weights").hexdigest()}
    assert validate_checkpoint(found, checkpoint) == ""
    assert FinishedRun(checkpoint.parent, found, {}).checkpoint == checkpoint
    checkpoint.write_bytes(b"weightz")
    assert validate_checkpoint(store.record("b"), checkpoint) == "", "an older version kept none"
    with refused():
        _ = FinishedRun(checkpoint.parent, found, {}).checkpoint


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("quantity", KEPT)
@pytest.mark.parametrize("how", ["changed", "missing"])
def test_damaged_losses_by_document_are_named(
    folder: Path, quantity: str, how: str, check_message: CheckMessage
) -> None:
    path = Store(folder.parent).documents("arm-1", quantity)
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"\1")
    results = load(folder)
    assert list(results.corrupt_documents) == [("arm-1", quantity)]
    assert results.records["arm", 1] is not None
    lines = [line for line in notes(results, compare(results)) if f"cells/arm-1/{path.name}" in line]
    assert lines
    check_message(lines)
    assert main(["report", str(folder)]) == 1


def test_records_copied_without_documents_are_not_damaged(folder: Path) -> None:
    for place in Store(folder.parent).cells.glob("[a-z]*"):
        for file in place.glob("*.npz"):
            file.unlink()
    assert len(load(folder).corrupt_documents) == 12  # a curve lies beside them
    for file in Store(folder.parent).cells.glob("*/history.csv"):
        file.unlink()
    assert not load(folder).harmed


@pytest.mark.slow
def test_a_sound_experiment_is_not_accused(folder: Path) -> None:
    results = load(folder)
    assert not results.harmed
    assert not [line for line in notes(results, compare(results)) if line.startswith("Warning")]
    assert not write_report(folder, Console(quiet=True)).damaged


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_every_committed_record_agrees_with_itself() -> None:
    assert {validate_numbers(found) for found in references.records().values()} == {""}
