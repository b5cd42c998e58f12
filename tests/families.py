"""How `transformers` calls the modules and fields of models that our parts express: plain data, a family a row.

`model` is its class. `config` maps its fields to our settings below `model`, or to pairs of a setting and the power of
it that the field holds; `context`, `head_size` and `mlp.hidden` are looked up too. `fixed` are fields with the only
value that our parts express. `names` maps its modules to ours; `#` is the number of a layer. `fused` says how its one
matrix of queries, keys and values is ordered (`parts`: all queries first; `heads`: head by head), and `transposed` are
those of our modules whose matrices it stores as (in, out).
`rope_type` is that of its rotary positions, `default` by default.
"""

from lm.config.tree import Tree

Names = dict[str, str]


def pairs(text: str) -> Names:
    """Return what is written as `theirs=ours` in a text."""
    return dict(pair.split("=") for pair in text.split())


def layers(theirs: str, ours: str, modules: Names) -> Names:
    """Return the names of the modules of each layer, with the prefix of its stack."""
    return {f"{theirs}.#.{name}": f"{ours}.#.{own}" for name, own in modules.items()}


SIZES = pairs("hidden_size=width num_attention_heads=heads num_hidden_layers=layers")
TIED = pairs("tie_word_embeddings=embedding.tied")
MODERN: Tree = {
    **SIZES,
    **TIED,
    **pairs("intermediate_size=mlp.hidden num_key_value_heads=attention.key_value_heads"),
    **pairs("max_position_embeddings=context rms_norm_eps=norm.eps rope_parameters.rope_theta=position.base"),
}
PARTIAL: Tree = {
    **SIZES,
    **TIED,
    **pairs("intermediate_size=mlp.hidden max_position_embeddings=context layer_norm_eps=norm.eps"),
    **pairs("rope_parameters.rope_theta=position.base rope_parameters.partial_rotary_factor=position.share"),
}
FEED_FORWARD = pairs("mlp.dense_h_to_4h=mlp.up mlp.dense_4h_to_h=mlp.down")
BEFORE = pairs("input_layernorm=attention_residual.norm post_attention_layernorm=mlp_residual.norm")
PARALLEL = pairs("input_layernorm=layout.norm post_attention_layernorm=layout.mlp_norm")
AFTER = pairs("post_attention_layernorm=attention_residual.norm post_feedforward_layernorm=mlp_residual.norm")
SANDWICH = {
    **pairs("input_layernorm=attention_residual.norm post_attention_layernorm=attention_residual.outer_norm"),
    **pairs("pre_feedforward_layernorm=mlp_residual.norm post_feedforward_layernorm=mlp_residual.outer_norm"),
}
QUERY_KEY_VALUE = {f"self_attn.{part[0]}_proj": f"attention.{part}" for part in ("query", "key", "value")}
LLAMA_LAYER = {
    **QUERY_KEY_VALUE,
    **pairs("self_attn.o_proj=attention.output self_attn.q_norm=attention.query_norm"),
    **pairs("self_attn.k_norm=attention.key_norm mlp.gate_proj=mlp.gate mlp.up_proj=mlp.up mlp.down_proj=mlp.down"),
}
HEAD = pairs("lm_head=embedding.head")
ENDS = {**HEAD, **pairs("model.embed_tokens=embedding.tokens model.norm=final_norm")}
LLAMA = {**ENDS, **layers("model.layers", "blocks", {**LLAMA_LAYER, **BEFORE})}
GPT2_LAYER = {
    **pairs("ln_1=attention_residual.norm ln_2=mlp_residual.norm attn.c_attn=attention.fused"),
    **pairs("attn.c_proj=attention.output mlp.c_fc=mlp.up mlp.c_proj=mlp.down"),
}
GPT2 = {
    **HEAD,
    **pairs("transformer.wte=embedding.tokens transformer.wpe=position.table transformer.ln_f=final_norm"),
    **layers("transformer.h", "blocks", GPT2_LAYER),
}
NEOX_ATTENTION = pairs("attention.query_key_value=attention.fused attention.dense=attention.output")
NEOX = {
    **HEAD,
    **pairs("gpt_neox.embed_in=embedding.tokens gpt_neox.final_layer_norm=final_norm"),
    **layers("gpt_neox.layers", "blocks", {**PARALLEL, **FEED_FORWARD, **NEOX_ATTENTION}),
}
BLOOM_LAYER = {**BEFORE, **FEED_FORWARD, **{f"self_{name}": ours for name, ours in NEOX_ATTENTION.items()}}
BLOOM = {
    **HEAD,
    **pairs("transformer.word_embeddings=embedding.tokens transformer.word_embeddings_layernorm=embedding.norm"),
    **pairs("transformer.ln_f=final_norm"),
    **layers("transformer.h", "blocks", BLOOM_LAYER),
}
FALCON = {name: own.replace("attention_residual", "layout") for name, own in BLOOM.items()}
PHI_LAYER = {**QUERY_KEY_VALUE, **PARALLEL, **pairs("self_attn.dense=attention.output mlp.fc1=mlp.up mlp.fc2=mlp.down")}
PHI = {
    **HEAD,
    **pairs("model.embed_tokens=embedding.tokens model.final_layernorm=final_norm"),
    **layers("model.layers", "blocks", PHI_LAYER),
}


def bart_layer(cross: bool) -> Names:
    """Return the names of a layer of BART or Marian, with cross-attention or without."""
    kinds = {"self_attn": "attention", **({"encoder_attn": "cross"} if cross else {})}
    parts = pairs("q_proj=query k_proj=key v_proj=value out_proj=output")
    return {
        **{f"{kind}.{part}": f"{ours}.{own}" for kind, ours in kinds.items() for part, own in parts.items()},
        **{f"{kind}_layer_norm": f"{ours}_residual.norm" for kind, ours in kinds.items()},
        **pairs("final_layer_norm=mlp_residual.norm fc1=mlp.up fc2=mlp.down"),
    }


