"""Norms, feed-forward layers and attention against torch's own modules and the worked examples."""

import math

import pytest
import torch
from helpers import decoder, example, tokens
from torch import nn

from lm.model.attention import Mask, MultiHead, Scale, scale_factor
from lm.model.block import Block, PostNorm, PreNorm
from lm.model.mlp import GELU, ReLU
from lm.model.norm import LayerNorm, RMSNorm
from lm.model.position import Alibi, NoPosition
from lm.model.shape import Shape

SHAPE = Shape(vocabulary=11, context=6, width=12, heads=3, layers=1)


def test_rms_norm_follows_formula_and_is_scale_invariant_only() -> None:
    norm, x = RMSNorm(SHAPE, eps=1e-12).double(), example(4, 12)
    nn.init.uniform_(norm.weight)
    torch.testing.assert_close(norm(x), x / (x.square().mean(-1, keepdim=True) + 1e-12).sqrt() * norm.weight)
    torch.testing.assert_close(norm(7 * x), norm(x))
    assert (norm(x + 1) - norm(x)).abs().max() > 0.1


@pytest.mark.parametrize(
    ("mlp", "function"),
    [(ReLU(SHAPE), nn.ReLU()), (GELU(SHAPE), nn.GELU()), (GELU(SHAPE, approximate="tanh"), nn.GELU("tanh"))],
)
def test_feed_forward_layers_are_torch_s_own_in_sequence(mlp: ReLU | GELU, function: nn.Module) -> None:
    mlp = mlp.double()
    assert mlp.up.out_features == 4 * SHAPE.width
    x = example(2, 5, 12)
    torch.testing.assert_close(mlp(x), nn.Sequential(mlp.up, function, mlp.down)(x), rtol=0, atol=0)


def as_torch(attention: MultiHead, shape: Shape) -> nn.MultiheadAttention:
    """torch's module with the same weights."""
    other = nn.MultiheadAttention(shape.width, shape.heads, batch_first=True, dtype=torch.float64)
    projections = (attention.query, attention.key, attention.value)
    with torch.no_grad():
        other.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
        other.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
        other.out_proj.weight.copy_(attention.output.weight)
        other.out_proj.bias.copy_(attention.output.bias)
    return other


@pytest.mark.parametrize("alibi", [False, True])
def test_multi_head_attention_is_torch_s_own(alibi: bool) -> None:
    attention, x = MultiHead(SHAPE).double(), example(2, 6, 12)
    for projection in (attention.query, attention.key, attention.value):
        nn.init.normal_(projection.bias)
    position = Alibi(SHAPE).double() if alibi else NoPosition(SHAPE)
    bias = position.bias(6, 6)
    mask = torch.zeros(3, 6, 6, dtype=torch.float64) if bias is None else bias
    mask = mask.masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -math.inf)
    expected, _ = as_torch(attention, SHAPE)(x, x, x, attn_mask=mask.repeat(2, 1, 1), need_weights=False)
    ours = attention(x, position, Mask(bias_hqs=bias))
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("scale", "factor"), [("1/sqrt(d_k)", 0.5), ("1/d_k", 0.25), ("none", 1.0), (0.3, 0.3)])
def test_scores_are_multiplied_by_the_scale(scale: Scale, factor: float) -> None:
    assert scale_factor(scale, head_size=4) == factor
    attention, x = MultiHead(SHAPE, scale=scale).double(), example(1, 6, 12)
    split = lambda y: y.unflatten(-1, (3, 4)).transpose(1, 2)  # noqa: E731
    q, k, v = split(attention.query(x)), split(attention.key(x)), split(attention.value(x))
    scores = (factor * q @ k.transpose(-1, -2)).masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -math.inf)
    by_hand = attention.output((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x, NoPosition(SHAPE), Mask()), by_hand, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("ours", "norm_first"), [(PreNorm, True), (PostNorm, False)])
def test_blocks_are_torch_s_encoder_layer(ours: type, norm_first: bool) -> None:
    heads = MultiHead(SHAPE)
    block = Block(heads, ReLU(SHAPE), lambda: ours(SHAPE, LayerNorm, 0.0)).double().eval()
    theirs = nn.TransformerEncoderLayer(
        12, 3, dim_feedforward=48, dropout=0.0, batch_first=True, norm_first=norm_first, dtype=torch.float64
    )
    for norm in (block.attention_residual.norm, block.mlp_residual.norm):
        for parameter in norm.parameters():
            nn.init.normal_(parameter)
    attention = as_torch(heads, SHAPE)
    theirs.self_attn.load_state_dict(attention.state_dict())
    for mine, other in (
        (block.mlp.up, theirs.linear1),
        (block.mlp.down, theirs.linear2),
        (block.attention_residual.norm, theirs.norm1),
        (block.mlp_residual.norm, theirs.norm2),
    ):
        other.load_state_dict(mine.state_dict())
    x, mask = example(2, 6, 12), nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64)
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


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"heads": 3}, "heads=3 must divide width=16"), ({"layers": 0}, "layers=0"), ({"dropout": 1.0}, "dropout=1.0")],
)
def test_impossible_sizes_are_refused_with_the_reason(changes: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decoder(changes)
