"""Dry runs of a model before training: on the processor if that is cheap and safe, else on the meta device."""

from typing import Any

import pytest
import torch
from helpers import CONTEXT, VOCABULARY, Patch, decoder, tokens
from torch import Tensor

import lm.training.cell as cells
from lm.model.mlp import ReLU
from lm.model.shape import Shape
from lm.model.transformer import Decoder
from lm.training.cell import DRY_RUN_MAX_NUMBERS, dry_run


class Watched(ReLU):
    """A part of a user's own that records the devices on which it was called."""

    seen: list[str] = []

    def forward(self, x_btd: Tensor) -> Tensor:
        self.seen.append(x_btd.device.type)
        return super().forward(x_btd)


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
    model = dry_run(lambda: decoder({"dropout": 0.5}), [tokens(batch=1)])
    assert devices == ["cpu"]
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert torch.equal(torch.get_rng_state(), state)


def test_a_large_model_or_a_long_text_runs_on_meta(devices: list[str], monkeypatch: Patch) -> None:
    monkeypatch.setattr(cells, "DRY_RUN_MAX_NUMBERS", sum(p.numel() for p in decoder().parameters()))
    dry_run(decoder, [tokens(batch=1)])
    monkeypatch.setattr(cells, "DRY_RUN_MAX_NUMBERS", 10**6)
    dry_run(lambda: decoder(context=1001), [tokens(batch=1, time=1001)])
    assert devices == ["meta", "meta"]


def test_a_users_own_part_runs_on_meta_only(monkeypatch: Patch) -> None:
    def build_model() -> Decoder:
        model = decoder()
        model.blocks[0].mlp = Watched(Shape(VOCABULARY, CONTEXT, 16, 2, 2))
        return model

    Watched.seen.clear()
    dry_run(build_model, [tokens(batch=1)])
    assert Watched.seen == ["meta"]


@pytest.mark.parametrize("small", [0, DRY_RUN_MAX_NUMBERS], ids=["without memory", "for real"])
def test_parts_that_do_not_fit_raise_on_either_device(small: int, monkeypatch: Patch) -> None:
    monkeypatch.setattr(cells, "DRY_RUN_MAX_NUMBERS", small)
    with pytest.raises(ValueError, match="9 is longer than the 8 learned positions"):
        dry_run(lambda: decoder({"position": "Learned"}, context=8), [tokens(batch=1, time=9)])
    with pytest.raises(ValueError, match="use Rope"):
        dry_run(lambda: decoder({"attention": "LinearAttention", "position": "Alibi"}), [tokens(batch=1)])
