"""Feed-forward layers, residuals, norms, initial values and rotations against an independent form of each."""

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import CONTEXT, VOCABULARY, blocks, decoder, example, noisy, tokens
from messages import Refused
from torch import Tensor, nn

from lm.config.choices import choices
from lm.model.attention import Mask, MultiHead
from lm.model.block import (
    Block,
    DeepNorm,
    LayerScale,
    NormAfter,
    PostNorm,
    PreNorm,
    ResidualConnection,
    ReZero,
    Sandwich,
    ScaledResidual,
    StochasticDepth,
)
from lm.model.initializers import FanIn, OutputLinear, QueryKeyLinear, ResidualLinear
from lm.model.mlp import GEGLU, GELU, GLU, MLP, GatedMLP, ReGLU, ReLU, Sigmoid, SiLU, SquaredReLU, SwiGLU
from lm.model.norm import DyT, LayerNorm, NoNorm, Norm, RMSNorm
from lm.model.position import Learned, NoPosition, Rope, RopeNTK
from lm.model.shape import Shape

TIME = 7
SHAPE = Shape(VOCABULARY, TIME, width=16, heads=4, layers=1)
EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}


GATED: list[tuple[Callable[[Shape], GatedMLP], Callable[[Tensor], Tensor]]] = [
    (GLU, nn.Sigmoid()),
    (ReGLU, nn.ReLU()),
    (GEGLU, nn.GELU()),
    (SwiGLU, nn.SiLU()),
    (functools.partial(GEGLU, approximate="tanh"), nn.GELU("tanh")),
]


@pytest.mark.parametrize(("width", "bias", "expansion"), [(64, True, 4.0), (96, False, 2.0), (1024, True, 2.0)])
def test_a_gated_layer_has_the_parameters_of_a_plain_one(width: int, bias: bool, expansion: float) -> None:
    shape = Shape(VOCABULARY, TIME, width, heads=1, layers=1)
    with torch.device("meta"):
        layers = (kind(shape, expansion=expansion, bias=bias) for kind in (SwiGLU, ReLU))
        gated, plain = (sum(p.numel() for p in layer.parameters()) for layer in layers)
    assert gated == pytest.approx(plain, rel=0.01)


@pytest.mark.parametrize(("mlp", "function"), GATED, ids=["GLU", "ReGLU", "GEGLU", "SwiGLU", "GEGLU tanh"])
def test_a_gated_layer_is_its_formula(mlp: Callable[[Shape], GatedMLP], function: Callable[[Tensor], Tensor]) -> None:
    layer, x = noisy(mlp(SHAPE)), example(2, 5, 16)
    torch.testing.assert_close(layer(x), layer.down(function(layer.gate(x)) * layer.up(x)), **EXACT)


PLAIN: list[tuple[Callable[[Shape], MLP], Callable[[Tensor], Tensor]]] = [
    (ReLU, nn.ReLU()),
    (GELU, nn.GELU()),
    (functools.partial(GELU, approximate="tanh"), nn.GELU("tanh")),
    (SiLU, nn.SiLU()),
    (Sigmoid, nn.Sigmoid()),
    (SquaredReLU, lambda x: x.clamp(min=0) ** 2),
]


@pytest.mark.parametrize(("mlp", "function"), PLAIN, ids=lambda part: getattr(part, "__name__", ""))
def test_a_plain_layer_is_its_formula(mlp: Callable[[Shape], MLP], function: Callable[[Tensor], Tensor]) -> None:
    layer, x = noisy(mlp(SHAPE)), example(2, 5, 16)
    torch.testing.assert_close(layer(x), layer.down(function(layer.up(x))), rtol=0, atol=0)


@pytest.mark.parametrize("name", choices(MLP))
def test_the_hidden_width_may_be_set_itself(name: str) -> None:
    layer: Any = blocks(decoder({"mlp": {"class_path": name, "init_args": {"hidden": 23}}}))[0].mlp
    assert layer.up.out_features == layer.down.in_features == 23


