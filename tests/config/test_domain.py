"""Every component and every setting refuses numbers outside its domain, before anything is trained."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from helpers import MODEL, RUN, ModelRoot
from messages import CheckMessage, Refused

from lm.config.choices import choices, slots
from lm.config.components import build, plain_options, resolve
from lm.config.tree import InputError, override
from lm.data.synthetic import BracketText, MarkovText
from lm.data.text import TextData
from lm.data.tokenizer import BPE, Unigram, WordPiece
from lm.model.mlp import MLP
from lm.model.position import Position
from lm.model.shape import Shape
from lm.model.transformer import Decoder
from lm.training.cell import check
from lm.training.run import RunConfig

SHAPE = Shape(vocabulary=11, context=12, width=16, heads=2, layers=2)

RUNS: list[dict[str, Any]] = [
    {"seed": 2**64},
    {"seed": "3"},
    {"trainer.gradient_clip_val": -1},
    {"trainer.accumulate_grad_batches": 0},
    {"trainer.accumulate_grad_batches": None},
    {"trainer.log_every_n_steps": None},
    {"trainer.accumulate_grad_batches": 10**9},
    {"trainer.val_check_interval": 0},
    {"trainer.val_check_interval": 0.5},
    {"trainer.val_check_interval": 1.5},
    {"trainer.log_every_n_steps": 0},
    {"trainer.devices": 99999999999},
    {"trainer.limit_val_batches": -1},
    {"evaluate": {"lengths": [0], "tokens": 64}},
    {"evaluate": {"lengths": [8], "tokens": 7}},
    {"optim.schedule.warmup": 13},
    {"optim.schedule.warmup": 2.5},
    {"optim.schedule.warmup": "5%"},
    {"optim.schedule": {"class_path": "InverseSquareRoot"}},
    {"optim.schedule": {"class_path": "Constant", "init_args": {"warmup": 99}}},
    {"optim.lr": "inf"},
    {"optim.optimizer": {"class_path": "SGD", "init_args": {"dampening": -2.0}}},
    {"optim.optimizer": {"class_path": "RMSprop", "init_args": {"alpha": 1.5}}},
    {"optim.optimizer": {"class_path": "ASGD", "init_args": {"lambd": -1.0}}},
    {"optim.optimizer": {"class_path": "MuonAdamW", "init_args": {"betas": [2.0, 0.9]}}},
    {"optim.optimizer": {"class_path": "MuonAdamW", "init_args": {"ns_steps": 0}}},
    {"model.attention.window": 17},
    {"model.layers": 100_000},
    {"model.width": 10**6, "model.heads": 1},
    {"model.mlp.expansion": 1e12},
    {"data.batch_size": 10**9},
    {"model.dropout": None},
    {"model.initializer": {"class_path": "Normal", "init_args": {"std": None}}},
    {"model.position": ".."},
    {"model.position": "../../x"},
    {"model.position": "exits.Thing"},
    {"model.position": "fails.Thing"},
    {"trainer.strategy": {"class_path": "exits.Thing"}},
]
MODULES = {"exits": "raise SystemExit(0)", "fails": "raise KeyError('no')"}


@pytest.mark.parametrize("changes", RUNS, ids=lambda changes: str(changes)[:70])
def test_a_run_that_could_not_be_trained_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused, changes: dict[str, Any]
) -> None:
    for name, code in MODULES.items():
        (tmp_path / f"{name}.py").write_text(f"{code}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with refused():
        check(override(RUN, changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"optim.optimizer.betas": [0.9, 1.0]},
        {"optim.optimizer.eps": -1.0},
        {"optim.optimizer": {"class_path": "AdamW", "init_args": {"differentiable": True}}},
    ],
)
def test_what_torch_refuses_names_the_optimizer(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"^optim: "):
        check(override(RUN, changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluate": {"lengths": [10**5], "tokens": 10**6}},
        {"data.context": 1, "data.batch_size": 10**7},
        {"data.tokenizer": {"class_path": "BPE", "init_args": {"size": 10**7}}},
    ],
    ids=["lengths", "batch", "vocabulary"],
)
def test_sizes_beyond_the_text_are_refused(check_message: CheckMessage, changes: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        check(override(RUN, changes))
    assert "\n" not in str(caught.value)
    check_message(re.sub(r"\d+", "N", str(caught.value)))  # the text is that of this version of Python


HEADS: dict[str, list[Any]] = {
    **{"scale": [0.0, -1.0], "softcap": [0.0], "window": [0], "dropout": [-0.1, 1.0]},
    **{"head_size": [0], "clip": [0.0, -1.0]},
}
HIDDEN: dict[str, list[Any]] = {"expansion": [0.0, -1.0], "dropout": [1.0, -0.5], "hidden": [0, -3]}
PARTS: list[tuple[str, str, dict[str, list[Any]]]] = [
    *[("position", name, {"share": [0.0, 1.1]}) for name in choices(Position) if name.startswith("Rope")],
    ("position", "Rope", {"base": [0.0, -1.0]}),
    ("position", "RopeLinear", {"base": [0.0], "stretch": [0.5]}),
    ("position", "RopeNTK", {"base": [-3.0], "stretch": [0.0]}),
    ("position", "RopeYarn", {"base": [0.0, 1.0], "stretch": [0.9], "fast": [0.5], "slow": [0.0, 64.0]}),
    ("position", "RopeLlama3", {"base": [0.0], "stretch": [0.9], "fast": [0.5], "slow": [0.0, 64.0], "original": [0]}),
    ("position", "Learned", {"offset": [-1]}),
    ("position", "Fire", {"hidden": [0], "rate": [0.0], "threshold": [-1.0]}),
    ("position", "Sinusoidal", {"base": [0.0], "amplitude": [-1.0]}),
    ("position", "T5Bias", {"buckets": [0, 5], "longest": [1]}),
    ("norm", "LayerNorm", {"eps": [0.0, -1e-5]}),
    ("norm", "RMSNorm", {"eps": [0.0, -1e-6]}),
    ("norm", "DyT", {"alpha": [0.0, -1.0]}),
    ("norm", "BatchNorm", {"eps": [0.0], "momentum": [0.0, 1.1]}),
    ("block", "ScaledResidual", {"alpha": [0.0, -1.0]}),
    ("block", "DeepNorm", {"alpha": [0.0], "beta": [-1.0]}),
    ("block", "LayerScale", {"initial": [0.0, -1.0]}),
    ("block", "HyperConnections", {"streams": [0, 65]}),
    ("block", "StochasticDepth", {"rate": [-0.1, 1.0]}),
    *[("attention", name, HEADS) for name in ("MultiHead", "GroupedQuery", "MultiQuery", "Differential")],
    ("attention", "Latent", {"kv_rank": [0], "query_rank": [0], "rope_size": [0], "window": [0], "dropout": [1.0]}),
    ("attention", "Differential", {"key_value_heads": [0, 1]}),
    ("attention", "GatedLinear", {"rank": [0]}),
    ("attention", "GroupedQuery", {"key_value_heads": [0, 3]}),
    ("embedding", "Embedding", {"logit_scale": [0.0, -1.0], "softcap": [0.0]}),
    *[("mlp", name, HIDDEN) for name in choices(MLP)],
    ("mlp", "Experts", {"experts": [1], "active": [0, 9], "shared": [-1], "hidden": [0], "rate": [0.0]}),
    ("prediction", "ParallelHeads", {"heads": [0, 12], "weight": [-1.0]}),
    ("prediction", "SequentialHeads", {"heads": [0, 12], "weight": [-1.0]}),
]
WRONG = [
    (kind, name, option, value) for kind, name, options in PARTS for option in options for value in options[option]
]


@pytest.mark.parametrize(("kind", "name", "option", "value"), WRONG)
def test_parts_refuse_numbers_outside_their_domain(kind: str, name: str, option: str, value: Any) -> None:
    tree = override({"model": MODEL}, {f"model.{kind}": {"class_path": name, "init_args": {option: value}}})
    make = build(resolve(tree, ModelRoot), ModelRoot).model
    with pytest.raises(ValueError, match=f"{option}="):
        make(11, 12)


INITIALIZERS: dict[str, tuple[str, ...]] = {
    "Normal": ("std", "query_key"),
    "Xavier": ("embedding", "query_key"),
    "FanIn": ("gain", "position", "query_key"),
}


@pytest.mark.parametrize(("name", "option"), [(name, option) for name in INITIALIZERS for option in INITIALIZERS[name]])
@pytest.mark.parametrize("value", [0.0, -0.1])
def test_an_initialisation_that_draws_nothing_is_refused(name: str, option: str, value: float) -> None:
    node = {"class_path": name, "init_args": {option: value}}
    with pytest.raises(InputError, match=f"initializer: {option}={value} "):
        check(override(RUN, {"model.initializer": node}))


def test_every_number_of_every_part_has_a_case() -> None:
    found = set()
    for kind, slot in slots(Decoder, 2).items():
        for name, cls in choices(slot.base).items():
            options = plain_options(cls, slot.supplied)
            found |= {(kind, name, key) for key, value in options.items() if type(value) in (int, float)}
    tested = {(kind, name, option) for kind, name, option, _ in WRONG}
    tested |= {("initializer", name, option) for name, options in INITIALIZERS.items() for option in options}
    assert {one for one in found - tested if one[0] != "parametrization"} == set()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(("kind", "name", "option"), [("norm", "RMSNorm", "eps"), ("block", "ScaledResidual", "alpha")])
def test_a_constructor_takes_no_number_that_is_none(kind: str, name: str, option: str, value: float) -> None:
    with pytest.raises(InputError, match=rf"{kind}\.{option}: "):
        resolve(override(RUN, {f"model.{kind}": {"class_path": name, "init_args": {option: value}}}), RunConfig)


def test_sources_of_text_fit_into_memory(refused: Refused) -> None:
    with refused(ValueError):
        MarkovText(size=10**12)
    with refused(ValueError):
        BracketText(depth=10**9)


@pytest.mark.parametrize("shares", [(0.9, 0.2, -0.1), (1.0, 0.0, 0.0), (float("nan"), 0.5, 0.5), (0.5, 0.5, 0.5)])
def test_shares_of_a_text_add_to_one(shares: tuple[float, float, float], refused: Refused) -> None:
    with refused(ValueError):
        TextData(0, MarkovText(size=100), BPE(300), 4, 2, split=shares)


@pytest.mark.parametrize("kind", [BPE, Unigram, WordPiece])
def test_a_vocabulary_is_bounded_by_the_text(kind: Any, refused: Refused) -> None:
    with refused():
        kind(10**7).train(["a short text"])


@pytest.mark.parametrize("kind", [BPE, Unigram])
def test_endless_words_are_refused_by_quadratic_tokenizers(kind: Any, refused: Refused) -> None:
    with refused():
        kind(300).train(["abc" * 10_000])


def test_a_pipe_is_no_text(tmp_path: Path, refused: Refused) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    corpus = {"class_path": "LocalText", "init_args": {"path": str(tmp_path / "pipe.txt")}}
    with refused():
        check(override(RUN, {"data.corpus": corpus}))


def test_a_deep_line_of_json_is_refused(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "deep.jsonl").write_text("[" * 100_000 + "\n")
    corpus = {"class_path": "LocalText", "init_args": {"path": str(tmp_path / "deep.jsonl")}}
    with refused():
        check(override(RUN, {"data.corpus": corpus}))
