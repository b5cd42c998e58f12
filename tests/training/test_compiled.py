"""Compiled blocks: the same numbers up to rounding, the plain ones where nothing can be compiled."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import RUN, Patch, known
from messages import CheckMessage
from small_runs import train_cell

from lm.config.tree import override
from lm.training import module
from lm.training.cell import check
from lm.training.module import compile_in_place, preserve_buffers_and_rng
from lm.training.recorder import Recorder

SHORT = {"trainer.max_steps": 6, "trainer.val_check_interval": 3, "trainer.log_every_n_steps": 1}


def trained(tmp_path: Path, **changes: Any) -> Any:
    return train_cell(tmp_path, SHORT | {f"trainer.{name}": value for name, value in changes.items()})[1]


def without_compiler(*_: Any, **__: Any) -> Any:
    raise RuntimeError("No working C++ compiler found\nin several lines")


@pytest.mark.extra
def test_without_a_compiler_the_cell_is_trained_uncompiled(
    tmp_path: Path, monkeypatch: Patch, check_message: CheckMessage
) -> None:
    plain = trained(tmp_path)
    monkeypatch.setattr(torch, "compile", without_compiler)
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda self, **_: setattr(self, "_compiled_call_impl", without_compiler)
    )
    compiled = trained(tmp_path, compile=True)
    assert compiled["id"] != plain["id"]
    assert compiled["status"] == "ok"
    check_message(compiled["flags"])
    assert compiled["metrics"]["nll"] == plain["metrics"]["nll"]
    assert compiled["curve"] == plain["curve"]


def test_an_encoder_decoder_is_not_compiled(check_message: CheckMessage) -> None:
    from lm.model.transformer import EncoderDecoder

    model = EncoderDecoder.__new__(EncoderDecoder)
    torch.nn.Module.__init__(model)
    check_message(known(compile_in_place(model, "", lambda: None)))


@pytest.mark.parametrize(
    ("changes", "whole"),
    [
        ({}, True),
        ({"model.mlp": "Experts"}, False),
        ({"model.prediction": "ParallelHeads"}, False),
        ({"trainer.checkpoint_activations": True}, False),
    ],
)
def test_models_that_leave_more_than_output_are_compiled_by_blocks(
    monkeypatch: Patch, changes: dict[str, Any], whole: bool
) -> None:
    opened = check(override(RUN, changes)).open()
    model = opened.run.trainer(Recorder(Path(), opened.data)).prepared(opened.model())
    assert not module.is_compiled_whole(model), "on a processor"
    on_cuda = SimpleNamespace(device=torch.device("cuda"))
    monkeypatch.setattr(model, "parameters", lambda: iter([on_cuda]))
    assert module.is_compiled_whole(model) == whole


def test_buffers_and_random_state_are_restored() -> None:
    model = torch.nn.BatchNorm1d(3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(0)
    first = torch.rand(4)
    torch.manual_seed(0)
    with preserve_buffers_and_rng(model):
        model(torch.rand(5, 3))
    assert torch.equal(torch.rand(4), first)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.extra
@pytest.mark.parametrize("whole", [False, True])
def test_compiled_code_trains_to_the_numbers_of_what_is_written(
    tmp_path: Path, monkeypatch: Patch, whole: bool
) -> None:
    monkeypatch.setattr(module, "is_compiled_whole", lambda _: whole)  # as on CUDA
    plain, other = trained(tmp_path), trained(tmp_path, compile=True)
    assert other["flags"] == []
    assert other["cost"]["compile_seconds"] > 0
    assert other["metrics"]["nll"] == pytest.approx(plain["metrics"]["nll"], abs=1e-5)
    assert other["metrics"]["gradient_norm"] == pytest.approx(plain["metrics"]["gradient_norm"], rel=1e-4)
    assert other["pairing"] == plain["pairing"]
    inside = [json.dumps(record["final"]["entropy"]) for record in (plain, other)]
    assert len(json.loads(inside[1])) == len(json.loads(inside[0])) > 0, "hooks are called in a compiled model too"
