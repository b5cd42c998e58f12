"""A model is tried before it is trained: for real where that is cheap and safe, without memory elsewhere."""

from typing import Any

import pytest
import torch
from helpers import CONTEXT, VOCABULARY, decoder, tokens
from torch import Tensor

from lm.model.mlp import ReLU
from lm.model.shape import Shape
from lm.model.transformer import Decoder
from lm.training import rehearsal
from lm.training.rehearsal import tried


class Watched(ReLU):
    """A part of a user's own that says on which devices it was called."""

    seen: list[str] = []

    def forward(self, x_btd: Tensor) -> Tensor:
        self.seen.append(x_btd.device.type)
        return super().forward(x_btd)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices on which a model is called."""
    found: list[str] = []
    forward = Decoder.forward

    def watched(self: Decoder, tokens_bt: Tensor, *more: Any) -> Tensor:
        found.append(tokens_bt.device.type)
        return forward(self, tokens_bt, *more)

    monkeypatch.setattr(Decoder, "forward", watched)
    return found


def test_a_small_model_reads_for_real_and_is_given_without_memory(devices: list[str]) -> None:
    state = torch.get_rng_state()
    model = tried(lambda: decoder({"dropout": 0.5}), [tokens(batch=1)])
    assert devices == ["cpu"]
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert torch.equal(torch.get_rng_state(), state)


def test_a_large_model_or_a_long_text_takes_no_memory(devices: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "SMALL", sum(p.numel() for p in decoder().parameters()))
    tried(decoder, [tokens(batch=1)])
    monkeypatch.setattr(rehearsal, "SMALL", 10**6)
    tried(lambda: decoder(context=1001), [tokens(batch=1, time=1001)])
    assert devices == ["meta", "meta"]


def test_a_part_of_a_users_own_is_never_run_before_it_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> Decoder:
        model = decoder()
        model.blocks[0].mlp = Watched(Shape(VOCABULARY, CONTEXT, 16, 2, 2))
        return model

    Watched.seen.clear()
    tried(make, [tokens(batch=1)])
    assert Watched.seen == ["meta"]


@pytest.mark.parametrize("small", [0, rehearsal.SMALL], ids=["without memory", "for real"])
def test_what_does_not_fit_together_is_raised_either_way(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "SMALL", small)
    with pytest.raises(ValueError, match="9 is longer than the 8 learned positions"):
        tried(lambda: decoder({"position": "Learned"}, context=8), [tokens(batch=1, time=9)])
    with pytest.raises(ValueError, match="use Rope"):
        tried(lambda: decoder({"attention": "LinearAttention", "position": "Alibi"}), [tokens(batch=1)])
