"""Experts balanced by a bias: one update a step, whatever a step is divided into, and after an interruption."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers import RUN, Patch, known
from small_runs import Killed, kill_at, train_cell
from torch import Tensor

from lm.config.tree import Tree, override
from lm.store.store import Store

MIXTURE = {"class_path": "Experts", "init_args": {"balance": "bias", "rate": 0.01}}
WHOLE: Tree = {
    "model.mlp": MIXTURE,
    "trainer.val_check_interval": 100,
    "trainer.log_every_n_steps": 1,
    "data.evaluation_batch_size": 8,
}


def steps(folder: Path) -> list[Tensor]:
    """The biases of each layer in a checkpoint, in updates."""
    state = torch.load(folder / "last.ckpt", weights_only=True)["state_dict"]
    return [value for name, value in state.items() if name.endswith("steps_e")]


@pytest.mark.slow
def test_accumulation_halves_processes_and_resumption_change_nothing(tmp_path: Path, monkeypatch: Patch) -> None:
    _, one, folder = train_cell(tmp_path / "one", WHOLE)
    assert known(one["metrics"]["extra_expert_load"]) > 1
    assert all(bias_e.any() for bias_e in steps(folder))
    parts = {**WHOLE, "data.batch_size": 4, "trainer.accumulate_grad_batches": 2}
    others: list[tuple[Any, Path]] = [train_cell(tmp_path / "two", parts)[1:]]
    with pytest.raises(Killed):
        train_cell(tmp_path / "killed", WHOLE, kill_at(7), checkpoint_seconds=0.0)
    _, resumed, again = train_cell(tmp_path / "killed", WHOLE, checkpoint_seconds=0.0)
    assert resumed["metrics"]["nll"] == one["metrics"]["nll"]
    others.append((resumed, again))
    attempts = {"halved": True, "flags": [], "resumed": 0}
    with monkeypatch.context() as patch:
        patch.setattr("lm.training.train.read_previous_attempts", lambda _: attempts)
        others.append(train_cell(tmp_path / "halved", WHOLE)[1:])
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(override(RUN, WHOLE)))
    more = ("--out", str(tmp_path / "ddp"), "--trainer.devices", "2", "--trainer.strategy", "ddp")
    command = [sys.executable, "-m", "lm", "fit", str(tmp_path / "run.yaml"), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    store = Store(tmp_path / "ddp")
    others.append((store.record(one["id"]), store.directory(one["id"])))
    for record, other in others:
        assert record["metrics"]["nll"] == pytest.approx(one["metrics"]["nll"], rel=1e-9)
        assert all(torch.equal(*pair) for pair in zip(steps(folder), steps(other), strict=True))


@pytest.mark.slow
@pytest.mark.extra
def test_a_compiled_decoder_leaves_experts_as_they_are(tmp_path: Path) -> None:
    plain, compiled = (
        train_cell(tmp_path / str(on), {"model.mlp": MIXTURE, "trainer.compile": on})[1] for on in (False, True)
    )
    assert compiled["flags"] == []
    assert compiled["metrics"]["nll"] == pytest.approx(plain["metrics"]["nll"], rel=1e-5)
