"""Position encodings against those of `transformers`, by themselves: in float64 where it matters."""

from typing import Any

import pytest
import torch
from messages import Refused
from parity import CONTEXT, HEADS, LAYERS, VOCABULARY, WIDTH, exactly, randomized
from torch import Tensor, nn

from lm.model.position import (
    Alibi,
    Fire,
    Kerple,
    Learned,
    Rope,
    RopeLinear,
    RopeLlama3,
    RopeNTK,
    RopeYarn,
    T5Bias,
    relative_buckets,
    relative_positions,
)
from lm.model.shape import Shape

transformers = pytest.importorskip("transformers", reason="parity needs transformers: pip install transformers")


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "longest"), [(32, 128), (8, 20), (16, 1000), (4, 3), (64, 256)])
def test_t5_buckets(causal: bool, buckets: int, longest: int) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    between = torch.arange(-2100, 2101)
    expected = T5Attention._relative_position_bucket(between, not causal, buckets, longest)
    assert torch.equal(relative_buckets(between, buckets, longest, causal), expected)
    assert set(expected.tolist()) <= set(range(buckets))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(9, 9), (1, 200), (5, 40)])
def test_t5_bias(causal: bool, queries: int, keys: int) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    config = transformers.T5Config(d_model=WIDTH, d_kv=WIDTH // HEADS, num_heads=HEADS, is_decoder=causal)
    other = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    ours = T5Bias(Shape(VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS))
    nn.init.normal_(other.relative_attention_bias.weight)
    ours.table.load_state_dict(other.relative_attention_bias.state_dict())
    expected = other.compute_bias(queries, keys, past_seen_tokens=keys - queries)[0]
    torch.testing.assert_close(ours.bias(queries, keys, causal), expected, rtol=0, atol=0)


@pytest.mark.parametrize("heads", [1, 2, 4, 6, 8, 12, 16, 25, 112])
def test_alibi_bias(heads: int) -> None:
    """BLOOM adds slope * key position, which a softmax cannot tell from slope * (key - query position)."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    ours = Alibi(Shape(VOCABULARY, CONTEXT, 4 * heads, heads, LAYERS)).bias(10, 10)
    theirs = build_alibi_tensor(torch.ones(1, 10, dtype=torch.int64), heads, torch.float32)
    expected = theirs - theirs.transpose(1, 2)
    seen = relative_positions(10, 10, torch.device("cpu")) <= 0
    torch.testing.assert_close(ours[:, seen], expected[:, seen], rtol=1e-6, atol=1e-6)


def kerple(position: Kerple, head: int, query: int, key: int) -> Tensor:
    """Chi et al. 2022, equation 7."""
    return -position.log_size[head].exp() * torch.log(1 + position.log_rate[head].exp() * abs(query - key))


def fire(position: Fire, head: int, query: int, key: int) -> Tensor:
    """Li et al. 2023, equations 3 and 15, with the constant of the authors' code against a division by zero."""
    longest = torch.maximum(torch.tensor(float(query)), position.scale * position.threshold)
    over = torch.log(position.rate * longest + 1) + 1e-6
    ratio = torch.log(position.rate * abs(query - key) + 1) / over
    return position.outer.weight[head] @ (position.inner.weight[:, 0] * ratio + position.inner.bias).clamp(min=0)


@pytest.mark.parametrize(("queries", "keys"), [(9, 9), (1, 9), (4, 9)])
@pytest.mark.parametrize(("kind", "formula"), [(Kerple, kerple), (Fire, fire)])
def test_learned_biases_are_their_formula(kind: Any, formula: Any, queries: int, keys: int) -> None:
    options = {"threshold": 5.5} if kind is Fire else {}
    position: Any = kind(Shape(VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS), **options)
    randomized(position)
    ours, parameters = position.bias(queries, keys), list(position.parameters())
    rows = [
        torch.stack([formula(position, head, query, key) for key in range(keys)])
        for head in range(HEADS)
        for query in range(keys - queries, keys)
    ]
    expected = torch.stack(rows).unflatten(0, (HEADS, queries))
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)
    weights = torch.rand(ours.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    gradients = [torch.autograd.grad((weights * bias).sum(), parameters) for bias in (ours, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-11)


def test_kerple_penalises_distance_for_any_value() -> None:
    position = randomized(Kerple(Shape(VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS)))
    assert (position.bias(1, 50).diff(dim=-1) > 0).all()


def test_an_offset_leaves_the_first_rows_of_the_table_alone(refused: Refused) -> None:
    shape, x_btd = Shape(VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS), torch.zeros(1, CONTEXT, WIDTH)
    position = Learned(shape, offset=2)
    assert torch.equal(position.embed(x_btd)[0], position.table.weight[2:])
    assert torch.equal(position.embed(x_btd[:, :3], 4)[0], position.table.weight[6:9])
    with refused(ValueError):
        position.embed(x_btd, 1)


def gptj(x_bhtk: Tensor, size: int) -> Tensor:
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb, create_sinusoidal_positions

    sine, cosine = create_sinusoidal_positions(x_bhtk.shape[2], size)[None].split(size // 2, dim=-1)
    x_bthk = x_bhtk.transpose(1, 2)
    turned = apply_rotary_pos_emb(x_bthk[..., :size], sine, cosine)
    return torch.cat([turned, x_bthk[..., size:]], dim=-1).transpose(1, 2)


def neox(x_bhtk: Tensor, size: int) -> Tensor:
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding, apply_rotary_pos_emb

    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": size / x_bhtk.shape[3]}
    heads = {"hidden_size": 2 * x_bhtk.shape[3], "num_attention_heads": 2}
    tables = GPTNeoXRotaryEmbedding(transformers.GPTNeoXConfig(**heads, rope_parameters=rope))
    return apply_rotary_pos_emb(x_bhtk, x_bhtk, *tables(x_bhtk, torch.arange(x_bhtk.shape[2])[None]))[0]


def cohere(x_bhtk: Tensor, size: int) -> Tensor:
    from transformers.models.cohere.modeling_cohere import CohereRotaryEmbedding, apply_rotary_pos_emb

    heads = {"hidden_size": 2 * x_bhtk.shape[3], "num_attention_heads": 2}
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    tables = CohereRotaryEmbedding(transformers.CohereConfig(**heads, rope_parameters=rope))
    return apply_rotary_pos_emb(x_bhtk, x_bhtk, *tables(x_bhtk, torch.arange(x_bhtk.shape[2])[None]))[0]


@pytest.mark.parametrize(
    ("theirs", "share", "interleaved"),
    [(gptj, 0.5, True), (neox, 0.25, False), (neox, 0.5, False), (cohere, 1.0, True)],
)
def test_partial_and_interleaved_rotations(theirs: Any, share: float, interleaved: bool) -> None:
    ours = Rope(Shape(VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS), share=share, interleaved=interleaved)
    shape = (2, HEADS, CONTEXT, WIDTH // HEADS)
    x_bhtk, weights = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x_bhtk.requires_grad_()
    with exactly():
        expected = theirs(x_bhtk, round(share * WIDTH // HEADS))
    turned = ours.apply_rotary(x_bhtk)
    torch.testing.assert_close(turned, expected, rtol=0, atol=1e-12)
    gradients = [torch.autograd.grad((weights * y).sum(), x_bhtk) for y in (turned, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.apply_rotary(x_bhtk[:, :, 3:], 3), turned[:, :, 3:], rtol=0, atol=0)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("heads", [1, HEADS])
def test_heads_side_by_side_turn_as_heads_apart(heads: int, interleaved: bool) -> None:
    rope = Rope(Shape(VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS), interleaved=interleaved)
    generator = torch.Generator().manual_seed(0)
    x_bthk, weights_bthk = torch.randn(2, 2, CONTEXT - 3, heads, WIDTH // HEADS, generator=generator)
    turned, gradients = list[Tensor](), list[Tensor]()
    for turn in (rope.rotate_projected, rope.apply_rotary):
        arranged = x_bthk.transpose(1, 2)
        x_bhtk = arranged.detach().requires_grad_()
        turned.append(turn(x_bhtk, 3))
        gradients += torch.autograd.grad((weights_bthk.transpose(1, 2) * turned[-1]).sum(), x_bhtk)
    assert torch.equal(*turned)
    assert torch.equal(*gradients)


def stretched(kind: str, base: float, context: int, size: int, length: int, **scaling: Any) -> tuple[Tensor, float]:
    """Radians a position and the factor on turned vectors, from `transformers`, in float64."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    with exactly():
        config = transformers.LlamaConfig(
            hidden_size=2 * size,
            num_attention_heads=2,
            max_position_embeddings=context,
            rope_parameters={"rope_type": kind, "rope_theta": base, **scaling},
        )
        return ROPE_INIT_FUNCTIONS[kind](config, seq_len=length)


@pytest.mark.parametrize("base", [10000.0, 500.0])
@pytest.mark.parametrize(("context", "size", "stretch"), [(64, 128, 1.5), (512, 8, 32.0), (4096, 64, 4.0)])
def test_frequencies_of_stretched_rotations(base: float, context: int, size: int, stretch: float) -> None:
    shape = Shape(VOCABULARY, context, 2 * size, 2, LAYERS)
    longer, whole = round(stretch * context), {"original_max_position_embeddings": context}
    cases: list[tuple[Rope, tuple[Tensor, float]]] = [
        (RopeLinear(shape, base, stretch), stretched("linear", base, context, size, longer, factor=stretch)),
        # The dynamic base at length L with factor 1 is the NTK-aware base at stretch L / context.
        (RopeNTK(shape, base, longer / context), stretched("dynamic", base, context, size, longer, factor=1.0)),
        (RopeYarn(shape, base, stretch), stretched("yarn", base, context, size, longer, factor=stretch, **whole)),
        (
            RopeYarn(shape, base, stretch, fast=8.0, slow=2.0),
            stretched(
                "yarn", base, context, size, longer, factor=stretch, beta_fast=8.0, beta_slow=2.0, **whole
            ),
        ),
        (
            RopeYarn(shape, base, stretch, share=0.5),
            stretched(
                "yarn", base, context, size, longer, factor=stretch, partial_rotary_factor=0.5, **whole
            ),
        ),
        (
            RopeLlama3(shape, base, stretch),
            stretched(
                "llama3", base, context, size, longer, factor=stretch, low_freq_factor=1.0, high_freq_factor=4.0,
                **whole,
            ),
        ),
        (
            RopeLlama3(shape, base, stretch, fast=9.0, slow=0.5, original=50),
            stretched(
                "llama3", base, context, size, longer, factor=stretch, low_freq_factor=0.5, high_freq_factor=9.0,
                original_max_position_embeddings=50,
            ),
        ),
    ]  # fmt: skip
    for ours, (frequency, factor) in cases:
        torch.testing.assert_close(ours.frequency(), frequency, rtol=1e-12, atol=0)
        assert ours.factor() == pytest.approx(factor, rel=1e-15)
