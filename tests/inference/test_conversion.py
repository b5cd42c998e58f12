"""What the table of families reads and writes is what `transformers` computes, or is refused by name."""

import functools
import typing
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from messages import Refused
from parity import CONTEXT, TOLERANCE, VOCABULARY, built, exactly, pair, parameters, randomized
from published import context_of, described, logits, shipped

from lm.config.choices import choices, find_class, slots, type_hints
from lm.config.components import plain_options, resolve
from lm.config.tree import InputError, Tree, override
from lm.inference.conversion import ModelOnly, differences, read_config, settings_of, to_ours, to_theirs, write_config
from lm.inference.families import FAMILIES
from lm.model.transformer import EncoderDecoder, Model

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install transformers")


REPRESENTATIVE = [
    pytest.param(name, marks=[pytest.mark.extra] * (name not in ("gpt2", "llama", "t5"))) for name in FAMILIES
]
"""Every family; those that take half a minute and are like another one are left to `make test-all`."""


@pytest.mark.parametrize("name", FAMILIES)
def test_a_small_model_is_of_its_family_and_reads_back(name: str) -> None:
    model, context = shipped(name), context_of(name)
    assert differences(name, model, context) == []
    written = write_config(name, settings_of(model, context), VOCABULARY)
    read, length = read_config(written)
    assert length == context
    assert settings_of(read, length) == settings_of(model, context)
    others = [other for other in FAMILIES if not differences(other, model, context)]
    assert others == (["llama", "mistral"] if name == "llama" else [name])  # whose window may be as long as the text


@pytest.mark.parametrize("name", FAMILIES)
def test_tensors_come_back_as_they_were(name: str) -> None:
    model = built({"model": shipped(name)}, context_of(name))
    heads, size = model.shape.heads, model.shape.head_size
    state = dict(randomized(model).state_dict())
    theirs = to_theirs(state, FAMILIES[name], heads, size)
    back = to_ours(theirs, FAMILIES[name], heads, size)
    torch.testing.assert_close({**back, "embedding.head.weight": state["embedding.head.weight"]}, state, rtol=0, atol=0)


def alternatives(cls: type, option: str, value: Any) -> Iterator[Any]:
    """Other values of an option of a class."""
    hint = type_hints(cls).get(option)
    members = [hint, *typing.get_args(hint)]
    literals = [
        choice for part in members if typing.get_origin(part) is typing.Literal for choice in typing.get_args(part)
    ]
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield 2 * value
    yield from (name for name in literals if name != value)
    if value is None:
        yield from (kind for number, kind in ((int, 8), (float, 0.25)) if number in members)


def changes(name: str) -> Iterator[Tree]:
    """One change to the model of a family at a time: every class, and every option of its own classes."""
    options = shipped(name)["init_args"]
    root: Any = Model
    cls = find_class(shipped(name)["class_path"], root, "model")
    for part, slot in slots(cls, 2).items():
        node = options.get(part)
        if part not in ("embedding", "parametrization", "prediction", "initializer"):
            yield from ({part: choice} for choice in choices(slot.base) if node is None or choice != node["class_path"])
        if node is None or part == "initializer":
            continue
        own = slot.base if part == "embedding" else find_class(node["class_path"], slot.base, part)
        settings = node if part == "embedding" else node["init_args"]
        for option, default in plain_options(own, slot.supplied).items():
            for value in alternatives(own, option, settings.get(option, default)):
                if option != "dropout":
                    yield {f"{part}.{option}": value}
    yield from ({option: value} for option in ("causal", "skips") if option in options for value in (False, True))
    yield {"parametrization": {"class_path": "MuP", "init_args": {"base_width": 32}}}
    if cls is not EncoderDecoder:
        yield {"layers.1.mlp.bias": not options["mlp"]["init_args"]["bias"]}
        yield {"layers.0.attention.window": 4}


@pytest.mark.extra
@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_what_a_family_takes_it_computes(name: str) -> None:
    """Every single change to the configuration of each family."""
    taken = 0
    for change in changes(name):
        try:
            tree = override({"model": shipped(name)}, {f"model.{key}": value for key, value in change.items()})
            model = resolve(tree, ModelOnly)["model"]
            built(tree, CONTEXT)
        except (InputError, ValueError):  # no such model
            continue
        if differences(name, model, CONTEXT):
            continue
        taken += 1
        largest = max(pair(name, change, context=CONTEXT).difference())
        assert largest <= TOLERANCE, (change, largest)
    assert taken > 2


