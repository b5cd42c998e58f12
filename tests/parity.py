"""Models of `transformers` in float64 with random weights, and how their parameters are called in ours.

Where `transformers` casts to float32 whatever the model's precision (norms, rotary tables, softmax), `exactly` turns
the cast into one to float64, so that a tolerance need not hide it. Weights are loaded strictly: a parameter of either
side without a partner is an error.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from helpers import MODEL
from torch import Tensor, nn

import lm.model.transformer  # noqa: F401 - its class is a choice
from lm.config.components import build, resolve
from lm.config.tree import Tree, override
from lm.model.transformer import Model, build_and_initialize

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS = 37, 24, 64, 4, 3
SIZES: Tree = {"width": WIDTH, "heads": HEADS, "layers": LAYERS}

LLAMA = {
    "model.embed_tokens.": "embedding.tokens.",
    "lm_head.": "embedding.head.",
    "model.norm.": "final_norm.",
    "model.layers.": "blocks.",
    "self_attn.q_proj.": "attention.query.",
    "self_attn.k_proj.": "attention.key.",
    "self_attn.v_proj.": "attention.value.",
    "self_attn.o_proj.": "attention.output.",
    "self_attn.q_norm.": "attention.query_norm.",
    "self_attn.k_norm.": "attention.key_norm.",
    "mlp.gate_proj.": "mlp.gate.",
    "mlp.up_proj.": "mlp.up.",
    "mlp.down_proj.": "mlp.down.",
    "input_layernorm.": "attention_residual.norm.",
    "post_attention_layernorm.": "mlp_residual.norm.",
}
GEMMA2 = {
    **LLAMA,
    "post_attention_layernorm.": "attention_residual.outer_norm.",
    "pre_feedforward_layernorm.": "mlp_residual.norm.",
    "post_feedforward_layernorm.": "mlp_residual.outer_norm.",
}
GPT2 = {
    "transformer.wte.": "embedding.tokens.",
    "transformer.wpe.": "position.table.",
    "transformer.h.": "blocks.",
    "transformer.ln_f.": "final_norm.",
    "lm_head.": "embedding.head.",
    "ln_1.": "attention_residual.norm.",
    "ln_2.": "mlp_residual.norm.",
    "attn.c_attn.": "attention.fused.",
    "attn.c_proj.": "attention.output.",
    "mlp.c_fc.": "mlp.up.",
    "mlp.c_proj.": "mlp.down.",
}
BLOOM = {
    "transformer.word_embeddings.": "embedding.tokens.",
    "transformer.word_embeddings_layernorm.": "embedding.norm.",
    "transformer.h.": "blocks.",
    "transformer.ln_f.": "final_norm.",
    "lm_head.": "embedding.head.",
    "input_layernorm.": "attention_residual.norm.",
    "post_attention_layernorm.": "mlp_residual.norm.",
    "self_attention.query_key_value.": "attention.fused.",
    "self_attention.dense.": "attention.output.",
    "mlp.dense_h_to_4h.": "mlp.up.",
    "mlp.dense_4h_to_h.": "mlp.down.",
}
MARIAN = {
    "model.shared.": "embedding.tokens.",
    "lm_head.": "embedding.head.",
    "model.encoder.layers.": "encoder.",
    "model.decoder.layers.": "decoder.",
    "self_attn.q_proj.": "attention.query.",
    "self_attn.k_proj.": "attention.key.",
    "self_attn.v_proj.": "attention.value.",
    "self_attn.out_proj.": "attention.output.",
    "encoder_attn.q_proj.": "cross.query.",
    "encoder_attn.k_proj.": "cross.key.",
    "encoder_attn.v_proj.": "cross.value.",
    "encoder_attn.out_proj.": "cross.output.",
    "self_attn_layer_norm.": "attention_residual.norm.",
    "encoder_attn_layer_norm.": "cross_residual.norm.",
    "final_layer_norm.": "mlp_residual.norm.",
    "fc1.": "mlp.up.",
    "fc2.": "mlp.down.",
}


def t5_names(stack: str, norm: str, position: str, cross: bool) -> dict[str, str]:
    """T5's names in one stack, whose blocks are `stack`; cross-attention, where there is any, moves the last number."""
    numbered = {"0.SelfAttention": "attention", **({"1.EncDecAttention": "cross"} if cross else {})}
    projections = {"q": "query", "k": "key", "v": "value", "o": "output"}
    last = 1 + cross
    return {
        "final_layer_norm.": f"{norm}.",
        "block.0.layer.0.SelfAttention.relative_attention_bias.": f"{position}.table.",
        "block.": f"{stack}.",
        **{f"layer.{n}.{p}.": f"{kind}.{ours}." for n, kind in numbered.items() for p, ours in projections.items()},
        **{f"layer.{n[0]}.layer_norm.": f"{kind}_residual.norm." for n, kind in numbered.items()},
        f"layer.{last}.layer_norm.": "mlp_residual.norm.",
        f"layer.{last}.DenseReluDense.wi.": "mlp.up.",
        f"layer.{last}.DenseReluDense.wo.": "mlp.down.",
    }


