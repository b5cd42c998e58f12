"""Published models, as `transformers` computes them, with their random weights copied into ours.

Both sides run in float64, and logits agree to 1e-9.
"""

from typing import Any

import pytest
import torch
from parity import (
    BLOOM,
    CONTEXT,
    GEMMA2,
    GPT2,
    HEADS,
    LAYERS,
    LLAMA,
    MARIAN,
    SIZES,
    VOCABULARY,
    WIDTH,
    configured,
    exactly,
    hidden,
    loaded,
    randomized,
    renamed,
    sample,
    split_fused,
    t5_names,
)
from torch import Tensor, nn

from lm.config.tree import Tree
from lm.model.position import sinusoids

transformers = pytest.importorskip("transformers", reason="parity needs transformers: pip install transformers")

TOLERANCE = 1e-9
FLAT = {"bias": False}
MODERN: Tree = {
    **SIZES,
    "embedding": {"tied": False},
    "position": "Rope",
    "block": "PreNorm",
    "norm": "RMSNorm",
    "attention": {"class_path": "GroupedQuery", "init_args": {"key_value_heads": 2, **FLAT}},
    "mlp": {"class_path": "SwiGLU", "init_args": FLAT},
}


def grouped(**arguments: Any) -> Tree:
    """The attention of MODERN with further arguments."""
    return {"class_path": "GroupedQuery", "init_args": {"key_value_heads": 2, **FLAT, **arguments}}


def theirs(kind: str, **settings: Any) -> Any:
    """A causal model of `transformers` in float64, every parameter of which is random."""
    sizes = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS}
    special = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **special, **settings})
    config._attn_implementation = "eager"
    with exactly():
        return randomized(getattr(transformers, "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")(config))


def close(ours: Tensor, expected: Tensor) -> None:
    """Equal to the tolerance, and far enough from zero for that to mean something."""
    assert expected.dtype == ours.dtype == torch.float64
    assert expected.std() > 0.5
    torch.testing.assert_close(ours, expected, rtol=0, atol=TOLERANCE)


@torch.no_grad()
def agree(ours: nn.Module, other: nn.Module, time: int = CONTEXT) -> None:
    """Both give the same logits."""
    with exactly():
        expected = other(sample(time)).logits
    close(ours(sample(time)), expected)


def test_gpt2() -> None:
    changes: Tree = {
        **SIZES,
        "position": "Learned",
        "mlp": {"class_path": "GELU", "init_args": {"approximate": "tanh"}},
    }
    other = theirs("GPT2", n_positions=CONTEXT)
    state = renamed(other.state_dict(), GPT2)
    conv1d = ("attention.fused.weight", "attention.output.weight", "mlp.up.weight", "mlp.down.weight")
    state = {name: value.T if name.endswith(conv1d) else value for name, value in state.items()}
    ours = loaded(changes, split_fused(state, interleaved=False))
    assert ours.embedding.head.weight is ours.embedding.tokens.weight
    agree(ours, other)


def test_bloom() -> None:
    """With GELU's constant to full precision."""
    mlp = {"class_path": "GELU", "init_args": {"approximate": "tanh"}}
    changes = {**SIZES, "embedding": {"norm": "LayerNorm"}, "position": "Alibi", "mlp": mlp}
    other = theirs("Bloom", n_head=HEADS, n_layer=LAYERS, layer_norm_epsilon=1e-5, tie_word_embeddings=True)
    for block in other.transformer.h:
        block.mlp.gelu_impl = nn.GELU("tanh")
    agree(loaded(changes, split_fused(renamed(other.state_dict(), BLOOM), interleaved=True)), other)


def modern(kind: str, changes: Tree, time: int = CONTEXT, **settings: Any) -> None:
    """A model with the modules of Llama gives the logits of ours."""
    common = {"num_key_value_heads": 2, "rms_norm_eps": 1e-6, "max_position_embeddings": CONTEXT}
    other = theirs(kind, intermediate_size=hidden(changes), **{**common, "tie_word_embeddings": False, **settings})
    agree(loaded(changes, renamed(other.state_dict(), LLAMA)), other, time)


def test_llama_with_grouped_queries() -> None:
    modern("Llama", MODERN)


def test_llama_with_offsets_and_another_base() -> None:
    position = {"class_path": "Rope", "init_args": {"base": 500.0}}
    changes = {**MODERN, "attention": grouped(bias=True), "mlp": "SwiGLU", "position": position}
    rope = {"rope_type": "default", "rope_theta": 500.0}
    modern("Llama", changes, attention_bias=True, mlp_bias=True, rope_parameters=rope)


