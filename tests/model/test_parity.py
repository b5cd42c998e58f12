"""Published models, as `transformers` computes them in float64, with their random weights copied into ours.

Logits agree to 1e-9, and so do gradients of families.
"""

from typing import Any

import pytest
import torch
from parity import (
    CONTEXT,
    HEADS,
    LAYERS,
    PAGE,
    SIZES,
    TOLERANCE,
    VOCABULARY,
    WIDTH,
    agree,
    configured,
    exactly,
    padded,
    pair,
    randomized,
    row,
    sample,
    table,
)
from torch import Tensor

from lm.config.tree import Tree
from lm.inference.conversion import to_ours
from lm.inference.families import FAMILIES
from lm.model.position import sinusoids

transformers = pytest.importorskip("transformers", reason="parity needs transformers: pip install transformers")


def grouped(**arguments: Any) -> Tree:
    """The attention of llama3 with further arguments."""
    return {"class_path": "GroupedQuery", "init_args": {"key_value_heads": 2, "bias": False, **arguments}}


@pytest.mark.parametrize("name", FAMILIES)
def test_family(name: str) -> None:
    """Logits and gradients agree, and docs/families.md has this family as its file is now."""
    agree(name)
    described = table([row(name)]).splitlines()[-1].split(" | ")[:-2]
    assert described in [line.split(" | ")[:-2] for line in PAGE.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ({"embedding.tied": True}, {}),
        ({"attention": grouped(bias=True), "mlp": "SwiGLU"}, {"attention_bias": True, "mlp_bias": True}),
        ({"attention": {"class_path": "MultiHead", "init_args": {"bias": False}}}, {}),
    ],
    ids=["tied", "offsets", "as many key-value heads"],
)
def test_variants_of_llama(changes: Tree, settings: dict[str, Any]) -> None:
    agree("llama", changes, settings)


@pytest.mark.parametrize(
    ("position", "scaling", "trained"),
    [
        ("RopeLinear", {"rope_type": "linear", "factor": 4.0}, 4 * CONTEXT),
        ("RopeYarn", {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": CONTEXT}, 4 * CONTEXT),
        ("RopeNTK", {"rope_type": "dynamic", "factor": 1.0}, CONTEXT),
    ],
    ids=["linear", "yarn", "dynamic"],
)
def test_rotations_at_four_times_the_trained_context(position: str, scaling: dict[str, Any], trained: int) -> None:
    changes = {"position": {"class_path": position, "init_args": {"stretch": 4.0}}}
    rope = {"rope_theta": 10000.0, **scaling}
    settings = {"max_position_embeddings": trained, "rope_parameters": rope}
    agree("qwen3", changes, settings, CONTEXT, 4 * CONTEXT)


def close(ours: Tensor, expected: Tensor) -> None:
    """Equal to the tolerance, and far enough from zero for that to mean something."""
    assert expected.dtype == ours.dtype == torch.float64
    assert expected.std() > 0.5
    torch.testing.assert_close(ours, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
@torch.no_grad()
def test_t5_stack(causal: bool) -> None:
    """T5's decoder without cross-attention, and its encoder: buckets in one direction and in both."""
    from transformers.models.t5.modeling_t5 import T5Stack

    sizes = {"d_model": WIDTH, "d_kv": WIDTH // HEADS, "d_ff": 4 * WIDTH, "num_heads": HEADS, "num_layers": LAYERS}
    buckets = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}
    other = randomized(
        T5Stack(transformers.T5Config(vocab_size=VOCABULARY, is_decoder=causal, use_cache=False, **sizes, **buckets))
    )
    stack = "decoder" if causal else "encoder"
    state = to_ours(
        {f"{stack}.{name}": x for name, x in other.state_dict().items()}, FAMILIES["t5"], HEADS, WIDTH // HEADS
    )
    places = {f"{stack}.": "blocks.", f"{stack}_norm.": "final_norm.", f"{stack}_position.": "position."}
    ours = configured(
        {
            **SIZES,
            "causal": causal,
            "position": {"class_path": "T5Bias", "init_args": {"buckets": 8, "longest": 12}},
            "norm": "RMSNorm",
            "attention": {"class_path": "MultiHead", "init_args": {"scale": "none", "bias": False}},
            "mlp": {"class_path": "ReLU", "init_args": {"bias": False}},
        }
    )
    own = {"embedding.head.weight": state["embedding.tokens.weight"]}
    for name, value in state.items():
        prefix = next((prefix for prefix in places if name.startswith(prefix)), "")
        if ".cross" not in name:
            own[places.get(prefix, "") + name.removeprefix(prefix)] = value
    ours.load_state_dict(own, strict=True)
    with exactly():
        expected = other(sample()).last_hidden_state @ state["embedding.tokens.weight"].T
    close(ours(sample()), expected)


@torch.no_grad()
def test_marian() -> None:
    """Post-norm with sinusoids, whose columns Marian has in another order, so that ours are copied into it."""
    changes: Tree = {
        **SIZES,
        "class_path": "EncoderDecoder",
        "embedding": {"tied": True, "scaled": True},
        "position": "Sinusoidal",
        "block": "PostNorm",
        "mlp": "SiLU",
    }
    both = {"layers": LAYERS, "attention_heads": HEADS, "ffn_dim": 4 * WIDTH}
    config = transformers.MarianConfig(
        **{f"{stack}_{name}": value for stack in ("encoder", "decoder") for name, value in both.items()},
        **{"vocab_size": VOCABULARY, "d_model": WIDTH, "max_position_embeddings": CONTEXT, "scale_embedding": True},
        **{"activation_function": "silu", "pad_token_id": 0, "decoder_start_token_id": 0},
    )
    config._attn_implementation = "eager"
    other = randomized(transformers.MarianMTModel(config))
    other.final_logits_bias.zero_()
    state = {n: x for n, x in other.state_dict().items() if "embed_pos" not in n and n != "final_logits_bias"}
    ours = configured(changes)
    ours.load_state_dict(to_ours(state, FAMILIES["bart"], HEADS, WIDTH // HEADS), strict=True)
    halves = torch.cat([sinusoids(CONTEXT, WIDTH)[:, 0::2], sinusoids(CONTEXT, WIDTH)[:, 1::2]], dim=1)
    for stack, position in ((other.model.encoder, ours.encoder_position), (other.model.decoder, ours.decoder_position)):
        torch.testing.assert_close(stack.embed_positions.create_weight(), halves, rtol=0, atol=1e-7)
        stack.embed_positions.weight.copy_(position.table_td)
    source_bs, hidden_bs, target_bt = padded()
    with exactly():
        expected = other(input_ids=source_bs, attention_mask=(~hidden_bs).long(), decoder_input_ids=target_bt).logits
    close(ours(target_bt, source_bs, hidden_bs), expected)


def test_parity_is_not_an_accident_of_small_numbers() -> None:
    """One weight in a thousand off by a thousandth is seen, in logits and in gradients."""
    both = pair("llama")
    both.ours.blocks[1].attention.key.weight.data[3, 5] += 1e-3
    assert min(both.difference()) > 1e4 * TOLERANCE


def test_a_loss_in_chunks_keeps_the_offset_of_the_output() -> None:
    """Where the output layer has an offset, logits are no mere product of hidden states and a matrix."""
    assert configured(SIZES).hidden_and_weight(sample()) is not None
    assert configured({**SIZES, "embedding.output_bias": True}).hidden_and_weight(sample()) is None
