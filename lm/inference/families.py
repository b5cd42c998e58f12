"""Families of published models: which of our parts they have, and what `transformers` calls fields and modules.

Plain data, a family a row, which reads and writes `config.json` and weights (lm/inference/conversion.py). `#` in a name
is the number of a layer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lm.config.tree import Tree

Names = dict[str, str]
Field = str | list[str] | tuple[str, float] | dict[Any, Tree]
"""Our setting, or several with one value; a setting and the power of it that the field holds; or settings by value."""

BY_WIDTH = "1/sqrt(width)"  # a value of a setting, in place of the number


@dataclass(frozen=True)
class Family:
    """A family of models in `transformers`, whose name in `config.json` is its `model_type`.

    Args:
        model: its class.
        parts: our settings below `model` that all its models share; others are at their defaults.
        fields: its fields that say our other settings. `context` is that of the data.
        names: its modules and ours; of several that share a tensor, the first is written.
        fixed: fields with the only value that our parts express.
        absent: values of fields that a file may lack.
        written: fields that we write and do not read.
        other_names: older names of its fields.
        rope: types of rotary positions, of ROPE; none for other positions.
        share: of each head that is rotated, by default; None where that is all of it.
        base: of rotary positions, by default.
        windows: which layers have the window `sliding_window`: all; by `layer_types`, else every other layer, or else
            those from `max_window_layers` on; none by default.
        fused: the order of its one matrix of queries, keys and values: all queries first, or head by head.
        transposed: those of our modules whose matrices it stores as (in, out).
        zeros: tensors by name that must be zero, (1, vocabulary).
    """

    model: str
    parts: Tree
    fields: Mapping[str, Field]
    names: Names
    fixed: Tree = field(default_factory=dict)
    absent: Tree = field(default_factory=dict)
    written: Tree = field(default_factory=dict)
    other_names: Names = field(default_factory=dict)
    rope: tuple[str, ...] = ()
    share: float | None = None
    base: float = 10000.0
    windows: Literal["", "all", "alternate", "last"] = ""
    fused: Literal["", "parts", "heads"] = ""
    transposed: tuple[str, ...] = ()
    zeros: tuple[str, ...] = ()


ROPE: dict[str, tuple[str, Names]] = {
    "default": ("Rope", {}),
    "linear": ("RopeLinear", {"factor": "stretch"}),
    "yarn": ("RopeYarn", {"factor": "stretch", "beta_fast": "fast", "beta_slow": "slow"}),
    "llama3": (
        "RopeLlama3",
        {
            "factor": "stretch",
            "high_freq_factor": "fast",
            "low_freq_factor": "slow",
            "original_max_position_embeddings": "original",
        },
    ),
}
"""Our class of each type of rotary positions, and its options by the keys of `rope_parameters`."""


def layers(theirs: str, ours: str, modules: Names) -> Names:
    """Return the names of the modules of each layer, with the prefix of its stack."""
    return {f"{theirs}.#.{name}": f"{ours}.#.{own}" for name, own in modules.items()}


FEED_FORWARD = {"mlp.dense_h_to_4h": "mlp.up", "mlp.dense_4h_to_h": "mlp.down"}
BEFORE = {"input_layernorm": "attention_residual.norm", "post_attention_layernorm": "mlp_residual.norm"}
QUERY_KEY_VALUE = {f"self_attn.{part[0]}_proj": f"attention.{part}" for part in ("query", "key", "value")}
LLAMA_LAYER = {
    **QUERY_KEY_VALUE,
    "self_attn.o_proj": "attention.output",
    "self_attn.q_norm": "attention.query_norm",
    "self_attn.k_norm": "attention.key_norm",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
}
ENDS = {"model.embed_tokens": "embedding.tokens", "lm_head": "embedding.head", "model.norm": "final_norm"}
SANDWICH = {
    "input_layernorm": "attention_residual.norm",
    "post_attention_layernorm": "attention_residual.outer_norm",
    "pre_feedforward_layernorm": "mlp_residual.norm",
    "post_feedforward_layernorm": "mlp_residual.outer_norm",
}
LLAMA = {**ENDS, **layers("model.layers", "blocks", {**LLAMA_LAYER, **BEFORE})}
GPT2 = {
    "transformer.wte": "embedding.tokens",
    "transformer.wpe": "position.table",
    "transformer.ln_f": "final_norm",
    "lm_head": "embedding.head",
    **layers(
        "transformer.h",
        "blocks",
        {
            "ln_1": "attention_residual.norm",
            "ln_2": "mlp_residual.norm",
            "attn.c_attn": "attention.fused",
            "attn.c_proj": "attention.output",
            "mlp.c_fc": "mlp.up",
            "mlp.c_proj": "mlp.down",
        },
    ),
}
PARALLEL = {"input_layernorm": "layout.norm", "post_attention_layernorm": "layout.mlp_norm"}
NEOX = {
    "gpt_neox.embed_in": "embedding.tokens",
    "gpt_neox.final_layer_norm": "final_norm",
    "lm_head": "embedding.head",
    **layers(
        "gpt_neox.layers",
        "blocks",
        {
            **PARALLEL,
            **FEED_FORWARD,
            "attention.query_key_value": "attention.fused",
            "attention.dense": "attention.output",
        },
    ),
}
BLOOM = {
    "transformer.word_embeddings": "embedding.tokens",
    "transformer.word_embeddings_layernorm": "embedding.norm",
    "transformer.ln_f": "final_norm",
    "lm_head": "embedding.head",
    **layers(
        "transformer.h",
        "blocks",
        {
            **BEFORE,
            **FEED_FORWARD,
            "self_attention.query_key_value": "attention.fused",
            "self_attention.dense": "attention.output",
        },
    ),
}
PHI = {
    "model.embed_tokens": "embedding.tokens",
    "model.final_layernorm": "final_norm",
    "lm_head": "embedding.head",
    **layers(
        "model.layers",
        "blocks",
        {
            **QUERY_KEY_VALUE,
            **PARALLEL,
            "self_attn.dense": "attention.output",
            "mlp.fc1": "mlp.up",
            "mlp.fc2": "mlp.down",
        },
    ),
}
FALCON = {name: own.replace("attention_residual", "layout") for name, own in BLOOM.items()}


def bart_layer(cross: bool) -> Names:
    """Return the names of a layer of BART or Marian, with cross-attention or without."""
    kinds = {"self_attn": "attention", **({"encoder_attn": "cross"} if cross else {})}
    parts = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}
    return {
        **{f"{kind}.{part}": f"{ours}.{own}" for kind, ours in kinds.items() for part, own in parts.items()},
        **{f"{kind}_layer_norm": f"{ours}_residual.norm" for kind, ours in kinds.items()},
        **{"final_layer_norm": "mlp_residual.norm", "fc1": "mlp.up", "fc2": "mlp.down"},
    }


def t5_layer(cross: bool) -> Names:
    """Return the names of a layer of T5, with cross-attention or without."""
    kinds = [("SelfAttention", "attention"), *([("EncDecAttention", "cross")] if cross else [])]
    names = {f"layer.{1 + cross}.layer_norm": "mlp_residual.norm"}
    for index, (kind, ours) in enumerate(kinds):
        names[f"layer.{index}.layer_norm"] = f"{ours}_residual.norm"
        names |= {f"layer.{index}.{kind}.{part[0]}": f"{ours}.{part}" for part in ("query", "key", "value", "output")}
    parts = {"wi": "up", "wi_0": "gate", "wi_1": "up", "wo": "down"}
    return names | {f"layer.{1 + cross}.DenseReluDense.{part}": f"mlp.{own}" for part, own in parts.items()}


MARIAN = {"model.shared": "embedding.tokens", "lm_head": "embedding.head"}
T5 = {"shared": "embedding.tokens", "lm_head": "embedding.head"}
for stack in ("encoder", "decoder"):
    cross = stack == "decoder"
    MARIAN |= {
        f"model.{stack}.embed_tokens": "embedding.tokens",
        f"model.{stack}.embed_positions": f"{stack}_position.table",
        f"model.{stack}.layernorm_embedding": f"{stack}_embedding_norm",
        **layers(f"model.{stack}.layers", stack, bart_layer(cross)),
    }
    T5 |= {
        f"{stack}.embed_tokens": "embedding.tokens",
        f"{stack}.final_layer_norm": f"{stack}_norm",
        f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias": f"{stack}_position.table",
        **layers(f"{stack}.block", stack, t5_layer(cross)),
    }

OPT = {
    "model.decoder.embed_tokens": "embedding.tokens",
    "model.decoder.embed_positions": "position.table",
    "model.decoder.final_layer_norm": "final_norm",
    "lm_head": "embedding.head",
    **layers("model.decoder.layers", "blocks", bart_layer(False)),
}
OLMO2 = {
    **LLAMA_LAYER,
    "post_attention_layernorm": "attention_residual.norm",
    "post_feedforward_layernorm": "mlp_residual.norm",
}

SIZES = {"hidden_size": "width", "num_attention_heads": "heads", "num_hidden_layers": "layers"}
TIED = {"tie_word_embeddings": "embedding.tied"}
CONTEXT = {"max_position_embeddings": "context"}
MODERN: dict[str, Field] = {
    **SIZES,
    **CONTEXT,
    **TIED,
    "intermediate_size": "mlp.hidden",
    "num_key_value_heads": "attention.key_value_heads",
    "attention_bias": "attention.bias",
    "head_dim": "attention.head_size",
}
RMS: dict[str, Field] = {**MODERN, "rms_norm_eps": "norm.eps"}
UNTIED = {"tie_word_embeddings": False, "num_key_value_heads": None, "attention_bias": False, "head_dim": None}
LINEAR = {"intermediate_size": "mlp.hidden", "layer_norm_eps": "norm.eps"}
DECODER: Tree = {"class_path": "Decoder", "embedding.scaled": False, "block": "PreNorm"}
SWIGLU: Tree = {"mlp": "SwiGLU", "mlp.bias": False}
LLAMA_PARTS: Tree = {**DECODER, **SWIGLU, "position": "Rope", "norm": "RMSNorm", "attention": "GroupedQuery"}
GELU: Tree = {"norm": "LayerNorm", "attention": "MultiHead", "mlp": "GELU"}
GELU_TANH: Tree = {**GELU, "mlp.approximate": "tanh"}
STACKS: Tree = {
    **{"class_path": "EncoderDecoder", "attention": "MultiHead"},
    **{"embedding.scaled": False, "embedding.tied": True},  # else encoder and decoder have embeddings of their own
}
NO_DROPOUT = {"attention_dropout": 0.0}
ROTARY = ("default", "linear", "yarn", "llama3")

FAMILIES: dict[str, Family] = {
    "gpt2": Family(
        "GPT2LMHeadModel",
        {**DECODER, **GELU_TANH, "position": "Learned"},
        {
            "n_embd": "width",
            "n_head": "heads",
            "n_layer": "layers",
            "n_positions": "context",
            "n_inner": "mlp.hidden",
            "layer_norm_epsilon": "norm.eps",
            **TIED,
        },
        GPT2,
        fixed={
            "activation_function": "gelu_new",
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        },
        absent={"n_inner": None, "tie_word_embeddings": True, "layer_norm_epsilon": 1e-5},
        written={"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        fused="parts",
        transposed=("attention.fused", "attention.output", "mlp.up", "mlp.down"),
    ),
    "llama": Family(
        "LlamaForCausalLM",
        LLAMA_PARTS,
        {**RMS, "mlp_bias": "mlp.bias"},
        LLAMA,
        fixed={"hidden_act": "silu"},
        absent={**UNTIED, "mlp_bias": False},
        written=NO_DROPOUT,
        rope=ROTARY,
    ),
    "mistral": Family(
        "MistralForCausalLM",
        {**LLAMA_PARTS, "attention.bias": False},
        {key: own for key, own in RMS.items() if key != "attention_bias"},
        LLAMA,
        fixed={"hidden_act": "silu"},
        absent=UNTIED,
        written=NO_DROPOUT,
        rope=ROTARY,
        windows="all",
    ),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        {**LLAMA_PARTS, "attention.output_bias": False, "attention.bias": True},
        {key: own for key, own in RMS.items() if key != "attention_bias"},
        LLAMA,
        fixed={"hidden_act": "silu"},
        absent=UNTIED,
        written=NO_DROPOUT,
        rope=ROTARY,
        windows="last",
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        {**LLAMA_PARTS, "attention.qk_norm": True},
        MODERN,
        LLAMA,
        fixed={"hidden_act": "silu", "rms_norm_eps": 1e-6},  # that of our norms of queries and keys
        absent={**UNTIED, "head_dim": 128},
        written=NO_DROPOUT,
        rope=ROTARY,
        windows="last",
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        {
            **LLAMA_PARTS,
            "embedding.scaled": True,
            "block": "Sandwich",
            "norm.unit_offset": True,
            "mlp": "GEGLU",
            "mlp.approximate": "tanh",
        },
        {
            **RMS,
            "attn_logit_softcapping": "attention.softcap",
            "query_pre_attn_scalar": ("attention.scale", -2),
            "final_logit_softcapping": "embedding.softcap",
        },
        {**ENDS, **layers("model.layers", "blocks", {**LLAMA_LAYER, **SANDWICH})},
        fixed={"hidden_activation": "gelu_pytorch_tanh", "use_bidirectional_attention": None},
        absent={"tie_word_embeddings": True, "attention_bias": False},
        written=NO_DROPOUT,
        rope=("default",),
        windows="alternate",
    ),
    "olmo2": Family(
        "Olmo2ForCausalLM",
        {**LLAMA_PARTS, "block": "NormAfter", "attention.qk_norm": "width"},
        MODERN,
        {**ENDS, **layers("model.layers", "blocks", OLMO2)},
        fixed={"hidden_act": "silu", "rms_norm_eps": 1e-6},  # that of our norms of queries and keys
        absent=UNTIED,
        written=NO_DROPOUT,
        rope=ROTARY,
    ),
    "gpt_neox": Family(
        "GPTNeoXForCausalLM",
        {**DECODER, **GELU, "position": "Rope", "block": "ParallelResidual", "block.shared_norm": False},
        {**SIZES, **CONTEXT, **TIED, **LINEAR, "attention_bias": "attention.bias"},
        NEOX,
        fixed={"hidden_act": "gelu", "use_parallel_residual": True},
        absent={"tie_word_embeddings": False, "attention_bias": True},
        written={**NO_DROPOUT, "hidden_dropout": 0.0},
        other_names={"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"},
        rope=("default",),
        share=0.25,
        fused="heads",
    ),
    "opt": Family(
        "OPTForCausalLM",
        {**DECODER, "position": "Learned", "position.offset": 2, "norm": "LayerNorm", "attention": "MultiHead"},
        {
            **SIZES,
            **CONTEXT,
            **TIED,
            "word_embed_proj_dim": "width",
            "ffn_dim": "mlp.hidden",
            "activation_function": {"relu": {"mlp": "ReLU"}, "gelu": {"mlp": "GELU"}},
        },
        OPT,
        fixed={
            "do_layer_norm_before": True,
            "_remove_final_layer_norm": False,
            "enable_bias": True,
            "layer_norm_elementwise_affine": True,
        },
        absent={"tie_word_embeddings": True, "word_embed_proj_dim": None},
        written={**NO_DROPOUT, "dropout": 0.0, "layerdrop": 0.0},
    ),
    "phi": Family(
        "PhiForCausalLM",
        {
            **DECODER,
            **GELU_TANH,
            "position": "Rope",
            "block": "ParallelResidual",
            "attention": "GroupedQuery",
            "embedding.output_bias": True,
        },
        {**SIZES, **CONTEXT, **TIED, **LINEAR, "num_key_value_heads": "attention.key_value_heads"},
        PHI,
        fixed={"hidden_act": "gelu_new", "qk_layernorm": False},
        absent={"tie_word_embeddings": False, "num_key_value_heads": None},
        written={**NO_DROPOUT, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
        rope=("default",),
        share=0.5,
    ),
    "cohere": Family(
        "CohereForCausalLM",
        {
            **LLAMA_PARTS,
            "position.interleaved": True,
            "block": "ParallelResidual",
            "norm": "LayerNorm",
            "norm.bias": False,
        },
        {**MODERN, "layer_norm_eps": "norm.eps", "logit_scale": "embedding.logit_scale"},
        {**ENDS, **layers("model.layers", "blocks", {**LLAMA_LAYER, **PARALLEL})},
        fixed={"hidden_act": "silu", "use_qk_norm": False},
        absent={**UNTIED, "tie_word_embeddings": True},
        written=NO_DROPOUT,
        rope=("default",),
        base=500000.0,
    ),
    "falcon": Family(
        "FalconForCausalLM",
        {
            **DECODER,
            **GELU,
            "position": "Rope",
            "block": "ParallelResidual",
            "attention": "MultiQuery",
            "attention.bias": False,
            "mlp.bias": False,
        },
        {**SIZES, **CONTEXT, **TIED, "ffn_hidden_size": "mlp.hidden", "layer_norm_epsilon": "norm.eps"},
        FALCON,
        fixed={
            "activation": "gelu",
            "alibi": False,
            "bias": False,
            "multi_query": True,
            "new_decoder_architecture": False,
            "num_ln_in_parallel_attn": None,
            "parallel_attn": True,
        },
        absent={"tie_word_embeddings": True, "ffn_hidden_size": None, "max_position_embeddings": 2048},
        written={**NO_DROPOUT, "hidden_dropout": 0.0},
        other_names={"n_embed": "hidden_size"},
        rope=("default",),
        fused="parts",
    ),
    "bloom": Family(
        "BloomForCausalLM",
        {**DECODER, **GELU_TANH, "position": "Alibi", "embedding.norm": "LayerNorm"},
        {
            "hidden_size": "width",
            "n_head": "heads",
            "n_layer": "layers",
            "seq_length": "context",
            "layer_norm_epsilon": ["norm.eps", "embedding.norm.eps"],
            **TIED,
        },
        BLOOM,
        fixed={"apply_residual_connection_post_layernorm": False},
        absent={"tie_word_embeddings": True, "seq_length": 2048},
        written={**NO_DROPOUT, "hidden_dropout": 0.0},
        other_names={"n_embed": "hidden_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
        fused="heads",
    ),
    "t5": Family(
        "T5ForConditionalGeneration",
        {
            **STACKS,
            "position": "T5Bias",
            "block": "PreNorm",
            "norm": "RMSNorm",
            "attention.scale": "none",
            "attention.bias": False,
            "mlp.bias": False,
        },
        {
            "d_model": "width",
            "d_kv": "attention.head_size",
            "d_ff": "mlp.hidden",
            "num_heads": "heads",
            "num_layers": "layers",
            "num_decoder_layers": "layers",
            "n_positions": "context",
            "relative_attention_num_buckets": "position.buckets",
            "relative_attention_max_distance": "position.longest",
            "layer_norm_epsilon": "norm.eps",
            "feed_forward_proj": {
                "relu": {"mlp": "ReLU"},
                "gated-gelu": {"mlp": "GEGLU", "mlp.approximate": "tanh"},
                "gated-silu": {"mlp": "SwiGLU"},
            },
            "scale_decoder_outputs": {
                True: {"embedding.logit_scale": BY_WIDTH},
                False: {"embedding.logit_scale": 1.0},
            },
        },
        T5,
        absent={
            "scale_decoder_outputs": True,
            "n_positions": 512,
            "num_decoder_layers": None,
            "relative_attention_max_distance": 128,
            "feed_forward_proj": "relu",
        },
        written={"dropout_rate": 0.0},
        other_names={"tie_word_embeddings": "scale_decoder_outputs"},  # which it meant
    ),
    "bart": Family(
        "BartForConditionalGeneration",
        {
            **STACKS,
            "position": "Learned",
            "position.offset": 2,
            "block": "PostNorm",
            "norm": "LayerNorm",
            "embedding_norm": "LayerNorm",
        },
        {
            "d_model": "width",
            **CONTEXT,
            "scale_embedding": "embedding.scaled",
            "activation_function": {"gelu": {"mlp": "GELU"}, "relu": {"mlp": "ReLU"}},
            **{
                f"{stack}_{theirs}": ours
                for stack in ("encoder", "decoder")
                for theirs, ours in (("layers", "layers"), ("attention_heads", "heads"), ("ffn_dim", "mlp.hidden"))
            },
        },
        MARIAN,
        fixed={"tie_word_embeddings": True},
        absent={"scale_embedding": False},
        written={**NO_DROPOUT, "dropout": 0.0, "activation_dropout": 0.0},
        zeros=("final_logits_bias",),
    ),
}
