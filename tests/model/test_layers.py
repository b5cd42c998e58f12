"""Models whose layers differ: what they compute and cost, how they are written, and that a model has one id."""

from typing import Any

import pytest
import torch
from helpers import CONTEXT, MODEL, RUN, attentions, decoder, tokens
from messages import Refused
from parity import HEADS, SIZES, WIDTH, exactly, loaded, randomized, sample
from parity import VOCABULARY as TOKENS

from lm.config.tree import Tree, differences, override
from lm.data.batch import Batch
from lm.inference.conversion import to_ours
from lm.inference.families import FAMILIES
from lm.metrics.probe import probe
from lm.model.block import ParallelResidual
from lm.model.cache import Cache
from lm.model.flops import flops_per_row, parameters
from lm.model.mlp import GELU, SwiGLU
from lm.model.norm import LayerNorm, RMSNorm
from lm.model.position import Alibi, NoPosition, Rope
from lm.training.cell import check

MIXED: Tree = {
    "layers": {"count": 4, "pattern": [{"attention.window": 3, "position": "NoPosition"}, {}]},
    "layers.0.mlp": "SwiGLU",
    "layers.-1.block": "ParallelResidual",
    "layers.-1.norm": "RMSNorm",
    "layers.2.position": "Alibi",
}


def resolved(changes: Tree) -> Tree:
    return check(override(RUN, {f"model.{name}": value for name, value in changes.items()})).config


