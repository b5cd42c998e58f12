"""Batches for which memory does not suffice, and tries that said nothing: tried once more, to the same numbers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from helpers import RUN, Patch
from small_runs import train_cell

from lm.data.batch import Batch
from lm.store.record import Record
from lm.store.store import STACK, Store
from lm.training.cell import check
from lm.training.module import LanguageModel, deferred_backward, halves, weighted_halves
from lm.training.train import HALVED, HUNG, add_attempt, is_out_of_memory, read_previous_attempts, set_threads

CPU = (
    "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "4 bytes. Error code 12 (Cannot allocate memory)"
)


def batch(rows: int) -> Batch:
    targets_bt = torch.arange(rows * 3).view(rows, 3)
    targets_bt[0] = -100
    return Batch((targets_bt, targets_bt + 1), targets_bt, torch.arange(rows))


def test_errors_that_mean_out_of_memory() -> None:
    wrapped = ValueError("in a user's code")
    wrapped.__cause__ = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    for error in (MemoryError(), torch.OutOfMemoryError("x"), RuntimeError(CPU), wrapped):
        assert is_out_of_memory(error)
    for other in (RuntimeError("shapes do not fit"), ValueError("out of memory"), KeyboardInterrupt(), None):
        assert not is_out_of_memory(other)


@pytest.mark.parametrize(("rows", "sizes"), [(1, [1]), (2, [1, 1]), (5, [3, 2]), (8, [4, 4])])
def test_halves_are_all_rows_in_their_order(rows: int, sizes: list[int]) -> None:
    whole, actual = batch(rows), halves(batch(rows))
    assert [len(half.rows_b) for half in actual] == sizes
    assert torch.equal(torch.cat([half.targets_bt for half in actual]), whole.targets_bt)
    for place in (0, 1):
        assert torch.equal(torch.cat([half.inputs[place] for half in actual]), whole.inputs[place])
    weights = [float(share) for _, share in weighted_halves(whole)]
    assert sum(weights) == (1 if rows > 1 else 0)
    if rows == 5:
        assert weights == [0.5, 0.5], "the first row predicts nothing"


def test_a_deferred_backward_is_scaled_as_any_other() -> None:
    weight = torch.ones((), requires_grad=True)
    loss = deferred_backward(lambda scale: (3 * weight * scale).backward(), torch.device("cpu"))
    (loss / 4).backward()
    assert weight.grad == 0.75


def test_a_run_goes_on_with_as_many_threads_as_it_began_with(tmp_path: Path) -> None:
    store, cell, before = Store(tmp_path), cast(Any, SimpleNamespace(id="a" * 64)), torch.get_num_threads()
    store.work(cell.id).mkdir(parents=True)
    try:
        for asked, left, used in (
            (2, None, 2),
            (1, None, 1),
            (3, "last.ckpt", 1),
            (None, "last.ckpt", 1),
            (3, "outcome.json", 1),
            (2, None, 2),
        ):
            for name in ("last.ckpt", "outcome.json"):
                (store.work(cell.id) / name).unlink(missing_ok=True)
            if left is not None:
                (store.work(cell.id) / left).touch()
            set_threads(cell, store, asked)
            assert torch.get_num_threads() == used == read_previous_attempts(store.work(cell.id))["threads"]
    finally:
        torch.set_num_threads(before)


def test_flags_of_attempts_are_kept_once_and_damage_is_ignored(tmp_path: Path) -> None:
    nothing = {"halved": False, "flags": [], "resumed": 0, "threads": None, "branched": None}
    assert read_previous_attempts(tmp_path) == nothing
    add_attempt(tmp_path, HALVED, halved=True)
    add_attempt(tmp_path, HUNG)
    add_attempt(tmp_path, HUNG)
    assert read_previous_attempts(tmp_path) == {**nothing, "halved": True, "flags": [HALVED, HUNG]}
    add_attempt(tmp_path, resumed=3)
    assert read_previous_attempts(tmp_path) == {
        **nothing,
        "halved": True,
        "flags": [HALVED, HUNG],
        "resumed": 3,
    }
    for content in ("", "{", "[]", '{"format": 1}', '{"format": 9, "halved": true, "flags": []}'):
        (tmp_path / "tries.json").write_text(content)
        assert read_previous_attempts(tmp_path) == nothing
    (tmp_path / "tries.json").write_text('{"format": 1, "halved": true, "flags": ["x"]}')  # of an older version
    assert read_previous_attempts(tmp_path) == {**nothing, "halved": True, "flags": ["x"]}


def trained(out: Path, changes: dict[str, Any] | None = None, seconds: float = 20.0) -> Record:
    return train_cell(out, changes, checkpoint_seconds=seconds)[1]


def scarce(monkeypatch: Patch, error: Exception, rows: int, start: int = 0) -> None:
    """Lets no more than so many rows be taken at once, from an optimiser step on."""
    loss = LanguageModel.loss_and_extras

    def limited(self: LanguageModel, batch: Batch) -> Any:
        if len(batch.rows_b) > rows and self.model.training and self.global_step >= start:
            raise error
        return loss(self, batch)

    monkeypatch.setattr(LanguageModel, "loss_and_extras", limited)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return trained(tmp_path_factory.mktemp("whole"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "start"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), 0),
        *(pytest.param(*of, marks=pytest.mark.extra) for of in ((RuntimeError(CPU), 7), (MemoryError(), 3))),
    ],
)
def test_a_cell_out_of_memory_is_trained_in_halves(
    tmp_path: Path, whole: Record, monkeypatch: Patch, error: Exception, start: int
) -> None:
    scarce(monkeypatch, error, 4, start)
    actual = trained(tmp_path, seconds=0.0)
    assert (actual["id"], actual["status"]) == (whole["id"], "ok")
    assert actual["flags"] == [*whole["flags"], HALVED]
    assert actual["pairing"] == whole["pairing"]
    assert actual["steps"] == whole["steps"]
    assert actual["cost"]["tokens"] == whole["cost"]["tokens"]
    for name, value in whole["metrics"].items():
        assert actual["metrics"][name] == pytest.approx(value, rel=1e-9), name
    assert not (Store(tmp_path).directory(actual["id"]) / "tries.json").exists()


@pytest.mark.extra
def test_what_is_accumulated_over_several_batches_is_halved_too(tmp_path: Path, monkeypatch: Patch) -> None:
    changes = {"trainer.accumulate_grad_batches": 2}
    before = trained(tmp_path / "whole", changes)
    scarce(monkeypatch, MemoryError(), 4)
    actual = trained(tmp_path / "halved", changes)
    assert actual["metrics"]["nll"] == pytest.approx(before["metrics"]["nll"], rel=1e-9)
    assert actual["metrics"]["gradient_norm"] == pytest.approx(before["metrics"]["gradient_norm"], rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "batch_size"), [(2, 8), (0, 1)])
def test_a_cell_too_large_for_halves_fails_with_the_error(
    tmp_path: Path, monkeypatch: Patch, rows: int, batch_size: int
) -> None:
    scarce(monkeypatch, RuntimeError(CPU), rows)
    actual = trained(tmp_path, {"data.batch_size": batch_size})
    assert actual["status"] == "failed"
    assert "can't allocate memory" in str(actual["error"])
    assert (HALVED in actual["flags"]) is (batch_size > 1)


@pytest.mark.extra
def test_the_stack_of_a_hang_is_logged_and_recorded(tmp_path: Path) -> None:
    cell, store = check(RUN), Store(tmp_path)
    store.work(cell.id).mkdir(parents=True)
    (store.work(cell.id) / STACK).write_text('File "model.py", line 7 in forward\n')
    actual = trained(tmp_path)
    assert actual["flags"][-1] == HUNG
    assert "line 7 in forward" in (store.directory(cell.id) / "log.txt").read_text()
    assert not (store.directory(cell.id) / STACK).exists()
