"""Training that starts from the weights of a finished run: fine-tuning and continued training."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import RUN, Patch
from messages import Refused
from small_runs import resume_cell, train_cell

from lm.config.components import build
from lm.config.tree import override
from lm.model.transformer import load_weights
from lm.store.store import Store
from lm.training.cell import check, with_seed
from lm.training.initial_weights import hash_weights
from lm.training.run import RunConfig

pytestmark = pytest.mark.slow
TINY = {"trainer.max_steps": 4, "trainer.val_check_interval": 4, "trainer.log_every_n_steps": 1}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    return train_cell(tmp_path_factory.mktemp("source") / "results", {**TINY, "seed": 5})[2]


def from_run(run: object) -> dict[str, Any]:
    return {**TINY, "trainer.init_from": str(run)}


@pytest.mark.extra
def test_training_goes_on_from_the_weights_of_a_run(tmp_path: Path, source: Path) -> None:
    cell, record, folder = train_cell(tmp_path, from_run(source))
    assert record["status"] == "ok"
    built = cell.open()
    model = built.model().double()
    model.load_state_dict(load_weights(source / "last.ckpt"))
    run: RunConfig = build(cell.config, RunConfig)
    optimizer, schedule = run.optim.build(model.parameters(), 4)
    for batch in built.data.training_batches(0, 4):
        loss = run.optim.objective.loss(model(*batch.inputs).flatten(0, 1), batch.targets_bt.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    for name, value in load_weights(folder / "last.ckpt").items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-9, atol=1e-12)


@pytest.mark.extra
def test_a_resumed_run_starts_once(tmp_path: Path, source: Path) -> None:
    changes = {**from_run(source), "trainer.max_steps": 12, "trainer.val_check_interval": 100}
    _, whole, _ = train_cell(tmp_path / "whole", changes)
    _, resumed, _ = resume_cell(tmp_path / "killed", changes)
    assert resumed["provenance"]["resumed"] == 1
    assert resumed["metrics"] == whole["metrics"]


def test_the_id_holds_the_weights_and_not_where_they_lie(tmp_path: Path, source: Path, monkeypatch: Patch) -> None:
    cell, plain = check(override(RUN, from_run(source))), check(override(RUN, TINY))
    assert cell.id != plain.id
    assert "init_from" not in plain.config["trainer"]
    copied = tmp_path / "results" / "cells" / source.name
    shutil.copytree(source, copied)
    monkeypatch.chdir(tmp_path)
    by_id = check(override(RUN, from_run(source.name[:8])))
    assert by_id.config["trainer"]["init_from"]["folder"] == f"results/cells/{source.name}"
    assert check(override(RUN, from_run(copied))).id == by_id.id == cell.id == check(cell.config).id
    monkeypatch.chdir(copied)
    assert check(override(RUN, from_run("."))).id == cell.id
    assert with_seed(cell, 1).id == check(override(RUN, {**from_run(source), "seed": 1})).id
    weights = load_weights(source / "last.ckpt")
    assert cell.config["trainer"]["init_from"]["weights"] == hash_weights(dict(reversed(weights.items())))
    weights["embedding.tokens.weight"][0, 0] += 1e-9
    assert cell.config["trainer"]["init_from"]["weights"] != hash_weights(weights)


@pytest.mark.parametrize(
    "changes",
    [{"model.width": 32}, {"model.layers": 3}, {"model.layers": 1}, {"data.tokenizer": "Characters"}],
    ids=str,
)
def test_weights_of_another_model_are_refused(source: Path, changes: dict[str, Any], refused: Refused) -> None:
    with refused():
        check(override(RUN, {**from_run(source), **changes}))


def test_what_is_no_finished_run_is_refused(tmp_path: Path, source: Path, monkeypatch: Patch, refused: Refused) -> None:
    monkeypatch.chdir(tmp_path)
    with refused():
        check(override(RUN, from_run("0123")))
    with refused():
        check(override(RUN, {"trainer.init_from": {"weights": "x"}}))
    cell = check(override(RUN, from_run(source)))
    moved = Store(tmp_path).directory(source.name)
    shutil.copytree(source, moved)
    (moved / "last.ckpt").unlink()
    with refused():
        check(override(RUN, from_run(moved)))
    shutil.copy(train_cell(tmp_path / "other", TINY)[2] / "last.ckpt", moved)
    with refused():
        check(override(RUN, from_run(moved)))
    known = cell.config["trainer"]["init_from"]
    with refused():
        check(override(cell.config, {"trainer.init_from": {**known, "weights": "0" * 64}}))