def test_alternating_windows_and_rotations_are_those_of_smollm3() -> None:
    transformers = pytest.importorskip("transformers", reason="parity needs transformers: pip install transformers")
    config = transformers.SmolLM3Config(
        vocab_size=TOKENS,
        hidden_size=WIDTH,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        rms_norm_eps=1e-6,
        use_sliding_window=True,
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention"] * 2,
        no_rope_layers=[1, 1, 1, 0],
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    config._attn_implementation = "eager"
    flat = {"bias": False}
    changes: Tree = {
        **SIZES,
        "embedding.tied": False,
        "norm": "RMSNorm",
        "attention": {"class_path": "GroupedQuery", "init_args": {"key_value_heads": 2, **flat}},
        "mlp": {"class_path": "SwiGLU", "init_args": {"expansion": 2.25, **flat}},
        "layers": {"repeat": 2, "pattern": [{"attention.window": 5}, {}], "-1": {"position": "NoPosition"}},
    }
    with exactly():
        other = randomized(transformers.SmolLM3ForCausalLM(config))
        expected = other(sample()).logits
    ours = loaded(changes, to_ours(other.state_dict(), FAMILIES["llama"], HEADS, WIDTH // HEADS))
    torch.testing.assert_close(ours(sample()), expected, rtol=0, atol=1e-9)
    assert expected.std() > 0.5


def test_layers_and_the_model_each_have_their_own_parts() -> None:
    model = decoder(MIXED)
    positions = [type(block.position) for block in model.blocks]
    assert positions == [NoPosition, type(None), Alibi, type(None)]
    assert (type(model.position), type(model.final_norm)) == (Rope, LayerNorm)
    assert [type(block.mlp) for block in model.blocks] == [SwiGLU, GELU, GELU, GELU]
    assert [attention.window for attention in attentions(model)] == [3, None, 3, None]
    last: Any = model.blocks[-1]
    assert (type(last.layout), type(last.layout.norm)) == (ParallelResidual, RMSNorm)


@pytest.mark.parametrize("position", ["Rope", "Alibi"])
@torch.no_grad()
def test_a_position_of_every_layer_is_that_of_the_model(position: str) -> None:
    own = decoder({"position": "NoPosition", "layers.0.position": position, "layers.1.position": position})
    assert torch.equal(own(tokens()), decoder({"position": position})(tokens()))
    half = decoder({"position": "NoPosition", "layers.0.position": position})
    assert not torch.equal(half(tokens()), own(tokens()))


@torch.no_grad()
def test_a_cache_gives_what_all_tokens_at_once_give() -> None:
    model, text_bt = decoder({**MIXED, "position": "T5Bias", "layers.1.position": "Rope"}).double().eval(), tokens()
    caches = [Cache() for _ in model.blocks]
    steps = [model(token_b1, caches) for token_b1 in text_bt.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(steps, 1), model(text_bt), rtol=1e-9, atol=1e-9)


def test_costs_and_measurements_are_those_of_each_layer() -> None:
    model, text_bt = decoder(MIXED), tokens()
    pairs = 4 * 16 * CONTEXT**2
    row = flops_per_row(model, CONTEXT)
    assert (row.attention, row.useful) == (4 * pairs, 2 * 4 * 16 * (CONTEXT * (CONTEXT + 1) // 2 + 3 * CONTEXT - 3))
    counts = parameters(model)
    assert sum(sum(kinds.values()) for kinds in counts.values()) == sum(p.numel() for p in model.parameters())
    assert counts["blocks.3"]["norm"] == 16
    result = probe(model, Batch((text_bt,), text_bt, torch.arange(len(text_bt))))
    assert len(result.entropy) == len(result.residual_norm) == len(result.block_share) == 4


NINE: list[Tree] = [{"attention.window": 9}, {}]
SPELLINGS: list[list[Tree]] = [
    [{}, {"layers": {"count": 2}}, {"layers.pattern": [{}]}, {"layers.0.mlp": "GELU"}],
    [
        {"layers": 4, "layers.0.attention.window": 3, "layers.2.attention.window": 3},
        {"layers": 4, "attention.window": 3, "layers.1.attention.window": None, "layers.-1.attention": "MultiHead"},
        {"layers": {"repeat": 2, "pattern": [{"attention.window": 3}, {}]}},
        {"layers": {"count": 4, "pattern": [{"attention": {"window": 3}}, {"attention": "MultiHead"}]}},
        {"layers.pattern": NINE, "layers.count": 4, "layers.0.attention.window": 3, "layers.2.attention.window": 3},
    ],
    [{"mlp": "SwiGLU"}, {"layers.0.mlp": "SwiGLU", "layers.1.mlp": "SwiGLU"}],
    [{"layers.0.position": "NoPosition"}, {"layers.pattern": [{"position": "NoPosition"}, {"position": "Rope"}]}],
]


@pytest.mark.parametrize("spellings", SPELLINGS, ids=lambda spellings: str(spellings[-1]))
def test_spellings_of_a_model_have_one_configuration(spellings: list[Tree]) -> None:
    first, *others = (check(override(RUN, {f"model.{k}": v for k, v in changes.items()})) for changes in spellings)
    for other in others:
        assert (other.config, other.id) == (first.config, first.id)
    assert check(first.config | {"trainer": RUN["trainer"]}).config["model"] == first.config["model"]


def test_equal_layers_stay_a_number_and_others_change_the_id() -> None:
    plain = check(RUN)
    assert plain.config["model"]["init_args"]["layers"] == 2
    assert check(override(RUN, {"model.layers.0.mlp": "SwiGLU"})).id != plain.id


def test_differences_name_the_layers_that_share_one() -> None:
    base = resolved({"layers": 4})
    arm = resolved({"layers": {"repeat": 2, "pattern": [{"attention.window": 3}, {}]}, "layers.-1.mlp": "ReLU"})
    assert differences(base, arm) == {
        "model.layers.0,2.attention.window": (None, 3),
        "model.layers.3.mlp": ("GELU", "ReLU"),
        "model.layers.3.mlp.approximate": ("none", None),
    }
    assert differences(arm, base)["model.layers.0,2.attention.window"] == (3, None)
    assert differences(arm, arm) == {}
    assert differences(base, resolved({"layers": 4, "layers.0.norm": "RMSNorm"}))["model.layers.0.norm"] == (
        "LayerNorm",
        "RMSNorm",
    )


def test_a_changed_number_of_layers_replaces_the_one_before() -> None:
    pattern = {"repeat": 2, "pattern": [{"attention.window": 3}, {}]}
    for changes, count in (({"layers.repeat": 3}, 6), ({"layers.count": 3}, 3), ({"layers": 5}, 5)):
        layers = resolved({"layers": pattern, **changes})["model"]["init_args"]["layers"]
        assert (layers if isinstance(layers, int) else len(layers)) == count


WRONG: dict[str, Tree] = {
    "index": {"layers.2.mlp": "SwiGLU"},
    "part": {"layers.0.mpl": "SwiGLU"},
    "word": {"layers.cuont": 3},
    "number": {"layers.repeat": 0},
    "many": {"layers": {"repeat": 400, "pattern": [{}, {}, {}]}},
    "text": {"layers": "12"},
    "pattern": {"layers.pattern": []},
    "changes": {"layers.pattern": [3]},
    "layer": {"layers.1": 4},
    "streams": {"layers.0.block": "HyperConnections"},
    "option": {"layers.-1.mlp.expnsion": 3},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_layer_is_refused_in_one_line(name: str, refused: Refused) -> None:
    with refused():
        resolved(WRONG[name])


def test_a_wrong_class_is_named_by_its_layer(refused: Refused) -> None:
    with refused():
        resolved({"layers.-1.mlp": "SwiGLUU"})


def test_layers_of_an_encoder_decoder_are_equal(refused: Refused) -> None:
    with refused():
        check(override(RUN, {"model": {**MODEL, "class_path": "EncoderDecoder"}, "model.layers.0.mlp": "SwiGLU"}))


def test_a_part_that_no_layer_uses_cannot_be_changed(refused: Refused) -> None:
    config = resolved({"layers.0.mlp": "SwiGLU"})
    with refused():
        check(override(config, {"model.mlp": "ReLU"}))
    changed = check(override(config, {"model.layers.1.mlp": "ReLU"})).config["model"]["init_args"]
    assert [layer["mlp"]["class_path"] for layer in changed["layers"]] == ["SwiGLU", "ReLU"]