def test_qwen3_with_normed_queries_and_keys() -> None:
    modern("Qwen3", {**MODERN, "attention": grouped(qk_norm=True)}, head_dim=WIDTH // HEADS)


def test_mistral_with_a_sliding_window() -> None:
    modern("Mistral", {**MODERN, "attention": grouped(window=5)}, sliding_window=5)


@pytest.mark.parametrize(
    ("position", "scaling", "trained"),
    [
        ("RopeLinear", {"rope_type": "linear", "factor": 4.0}, 4 * CONTEXT),
        ("RopeYarn", {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": CONTEXT}, 4 * CONTEXT),
        ("RopeNTK", {"rope_type": "dynamic", "factor": 1.0}, CONTEXT),
    ],
    ids=["linear", "yarn", "dynamic"],
)
def test_llama_at_four_times_the_trained_context(position: str, scaling: dict[str, Any], trained: int) -> None:
    changes = {**MODERN, "position": {"class_path": position, "init_args": {"stretch": 4.0}}}
    rope = {"rope_theta": 10000.0, **scaling}
    modern("Llama", changes, 4 * CONTEXT, max_position_embeddings=trained, rope_parameters=rope)


def test_gemma2_with_capped_scores() -> None:
    """Sandwich norms, scaled embeddings, a scale of its own, tied; windows in all layers, logits capped."""
    changes = {
        **MODERN,
        "embedding": {"tied": True, "scaled": True, "softcap": 2.0},
        "block": "Sandwich",
        "norm": {"class_path": "RMSNorm", "init_args": {"unit_offset": True}},
        "attention": grouped(softcap=1.5, scale=6**-0.5, window=7),
        "mlp": {"class_path": "GEGLU", "init_args": {"approximate": "tanh", **FLAT}},
    }
    other = theirs(
        "Gemma2",
        intermediate_size=hidden(changes),
        num_key_value_heads=2,
        head_dim=WIDTH // HEADS,
        query_pre_attn_scalar=6,
        attn_logit_softcapping=1.5,
        final_logit_softcapping=2.0,
        sliding_window=7,
        layer_types=["sliding_attention"] * LAYERS,
        max_position_embeddings=CONTEXT,
    )
    agree(loaded(changes, renamed(other.state_dict(), GEMMA2)), other)


T5: Tree = {
    **SIZES,
    "position": {"class_path": "T5Bias", "init_args": {"buckets": 8, "longest": 12}},
    "norm": "RMSNorm",
    "attention": {"class_path": "MultiHead", "init_args": {"scale": "none", **FLAT}},
    "mlp": {"class_path": "ReLU", "init_args": FLAT},
}


def t5_config(**settings: Any) -> Any:
    sizes = {"d_model": WIDTH, "d_kv": WIDTH // HEADS, "d_ff": 4 * WIDTH, "num_heads": HEADS, "num_layers": LAYERS}
    buckets = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}
    config = transformers.T5Config(vocab_size=VOCABULARY, **sizes, **buckets, **settings)
    config._attn_implementation = "eager"
    return config


@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
@torch.no_grad()
def test_t5_stack(causal: bool) -> None:
    """T5's decoder without cross-attention, and its encoder: buckets in one direction and in both."""
    from transformers.models.t5.modeling_t5 import T5Stack

    other = randomized(T5Stack(t5_config(is_decoder=causal, use_cache=False)))
    names = {"embed_tokens.": "embedding.tokens.", **t5_names("blocks", "final_norm", "position", cross=causal)}
    state = {name: x for name, x in renamed(other.state_dict(), names).items() if ".cross" not in name}
    vectors = state["embedding.tokens.weight"]
    ours = loaded({**T5, "causal": causal}, {**state, "embedding.head.weight": vectors})
    with exactly():
        expected = other(sample()).last_hidden_state @ vectors.T
    close(ours(sample()), expected)


def padded() -> tuple[Tensor, Tensor, Tensor]:
    """A source with padding, where it is hidden, and a target of another length."""
    source_bs, hidden_bs = sample(CONTEXT, seed=2), torch.zeros(2, CONTEXT, dtype=torch.bool)
    hidden_bs[0, 17:] = True
    return source_bs.masked_fill(hidden_bs, 0), hidden_bs, sample(CONTEXT - 5, seed=3)


@torch.no_grad()
def agree_on_pairs(ours: nn.Module, other: nn.Module) -> None:
    source_bs, hidden_bs, target_bt = padded()
    mask = (~hidden_bs).long()
    with exactly():
        expected = other(input_ids=source_bs, attention_mask=mask, decoder_input_ids=target_bt).logits
    close(ours(target_bt, source_bs, hidden_bs), expected)


def test_t5_encoder_and_decoder() -> None:
    other = randomized(transformers.T5ForConditionalGeneration(t5_config(tie_word_embeddings=False)))
    other.encoder.embed_tokens = other.decoder.embed_tokens = other.shared
    state = {"embedding.tokens.weight": other.shared.weight, "embedding.head.weight": other.lm_head.weight}
    for stack in ("encoder", "decoder"):
        names = t5_names(stack, f"{stack}_norm", f"{stack}_position", cross=stack == "decoder")
        inner = {n: x for n, x in getattr(other, stack).state_dict().items() if not n.startswith("embed_tokens")}
        state.update(renamed(inner, names))
    agree_on_pairs(loaded({**T5, "class_path": "EncoderDecoder", "embedding": {"tied": False}}, state), other)


@torch.no_grad()
def test_marian() -> None:
    """Post-norm with sinusoids, whose columns Marian has in another order, so that ours are copied into it."""
    changes = {
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
    state = {n: x for n, x in other.state_dict().items() if "embed_" not in n and n != "final_logits_bias"}
    ours = loaded(changes, renamed(state, MARIAN))
    halves = torch.cat([sinusoids(CONTEXT, WIDTH)[:, 0::2], sinusoids(CONTEXT, WIDTH)[:, 1::2]], dim=1)
    for stack, position in ((other.model.encoder, ours.encoder_position), (other.model.decoder, ours.decoder_position)):
        torch.testing.assert_close(stack.embed_positions.create_weight(), halves, rtol=0, atol=1e-7)
        stack.embed_positions.weight.copy_(position.table_td)
    agree_on_pairs(ours, other)


def test_parity_is_not_an_accident_of_small_numbers() -> None:
    """One weight in a thousand off by a thousandth is seen."""
    ours, other = configured(MODERN), configured(MODERN)
    other.blocks[1].attention.key.weight.data[3, 5] += 1e-3
    for model in (ours, other):
        randomized(model)
    with pytest.raises(AssertionError, match="not close"):
        close(ours(sample()), other(sample()))
