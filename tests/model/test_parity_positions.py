"""Position encodings against those of `transformers`, by themselves: in float64 where it matters."""

from typing import Any

import pytest
import torch
from parity import CONTEXT, HEADS, LAYERS, VOCABULARY, WIDTH, exactly
from torch import Tensor, nn

from lm.model.position import Alibi, Rope, RopeLinear, RopeNTK, RopeYarn, T5Bias, relative_buckets, relative_positions
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
@pytest.mark.parametrize("context", [64, 512, 4096])
@pytest.mark.parametrize("size", [8, 64, 128])
@pytest.mark.parametrize("stretch", [1.5, 4.0, 32.0])
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
    ]  # fmt: skip
    for ours, (frequency, factor) in cases:
        torch.testing.assert_close(ours.frequency(), frequency, rtol=1e-12, atol=0)
        assert ours.factor() == pytest.approx(factor, rel=1e-15)
