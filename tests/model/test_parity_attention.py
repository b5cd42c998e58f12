"""Attention layers of published models, as `transformers` computes them, with their random weights copied into ours.

Both sides run in float64; outputs and all gradients agree to 1e-9.
"""

from typing import Any

import pytest
import torch
from helpers import example
from parity import exactly, randomized
from torch import Tensor

from lm.model.attention import GroupedQuery, Mask, MultiHead, SoftmaxAttention
from lm.model.attention_variants import Differential, Latent
from lm.model.position import NoPosition, Position, Rope
from lm.model.shape import Shape

pytest.importorskip("transformers", reason="parity needs transformers: pip install transformers")
from transformers.models.cohere import modeling_cohere as cohere
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
from transformers.models.diffllama import modeling_diffllama as diffllama
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.olmo2 import modeling_olmo2 as olmo2
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

TIME, WIDTH, HEADS, LAYER = 9, 32, 4, 1
SHAPE = Shape(11, TIME, WIDTH, HEADS, layers=3, layer=LAYER)
NAMES = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "output", "q_norm": "query_norm"}
NAMES |= {"k_norm": "key_norm"}


def theirs(package: Any, kind: str, **settings: Any) -> Any:
    """An attention layer of `transformers` in float64, every parameter of which is random."""
    config = getattr(package, f"{kind}Config")(hidden_size=WIDTH, num_attention_heads=HEADS, **settings)
    config._attn_implementation = "eager"
    with exactly():
        return randomized(getattr(package, f"{kind}Attention")(config, LAYER))


def renamed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under our names; a gain by head and channel becomes a vector."""
    ours = {}
    for name, value in state.items():
        first, dot, last = name.partition(".")
        ours[NAMES.get(first, first) + dot + last] = value.flatten() if "norm" in first else value
    return ours


def agree(
    ours: SoftmaxAttention, other: Any, names: Any = renamed, rotated: int = 0, interleaved: bool = False
) -> None:
    """Both give the same output, and the same gradients of the input and of all parameters."""
    ours.double().load_state_dict(names(other.state_dict()), strict=True)
    x, slope = example(2, TIME, WIDTH).requires_grad_(), example(2, TIME, WIDTH, seed=1)
    position: Position = Rope(SHAPE, interleaved=interleaved) if rotated else NoPosition(SHAPE)
    size = rotated or ours.head_size
    angle = torch.arange(TIME).double()[:, None] * 10000.0 ** (-torch.arange(0, size, 2).double() / size)
    angle = angle * bool(rotated)
    turns = tuple(torch.cat([table, table], dim=-1)[None] for table in (angle.cos(), angle.sin()))
    mask = torch.full((TIME, TIME), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    with exactly():
        expected = other(x, position_embeddings=turns, attention_mask=mask)[0]
        expected_grad, *expected_grads = torch.autograd.grad((expected * slope).sum(), [x, *other.parameters()])
    output = ours(x, position, Mask())
    grad, *grads = torch.autograd.grad((output * slope).sum(), [x, *ours.parameters()])
    assert expected.std() > 0.1
    computed = {"output": output, "input": grad, **dict(zip(dict(ours.named_parameters()), grads, strict=True))}
    named = names(dict(zip(dict(other.named_parameters()), expected_grads, strict=True)))
    torch.testing.assert_close(computed, {"output": expected, "input": expected_grad, **named}, rtol=0, atol=1e-9)


def qwen3_next_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gates taken out of the queries' matrix; gradients of gains 1 + w are those of w."""
    halves = state["q_proj.weight"].unflatten(0, (HEADS, 2, -1))
    ours = {"gate.weight": halves[:, 1].flatten(0, 1), "query.weight": halves[:, 0].flatten(0, 1)}
    return ours | {name: value for name, value in renamed(state).items() if name != "query.weight"}


@pytest.mark.parametrize("head_size", [8, 12])
def test_qwen3_next_gate(head_size: int) -> None:
    ours = GroupedQuery(SHAPE, 2, bias=False, qk_norm=True, gate="elementwise", head_size=head_size)
    other = theirs(qwen3_next, "Qwen3Next", num_key_value_heads=2, head_dim=head_size)
    for norm in (other.q_norm, other.k_norm):  # whose gain is 1 + w
        norm.forward = lambda x, norm=norm: norm._norm(x) * norm.weight
    agree(ours, other, qwen3_next_names, head_size)


