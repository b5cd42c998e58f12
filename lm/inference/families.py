"""Families of published models: which of our parts they have, and what `transformers` calls fields and modules.

Plain data, a family a row, which reads and writes `config.json` and weights (lm/inference/conversion.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lm.config.tree import Tree

Names = dict[str, str]
Field = str | tuple[str, float] | dict[Any, Tree]
"""Our setting, or several of one value; a setting and the power of it that the field holds; our settings by value."""

BY_WIDTH = "1/sqrt(width)"  # a value of a setting, in place of the number


@dataclass(frozen=True)
class Family:
    """A family of models in `transformers`, whose name in `config.json` is its `model_type`.

    Args:
        model: its class.
        parts: our settings below `model` that all its models share; others are at their defaults.
        fields: its fields that say our other settings. `context` is that of the data.
        names: its modules and ours, `#` being the number of a layer; of several for one tensor, the first is written.
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


def pairs(text: str) -> Names:
    """Return a mapping that is written as `theirs=ours theirs=ours`."""
    return dict(pair.split("=") for pair in text.split())


def layers(theirs: str, stack: str, modules: Names) -> Names:
    """Return the names of the modules of each layer, with the prefix of its stack."""
    return {f"{theirs}.#.{name}": f"{stack}.#.{own}" for name, own in modules.items()}


ROPE: dict[str, tuple[str, Names]] = {
    "default": ("Rope", {}),
    "linear": ("RopeLinear", pairs("factor=stretch")),
    "yarn": ("RopeYarn", pairs("factor=stretch beta_fast=fast beta_slow=slow")),
    "llama3": (
        "RopeLlama3",
        pairs("factor=stretch high_freq_factor=fast low_freq_factor=slow original_max_position_embeddings=original"),
    ),
}
"""Our class of each type of rotary positions, and its options by the keys of `rope_parameters`."""

# names of modules ----------------------------------------------------------------------------------------------------

HEAD = pairs("lm_head=embedding.head")
ENDS = pairs("model.embed_tokens=embedding.tokens model.norm=final_norm") | HEAD
TRANSFORMER = pairs("transformer.ln_f=final_norm") | HEAD
BEFORE = pairs("input_layernorm=attention_residual.norm post_attention_layernorm=mlp_residual.norm")
PARALLEL = pairs("input_layernorm=layout.norm post_attention_layernorm=layout.mlp_norm")
AFTER = pairs("post_attention_layernorm=attention_residual.norm post_feedforward_layernorm=mlp_residual.norm")
SANDWICH = {
    **pairs("input_layernorm=attention_residual.norm post_attention_layernorm=attention_residual.outer_norm"),
    **pairs("pre_feedforward_layernorm=mlp_residual.norm post_feedforward_layernorm=mlp_residual.outer_norm"),
}
QUERY_KEY_VALUE = pairs(
    "self_attn.q_proj=attention.query self_attn.k_proj=attention.key self_attn.v_proj=attention.value"
)
LLAMA_LAYER = {
    **QUERY_KEY_VALUE,
    **pairs("self_attn.q_norm=attention.query_norm self_attn.k_norm=attention.key_norm"),
    **pairs("self_attn.o_proj=attention.output mlp.gate_proj=mlp.gate mlp.up_proj=mlp.up mlp.down_proj=mlp.down"),
}
GPT2_LAYER = {
    **pairs("ln_1=attention_residual.norm ln_2=mlp_residual.norm mlp.c_fc=mlp.up mlp.c_proj=mlp.down"),
    **pairs("attn.c_attn=attention.fused attn.c_proj=attention.output"),
}
FEED_FORWARD = pairs("mlp.dense_h_to_4h=mlp.up mlp.dense_4h_to_h=mlp.down")
NEOX_LAYER = pairs("attention.query_key_value=attention.fused attention.dense=attention.output") | FEED_FORWARD
BLOOM_LAYER = {name.replace("attention", "self_attention", 1): own for name, own in NEOX_LAYER.items()}
PHI_LAYER = pairs("self_attn.dense=attention.output mlp.fc1=mlp.up mlp.fc2=mlp.down") | QUERY_KEY_VALUE
BLOOM_ENDS = {
    **pairs("transformer.word_embeddings=embedding.tokens transformer.word_embeddings_layernorm=embedding.norm"),
    **TRANSFORMER,
}


def bart_layer(cross: bool) -> Names:
    """Return the names of a layer of BART, Marian or OPT, with cross-attention or without."""
    names = pairs("final_layer_norm=mlp_residual.norm fc1=mlp.up fc2=mlp.down")
    for theirs, kind in (("self_attn", "attention"), ("encoder_attn", "cross"))[: 1 + cross]:
        parts = pairs("q_proj=query k_proj=key v_proj=value out_proj=output")
        names |= {f"{theirs}.{part}": f"{kind}.{own}" for part, own in parts.items()}
        names[f"{theirs}_layer_norm"] = f"{kind}_residual.norm"
    return names