IGNORED = (
    *("architectures", "model_type", "transformers_version", "dtype", "vocab_size", "use_cache", "return_dict"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id"),
    *("id2label", "label2id", "problem_type", "output_attentions", "output_hidden_states", "chunk_size_feed_forward"),
    *(
        "dense_act_fn",
        "is_gated_act",
        "is_encoder_decoder",
        "_name_or_path",
        "name_or_path",
        "is_decoder",
        "layer_types",
        "rope_parameters",
    ),
)
"""Fields that say nothing about the function, or that other tests change."""

ROPES: list[Tree] = [
    {"rope_type": "default", "rope_theta": 500.0},
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": CONTEXT},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": CONTEXT, "attention_factor": 2.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {
        **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "original_max_position_embeddings": 12,
    },
    {"rope_type": "default", "partial_rotary_factor": 0.5},
]


def others(field: str, value: Any, layers: int) -> Iterator[Any]:
    """Other values of a field of `transformers`."""
    if isinstance(value, bool) or field in ("use_bidirectional_attention", "add_cross_attention"):
        yield not value
    elif isinstance(value, int):
        yield value + 1
        yield 2 * value
    elif isinstance(value, float):
        yield value + 0.25
    elif field in ("hidden_act", "activation", "activation_function", "hidden_activation", "feed_forward_proj"):
        yield from ("silu", "gelu_new", "relu")
    elif value is None:
        yield 8


@functools.cache
def fields(name: str) -> list[Tree]:
    """One change to each field that `transformers` knows of a family, and to its rotary positions."""
    config = described(name, {}).to_dict()
    read = [{field: value} for field in config if field not in IGNORED for value in others(field, config[field], 4)]
    kinds = ["full_attention", "sliding_attention"]
    if "layer_types" in config:
        read += [{"layer_types": [kinds[n % 2] for n in range(4)], "sliding_window": 5, "use_sliding_window": True}]
        read += [{"layer_types": [kinds[n > 2] for n in range(4)], "sliding_window": 5, "use_sliding_window": True}]
    return read + ([{"rope_parameters": rope} for rope in ROPES] if FAMILIES[name].rope else [])


@pytest.mark.extra
@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_a_checkpoint_with_a_changed_field_is_right_or_refused(name: str) -> None:
    """Small random checkpoints, each with one field changed, read from what `transformers` writes."""
    taken = 0
    for change in fields(name):
        try:
            config = described(name, change)
            config._attn_implementation = "eager"
            with exactly():
                theirs = randomized(getattr(transformers, FAMILIES[name].model)(config))
                expected = logits(theirs)
        except Exception:  # `transformers` has no such model
            continue
        try:
            model, context = read_config(config.to_dict())
            ours = built({"model": model}, context)
        except (InputError, ValueError):
            continue
        taken += 1
        size = settings_of(model, context)["attention.head_size"]
        state = to_ours(parameters(theirs), FAMILIES[name], ours.shape.heads, size)
        ours.load_state_dict(state, strict=True)
        assert (logits(ours) - expected).abs().max() <= TOLERANCE, change
    assert taken > 2


@pytest.mark.parametrize("name", FAMILIES)
def test_values_of_missing_fields_are_the_defaults_of_transformers(name: str) -> None:
    family = FAMILIES[name]
    config = getattr(transformers, family.model).config_class()
    sizes = ("width", "layers", "mlp.hidden", "context", "attention.head_size", "attention.key_value_heads")
    derived = [field for field, target in family.fields.items() if target in sizes]
    known = {field: value for field, value in {**family.absent, **family.fixed}.items() if hasattr(config, field)}
    for field, value in known.items():
        if not (field in derived and value is None) and field not in ("rms_norm_eps", "head_dim"):
            assert getattr(config, field) == value, field
    if family.rope:
        assert config.rope_parameters["rope_theta"] == family.base
        assert config.rope_parameters.get("partial_rotary_factor") == family.share


def test_older_names_of_fields_are_read() -> None:
    """Pythia, Phi and BLOOM as their first files wrote them, and rotary positions of releases before 5."""
    written = {name: write_config(name, settings_of(shipped(name), 64), 9) for name in ("gpt_neox", "bloom", "llama")}
    neox = {key: value for key, value in written["gpt_neox"].items() if "rope" not in key and "rotary" not in key}
    assert read_config({**neox, "rotary_pct": 0.25, "rotary_emb_base": 10000}) == read_config(written["gpt_neox"])
    bloom = {key: value for key, value in written["bloom"].items() if key not in ("n_head", "n_layer", "hidden_size")}
    assert read_config({**bloom, "num_attention_heads": 4, "num_hidden_layers": 4, "n_embed": 64}) == read_config(
        written["bloom"]
    )
    llama = {key: value for key, value in written["llama"].items() if key != "rope_parameters"}
    scaling = {**llama["rope_scaling"], "type": "llama3"}
    scaling = {key: value for key, value in scaling.items() if key not in ("rope_type", "rope_theta")}
    assert read_config({**llama, "rope_scaling": scaling}) == read_config(written["llama"])


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "lama"},
        {"hidden_act": "gelu"},
        {"hidden_size": None},
        {"hidden_size": "wide"},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
        {"num_key_value_heads": [1]},
    ],
    ids=str,
)
def test_what_no_part_of_ours_expresses_is_refused(change: Tree, refused: Refused) -> None:
    config = {**write_config("llama", settings_of(shipped("llama"), 64), 9), **change}
    config = {key: value for key, value in config.items() if value is not None}
    with refused():
        read_config(config, "DIR/config.json")


def test_tensors_of_another_model_are_refused(refused: Refused) -> None:
    with refused():
        to_ours({"model.layers.0.self_attn.rotary_scale": torch.zeros(2)}, FAMILIES["llama"], 2, 2)
    with refused():
        to_ours({"final_logits_bias": torch.ones(1, 2)}, FAMILIES["bart"], 2, 2)
    kept = to_ours({"h.0.attn.bias": torch.ones(1, 1, 2, 2), "wte.weight": torch.ones(2, 2)}, FAMILIES["gpt2"], 2, 2)
    assert kept.keys() == {"embedding.tokens.weight"}
