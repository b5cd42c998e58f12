"""A run that begins from a checkpoint of a longer one gives the numbers of one that began at its first step."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import RUN, Capture
from messages import CheckMessage
from small_runs import Killed, kill_at, silent

from lm.ablation.branches import branch_step
from lm.config.tree import Tree, override
from lm.store.record import Record
from lm.store.store import Store, branch_checkpoint
from lm.training.cell import check
from lm.training.identified import Cell
from lm.training.process import Execution
from lm.training.train import train

pytestmark = pytest.mark.slow

STABLE: Tree = {
    "optim.schedule": {"class_path": "WarmupStableDecay", "init_args": {"warmup": 2, "decay": 2}},
    "trainer.max_steps": 16,
}
SHORT: Tree = {"trainer.max_steps": 8}  # its rate descends from step 7 on
EXTRAS = {
    "averaged weights": {"trainer.ema": {"half_life": 3}},
    "two batches a step": {"trainer.accumulate_grad_batches": 2},
    "longer contexts": {"data.context_warmup": {"start": 8, "batches": 7}},
    "dropout": {"model.dropout": 0.1},
    "a constant rate": {"optim.schedule": {"class_path": "Constant", "init_args": {"warmup": 2}}},
    "beta2 that warms up": {"optim.beta2_warmup": True},
}


def cells(changes: dict[str, Any]) -> tuple[Cell, Cell]:
    return check(override(RUN, STABLE | changes)), check(override(RUN, STABLE | changes | SHORT))


def leave(out: Path, step: int | None = None, threads: int = 1, **changes: Any) -> tuple[Cell, Store]:
    """Train the long cell, which leaves a checkpoint as late as it can for the short one; return that one."""
    longer, shorter = cells(changes)
    step = branch_step(longer.config, shorter.config) if step is None else step
    train(longer, Store(out), silent, Execution(threads=threads, branches=((step, shorter.id),)))
    return shorter, Store(out)


def train_short(out: Path, cell: Cell, **settings: Any) -> tuple[Record, Path]:
    store = Store(out)
    train(cell, store, silent, Execution(threads=1, **settings))
    return store.record(cell.id), store.directory(cell.id)


def assert_equal(ours: tuple[Record, Path], theirs: tuple[Record, Path]) -> None:
    for part in ("status", "steps", "metrics", "initial", "final", "pairing", "reliability", "evaluated", "flags"):
        assert ours[0].get(part) == theirs[0].get(part), part
    assert (ours[1] / "history.csv").read_bytes() == (theirs[1] / "history.csv").read_bytes()
    weights = [torch.load(folder / "last.ckpt", weights_only=True)["state_dict"] for _, folder in (ours, theirs)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])


@pytest.mark.parametrize("changes", [{}, *EXTRAS.values()], ids=["plain", *EXTRAS])
def test_a_branch_has_the_numbers_of_a_run_from_the_start(tmp_path: Path, changes: dict[str, Any]) -> None:
    cell, store = leave(tmp_path / "out", **changes)
    assert branch_checkpoint(store.cells, cell.id).is_file()
    branched = train_short(store.out, cell)
    whole = train_short(tmp_path / "anew", cell)
    assert_equal(branched, whole)
    assert branched[0]["provenance"]["branched"]["step"] == (7 if "optim.schedule" in changes else 5)
    assert "branched" not in whole[0]["provenance"]
    assert branched[0]["cost"]["tokens"] == whole[0]["cost"]["tokens"]
    assert not branch_checkpoint(store.cells, cell.id).parent.exists()


def test_the_long_run_is_the_one_that_leaves_no_checkpoint(tmp_path: Path) -> None:
    leave(tmp_path / "out")
    longer, _ = cells({})
    train(longer, Store(tmp_path / "alone"), silent, Execution(threads=1))
    stores = [Store(tmp_path / name) for name in ("out", "alone")]
    left, alone = ((store.record(longer.id), store.directory(longer.id)) for store in stores)
    assert_equal(left, alone)


def test_a_branch_that_is_killed_goes_on_from_its_own_checkpoint(tmp_path: Path) -> None:
    cell, store = leave(tmp_path / "out", **{"trainer.log_every_n_steps": 1})
    with pytest.raises(Killed):
        train(cell, store, kill_at(7), Execution(threads=1, checkpoint_seconds=0.0))
    assert store.started(cell.id)
    resumed = train_short(store.out, cell)
    assert_equal(resumed, train_short(tmp_path / "anew", cell))
    assert resumed[0]["provenance"]["branched"]["step"] == 5
    assert resumed[0]["provenance"]["resumed"] == 1


def test_a_checkpoint_that_is_damaged_is_not_used(tmp_path: Path, capsys: Capture, check_message: CheckMessage) -> None:
    cell, store = leave(tmp_path / "out")
    checkpoint = branch_checkpoint(store.cells, cell.id)
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    record, folder = train_short(store.out, cell)
    check_message(capsys.readouterr().err.replace(str(tmp_path), "OUT").replace(cell.id, "ID"))
    assert "branched" not in record["provenance"]
    assert_equal((record, folder), train_short(tmp_path / "anew", cell))


def test_a_checkpoint_of_other_threads_is_not_used(tmp_path: Path) -> None:
    cell, store = leave(tmp_path / "out", threads=2)
    assert "branched" not in train_short(store.out, cell)[0]["provenance"]


def test_no_checkpoint_is_left_where_validation_follows(tmp_path: Path) -> None:
    cell, store = leave(tmp_path / "out", step=4)
    assert not branch_checkpoint(store.cells, cell.id).exists()


def test_a_run_that_diverged_leaves_none(tmp_path: Path) -> None:
    changes = {"optim.lr": 1e300, "optim.schedule.warmup": 0, "trainer.gradient_clip_val": None}
    longer, shorter = cells(changes)
    store = Store(tmp_path)
    train(longer, store, silent, Execution(threads=1, branches=((5, shorter.id),)))
    assert store.record(longer.id)["status"] == "diverged"
    assert not branch_checkpoint(store.cells, shorter.id).exists()


def test_a_checkpoint_is_for_one_cell(tmp_path: Path) -> None:
    cell, store = leave(tmp_path / "out")
    other = check(override(RUN, STABLE | SHORT | {"seed": 1}))
    assert "branched" not in train_short(store.out, other)[0]["provenance"]
    assert branch_checkpoint(store.cells, cell.id).is_file()
