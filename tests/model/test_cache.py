"""The cache of keys and values: cached equals uncached for every part, and what it holds."""

from typing import Any

import pytest
import torch
from helpers import CONTEXT, decoder, parts, tokens
from messages import Refused
from torch import Tensor

from lm.model.attention import Attention, GroupedQuery, Mask, MultiHead, MultiQuery
from lm.model.cache import Cache
from lm.model.generation import caches_for
from lm.model.position import NoPosition
from lm.model.shape import Shape
from lm.model.transformer import Decoder

OPTIONS: dict[str, dict[str, Any]] = {
    "window 1": {"attention.window": 1},
    "window 5": {"attention.window": 5},
    "softcap": {"attention.softcap": 2.0},
    "qk_norm": {"attention.qk_norm": True},
    "scale": {"attention.scale": 3.0},
    "partial": {"position": {"class_path": "Rope", "init_args": {"share": 0.5, "interleaved": True}}},
    "value residual": {"attention.value_residual": "learned"},
    "norm over the width": {"attention.qk_norm": "width"},
    "layer norm, clip": {"attention.qk_norm": "LayerNorm", "attention.clip": 0.5},
    "sinks, gate": {"attention.sinks": True, "attention.gate": "headwise"},
    "sinks, window, head size": {"attention.sinks": True, "attention.window": 5, "attention.head_size": 6},
    "groups of 2": {"heads": 4, "attention": {"class_path": "GroupedQuery", "init_args": {"key_value_heads": 2}}},
    "multi-query, window, softcap, qk_norm, Alibi": {
        "heads": 4,
        "position": "Alibi",
        "attention": {"class_path": "MultiQuery", "init_args": {"window": 4, "softcap": 5.0, "qk_norm": True}},
    },
    "groups, T5Bias, window": {
        "heads": 4,
        "position": "T5Bias",
        "attention": {"class_path": "GroupedQuery", "init_args": {"window": 7}},
    },
}
CHANGES = {f"{kind}={name}": {kind: name} for kind, name in parts()} | OPTIONS


def lively(change: dict[str, Any]) -> Decoder:
    """A decoder in float64 whose every part has an effect: weights far from 0, unlike those at the start."""
    model = decoder(change).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


@torch.no_grad()
def piecewise(model: Decoder, tokens_bt: Tensor, sizes: list[int]) -> Tensor:
    """Logits of pieces of these sizes, each read on top of the cache of those before."""
    caches = caches_for(model)
    assert caches is not None
    return torch.cat([model(piece, caches) for piece in tokens_bt.split(sizes, dim=1)], dim=1)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@torch.no_grad()
def test_cached_logits_equal_those_of_whole_sequence(change: dict[str, Any], refused: Refused) -> None:
    """Also beyond the context, as far as the position encoding reaches; attention that keeps no cache says so."""
    model, longer = lively(change), tokens(batch=2, time=3 * CONTEXT)
    if change.get("position") == "Learned":
        with refused(ValueError):
            model(longer)
        longer = longer[:, :CONTEXT]
    whole = model(longer)
    assert whole.std() > 0.1, "logits that are all alike would prove nothing"
    if not all(attention.cached for attention in model.modules() if isinstance(attention, Attention)):
        assert caches_for(model) is None
        return
    rest = longer.shape[1] - 9  # a prompt, one by one and pieces
    torch.testing.assert_close(piecewise(model, longer, [3, 1, 1, 4, rest]), whole, rtol=0, atol=1e-10)


def test_a_model_that_sees_later_tokens_has_no_cache() -> None:
    assert caches_for(decoder({"causal": False})) is None


@torch.no_grad()
def test_a_cache_in_training_precision_is_near_the_whole() -> None:
    for dtype, close in ((torch.float32, 1e-4), (torch.bfloat16, 0.1)):
        model = lively({}).to(dtype)
        exact, found = model(tokens()), piecewise(model, tokens(), [5, *[1] * 7])
        assert found.dtype == dtype
        torch.testing.assert_close(found, exact, rtol=close, atol=close)


B, N, H, G, SIZE = 3, 7, 8, 2, 6
SHAPE = Shape(vocabulary=5, context=4, width=H * SIZE, heads=H, layers=1)
HEADS = {"MHA": (MultiHead(SHAPE), H), "GQA": (GroupedQuery(SHAPE, G), G), "MQA": (MultiQuery(SHAPE), 1)}


@pytest.mark.parametrize(("layer", "heads"), HEADS.values(), ids=HEADS)
@torch.no_grad()
def test_a_cache_holds_key_value_heads_only(layer: Attention, heads: int) -> None:
    cache = Cache()
    assert (cache.length, cache.bytes(), cache.held) == (0, 0, [])
    for x_b1d in torch.randn(B, N, SHAPE.width).split(1, dim=1):
        layer(x_b1d, NoPosition(SHAPE), Mask(), cache=cache)
    assert (cache.length, cache.bytes()) == (N, 4 * 2 * B * heads * N * SIZE)


def rows(time: int, seed: int = 0) -> Tensor:
    return torch.randn(2, 3, time, 6, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("sizes", [[1] * 40, [40], [5, *[1] * 35], [2] * 20, [1, 30, 1, 8]], ids=str)
def test_appended_rows_come_back_in_order(sizes: list[int]) -> None:
    key, value, cache = rows(40), rows(40, seed=1), Cache()
    seen = []
    for k, v in zip(key.split(sizes, dim=2), value.split(sizes, dim=2), strict=True):
        seen.append(cache.append(k, v))
        k.add_(0)  # the cache has a copy
    for k, v in seen:
        assert torch.equal(k, key[:, :, : k.shape[2]])
        assert torch.equal(v, value[:, :, : v.shape[2]])
    assert seen[-1][0].shape[2] == cache.length == 40


def test_cache_is_independent_of_callers_keys() -> None:
    key = rows(3)
    cache, kept = Cache(), key.clone()
    cache.append(key, key)
    key.zero_()
    assert torch.equal(cache.held[0], kept)


def test_rows_are_copied_a_bounded_number_of_times() -> None:
    cache, copied, address = Cache(), [], 0
    for length in range(1000):
        new_address = cache.append(torch.zeros(1, 1, 1, 4))[0].data_ptr()
        if new_address != address:
            copied.append(length)
        address = new_address
    assert sum(copied) < 2 * 1000
    assert 5 < len(copied) <= 11