@pytest.mark.parametrize("impl", ["sdpa", "plain", "blocked"])
def test_gpt_oss_sinks(impl: Any) -> None:
    other = theirs(gpt_oss, "GptOss", num_key_value_heads=2, head_dim=8, attention_bias=True)
    other.sinks.data = example(HEADS)  # which it leaves to the memory that it gets
    rotate = lambda q, k, cos, sin: (Rope(SHAPE).apply_rotary(q), Rope(SHAPE).apply_rotary(k))  # noqa: E731
    ours = GroupedQuery(SHAPE, 2, sinks=True)
    ours.impl = impl
    with pytest.MonkeyPatch.context() as patch:  # which pairs halves as ours does, with tables of half the size
        patch.setattr(gpt_oss, "apply_rotary_pos_emb", rotate)
        agree(ours, other, rotated=8)


def test_olmo2_norm_over_the_width() -> None:
    other = theirs(olmo2, "Olmo2", num_key_value_heads=2, rms_norm_eps=1e-6)
    agree(GroupedQuery(SHAPE, 2, bias=False, qk_norm="width"), other, rotated=8)


def test_cohere_layer_norm_of_heads() -> None:
    other = theirs(cohere, "Cohere", num_key_value_heads=2, use_qk_norm=True)
    agree(GroupedQuery(SHAPE, 2, bias=False, qk_norm="LayerNorm"), other)


def test_offsets_of_all_but_the_output_are_qwen2s() -> None:
    from transformers.models.qwen2 import modeling_qwen2 as qwen2

    agree(MultiHead(SHAPE, output_bias=False), theirs(qwen2, "Qwen2", num_key_value_heads=HEADS), rotated=8)


def test_olmo1_clips_queries_keys_and_values() -> None:
    from transformers.models.olmo import modeling_olmo as olmo

    other = theirs(olmo, "Olmo", num_key_value_heads=2, clip_qkv=0.7)
    agree(GroupedQuery(SHAPE, 2, bias=False, clip=0.7), other, rotated=8)


@pytest.mark.parametrize("key_value_heads", [2, 4])
def test_diffllama(key_value_heads: int) -> None:
    """Its norm of a pair has no gain."""
    vectors = {f"lambda_{name}": f"share_vectors.{index}" for index, name in enumerate(("q1", "k1", "q2", "k2"))}
    ours = Differential(SHAPE, key_value_heads, bias=False)
    ours.pair_norm.register_parameter("weight", None)
    other = theirs(diffllama, "DiffLlama", num_key_value_heads=key_value_heads, rms_norm_eps=1e-6)
    agree(ours, other, lambda state: renamed({vectors.get(name, name): x for name, x in state.items()}), rotated=8)


DEEPSEEK = {"kv_a_proj_with_mqa": "down", "kv_a_layernorm": "key_norm", "q_b_proj": "query", "q_a_proj": "query_down"}
DEEPSEEK |= {"q_a_layernorm": "query_norm"}


def deepseek_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The matrix to keys and values of all heads taken apart."""
    pairs = state["kv_b_proj.weight"].unflatten(0, (HEADS, 2, -1))
    ours = {"key.weight": pairs[:, 0].flatten(0, 1), "value.weight": pairs[:, 1].flatten(0, 1)}
    rest = {name.split(".")[0]: name for name in state if "kv_b_proj" not in name}
    return ours | renamed({f"{DEEPSEEK.get(first, first)}.weight": state[name] for first, name in rest.items()})


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
@pytest.mark.parametrize("query_rank", [None, 10], ids=["queries of the input", "queries of a small vector"])
def test_deepseek_latent_attention(query_rank: int | None, interleaved: bool) -> None:
    sizes = {"kv_lora_rank": 12, "qk_rope_head_dim": 6, "qk_nope_head_dim": 8, "v_head_dim": 8}
    options = {"num_key_value_heads": HEADS, "rope_interleave": interleaved}
    other = theirs(deepseek, "DeepseekV3", q_lora_rank=query_rank, **options, **sizes)
    ours = Latent(SHAPE, kv_rank=12, query_rank=query_rank, rope_size=6)
    agree(ours, other, deepseek_names, rotated=6, interleaved=interleaved)
