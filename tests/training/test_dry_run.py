"""Dry runs of a model before training: a step on the processor if that is cheap, else forwards on the meta device."""

from typing import Any

import pytest
import torch
from helpers import CONTEXT, RUN, VOCABULARY, Patch, decoder, tokens
from messages import CheckMessage, Refused
from small_runs import own_module
from torch import Tensor

import lm.training.cell as cells
from lm.config.tree import InputError, override
from lm.data.batch import Batch
from lm.model.mlp import ReLU
from lm.model.shape import Shape
from lm.model.transformer import Decoder
from lm.training.cell import DRY_RUN_MAX_NUMBERS, check, dry_run


class Watched(ReLU):
    """A part of a user's own that records the devices on which it was called."""

    seen: list[str] = []

    def forward(self, x_btd: Tensor) -> Tensor:
        self.seen.append(x_btd.device.type)
        return super().forward(x_btd)


def row(tokens_bt: Tensor) -> Batch:
    return Batch((tokens_bt,), tokens_bt, torch.zeros(1, dtype=torch.int64))


def forwards(model: Any, batch: Batch) -> None:
    model(*batch.inputs)


@pytest.fixture
def devices(monkeypatch: Patch) -> list[str]:
    """Devices on which a model is called."""
    called_on: list[str] = []
    forward = Decoder.forward

    def watched(self: Decoder, tokens_bt: Tensor, *more: Any) -> Tensor:
        called_on.append(tokens_bt.device.type)
        return forward(self, tokens_bt, *more)

    monkeypatch.setattr(Decoder, "forward", watched)
    return called_on


def test_a_small_model_runs_on_the_cpu(devices: list[str]) -> None:
    state = torch.get_rng_state()
    model = dry_run(lambda: decoder({"dropout": 0.5}), row(tokens(batch=1)), forwards)
    assert devices == ["cpu"]
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert torch.equal(torch.get_rng_state(), state)


def test_a_large_model_or_a_long_text_runs_on_meta(devices: list[str], monkeypatch: Patch) -> None:
    monkeypatch.setattr(cells, "DRY_RUN_MAX_NUMBERS", sum(p.numel() for p in decoder().parameters()))
    dry_run(decoder, row(tokens(batch=1)), forwards)
    monkeypatch.setattr(cells, "DRY_RUN_MAX_NUMBERS", 10**6)
    dry_run(lambda: decoder(context=1001), row(tokens(batch=1, time=1001)), forwards)
    assert devices == ["meta", "meta"]


def test_a_users_own_large_part_runs_on_meta(monkeypatch: Patch) -> None:
    def build_model() -> Decoder:
        model = decoder()
        model.blocks[0].mlp = Watched(Shape(VOCABULARY, CONTEXT, 16, 2, 2))
        return model

    for most, device in ((10**6, "cpu"), (0, "meta")):
        Watched.seen.clear()
        monkeypatch.setattr(cells, "DRY_RUN_MAX_OWN", most)
        dry_run(build_model, row(tokens(batch=1)), forwards)
        assert Watched.seen == [device]


OWN = """
import torch
from lm.metrics import probe
from lm.model.attention import MultiHead
from lm.model.mlp import ReLU
from lm.training.objective import CrossEntropy


class Stuck(ReLU):
    def forward(self, x):
        return super().forward(x).detach() + Fails.apply(x)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, slope):
        raise RuntimeError("no slope is known")


class Renamed(MultiHead):
    def projected(self, x, position, memory=None, cache=None):
        if torch.is_grad_enabled():
            return super().projected(x, position, memory, cache)
        raise RuntimeError("nothing to measure")


class Weighted(CrossEntropy):
    def loss(self, logits, targets):
        return super().loss(logits, targets[:, None])


class Stepping(torch.optim.AdamW):
    def step(self, closure=None):
        if any(len(p) > 100 for group in self.param_groups for p in group["params"]):
            raise RuntimeError("no step for long matrices")
"""


@pytest.mark.parametrize(
    "path", ["model.mlp Stuck", "model.attention Renamed", "optim.objective Weighted", "optim.optimizer Stepping"]
)
def test_what_training_would_find_the_plan_finds(
    check_message: CheckMessage, path: str, tmp_path: Any, monkeypatch: Patch
) -> None:
    name, (slot, cls) = own_module(tmp_path, monkeypatch, OWN), path.split()
    with pytest.raises(InputError) as caught:
        check(override(RUN, {slot: f"{name}.{cls}"}))
    check_message(str(caught.value).replace(name, "own"))


def test_a_model_is_tried_once_for_several_rates(devices: list[str]) -> None:
    changes = {"model.mlp.expansion": 2.5}
    for rate in (0.1, 0.2, 0.3):
        check(override(RUN, {**changes, "optim.lr": rate}))
    assert devices.count("cpu") == 3, "a training step, a probe and an evaluation"


@pytest.mark.parametrize("small", [0, DRY_RUN_MAX_NUMBERS], ids=["without memory", "for real"])
def test_parts_that_do_not_fit_raise_on_either_device(small: int, monkeypatch: Patch, refused: Refused) -> None:
    monkeypatch.setattr(cells, "DRY_RUN_MAX_NUMBERS", small)
    with refused(ValueError):
        dry_run(lambda: decoder({"position": "Learned"}, context=8), row(tokens(batch=1, time=9)), forwards)
    with refused(ValueError):
        dry_run(lambda: decoder({"attention": "LinearAttention", "position": "Alibi"}), row(tokens(batch=1)), forwards)
