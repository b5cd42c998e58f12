"""Counts against torch's own: FLOPs as it counts them, numbers that autograd really saves, bytes that a cache holds."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers import RUN, Capture, Patch, decoder
from messages import CheckMessage, Refused, RefusedCommand
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from lm.cli import main
from lm.config.tree import override
from lm.inference.count import counted
from lm.model.attention import Attention, MultiHead, set_attention_impl
from lm.model.block import BlockLayout, PreNorm
from lm.model.cache import Cache
from lm.model.flops import activation_bytes, cache_bytes, flops_per_row, flops_per_token, parameters, visible_pairs
from lm.model.mlp import GELU
from lm.model.norm import LayerNorm
from lm.model.position import Rope, relative_positions
from lm.model.transformer import Embedding, EncoderDecoder, Model
from lm.report.run import grouped, scaled

BATCH, TIME, VOCABULARY = 3, 40, 50
SIZES: dict[str, Any] = {"width": 32, "heads": 4, "layers": 3}

VARIANTS: list[dict[str, Any]] = [
    {},
    {"embedding.tied": False, "attention": "MultiQuery", "mlp": "SwiGLU", "norm": "RMSNorm", "embedding.softcap": 9.0},
    {"attention": "GroupedQuery", "attention.bias": False, "mlp": "ReLU", "mlp.bias": False, "position": "Alibi"},
    {"attention.window": 9, "block": "Sandwich", "position": "Learned", "norm": "BatchNorm", "mlp": "ReGLU"},
    {"attention.softcap": 5.0, "block": "PostNorm", "position": "T5Bias", "mlp": "GLU"},
    {"attention.qk_norm": True, "block": "ReZero", "mlp": "Sigmoid"},
    {"mlp": "Experts"},
    {"norm": "DyT", "mlp": "SquaredReLU", "mlp.hidden": 100, "position.share": 0.5},
    {"attention.gate": "elementwise", "attention.head_size": 12, "attention.output_bias": False},
    {"attention.value_residual": "learned"},
    {"attention.gate": "headwise", "attention.qk_norm": "width", "attention.clip": 1.0},
    {"causal": False, "block": "ScaledResidual", "mlp": "GEGLU"},
    {"block": {"class_path": "ParallelResidual", "init_args": {"shared_norm": False}}},
    *({"block": name} for name in ("LayerScale", "HyperConnections")),
]
IDS = [str(changes) for changes in VARIANTS]


def built(changes: dict[str, Any]) -> Any:
    return decoder({**SIZES, **changes}, vocabulary=VOCABULARY, context=TIME)


def translator(**options: Any) -> EncoderDecoder:
    """A small encoder-decoder; the command line is checked with other models."""
    plain = decoder(SIZES)
    return EncoderDecoder(
        VOCABULARY,
        TIME,
        **SIZES,
        embedding=Embedding,
        position=Rope,
        block=PreNorm,
        norm=LayerNorm,
        attention=MultiHead,
        mlp=GELU,
        initializer=plain.initializer,
        **options,
    )


def inputs(model: Model, batch: int = BATCH, time: int = TIME) -> tuple[Tensor, ...]:
    tokens = torch.randint(VOCABULARY, (batch, time), generator=torch.Generator().manual_seed(0))
    return (
        (tokens, tokens, torch.zeros(batch, time, dtype=torch.bool)) if isinstance(model, EncoderDecoder) else (tokens,)
    )


def torch_flops(model: Model, time: int) -> tuple[int, int]:
    """What torch counts, forward and backward; its counter leaves out the fused kernel of the CPU."""
    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as forward:
            logits = model(*inputs(model, time=time))
        with FlopCounterMode(display=False) as backward:
            logits.sum().backward()
    return forward.get_total_flops(), backward.get_total_flops()


@pytest.mark.parametrize("changes", VARIANTS, ids=IDS)
def test_parts_add_up_to_the_model(changes: dict[str, Any]) -> None:
    model = built(changes)
    found = parameters(model)
    assert sum(sum(kinds.values()) for kinds in found.values()) == sum(p.numel() for p in model.parameters())
    size = lambda module: sum(p.numel() for p in module.parameters())  # noqa: E731
    for index, block in enumerate(model.blocks):
        kinds = found[f"blocks.{index}"]
        assert kinds["attention"] == size(block.attention)
        assert kinds["mlp"] == size(block.mlp)
        assert kinds.get("norm", 0) == sum(size(part) for part in block.children() if isinstance(part, BlockLayout))
        assert "other" not in kinds
    assert found[""]["embedding"] == VOCABULARY * 32
    assert found[""]["head"] == (0 if changes.get("embedding.tied", True) else VOCABULARY * 32)
    assert found[""].get("position", 0) == size(model.position)
    assert found[""].get("norm", 0) == size(model.final_norm)


def test_parts_of_an_encoder_and_a_decoder() -> None:
    model = translator()
    found = parameters(model)
    assert sum(sum(kinds.values()) for kinds in found.values()) == sum(p.numel() for p in model.parameters())
    assert found["decoder.0"]["attention"] == 2 * found["encoder.0"]["attention"]


def test_frozen_parameters_are_not_counted_and_strange_ones_are_other() -> None:
    model = built({})
    model.blocks[1].mlp.requires_grad_(False)
    model.extra = nn.Linear(3, 5)
    found = parameters(model)
    assert "mlp" not in found["blocks.1"]
    assert found[""]["other"] == 20


@pytest.mark.parametrize("changes", VARIANTS, ids=IDS)
def test_flops_are_those_that_torch_counts(changes: dict[str, Any]) -> None:
    model = built(changes)
    row, token = flops_per_row(model, 17), flops_per_token(model, 17)
    assert (BATCH * row.forward, BATCH * row.backward) == torch_flops(model, 17)
    assert token.forward == pytest.approx(row.forward / 17, rel=1e-15)
    assert token.total == pytest.approx(3 * token.forward, rel=1e-15)


def test_encoder_decoder_flops_equal_those_of_torch() -> None:
    model = translator()
    row = flops_per_row(model, TIME)
    assert (BATCH * row.forward, BATCH * row.backward) == torch_flops(model, TIME)
    assert row.attention == 3 * 3 * 4 * 32 * TIME**2
    assert row.useful == 3 * 4 * 32 * (2 * TIME**2 + TIME * (TIME + 1) // 2)


@pytest.mark.parametrize("time", [1, 65, 200])
def test_flops_of_linear_attention_are_those_that_torch_counts(time: int) -> None:
    """Forward; of the backward pass torch skips the products with the first state, which is zero, and the last."""
    model = built({"attention": "LinearAttention"})
    row = flops_per_row(model, time)
    forward, backward = torch_flops(model, time)
    assert BATCH * row.forward == forward
    first, last = min(64, time), (time - 1) % 64 + 1
    skipped = 3 * 2 * 32 * 8 * (first + 2 * last)
    assert BATCH * (row.backward - skipped) == backward


@pytest.mark.parametrize("attention", ["Differential", "Latent", "GatedLinear"])
@pytest.mark.parametrize("time", [1, 40])
def test_flops_of_variants_are_those_that_torch_counts(attention: str, time: int) -> None:
    """Of a gated sum torch skips products with the first state in the backward pass, which is zero, and the last."""
    model = set_attention_impl(built({"attention": attention}), "plain")
    row = flops_per_row(model, time)
    forward, backward = torch_flops(model, time)
    assert BATCH * row.forward == forward
    assert BATCH * row.backward == backward if attention != "GatedLinear" else BATCH * row.backward >= backward


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 3, 10, 99])
def test_pairs_are_those_that_a_mask_lets_through(causal: bool, window: int | None) -> None:
    for time in (1, 2, 10):
        between = relative_positions(time, time, torch.device("cpu"))
        seen = (between <= 0) | (not causal)
        assert visible_pairs(time, causal, window) == (seen & (between.abs() < (window or 99))).sum()


def test_useful_attention_is_half_if_causal_linear_with_window() -> None:
    flops = flops_per_token(built({}), TIME)
    assert flops.attention == 3 * 4 * 32 * TIME
    assert flops.useful / flops.attention == pytest.approx((TIME + 1) / (2 * TIME))
    windowed = [flops_per_token(built({"attention.window": 8}), time).useful for time in (1000, 100000)]
    assert windowed[1] == pytest.approx(3 * 4 * 32 * 8, rel=1e-3)
    assert windowed[0] < windowed[1]


def test_what_nobody_has_counted_is_refused_with_the_remedy(refused: Refused) -> None:
    class Own(Attention):
        def forward(self, x_bqd: Tensor, *_: Any, **__: Any) -> Tensor:
            return x_bqd

    model = built({})
    model.blocks[0].attention = Own()
    with refused():
        flops_per_token(model, TIME)
    with refused():
        flops_per_token(nn.Linear(2, 2), TIME)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attention", "shared"), [("MultiHead", 4), ("GroupedQuery", 2), ("MultiQuery", 1), ("Latent", 1)]
)
@torch.no_grad()
def test_cache_is_what_caches_hold(attention: str, shared: int) -> None:
    model = built({"attention": attention})
    expected = cache_bytes(model, TIME, BATCH)
    numbers = 4 * 8 + 4 if attention == "Latent" else 2 * shared * 8
    assert expected["float32"] == 4 * 3 * BATCH * TIME * numbers
    for name in ("float32", "bfloat16"):
        caches = [Cache() for _ in model.blocks]
        model.to(getattr(torch, name))(inputs(model)[0], caches)
        assert sum(cache.bytes() for cache in caches) == expected[name]


def test_cache_of_an_encoder_decoder_is_the_decoders() -> None:
    assert cache_bytes(translator(), TIME)["float32"] == 4 * 3 * 2 * 32 * TIME
    assert set(cache_bytes(built({"attention": "LinearAttention"}), TIME).values()) == {0}


def saved_bytes(model: Model, time: int, batch: int) -> int:
    """Bytes of the storages that autograd keeps between forward and backward, parameters and buffers left out."""
    own = {x.untyped_storage().data_ptr() for x in [*model.parameters(), *model.buffers()]}
    kept: dict[int, Tensor] = {}

    def keep(x: Tensor) -> Tensor:
        if x.untyped_storage().data_ptr() not in own:
            kept[x.untyped_storage().data_ptr()] = x  # held, so that no address is used twice
        return x

    tokens = inputs(model, batch, time)
    with saved_tensors_hooks(keep, lambda x: x):
        loss = cross_entropy(model(*tokens).flatten(0, 1), tokens[0].flatten())
    assert loss.requires_grad
    return sum(x.untyped_storage().nbytes() for x in kept.values())


ACTIVATIONS: list[dict[str, Any]] = [
    {"mlp": "Experts"},
    {"attention.softcap": 5.0, "block": "PostNorm", "position": "T5Bias", "mlp": "GLU"},
    {"attention": "GatedLinear", "block": "HyperConnections", "norm": "BatchNorm"},
    {"attention": "Latent", "dropout": 0.1, "mlp.dropout": 0.1, "attention.dropout": 0.1},
]


@pytest.mark.parametrize("changes", ACTIVATIONS, ids=[str(changes) for changes in ACTIVATIONS])
def test_activations_are_what_autograd_keeps(changes: dict[str, Any]) -> None:
    counted_bytes = activation_bytes(lambda: built(changes), 17, 8)
    rounding = 0.05 if "Experts" in str(changes) else 0.0  # loads are not quite equal
    assert counted_bytes["float32"] == pytest.approx(saved_bytes(built(changes), 17, 8), rel=rounding)


@pytest.mark.slow
def test_activations_of_other_models_and_precisions() -> None:
    of_pairs = activation_bytes(lambda: translator(dropout=0.1), TIME, 4)
    assert of_pairs["float32"] == saved_bytes(translator(dropout=0.1), TIME, 4)
    halved = activation_bytes(lambda: built({}), TIME, 4)["bfloat16"]
    assert halved == pytest.approx(saved_bytes(built({}).bfloat16(), TIME, 4), rel=0.01), "statistics stay float32"
    plain = activation_bytes(lambda: built({}), TIME, 4)["float32"]
    ahead = activation_bytes(lambda: built({"prediction": "ParallelHeads"}), TIME, 4)["float32"]
    assert ahead - plain > 4 * 4 * TIME * (VOCABULARY + 32), "of a block and its logits"


class Choosy(GELU):
    """An MLP that needs to see values."""

    def forward(self, x_btd: Tensor) -> Tensor:
        return super().forward(x_btd) if x_btd.sum() > 0 else x_btd


def test_activations_are_unknown_where_values_decide() -> None:
    def make() -> Any:
        model = built({})
        model.blocks[0].mlp.__class__ = Choosy
        return model

    assert activation_bytes(make, TIME) == {}


def test_a_large_model_is_counted_in_no_memory() -> None:
    def large() -> EncoderDecoder:
        return EncoderDecoder(
            50000, 2048, 65536, 64, 1, embedding=Embedding, position=Rope, block=PreNorm, norm=LayerNorm,
            attention=MultiHead, mlp=GELU, initializer=translator().initializer,
        )  # fmt: skip

    found = counted(large, 2048, 8)
    assert found["parameters"]["total"] > 7e10
    assert found["flops_per_token"]["linear"] == pytest.approx(2 * found["parameters"]["total"], rel=0.01)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(yaml.safe_dump(override(RUN, {"model.position": "Learned"})))
    return tmp_path


def test_the_command_prints_json_that_adds_up(config: Path, capsys: Capture) -> None:
    assert main(["count", "run.yaml", "--json", "--model.layers", "5", "--set", "model.norm=RMSNorm"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["context"], found["batch"]) == (16, 8)
    parts = found["parameters"]["parts"]
    assert list(parts) == ["", *(f"blocks.{index}" for index in range(5))]
    assert sum(sum(kinds.values()) for kinds in parts.values()) == found["parameters"]["total"]
    flops = found["flops_per_token"]
    assert flops["attention"] == 5 * 4 * 16 * 16
    assert flops["total"] == 3 * (flops["linear"] + flops["attention"])
    assert found["cache_bytes"]["float32"] == 4 * 5 * 2 * 8 * 16 * 16
    assert sorted(path.name for path in config.iterdir()) == ["run.yaml"]


def test_context_and_batch_may_be_given(config: Path, capsys: Capture) -> None:
    rope = ["--model.position", "Rope"]
    counts = []
    for context, batch in ((16, 1), (32, 3)):
        assert main(["count", "run.yaml", "--json", *rope, "--context", str(context), "--batch", str(batch)]) == 0
        counts.append(json.loads(capsys.readouterr().out))
    one, more = counts
    assert more["flops_per_token"]["attention"] == 2 * one["flops_per_token"]["attention"]
    assert more["flops_per_token"]["linear"] == one["flops_per_token"]["linear"]
    assert more["parameters"] == one["parameters"]
    assert more["cache_bytes"]["float32"] == 6 * one["cache_bytes"]["float32"]
    assert 5 < more["activation_bytes"]["float32"] / one["activation_bytes"]["float32"] <= 6


def test_the_command_prints_tables(config: Path, capsys: Capture, check_message: CheckMessage) -> None:
    assert main(["count", "run.yaml"]) == 0
    rows = [re.findall(r"[^\s│┃]+", line) for line in capsys.readouterr().out.splitlines()]
    check_message([" ".join(words) for words in rows if any(map(str.isalnum, "".join(words)))])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--context", "0"],
        ["--batch", "-2"],
        ["--context", "x"],
        ["--context", "17"],
        ["--model.heads", "3"],
        ["--model.widht", "3"],
        ["--out", "there"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_counted_is_one_line(
    config: Path, arguments: list[str], refused_command: RefusedCommand
) -> None:
    refused_command(["count", "run.yaml", *arguments])


def test_blocks_alike_are_shown_once() -> None:
    parts = {"": {"norm": 1}, "blocks.0": {"mlp": 2}, "blocks.1": {"mlp": 2}, "blocks.2": {"mlp": 3}}
    assert [name for name, _ in grouped(parts)] == ["", "blocks.0 to 1, each", "blocks.2"]


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (999, "999"), (1000, "1 k"), (1234567, "1.235 M"), (5e16, "50,000 T")]
)
def test_numbers_have_four_figures(number: float, text: str) -> None:
    assert scaled(number, 1000, ("", "k", "M", "G", "T")) == text