@contextmanager
def exactly() -> Iterator[None]:
    """What is written in float32 is computed in float64."""
    default = torch.get_default_dtype()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "float", Tensor.double)
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(torch, "float", torch.float64)
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(default)


def randomized(model: nn.Module) -> Any:
    """The model in float64 with noise added to every parameter, gains and offsets of norms too."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.double().eval()


def renamed(state: dict[str, Tensor], names: dict[str, str]) -> dict[str, Tensor]:
    """Tensors under our names: a prefix or a dotted part that is a key of `names` becomes its value."""
    ours = {}
    for name, value in state.items():
        for old, new in names.items():
            name = new + name.removeprefix(old) if name.startswith(old) else name.replace(f".{old}", f".{new}")
        ours[name] = value
    return ours


def split_fused(state: dict[str, Tensor], interleaved: bool) -> dict[str, Tensor]:
    """Fused queries, keys and values taken apart: BLOOM's are (heads, 3, head size), GPT-2's (3, heads, head size)."""
    apart = {}
    for name, value in state.items():
        if "attention.fused." not in name:
            apart[name] = value
            continue
        heads = (
            value.unflatten(0, (HEADS, 3, -1)).transpose(0, 1) if interleaved else value.unflatten(0, (3, HEADS, -1))
        )
        for part, piece in zip(("query", "key", "value"), heads.flatten(1, 2), strict=True):
            apart[name.replace("fused", part)] = piece
    return apart


@dataclass
class Root:
    """A configuration that holds nothing but a model."""

    model: Callable[[int, int], Model]


def configured(changes: Tree, context: int = CONTEXT) -> Any:
    """Our model as users configure it, in float64 and in evaluation."""
    base = {"model": {**MODEL, "class_path": changes.get("class_path", "Decoder")}}
    tree = override(base, {f"model.{key}": value for key, value in changes.items() if key != "class_path"})
    model = build_and_initialize(build(resolve(tree, Root), Root).model, VOCABULARY, context, seed=0)
    return model.double().eval()


def loaded(changes: Tree, state: dict[str, Tensor], context: int = CONTEXT) -> Any:
    """Our model with these weights."""
    model = configured(changes, context)
    model.load_state_dict(state, strict=True)
    return model


def hidden(changes: Tree) -> int:
    """The hidden width that our configuration comes to."""
    return configured(changes).blocks[0].mlp.up.out_features


def sample(time: int = CONTEXT, seed: int = 1) -> Tensor:
    """Random token ids of two texts; 0, which may be padding, is not among them."""
    return torch.randint(1, VOCABULARY, (2, time), generator=torch.Generator().manual_seed(seed))
