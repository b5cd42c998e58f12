"""Extra losses of a model's parts: weighted, added to what is minimised, and recorded apart from the NLL."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from helpers import RUN, Patch, decoder, known, tokens
from messages import Refused
from small_runs import curve, own_module, resume_cell, train_cell
from torch import Tensor

from lm.config.tree import Tree, override
from lm.data.batch import Batch
from lm.store.metrics import describe
from lm.store.store import Store
from lm.training.module import LanguageModel
from lm.training.objective import CrossEntropy, take_extra_losses

PART = """
from lm.model.mlp import GELU

class Sized(GELU):
    extra_weights = {"size": 0.5}

    def forward(self, x_btd):
        y_btd = super().forward(x_btd)
        if self.training:
            self.extra_losses = {"size": y_btd.square().mean()}
        return y_btd
"""


@pytest.fixture
def changes(tmp_path: Path, monkeypatch: Patch) -> dict[str, Any]:
    """A run whose MLPs have an extra loss with a default weight."""
    name = own_module(tmp_path, monkeypatch, PART)
    return {"model.mlp": f"{name}.Sized", "trainer.log_every_n_steps": 1}


def with_weight(weight: float) -> dict[str, Any]:
    return {"optim.objective": {"class_path": "CrossEntropy", "init_args": {"extra": {"size": weight}}}}


def module_with(extra: dict[str, float] | None, losses: list[float], weights: dict[str, float]) -> LanguageModel:
    """A module whose blocks have extra losses of these values, as of a forward pass."""
    model = decoder().double()
    for block, value in zip(model.blocks, losses, strict=False):
        parameter = next(block.parameters())
        block.register_forward_pre_hook(
            lambda part, _, value=value, parameter=parameter: setattr(
                part, "extra_losses", {"size": value + 0 * parameter.sum()} if part.training else {}
            )
        )
        vars(block)["extra_weights"] = weights
    optim: Any = SimpleNamespace(objective=CrossEntropy(extra=extra))
    module = LanguageModel(model, optim, torch.ones(11), 0)
    module._trainer = SimpleNamespace(strategy=None)  # type: ignore[assignment]
    return module


def batch() -> Batch:
    return Batch((tokens(),), tokens(seed=1), torch.arange(len(tokens())))


@pytest.mark.parametrize("chunked", [False, True])
def test_extra_losses_of_layers_are_averaged_and_weighted(chunked: bool, monkeypatch: Patch) -> None:
    monkeypatch.setattr("lm.training.module.max_logits", lambda device: 0 if chunked else 2**24)
    monkeypatch.setattr("lm.training.module.has_full_parameters", lambda _: True)
    for extra, weight in (({"size": 2.0}, 2.0), (None, 0.25), ({"size": 0.0}, 0.0)):
        module = module_with(extra, [1.0, 3.0], {"size": 0.25})
        module.model.eval()
        plain = module.loss(batch()).item()
        module.model.train()
        assert module.loss(batch()).item() == pytest.approx(plain + weight * 2.0, rel=1e-12)
        loss, extras = module.loss_and_extras(batch())
        assert (loss.item(), extras["size"][0].item()) == pytest.approx((plain, 2.0), rel=1e-12)
        assert take_extra_losses(module.parts, {"size": 1.0}) == {}, "each pass has losses of its own"


@pytest.mark.parametrize(
    ("extra", "weights"), [({}, {}), ({"sise": 1.0}, {"size": 1.0})], ids=["missing", "misspelled"]
)
def test_a_weight_that_is_missing_or_misspelled_is_named(
    extra: dict[str, float], weights: dict[str, float], refused: Refused
) -> None:
    module = module_with(extra, [1.0], weights)
    with refused(ValueError):
        module.loss(batch())


def test_a_weight_that_is_not_finite_is_refused(refused: Refused) -> None:
    with refused(ValueError):
        CrossEntropy(extra={"size": float("nan")})


def test_extra_losses_are_declared_as_metrics() -> None:
    assert describe("extra_load_balance").label == "training loss load_balance"
    assert describe("extra_load_balance").better == "lower"


@pytest.mark.slow
def test_extra_losses_are_minimised_and_recorded(tmp_path: Path, changes: dict[str, Any]) -> None:
    _, alone, _ = train_cell(tmp_path / "0", changes | with_weight(0.0))
    cell, weighted, folder = train_cell(tmp_path / "1", changes | with_weight(100.0))
    default, _, _ = train_cell(tmp_path / "2", changes)
    assert len({cell.id, alone["id"], default.id}) == 3
    assert "extra" not in default.config["optim"]["objective"]["init_args"]
    rows = [float(row["extra_size"]) for row in curve(folder) if row["extra_size"]]
    assert len(rows) == 12
    assert weighted["metrics"]["extra_size"] == pytest.approx(rows[-1], rel=1e-9)
    assert rows[-1] < 0.5 * known(alone["metrics"]["extra_size"]), "a heavy weight makes the loss small"
    first = [next(float(row["train_loss"]) for row in curve(tmp_path / n / "cells" / i) if row["train_loss"])
             for n, i in (("0", alone["id"]), ("1", cell.id))]  # fmt: skip
    assert first[0] == pytest.approx(first[1], rel=1e-12), "the training loss is that of the tokens alone"


@pytest.mark.extra
def test_accumulation_halves_and_resumption_change_nothing(
    tmp_path: Path, changes: dict[str, Any], monkeypatch: Patch
) -> None:
    whole = {**changes, "trainer.val_check_interval": 100, "data.evaluation_batch_size": 8}
    parts = {**whole, "data.batch_size": 4, "trainer.accumulate_grad_batches": 2}
    _, one, folder = train_cell(tmp_path / "one", whole)
    _, two, _ = train_cell(tmp_path / "two", parts)
    _, resumed, other = resume_cell(tmp_path / "one_killed", whole)
    monkeypatch.setattr(
        "lm.training.train.read_previous_attempts", lambda _: {"halved": True, "flags": [], "resumed": 0}
    )
    _, halved, _ = train_cell(tmp_path / "halved", whole)
    for name in ("nll", "train_loss", "extra_size"):
        assert resumed["metrics"][name] == one["metrics"][name]
        for record in (two, halved):
            assert record["metrics"][name] == pytest.approx(one["metrics"][name], rel=1e-9), name
    assert curve(other) == curve(folder)
    weights = [torch.load(path / "last.ckpt", weights_only=True)["state_dict"] for path in (folder, other)]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


@pytest.mark.extra
def test_two_processes_record_the_extra_losses_of_one(
    tmp_path: Path, changes: dict[str, Any], monkeypatch: Patch
) -> None:
    _, one, _ = train_cell(tmp_path / "one", changes)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(override(RUN, changes)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    more = ("--trainer.devices", "2", "--trainer.strategy", "ddp")
    done = subprocess.run(
        [sys.executable, "-m", "lm", "fit", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "two"), *more],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    two = Store(tmp_path / "two").record(one["id"])
    for name in ("nll", "train_loss", "extra_size"):
        assert two["metrics"][name] == pytest.approx(one["metrics"][name], rel=1e-9), name


@pytest.mark.extra
def test_compiled_blocks_have_the_same_extra_losses(tmp_path: Path, changes: dict[str, Any]) -> None:
    (_, plain, _), (_, compiled, _) = (
        train_cell(tmp_path / str(on), changes | {"trainer.compile": on}) for on in (False, True)
    )
    assert compiled["flags"] == []
    for name in ("nll", "extra_size"):
        assert compiled["metrics"][name] == pytest.approx(plain["metrics"][name], rel=1e-5), name


# experts balanced by a bias: one update a step, whatever a step is divided into, and after an interruption

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


@pytest.mark.extra
def test_accumulation_halves_processes_and_resumption_change_nothing(tmp_path: Path, monkeypatch: Patch) -> None:
    _, one, folder = train_cell(tmp_path / "one", WHOLE)
    assert known(one["metrics"]["extra_expert_load"]) > 1
    assert all(bias_e.any() for bias_e in steps(folder))
    parts = {**WHOLE, "data.batch_size": 4, "trainer.accumulate_grad_batches": 2}
    others: list[tuple[Any, Path]] = [train_cell(tmp_path / "two", parts)[1:]]
    _, resumed, again = resume_cell(tmp_path / "killed", WHOLE)
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


@pytest.mark.extra
def test_a_compiled_decoder_leaves_experts_as_they_are(tmp_path: Path) -> None:
    plain, compiled = (
        train_cell(tmp_path / str(on), {"model.mlp": MIXTURE, "trainer.compile": on})[1] for on in (False, True)
    )
    assert compiled["flags"] == []
    assert compiled["metrics"]["nll"] == pytest.approx(plain["metrics"]["nll"], rel=1e-5)