def layer_norm(x: Tensor, norm: LayerNorm) -> Tensor:
    """LayerNorm from its definition."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def rms_norm(x: Tensor) -> Tensor:
    """RMSNorm without a gain, from its definition."""
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


NORMS: list[tuple[Norm, Callable[[Any, Tensor], Tensor], float]] = [
    (RMSNorm(SHAPE), lambda norm, x: rms_norm(x) * norm.weight, 1.0),
    (RMSNorm(SHAPE, gain=False), lambda norm, x: rms_norm(x), 1.0),
    (RMSNorm(SHAPE, unit_offset=True), lambda norm, x: rms_norm(x) * (1 + norm.weight), 1.0),
    (DyT(SHAPE, alpha=2.0), lambda norm, x: norm.weight * torch.tanh(norm.alpha * x) + norm.bias, 2.0),
]


@pytest.mark.parametrize(("norm", "formula", "scale"), NORMS, ids=[str(norm) for norm, _, _ in NORMS])
def test_a_norm_is_its_formula_and_starts_without_a_gain(
    norm: Norm, formula: Callable[[Any, Tensor], Tensor], scale: float
) -> None:
    x = example(2, 5, 16).requires_grad_()
    plain = torch.tanh(scale * x) if isinstance(norm, DyT) else rms_norm(x)
    torch.testing.assert_close(norm.double()(x), plain, **EXACT)
    inputs = (x, *noisy(norm).parameters())
    ours, expected = norm(x), formula(norm, x)
    torch.testing.assert_close(ours, expected, **EXACT)
    gradients = [torch.autograd.grad(y.square().sum(), inputs) for y in (ours, expected)]
    torch.testing.assert_close(*gradients, **EXACT)


def test_a_gain_of_one_plus_weight_needs_a_gain(refused: Refused) -> None:
    with refused(ValueError):
        RMSNorm(SHAPE, gain=False, unit_offset=True)


FORMULAS: list[tuple[type[ResidualConnection], Callable[[Any, Tensor, nn.Module], Tensor]]] = [
    (Sandwich, lambda a, x, f: x + layer_norm(f(layer_norm(x, a.norm)), a.outer_norm)),
    (ReZero, lambda a, x, f: x + a.share * f(x)),
    (ScaledResidual, lambda a, x, f: x + 0.5 * f(layer_norm(x, a.norm))),
    (NormAfter, lambda a, x, f: x + layer_norm(f(x), a.norm)),
    (DeepNorm, lambda a, x, f: layer_norm(2**0.25 * x + f(x), a.norm)),
    (LayerScale, lambda a, x, f: x + a.gain * f(layer_norm(x, a.norm))),
    (StochasticDepth, lambda a, x, f: x + f(layer_norm(x, a.norm))),
]


@pytest.mark.parametrize(("kind", "formula"), FORMULAS, ids=[kind.__name__ for kind, _ in FORMULAS])
def test_an_arrangement_is_its_formula(kind: type[ResidualConnection], formula: Callable[..., Tensor]) -> None:
    arrangement, x, sublayer = noisy(kind(SHAPE, LayerNorm, 0.0)), example(2, 5, 16), noisy(nn.Linear(16, 16))
    torch.testing.assert_close(arrangement(x, sublayer), formula(arrangement, x, sublayer), **EXACT)


def test_no_norm_is_nothing() -> None:
    x = example(2, 5, 16)
    assert torch.equal(NoNorm(SHAPE)(x), x)
    assert not list(NoNorm(SHAPE).parameters())
    block, sublayer = PreNorm(SHAPE, NoNorm, 0.0), noisy(nn.Linear(16, 16))
    assert torch.equal(block(x, sublayer), x + sublayer(x))


@torch.no_grad()
def test_rezero_starts_as_the_identity() -> None:
    model = decoder({"block": "ReZero", "layers": 5, "position": "NoPosition"}).double()
    assert torch.equal(model(tokens()), model.embedding.logits(model.embedding(tokens())))
    assert not [name for name, _ in model.named_parameters() if "norm" in name]


@torch.no_grad()
def test_batch_norm_leaks_the_future_in_training_only() -> None:
    """The defect this negative control is there for."""
    model, before = decoder({"norm": "BatchNorm"}).double(), tokens()
    after = before.clone()
    after[:, -1] = (after[:, -1] + 1) % VOCABULARY
    moved = lambda: (model(before) - model(after))[:, : CONTEXT - 1].abs().max().item()  # noqa: E731
    assert moved() > 1e-3
    model.eval()
    assert moved() == 0
    honest = decoder({"norm": "LayerNorm"}).double()
    assert torch.equal(honest(before)[:, :-1], honest(after)[:, :-1])


@pytest.mark.parametrize("scale_residual", [True, False])
@pytest.mark.parametrize("query_key", [1.0, 0.25])
def test_xavier_has_the_variance_of_both_sides(query_key: float, scale_residual: bool) -> None:
    options = {"embedding": 0.5, "query_key": query_key, "scale_residual": scale_residual}
    changes = {"width": 128, "layers": 3, "embedding.tied": False, "attention": "GroupedQuery"}
    model = decoder({**changes, "initializer": {"class_path": "Xavier", "init_args": options}}, vocabulary=257)
    kinds = set()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            expected = (2 / sum(module.weight.shape)) ** 0.5
            expected *= query_key if isinstance(module, QueryKeyLinear) else 1
            expected *= 6**-0.5 if scale_residual and isinstance(module, ResidualLinear) else 1
            assert module.weight.std().item() == pytest.approx(expected, rel=0.05), name
            assert module.bias is None or not module.bias.any()
            kinds.add(type(module))
    assert kinds == {nn.Linear, OutputLinear, QueryKeyLinear, ResidualLinear}
    assert model.embedding.tokens.weight.std().item() == pytest.approx(0.5, rel=0.05)


def test_fan_in_keeps_the_variance_of_inputs() -> None:
    changes = {"width": 128, "layers": 3, "embedding.tied": False, "embedding.scaled": True, "position": "Learned"}
    options = {"gain": 1.5, "position": 0.3, "query_key": 0.5}
    model = decoder({**changes, "initializer": {"class_path": "FanIn", "init_args": options}}, vocabulary=257)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            expected = 1.5 * module.in_features**-0.5
            expected *= 0.5 if isinstance(module, QueryKeyLinear) else 1
            expected *= 6**-0.5 if isinstance(module, ResidualLinear) else 1
            assert module.weight.std().item() == pytest.approx(expected, rel=0.05), name
    assert isinstance(model.position, Learned)
    assert model.position.table.weight.std().item() == pytest.approx(0.3, rel=0.05)
    entering = model.embedding(torch.arange(257))
    assert entering.std().item() == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize(
    "options", [{"gain": 0.0}, {"gain": math.inf}, {"position": -1.0}, {"query_key": 0.0}], ids=str
)
def test_a_size_that_draws_nothing_usable_is_refused(options: dict[str, Any], refused: Refused) -> None:
    with refused(ValueError):
        FanIn(**options)


@pytest.mark.parametrize("head_size", [4, 16, 128])
@pytest.mark.parametrize("stretch", [1.0, 2.0, 7.5])
def test_ntk_leaves_the_fastest_pair_and_stretches_the_slowest_whole(head_size: int, stretch: float) -> None:
    shape = Shape(VOCABULARY, CONTEXT, 2 * head_size, heads=2, layers=1)
    plain, ntk = Rope(shape).frequency(), RopeNTK(shape, stretch=stretch).frequency()
    assert ntk[0] == plain[0] == 1
    assert (plain[-1] / ntk[-1]).item() == pytest.approx(stretch, rel=1e-12)
    assert (ntk.diff() < 0).all()
    assert (ntk <= plain).all()


# against torch's own modules ------------------------------------------------------------------------------------------


def as_torch(attention: MultiHead) -> nn.MultiheadAttention:
    """torch's module with the same weights."""
    other = nn.MultiheadAttention(SHAPE.width, SHAPE.heads, batch_first=True, dtype=torch.float64)
    projections = (attention.query, attention.key, attention.value)
    with torch.no_grad():
        other.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
        other.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
        other.out_proj.load_state_dict(attention.output.state_dict())
    return other


