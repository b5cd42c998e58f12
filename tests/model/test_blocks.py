"""Compositions of attention and MLP in a layer, against formulas; test_parity.py has those of published models."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import VOCABULARY, decoder, example, noisy, refusal, tokens
from parity import CONTEXT, SIZES, configured, sample
from parity import VOCABULARY as TOKENS
from torch import Tensor, nn

from lm.config.components import blame
from lm.config.tree import Tree
from lm.data.batch import Batch
from lm.metrics.probe import probe
from lm.model.block import BlockLayout, MakeNorm, ParallelResidual, StochasticDepth, Sublayer
from lm.model.cache import Cache
from lm.model.norm import LayerNorm
from lm.model.shape import Shape

SHAPE = Shape(VOCABULARY, CONTEXT, width=16, heads=2, layers=2)
TWO_NORMS: Tree = {"class_path": "ParallelResidual", "init_args": {"shared_norm": False}}


class OwnLayout(BlockLayout):
    """y + norm(y) mlp(y) with y = x + attention(norm(x)): a block of a user's own."""

    def __init__(self, shape: Shape, norm: MakeNorm, dropout: float) -> None:
        super().__init__()
        self.norm = norm(shape)

    def forward(self, x_btd: Tensor, attention: Sublayer, mlp: Sublayer) -> Tensor:
        y_btd = x_btd + attention(self.norm(x_btd))
        return y_btd + self.norm(y_btd) * mlp(y_btd)


class CrossLayout(OwnLayout):
    """The same with cross-attention in front, where there is any."""

    def forward(self, x_btd: Tensor, attention: Sublayer, mlp: Sublayer, cross: Sublayer | None = None) -> Tensor:
        return super().forward(x_btd if cross is None else x_btd + cross(self.norm(x_btd)), attention, mlp)


@pytest.mark.parametrize("shared", [True, False])
def test_both_sublayers_of_a_parallel_block_read_the_same_stream(shared: bool) -> None:
    layout, x = noisy(ParallelResidual(SHAPE, LayerNorm, 0.0, shared)), example(2, 5, 16)
    attention, mlp = noisy(nn.Linear(16, 16)), noisy(nn.Linear(16, 16))
    norm = layout.norm if shared else layout.mlp_norm
    expected = x + attention(layout.norm(x)) + mlp(norm(x))
    torch.testing.assert_close(layout(x, attention, mlp), expected, rtol=1e-12, atol=1e-12)


LAYOUTS: list[Any] = [
    "ParallelResidual",
    TWO_NORMS,
    "NormAfter",
    "LayerScale",
    "StochasticDepth",
    f"{__name__}.OwnLayout",
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_measurements_and_caches_work_with_any_layout(layout: Any) -> None:
    text_bt = tokens()
    model = decoder({"block": layout, "initializer": "Xavier"}).double().eval()
    shares: list[float] = []
    for block in model.blocks:
        block.register_forward_hook(
            lambda _, inputs, x_btd: shares.append(
                float((x_btd - inputs[0]).norm(dim=-1).mean() / inputs[0].norm(dim=-1).mean())
            )
        )
    result = probe(model, Batch((text_bt,), text_bt, torch.arange(len(text_bt))))
    assert len(result.residual_norm) == len(result.entropy) == 2
    assert result.block_share == pytest.approx(shares, rel=1e-9)
    caches = [Cache() for _ in model.blocks]
    with torch.no_grad():
        steps = [model(token_b1, caches) for token_b1 in text_bt.split(1, dim=1)]
        torch.testing.assert_close(torch.cat(steps, 1), model(text_bt), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_an_encoder_decoder_takes_a_layout_with_cross_attention_alone() -> None:
    changes = {**SIZES, "class_path": "EncoderDecoder"}
    with refusal("ParallelResidual takes no cross-attention", "such as PreNorm"), blame("model"):
        configured({**changes, "block": "ParallelResidual"})
    model = configured({**changes, "block": f"{__name__}.CrossLayout"})
    source_bs, hidden_bs = sample(), torch.zeros(2, CONTEXT, dtype=torch.bool)
    logits = model(sample(seed=2), source_bs, hidden_bs)
    source_bs[:, -1] = (source_bs[:, -1] + 1) % TOKENS
    assert (model(sample(seed=2), source_bs, hidden_bs)[:, 0] != logits[:, 0]).any()


def test_deep_norm_scales_initial_weights_but_not_queries_and_keys() -> None:
    model, plain = (decoder({"block": block, "mlp": "SwiGLU"}) for block in ("DeepNorm", "PostNorm"))
    for name, weight in plain.named_parameters():
        maps = ("value.weight", "output.weight", "up.weight", "gate.weight", "down.weight")
        factor = 16**-0.25 if name.endswith(maps) else 1.0
        torch.testing.assert_close(model.get_parameter(name), factor * weight, rtol=1e-6, atol=0)


def test_stochastic_depth_drops_rows_with_a_rate_that_grows_with_depth() -> None:
    rows, x = 20_000, example(1, 1, 16)
    for layer, rate in ((None, 0.4), (0, 0.2), (1, 0.4)):
        layout = StochasticDepth(replace(SHAPE, layer=layer), LayerNorm, 0.0, rate=0.4).double()
        added = (layout(x.expand(rows, 3, -1), torch.ones_like) - x).unique(dim=0)
        torch.testing.assert_close(added[[0, -1], 0, 0], torch.tensor([0.0, 1 / (1 - rate)]).double())
        assert len(added) == 2
        share = (layout(x.expand(rows, 1, -1), torch.ones_like) - x).mean().item()
        assert share == pytest.approx(1, abs=5 * (rate / (1 - rate) / rows) ** 0.5)
    torch.manual_seed(3)
    first = layout(x.expand(9, 1, -1), torch.ones_like)
    torch.manual_seed(3)
    assert torch.equal(first, layout(x.expand(9, 1, -1), torch.ones_like)), "paired by the random stream"
