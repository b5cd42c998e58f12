"""Value residuals: later layers mix the first layer's values into their own."""

from typing import Any

import pytest
import torch
from helpers import blocks, decoder, noisy, tokens
from messages import Refused
from torch import Tensor

CHANGES: dict[str, Any] = {
    "layers": 3,
    "position": "NoPosition",
    "norm": "NoNorm",
    "attention.value_residual": "learned",
}


def values_and_weights(attention: Any, x_btd: Tensor) -> tuple[Tensor, Tensor]:
    """Return the values (b, h, t, k) and the causal weights (b, h, t, t) of a layer without positions, by hand."""
    q, k, v = (
        layer(x_btd).unflatten(-1, (-1, attention.head_size)).transpose(1, 2)
        for layer in (attention.query, attention.key, attention.value)
    )
    scores = q @ k.transpose(-1, -2) * attention.head_size**-0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return v, scores.masked_fill(hidden, -torch.inf).softmax(-1)


@pytest.mark.parametrize("kind", ["fixed", "learned"])
def test_later_layers_mix_the_values_of_the_first(kind: str) -> None:
    model = noisy(decoder({**CHANGES, "attention.value_residual": kind})).double().eval()
    x_btd = model.embedding(tokens())
    first = None
    for block in blocks(model):
        attention: Any = block.attention
        v, weights = values_and_weights(attention, x_btd)
        first = v if first is None else first
        a, b = (0.5, 0.5) if attention.value_shares is None else attention.value_shares
        mixed = v if block is blocks(model)[0] else a * first + b * v
        x_btd = x_btd + attention.output((weights @ mixed).transpose(1, 2).flatten(2))
        x_btd = x_btd + block.mlp(x_btd)
    torch.testing.assert_close(model(tokens()), model.embedding.logits(x_btd), rtol=1e-12, atol=1e-12)


def test_only_later_layers_have_shares() -> None:
    parts = [block.attention for block in blocks(decoder(CHANGES))]
    assert [getattr(part, "value_shares", None) is not None for part in parts] == [
        False,
        True,
        True,
    ]


def test_layers_with_an_own_position_read_the_same_values() -> None:
    same, own = (
        decoder({**CHANGES, "layers": layers}) for layers in (3, {"count": 3, "2": {"position": "NoPosition"}})
    )
    assert torch.equal(same(tokens()), own(tokens()))


@pytest.mark.parametrize("first", ["LinearAttention", "MultiQuery"])
def test_a_first_layer_with_no_such_values_is_refused(first: str, refused: Refused) -> None:
    with refused(ValueError):
        decoder({**CHANGES, "layers": {"count": 3, "0": {"attention": first}}})(tokens())