def t5_layer(cross: bool) -> Names:
    """Return the names of a layer of T5, with cross-attention or without."""
    names = {f"layer.{1 + cross}.layer_norm": "mlp_residual.norm"}
    for index, (theirs, kind) in enumerate((("SelfAttention", "attention"), ("EncDecAttention", "cross"))[: 1 + cross]):
        names[f"layer.{index}.layer_norm"] = f"{kind}_residual.norm"
        names |= {f"layer.{index}.{theirs}.{part[0]}": f"{kind}.{part}" for part in ("query", "key", "value", "output")}
    parts = pairs("wi=up wi_0=gate wi_1=up wo=down")
    return names | {f"layer.{1 + cross}.DenseReluDense.{part}": f"mlp.{own}" for part, own in parts.items()}


BART = pairs("model.shared=embedding.tokens") | HEAD
T5 = pairs("shared=embedding.tokens") | HEAD
for stack in ("encoder", "decoder"):
    cross = stack == "decoder"
    BART |= {
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

# fields and parts that several families share ------------------------------------------------------------------------

SIZES = pairs("hidden_size=width num_attention_heads=heads num_hidden_layers=layers tie_word_embeddings=embedding.tied")
LENGTH = pairs("max_position_embeddings=context")
GROUPED = pairs("num_key_value_heads=attention.key_value_heads head_dim=attention.head_size")
HIDDEN = pairs("intermediate_size=mlp.hidden")
MODERN = {**SIZES, **LENGTH, **GROUPED, **HIDDEN}
BIAS, RMS = pairs("attention_bias=attention.bias"), pairs("rms_norm_eps=norm.eps")
ABSENT: Tree = {"tie_word_embeddings": False, "num_key_value_heads": None, "attention_bias": False, "head_dim": None}
TIED: Tree = {"tie_word_embeddings": True}
NO_DROPOUT: Tree = {"attention_dropout": 0.0}
SILU: Tree = {"hidden_act": "silu"}
OUR_EPS: Tree = {**SILU, "rms_norm_eps": 1e-6}  # that of our norms of queries and keys
ROTARY = ("default", "linear", "yarn", "llama3")

DECODER: Tree = {"class_path": "Decoder", "embedding.scaled": False, "block": "PreNorm", "norm": "LayerNorm"}
PARALLEL_BLOCK: Tree = {**DECODER, "block": "ParallelResidual", "position": "Rope"}
SWIGLU: Tree = {"position": "Rope", "attention": "GroupedQuery", "mlp": "SwiGLU", "mlp.bias": False}
LLAMA: Tree = {**DECODER, **SWIGLU, "norm": "RMSNorm"}
GELU: Tree = {"attention": "MultiHead", "mlp": "GELU"}
GELU_TANH: Tree = {**GELU, "mlp.approximate": "tanh"}
STACKS: Tree = {
    **{"class_path": "EncoderDecoder", "attention": "MultiHead"},
    **{"embedding.scaled": False, "embedding.tied": True},  # else encoder and decoder have embeddings of their own
}

FAMILIES: dict[str, Family] = {
    "gpt2": Family(
        "GPT2LMHeadModel",
        {**DECODER, **GELU_TANH, "position": "Learned"},
        {
            **pairs("n_embd=width n_head=heads n_layer=layers n_positions=context n_inner=mlp.hidden"),
            **pairs("layer_norm_epsilon=norm.eps tie_word_embeddings=embedding.tied"),
        },
        pairs("transformer.wte=embedding.tokens transformer.wpe=position.table")
        | TRANSFORMER
        | layers("transformer.h", "blocks", GPT2_LAYER),
        fixed={
            **{"activation_function": "gelu_new", "scale_attn_weights": True, "add_cross_attention": False},
            **{"scale_attn_by_inverse_layer_idx": False},
        },
        absent={**TIED, "n_inner": None, "layer_norm_epsilon": 1e-5},
        written={"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        fused="parts",
        transposed=("attention.fused", "attention.output", "mlp.up", "mlp.down"),
    ),
    "llama": Family(
        "LlamaForCausalLM",
        LLAMA,
        {**MODERN, **BIAS, **RMS, "mlp_bias": "mlp.bias"},
        ENDS | layers("model.layers", "blocks", LLAMA_LAYER | BEFORE),
        fixed=SILU,
        absent={**ABSENT, "mlp_bias": False},
        written=NO_DROPOUT,
        rope=ROTARY,
    ),
    "mistral": Family(
        "MistralForCausalLM",
        {**LLAMA, "attention.bias": False},
        {**MODERN, **RMS},
        ENDS | layers("model.layers", "blocks", LLAMA_LAYER | BEFORE),
        fixed=SILU,
        absent=ABSENT,
        written=NO_DROPOUT,
        rope=ROTARY,
        windows="all",
    ),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        {**LLAMA, "attention.output_bias": False, "attention.bias": True},
        {**MODERN, **RMS},
        ENDS | layers("model.layers", "blocks", LLAMA_LAYER | BEFORE),
        fixed=SILU,
        absent=ABSENT,
        written=NO_DROPOUT,
        rope=ROTARY,
        windows="last",
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        {**LLAMA, "attention.qk_norm": True},
        {**MODERN, **BIAS},
        ENDS | layers("model.layers", "blocks", LLAMA_LAYER | BEFORE),
        fixed=OUR_EPS,
        absent={**ABSENT, "head_dim": 128},
        written=NO_DROPOUT,
        rope=ROTARY,
        windows="last",
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        {
            **LLAMA,
            **{"embedding.scaled": True, "block": "Sandwich", "norm.unit_offset": True},
            **{"mlp": "GEGLU", "mlp.approximate": "tanh"},
        },
        {
            **{**MODERN, **BIAS, **RMS, "query_pre_attn_scalar": ("attention.scale", -2)},
            **pairs("attn_logit_softcapping=attention.softcap final_logit_softcapping=embedding.softcap"),
        },
        ENDS | layers("model.layers", "blocks", LLAMA_LAYER | SANDWICH),
        fixed={"hidden_activation": "gelu_pytorch_tanh", "use_bidirectional_attention": None},
        absent={**TIED, "attention_bias": False},
        written=NO_DROPOUT,
        rope=("default",),
        windows="alternate",
    ),
    "olmo2": Family(
        "Olmo2ForCausalLM",
        {**LLAMA, "block": "NormAfter", "attention.qk_norm": "width"},
        {**MODERN, **BIAS},
        ENDS | layers("model.layers", "blocks", LLAMA_LAYER | AFTER),
        fixed=OUR_EPS,
        absent=ABSENT,
        written=NO_DROPOUT,
        rope=ROTARY,
    ),
    "gpt_neox": Family(
        "GPTNeoXForCausalLM",
        {**PARALLEL_BLOCK, **GELU, "block.shared_norm": False},
        {**SIZES, **LENGTH, **HIDDEN, **BIAS, "layer_norm_eps": "norm.eps"},
        pairs("gpt_neox.embed_in=embedding.tokens gpt_neox.final_layer_norm=final_norm embed_out=embedding.head")
        | HEAD  # in memory
        | layers("gpt_neox.layers", "blocks", NEOX_LAYER | PARALLEL),
        fixed={"hidden_act": "gelu", "use_parallel_residual": True},
        absent={"tie_word_embeddings": False, "attention_bias": True},
        written={**NO_DROPOUT, "hidden_dropout": 0.0},
        other_names=pairs("rotary_emb_base=rope_theta rotary_pct=partial_rotary_factor"),
        rope=("default",),
        share=0.25,
        fused="heads",
    ),
    "opt": Family(
        "OPTForCausalLM",
        {**DECODER, "position": "Learned", "position.offset": 2, "attention": "MultiHead"},
        {
            **{**SIZES, **LENGTH, **pairs("word_embed_proj_dim=width ffn_dim=mlp.hidden")},
            "activation_function": {"relu": {"mlp": "ReLU"}, "gelu": {"mlp": "GELU"}},
        },
        pairs("model.decoder.embed_tokens=embedding.tokens model.decoder.embed_positions=position.table")
        | pairs("model.decoder.final_layer_norm=final_norm")
        | HEAD
        | layers("model.decoder.layers", "blocks", bart_layer(False)),
        fixed={
            **{"do_layer_norm_before": True, "_remove_final_layer_norm": False},
            **{"enable_bias": True, "layer_norm_elementwise_affine": True},
        },
        absent={**TIED, "word_embed_proj_dim": None},
        written={**NO_DROPOUT, "dropout": 0.0, "layerdrop": 0.0},
    ),
    "phi": Family(
        "PhiForCausalLM",
        {**PARALLEL_BLOCK, **GELU_TANH, "attention": "GroupedQuery", "embedding.output_bias": True},
        {**SIZES, **LENGTH, **HIDDEN, **pairs("layer_norm_eps=norm.eps num_key_value_heads=attention.key_value_heads")},
        pairs("model.embed_tokens=embedding.tokens model.final_layernorm=final_norm")
        | HEAD
        | layers("model.layers", "blocks", PHI_LAYER | PARALLEL),
        fixed={"hidden_act": "gelu_new", "qk_layernorm": False},
        absent={"tie_word_embeddings": False, "num_key_value_heads": None},
        written={**NO_DROPOUT, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
        rope=("default",),
        share=0.5,
    ),
    "cohere": Family(
        "CohereForCausalLM",
        {**PARALLEL_BLOCK, **SWIGLU, "position.interleaved": True, "norm.bias": False},
        {**MODERN, **BIAS, **pairs("layer_norm_eps=norm.eps logit_scale=embedding.logit_scale")},
        ENDS | layers("model.layers", "blocks", LLAMA_LAYER | PARALLEL),
        fixed={**SILU, "use_qk_norm": False},
        absent={**ABSENT, **TIED},
        written=NO_DROPOUT,
        rope=("default",),
        base=500000.0,
    ),
    "falcon": Family(
        "FalconForCausalLM",
        {**PARALLEL_BLOCK, **GELU, "attention": "MultiQuery", "attention.bias": False, "mlp.bias": False},
        {**SIZES, **LENGTH, **pairs("ffn_hidden_size=mlp.hidden layer_norm_epsilon=norm.eps")},
        BLOOM_ENDS | layers("transformer.h", "blocks", BLOOM_LAYER | PARALLEL),
        fixed={
            **{"activation": "gelu", "alibi": False, "bias": False, "multi_query": True, "parallel_attn": True},
            **{"new_decoder_architecture": False, "num_ln_in_parallel_attn": None},
        },
        absent={**TIED, "ffn_hidden_size": None, "max_position_embeddings": 2048},
        written={**NO_DROPOUT, "hidden_dropout": 0.0},
        other_names=pairs("n_embed=hidden_size"),
        rope=("default",),
        fused="parts",
    ),
    "bloom": Family(
        "BloomForCausalLM",
        {**DECODER, **GELU_TANH, "position": "Alibi", "embedding.norm": "LayerNorm"},
        {
            **pairs("hidden_size=width n_head=heads n_layer=layers tie_word_embeddings=embedding.tied"),
            **{"seq_length": "context", "layer_norm_epsilon": "norm.eps embedding.norm.eps"},
        },
        BLOOM_ENDS | layers("transformer.h", "blocks", BLOOM_LAYER | BEFORE),
        fixed={"apply_residual_connection_post_layernorm": False},
        absent={**TIED, "seq_length": 2048},
        written={**NO_DROPOUT, "hidden_dropout": 0.0},
        other_names=pairs("n_embed=hidden_size num_attention_heads=n_head num_hidden_layers=n_layer"),
        fused="heads",
    ),
    "t5": Family(
        "T5ForConditionalGeneration",
        {
            **{**STACKS, "position": "T5Bias", "block": "PreNorm", "norm": "RMSNorm"},
            **{"attention.scale": "none", "attention.bias": False, "mlp.bias": False},
        },
        {
            **pairs("d_model=width d_kv=attention.head_size d_ff=mlp.hidden num_heads=heads n_positions=context"),
            **pairs("num_layers=layers num_decoder_layers=layers layer_norm_epsilon=norm.eps"),
            **pairs("relative_attention_num_buckets=position.buckets relative_attention_max_distance=position.longest"),
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
            **{"scale_decoder_outputs": True, "n_positions": 512, "num_decoder_layers": None},
            **{"relative_attention_max_distance": 128, "feed_forward_proj": "relu"},
        },
        written={"dropout_rate": 0.0},
        other_names=pairs("tie_word_embeddings=scale_decoder_outputs"),  # which it meant
    ),
    "bart": Family(
        "BartForConditionalGeneration",
        {
            **{**STACKS, "position": "Learned", "position.offset": 2, "block": "PostNorm"},
            **{"norm": "LayerNorm", "embedding_norm": "LayerNorm"},
        },
        {
            **{**LENGTH, **pairs("d_model=width scale_embedding=embedding.scaled")},
            **pairs("encoder_layers=layers encoder_attention_heads=heads encoder_ffn_dim=mlp.hidden"),
            **pairs("decoder_layers=layers decoder_attention_heads=heads decoder_ffn_dim=mlp.hidden"),
            "activation_function": {"gelu": {"mlp": "GELU"}, "relu": {"mlp": "ReLU"}},
        },
        BART,
        fixed=TIED,
        absent={"scale_embedding": False},
        written={**NO_DROPOUT, "dropout": 0.0, "activation_dropout": 0.0},
        zeros=("final_logits_bias",),
    ),
}
