"""Compositions of attention and MLP in a layer, against formulas; test_parity.py has those of published models."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import RUN, VOCABULARY, decoder, example, known, noisy, tokens
from messages import CheckMessage
from parity import CONTEXT, SIZES, configured, sample
from parity import VOCABULARY as TOKENS
from torch import Tensor, nn

from lm.config.components import blame
from lm.config.tree import InputError, Tree, override
from lm.data.batch import Batch
from lm.metrics.probe import probe
from lm.model.attention import Mask
from lm.model.block import BlockLayout, HyperConnections, MakeNorm, ParallelResidual, StochasticDepth, Sublayer
from lm.model.cache import Cache
from lm.model.norm import LayerNorm
from lm.model.shape import Shape
from lm.training.cell import check

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
    "HyperConnections",
    "LayerScale",
    "StochasticDepth",
    f"{__name__}.OwnLayout",
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_measurements_and_caches_work_with_any_layout(layout: Any) -> None:
    text_bt = tokens()
    model = decoder({"block": layout, "initializer": "Xavier"}).double().eval()
    shares: list[float] = []

    def measure_share(_: nn.Module, inputs: tuple[Any, ...], x_btd: Tensor) -> None:
        before = inputs[0].sum(2) if inputs[0].ndim > x_btd.ndim else inputs[0]
        before = before[:, :, None] if before.ndim < x_btd.ndim else before
        shares.append(float((x_btd - before).norm(dim=-1).mean() / before.norm(dim=-1).mean()))

    for block in model.blocks:
        block.register_forward_hook(measure_share)
    result = probe(model, Batch((text_bt,), text_bt, torch.arange(len(text_bt))))
    assert len(result.residual_norm) == len(result.entropy) == 2
    assert result.block_share == pytest.approx(shares, rel=1e-9)
    caches = [Cache() for _ in model.blocks]
    with torch.no_grad():
        steps = [model(token_b1, caches) for token_b1 in text_bt.split(1, dim=1)]
        torch.testing.assert_close(torch.cat(steps, 1), model(text_bt), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_an_encoder_decoder_takes_a_layout_with_cross_attention_alone(check_message: CheckMessage) -> None:
    changes = {**SIZES, "class_path": "EncoderDecoder"}
    with pytest.raises(InputError) as caught, blame("model"):
        configured({**changes, "block": "ParallelResidual"})
    check_message(re.sub(r" \(\S+:\d+\)$", "", str(caught.value)))  # without the line that made it
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


def test_stochastic_depth_drops_more_rows_in_deeper_layers() -> None:
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


def test_hyper_connections_are_their_matrices() -> None:
    """The form of the paper: (f(norm(h r)), h) times the matrix (0, w; r, m) transposed, written as matrix products."""
    shape, x = replace(SHAPE, layers=3), example(2, 5, 16)
    layouts = [noisy(HyperConnections(replace(shape, layer=layer), LayerNorm, 0.0, 3)) for layer in range(3)]
    sublayers = noisy(nn.Linear(16, 16)), noisy(nn.Linear(16, 16))
    h_bntd = x[:, None].expand(-1, 3, -1, -1)
    ours = x
    for layout in layouts:
        ours = layout(ours, *sublayers)
        for index, norm in enumerate((layout.attention_norm, layout.mlp_norm)):
            added = sublayers[index](norm(torch.einsum("n,bntd->btd", layout.read.view(2, 3)[index], h_bntd)))
            mixed = torch.einsum("nm,bmtd->bntd", layout.mix.view(2, 3, 3)[index], h_bntd)
            h_bntd = mixed + torch.einsum("n,btd->bntd", layout.write.view(2, 3)[index], added)
    torch.testing.assert_close(ours, h_bntd.sum(1), rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_hyper_connections_begin_as_a_pre_norm_layer() -> None:
    changes = {"layers": 5, "norm.eps": 1e-12}
    ours, plain = (decoder({**changes, "block": block}).double() for block in ("HyperConnections", "PreNorm"))
    torch.testing.assert_close(ours(tokens()), plain(tokens()), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("layers", [2, 5])
@torch.no_grad()
def test_skips_add_the_output_of_a_layer_to_its_mirror(layers: int) -> None:
    model, plain = (decoder({"layers": layers, **change}).double().eval() for change in ({"skips": True}, {}))
    gains = known(model.skip_gains)
    assert torch.equal(gains, torch.ones(layers // 2))
    gains.copy_(torch.linspace(0.5, 1.5, layers // 2))
    x, mask, outputs = plain.embedding(tokens()), Mask(), list[Tensor]()
    for index, block in enumerate(plain.blocks):
        mirror = layers - 1 - index
        x = block(x if mirror >= index else x + gains[mirror] * outputs[mirror], plain.position, mask)
        outputs.append(x)
    torch.testing.assert_close(model(tokens()), plain.embedding.logits(plain.final_norm(x)), rtol=1e-12, atol=1e-12)
    caches = [Cache() for _ in model.blocks]
    steps = [model(token_b1, caches) for token_b1 in tokens().split(1, dim=1)]
    torch.testing.assert_close(torch.cat(steps, 1), model(tokens()), rtol=1e-9, atol=1e-9)


def test_skips_learn_and_change_ids_only_where_they_are_on() -> None:
    model = decoder({"layers": 4, "skips": True}).double()
    model(tokens()).square().sum().backward()
    assert known(known(model.skip_gains).grad).abs().min() > 0
    plain, off, on = (check(override(RUN, change)) for change in ({}, {"model.skips": False}, {"model.skips": True}))
    assert "skips" not in plain.config["model"]["init_args"]
    assert plain.id == off.id != on.id
