"""The store on disk: a cell is finished or it is not."""

import json
import math
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from messages import CheckMessage, Refused
from records import blank

from lm.config.tree import InputError
from lm.metrics.tokens import TokenStatistics
from lm.store.files import curve_csv, finite, read_json, to_json, write_atomic
from lm.store.formats import RECORD
from lm.store.leases import LostError, try_acquire
from lm.store.metrics import METRICS, describe, metrics_of
from lm.store.record import Record, Status
from lm.store.store import Store

CELL = "0123abcd"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def begun(store: Store, name: str = "history.csv", text: str = "step\n") -> Path:
    """The work folder of a cell with one file that is to be kept and all that are not."""
    for temporary in ("cell.json", "outcome.json", "saving.ckpt"):
        write_atomic(store.work(CELL) / temporary, "{}")
    write_atomic(store.work(CELL) / name, text)
    return store.work(CELL)


def test_atomic_writes_leave_only_the_file(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a" / "b.txt", "é\n")
    write_atomic(tmp_path / "a" / "b.txt", b"\x00\xff")
    assert (tmp_path / "a" / "b.txt").read_bytes() == b"\x00\xff"
    assert os.listdir(tmp_path / "a") == ["b.txt"]


@pytest.mark.parametrize("text", [None, "{", "\x00"])
def test_unreadable_json_is_refused_by_name(tmp_path: Path, check_message: CheckMessage, text: str | None) -> None:
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_json(path)
    check_message(str(caught.value).split(": ")[:2])  # behind it, what Python says


def test_a_cell_is_finished_only_once_it_has_been_renamed(store: Store) -> None:
    work = begun(store)
    write_atomic(work / "record.json", to_json({"format": RECORD.version}))
    assert not store.finished(CELL)
    store.recover(CELL)
    assert store.finished(CELL)
    assert not work.exists()


def test_finished_cells_drop_temporary_files(store: Store) -> None:
    begun(store)
    record: Record = {**blank(CELL), "metrics": {"nll": 1.5, "perplexity": None}}
    unstamped: Any = {name: part for name, part in record.items() if name != "format"}
    assert store.finish(CELL, unstamped) == record
    assert store.record(CELL) == record
    assert sorted(os.listdir(store.directory(CELL))) == ["history.csv", "record.json"]
    assert store.history(CELL).read_text() == "step\n"


def test_final_weights_replace_the_checkpoint_with_the_record(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("disk full")

    work = begun(store)
    write_atomic(work / "last.ckpt", "a checkpoint")
    write_atomic(work / "final.ckpt", "the last weights")
    with monkeypatch.context() as patch:
        patch.setattr("lm.store.store.write_atomic", full)
        with pytest.raises(OSError, match="disk full"):
            store.finish(CELL, blank(CELL))
    assert (work / "last.ckpt").read_text() == "a checkpoint"
    store.finish(CELL, blank(CELL))
    assert sorted(os.listdir(store.directory(CELL))) == ["history.csv", "last.ckpt", "record.json"]
    assert (store.directory(CELL) / "last.ckpt").read_text() == "the last weights"


def test_a_cell_tried_again_replaces_the_failed_one(store: Store) -> None:
    begun(store, "old.txt")
    store.finish(CELL, blank(CELL, "failed"))
    begun(store, "new.txt")
    store.finish(CELL, blank(CELL))
    assert store.record(CELL)["status"] == "ok"
    assert sorted(os.listdir(store.directory(CELL))) == ["new.txt", "record.json"]


def test_remains_of_killed_retries_are_removed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(path: Path, **_: object) -> None:
        raise KeyboardInterrupt

    begun(store)
    store.finish(CELL, blank(CELL, "failed"))
    begun(store)
    with monkeypatch.context() as patch:
        patch.setattr("lm.store.store.shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            store.finish(CELL, blank(CELL))
    store.recover(CELL)
    assert store.record(CELL)["status"] == "ok"
    assert sorted(os.listdir(store.cells)) == [".leases", CELL]


@pytest.mark.parametrize("content", ["", '{"format": 2, "id'])
def test_truncated_records_make_no_cell(store: Store, content: str) -> None:
    work = begun(store)
    write_atomic(work / "record.json", content)
    store.recover(CELL)
    assert not store.finished(CELL)
    assert not (work / "record.json").exists()


def test_dropping_leaves_nothing(store: Store) -> None:
    with store.lock(CELL):
        store.drop(CELL)
        (begun(store) / "folder").mkdir()
        store.drop(CELL)
        assert os.listdir(store.cells) == [".leases"]


def test_lost_leases_remove_nothing_of_the_successor(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped after it has looked, and its successor begins meanwhile."""
    lease = try_acquire(store.cells / "lease", (store.work(CELL),))
    assert lease is not None
    begun(store)
    look = lease.check

    def look_and_sleep() -> None:
        look()
        monkeypatch.setattr(lease, "check", look)
        (store.cells / "lease" / "1").unlink()  # as a successor does, and takes the rooms away
        store.work(CELL).mkdir(exist_ok=True)
        real = os.replace

        def late(found: Path, path: Path) -> None:
            for room in store.work(CELL).glob(".writing-*"):
                shutil.rmtree(room)
            (store.work(CELL) / "last.ckpt").write_text("of the successor")
            real(found, path)

        monkeypatch.setattr("lm.store.store.os.replace", late)

    monkeypatch.setattr(lease, "check", look_and_sleep)
    try:
        with pytest.raises(LostError):
            store.drop(CELL)
        assert (store.work(CELL) / "last.ckpt").read_text() == "of the successor"
    finally:
        monkeypatch.undo()
        lease.release()


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="nobody says when a process began")
def test_partial_files_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, ended = tmp_path / "table.md", subprocess.Popen(["true"])
    ended.wait()

    def half(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def left(pid: int, of: str = "table.md") -> Path:
        """What stays where a process is killed before it puts the file in its place."""
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: pid)
            patch.setattr(os, "unlink", lambda _: None)
            patch.setattr(os, "replace", half)
            with pytest.raises(OSError, match="No space"):
                write_atomic(tmp_path / of, "half")
        return max(tmp_path.iterdir(), key=lambda one: one.stat().st_mtime_ns)

    at_work, other = left(os.getpid()), left(ended.pid, "table.csv")
    left(ended.pid)
    elsewhere = tmp_path / f".table.md.{ended.pid}-1-00000000.abc"
    elsewhere.touch()
    write_atomic(path, "whole")
    assert sorted(tmp_path.iterdir()) == sorted([path, at_work, other, elsewhere])


def test_recovering_leaves_a_cell_to_who_holds_it(store: Store) -> None:
    work = begun(store)
    write_atomic(work / "record.json", to_json({"format": RECORD.version}))
    with store.lock(CELL):
        store.recover(CELL)
        assert not store.finished(CELL)
    store.recover(CELL)
    assert store.finished(CELL)


def test_a_cell_is_claimed_only_if_it_is_free(store: Store, check_message: CheckMessage) -> None:
    with store.lock(CELL), store.claim(CELL) as ours:
        assert not ours
        assert str(os.getpid()) in store.holder(CELL)
    with store.claim(CELL) as ours:
        assert ours
    check_message(store.holder(CELL))


def test_cells_are_pending_until_recorded_or_after_failure(store: Store) -> None:
    assert store.pending(CELL)
    tried_again: dict[Status, bool] = {"failed": True, "ok": False, "diverged": False}
    for status, again in tried_again.items():
        begun(store)
        store.finish(CELL, blank(CELL, status))
        assert not store.pending(CELL)
        assert store.pending(CELL, again=True) is again


@pytest.mark.parametrize("call", ["unlink", "rmtree", "replace"])
def test_a_finish_cut_short_anywhere_is_completed_later(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    begun(store, "old.txt")
    store.finish(CELL, blank(CELL, "failed"))
    begun(store, "new.txt")
    write_atomic(store.work(CELL) / "record.json", to_json(blank(CELL)))
    with store.claim(CELL), monkeypatch.context() as patch:
        patch.setattr("lm.store.store.shutil.rmtree" if call == "rmtree" else f"lm.store.store.os.{call}", killed)
        with pytest.raises(KeyboardInterrupt):
            store.complete(CELL)
    store.recover(CELL)
    assert store.record(CELL)["status"] == "ok"
    assert sorted(os.listdir(store.directory(CELL))) == ["new.txt", "record.json"]


def test_completing_a_completed_cell_removes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(store, "new.txt")
    store.finish(CELL, blank(CELL, "failed"))
    begun(store, "newer.txt")
    write_atomic(store.work(CELL) / "record.json", to_json(blank(CELL)))
    replace = os.replace

    def late(one: Path, other: Path) -> None:
        monkeypatch.setattr(os, "replace", replace)
        store.complete(CELL)
        replace(one, other)

    monkeypatch.setattr(os, "replace", late)
    with pytest.raises(FileNotFoundError):
        store.complete(CELL)
    assert store.record(CELL)["status"] == "ok"
    assert os.listdir(store.cells) == [CELL]


def test_a_record_of_another_version_is_refused(store: Store, refused: Refused) -> None:
    write_atomic(store.directory(CELL) / "record.json", json.dumps({"format": RECORD.version + 1}))
    with refused():
        store.record(CELL)


def test_every_quantity_has_a_unique_label() -> None:
    assert len({meaning.label for meaning in METRICS.values()}) == len(METRICS)
    assert {meaning.better for meaning in METRICS.values()} == {"lower", "higher", None}


def test_the_better_value_is_that_of_the_better_model() -> None:
    """A model that is certain and right, and one that is certain and wrong, as every metric sees them."""
    targets_n = torch.arange(60) % 3
    found = []
    for guesses_n in (targets_n, (targets_n + 1) % 3):
        metric = TokenStatistics(torch.ones(3, dtype=torch.int64), classes=torch.arange(3))
        metric.update(9.0 * torch.nn.functional.one_hot(guesses_n, 3).double(), targets_n)
        found.append(metric.compute())
    judged = [name for name in found[0] if name in METRICS and METRICS[name].better is not None]
    assert {"nll", "perplexity", "bits_per_byte", "accuracy", "ece", "brier"} <= set(judged)
    for name in judged:
        right, wrong = (one[name] for one in found)
        assert right > wrong if METRICS[name].better == "higher" else right < wrong, name


@pytest.mark.parametrize(
    ("name", "described"),
    [
        ("tokens_per_second", ("tokens per second", "1/s", "higher")),
        ("parameters", ("parameters", "", None)),
        ("nll@512", ("validation NLL, blocks of 512 tokens", "nats/token", "lower")),
        ("perplexity@64", ("perplexity, blocks of 64 tokens", "", "lower")),
        ("accuracy@my_task", ("accuracy of my_task", "", None)),
        ("my_metric", ("my_metric", "", None)),
    ],
)
def test_a_quantity_is_described_with_its_unit_and_direction(name: str, described: tuple[str, str, str | None]) -> None:
    found = describe(name)
    assert (found.label, found.unit, found.better) == described


def test_curves_have_step_lines_and_metric_columns() -> None:
    rows = {10: {"train_loss": 2.5}, 5: {"train_loss": 3.0, "noise": 0.5}}
    assert curve_csv(rows) == "step,train_loss,noise\n5,3.0,0.5\n10,2.5,\n"
    assert curve_csv({}) == "step\n"


def test_what_json_cannot_hold_is_missing() -> None:
    assert finite({"a": [1.0, math.nan, {"b": math.inf}], "c": "x"}) == {"a": [1.0, None, {"b": None}], "c": "x"}


def test_numbers_are_metrics_and_other_values_reported(check_message: CheckMessage) -> None:
    measured = {
        "nll": 1.5,
        "evaluated_tokens": 7,
        "reliability": {},
        "mine": 3,
        "lost": math.inf,
        "odd": True,
        "text": "x",
    }
    kept, strange = metrics_of(measured)
    assert kept == {"nll": 1.5, "mine": 3, "lost": math.inf}
    check_message(strange)
    assert metrics_of({}) == ({}, [])