def t5_layer(cross: bool) -> Names:
    """Return the names of a layer of T5, with cross-attention or without."""
    kinds = [("SelfAttention", "attention"), *([("EncDecAttention", "cross")] if cross else [])]
    names = {f"layer.{1 + cross}.layer_norm": "mlp_residual.norm"}
    for index, (kind, ours) in enumerate(kinds):
        names[f"layer.{index}.layer_norm"] = f"{ours}_residual.norm"
        names |= {f"layer.{index}.{kind}.{part[0]}": f"{ours}.{part}" for part in ("query", "key", "value", "output")}
    parts = pairs("wi=up wi_0=gate wi_1=up wo=down")
    return names | {f"layer.{1 + cross}.DenseReluDense.{part}": f"mlp.{own}" for part, own in parts.items()}


MARIAN = {**HEAD, "model.shared": "embedding.tokens"}
T5 = {**HEAD, "shared": "embedding.tokens"}
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

FAMILIES: dict[str, Tree] = {
    "gpt2": {
        "model": "GPT2LMHeadModel",
        "config": {
            **TIED,
            **pairs("n_embd=width n_head=heads n_layer=layers n_positions=context n_inner=mlp.hidden"),
            **pairs("layer_norm_epsilon=norm.eps"),
        },
        "names": GPT2,
        "fused": "parts",
        "transposed": ["attention.fused", "attention.output", "mlp.up", "mlp.down"],
    },
    "pythia": {"model": "GPTNeoXForCausalLM", "config": PARTIAL, "names": NEOX, "fused": "heads"},
    "llama3": {
        "model": "LlamaForCausalLM",
        "config": {
            **MODERN,
            **pairs("rope_parameters.factor=position.stretch rope_parameters.high_freq_factor=position.fast"),
            **pairs("rope_parameters.low_freq_factor=position.slow"),
            **pairs("rope_parameters.original_max_position_embeddings=position.original"),
        },
        "rope_type": "llama3",
        "names": LLAMA,
    },
    "mistral": {
        "model": "MistralForCausalLM",
        "config": {**MODERN, "sliding_window": "attention.window"},
        "fixed": {"head_dim": None},
        "names": LLAMA,
    },
    "qwen3": {"model": "Qwen3ForCausalLM", "config": {**MODERN, "head_dim": "head_size"}, "names": LLAMA},
    "gemma2": {
        "model": "Gemma2ForCausalLM",
        "config": {
            **MODERN,
            **pairs("head_dim=head_size attn_logit_softcapping=attention.softcap"),
            **pairs("final_logit_softcapping=embedding.softcap sliding_window=layers.0.attention.window"),
            "query_pre_attn_scalar": ("attention.scale", -2),
        },
        "fixed": {"layer_types": ["sliding_attention", "full_attention"] * 2},
        "names": {**ENDS, **layers("model.layers", "blocks", {**LLAMA_LAYER, **SANDWICH})},
    },
    "olmo2": {
        "model": "Olmo2ForCausalLM",
        "config": MODERN,
        "names": {**ENDS, **layers("model.layers", "blocks", {**LLAMA_LAYER, **AFTER})},
    },
    "phi": {"model": "PhiForCausalLM", "config": PARTIAL, "names": PHI},
    "cohere": {
        "model": "CohereForCausalLM",
        "config": {
            **{field: setting for field, setting in MODERN.items() if field != "rms_norm_eps"},
            **pairs("layer_norm_eps=norm.eps logit_scale=embedding.logit_scale"),
        },
        "fixed": {"use_qk_norm": False},
        "names": {**ENDS, **layers("model.layers", "blocks", {**LLAMA_LAYER, **PARALLEL})},
    },
    "falcon": {
        "model": "FalconForCausalLM",
        "config": {
            **SIZES,
            **TIED,
            **pairs("ffn_hidden_size=mlp.hidden max_position_embeddings=context layer_norm_epsilon=norm.eps"),
            **pairs("rope_parameters.rope_theta=position.base"),
        },
        "fixed": {"alibi": False, "multi_query": True, "parallel_attn": True, "bias": False},
        "names": FALCON,
        "fused": "parts",
    },
    "bloom": {
        "model": "BloomForCausalLM",
        "config": {**TIED, **pairs("hidden_size=width n_head=heads n_layer=layers layer_norm_epsilon=norm.eps")},
        "names": BLOOM,
        "fused": "heads",
    },
    "t5": {
        "model": "T5ForConditionalGeneration",
        "config": {
            **pairs("d_model=width d_kv=head_size d_ff=mlp.hidden num_heads=heads num_layers=layers"),
            **pairs("relative_attention_num_buckets=position.buckets layer_norm_epsilon=norm.eps"),
            **pairs("relative_attention_max_distance=position.longest"),
        },
        "fixed": {"pad_token_id": 0, "feed_forward_proj": "relu", "tie_word_embeddings": True},
        "names": T5,
    },
    "bart": {
        "model": "BartForConditionalGeneration",
        "config": {
            **TIED,
            **pairs("d_model=width max_position_embeddings=context scale_embedding=embedding.scaled"),
            **pairs("encoder_layers=layers encoder_attention_heads=heads encoder_ffn_dim=mlp.hidden"),
            **pairs("decoder_layers=layers decoder_attention_heads=heads decoder_ffn_dim=mlp.hidden"),
        },
        "fixed": {"pad_token_id": 0, "decoder_start_token_id": 0, "activation_function": "gelu"},
        "names": MARIAN,
    },
}