@pytest.mark.parametrize(("ours", "norm_first"), [(PreNorm, True), (PostNorm, False)])
def test_blocks_are_torch_s_encoder_layer(ours: type, norm_first: bool) -> None:
    heads = MultiHead(SHAPE)
    block = Block(heads, ReLU(SHAPE), lambda: ours(SHAPE, LayerNorm, 0.0)).double().eval()
    theirs = nn.TransformerEncoderLayer(
        16, 4, dim_feedforward=64, dropout=0.0, batch_first=True, norm_first=norm_first, dtype=torch.float64
    )
    for norm in (block.attention_residual.norm, block.mlp_residual.norm):
        for parameter in norm.parameters():
            nn.init.normal_(parameter)
    theirs.self_attn.load_state_dict(as_torch(heads).state_dict())
    for mine, other in (
        (block.mlp.up, theirs.linear1),
        (block.mlp.down, theirs.linear2),
        (block.attention_residual.norm, theirs.norm1),
        (block.mlp_residual.norm, theirs.norm2),
    ):
        other.load_state_dict(mine.state_dict())
    x, mask = example(2, 6, 16), nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64)
    expected = theirs(x, src_mask=mask, is_causal=True)
    torch.testing.assert_close(block(x, NoPosition(SHAPE), Mask()), expected, rtol=1e-12, atol=1e-12)


def test_pre_norm_has_one_norm_more() -> None:
    assert isinstance(decoder({"block": "PreNorm"}).final_norm, LayerNorm)
    assert isinstance(decoder({"block": "PostNorm"}).final_norm, nn.Identity)


def test_tied_embeddings_share_one_matrix_and_untied_ones_do_not() -> None:
    tied, free = decoder(), decoder({"embedding": {"tied": False}})
    assert tied.embedding.head.weight is tied.embedding.tokens.weight
    assert not torch.equal(free.embedding.head.weight, free.embedding.tokens.weight)
    count = lambda model: sum(p.numel() for p in model.parameters())  # noqa: E731
    assert count(free) - count(tied) == 11 * 16


def test_scaled_embeddings_are_multiplied_by_the_root_of_the_width() -> None:
    plain, scaled = decoder(), decoder({"embedding": {"scaled": True}})
    torch.testing.assert_close(scaled.embedding(tokens()), 4 * plain.embedding(tokens()))


def test_dropout_zeroes_share_and_rescales_in_training_only() -> None:
    model = decoder({"dropout": 0.25})
    x = torch.ones(20000)
    dropped = model.dropout(x)
    assert dropped.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert (dropped == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)
    assert torch.equal(model.eval().dropout(x), x)


@pytest.mark.parametrize("changes", [{"heads": 3}, {"layers": 0}, {"dropout": 1.0}], ids=str)
def test_impossible_sizes_are_refused_with_the_reason(changes: dict[str, float], refused: Refused) -> None:
    with refused(ValueError):
        decoder(changes)
