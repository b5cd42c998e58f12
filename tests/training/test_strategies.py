"""Strategies of `trainer.strategy`: how many processes divide what, what is refused, and shares that compute the whole.

Whole runs are held against one process in test_devices.py and test_ranks.py.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import RUN, decoder
from lightning.pytorch.strategies import StrategyRegistry
from messages import Refused
from torch import nn
from torch.optim import SGD, Adafactor, AdamW

from lm.config.tree import override
from lm.metrics.gradients import clip_by_norm, clip_by_value
from lm.training.cell import check
from lm.training.optim import MuonAdamW
from lm.training.strategies import (
    PRECISIONS,
    Processes,
    check_model,
    check_optimizer,
    check_sharded,
    check_strategy,
    plan,
)

SETTINGS = {"strategy": "auto", "precision": None, "sync_batchnorm": False, "num_nodes": 1}


def strategy(name: str, devices: int, num_nodes: int = 1) -> Any:
    built = StrategyRegistry.get(name)
    built.parallel_devices, built.num_nodes = [torch.device("cpu")] * devices, num_nodes
    return built


def test_processes_divide_rows_under_fsdp2_and_layers_under_tensor_parallel(refused: Refused) -> None:
    assert strategy("fsdp2", 4).sizes() == (4, 1)
    assert strategy("fsdp2", 4, num_nodes=2).sizes() == (8, 1)
    assert strategy("tensor_parallel", 4).sizes() == (1, 4)
    with refused():
        strategy("tensor_parallel", 4, num_nodes=2).sizes()


@pytest.mark.parametrize("name", ["deepspeed", "deepspeed_stage_3", "DeepSpeed"])
def test_deepspeed_is_refused_in_one_line(name: str, refused: Refused) -> None:
    with refused():
        check_sharded({**SETTINGS, "strategy": name})


def test_a_class_of_strategies_is_refused(refused: Refused) -> None:
    node = {"class_path": "lightning.pytorch.strategies.ModelParallelStrategy", "init_args": {}}
    with refused():
        check(override(RUN, {"trainer.strategy": node}))


@pytest.mark.parametrize("changes", [{"strategy": "ddp_fork"}, {"num_nodes": 2}], ids=str)
def test_strategies_that_fork_or_span_machines_are_refused(changes: dict[str, Any], refused: Refused) -> None:
    check_strategy(SETTINGS)
    with refused():
        check_strategy({**SETTINGS, **changes})


# fsdp2 ---------------------------------------------------------------------------------------------------------------

SHARDED = {"trainer.strategy": "fsdp2", "trainer.devices": 2, "trainer.accelerator": "cpu"}


@pytest.mark.parametrize(
    "changes",
    [
        {"trainer.precision": "16-mixed"},
        {"trainer.sync_batchnorm": True},
        {"model.norm": "BatchNorm"},
        {"model.block": "ReZero"},
        {"trainer.strategy": "fsdp"},
        {"trainer.strategy": "fsdp_cpu_offload"},
        {"trainer.strategy": "fsdp3"},
    ],
    ids=str,
)
def test_settings_that_cannot_be_sharded_are_refused(changes: dict[str, Any], refused: Refused) -> None:
    with refused():
        check(override(RUN, {**SHARDED, **changes}))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_supported_precision_is_accepted_by_the_trainer(precision: str) -> None:
    check(override(RUN, {**SHARDED, "trainer.precision": precision}))


class Share(torch.Tensor):
    """A gradient of which this process holds the first row."""

    def to_local(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)[:1]


def test_a_sharded_gradient_is_clipped_by_the_global_norm() -> None:
    parameter = nn.Parameter(torch.zeros(2, 2))
    parameter.grad = torch.tensor([[3.0, 4.0], [6.0, 8.0]]).as_subclass(Share)
    clip_by_norm([parameter], 1.0, torch.tensor(10.0))
    expected = torch.tensor([[0.3, 0.4], [6.0, 8.0]])
    torch.testing.assert_close(parameter.grad.as_subclass(torch.Tensor), expected)
    clip_by_value([parameter], 0.35)
    torch.testing.assert_close(parameter.grad.as_subclass(torch.Tensor)[0], torch.tensor([0.3, 0.35]))


# tensor parallelism --------------------------------------------------------------------------------------------------

TWO = {"trainer.strategy": "tensor_parallel", "trainer.devices": 2, "trainer.accelerator": "cpu"}


def test_a_strategy_is_no_part_of_the_identity() -> None:
    assert check(override(RUN, SHARDED)).id == check(override(RUN, TWO)).id == check(RUN).id


def test_heads_and_hidden_units_are_split() -> None:
    splits = plan(decoder({"layers": 1, "mlp": "SwiGLU"}), 2)
    assert splits == {
        "blocks.0.attention.query": "columns",
        "blocks.0.attention.key": "columns",
        "blocks.0.attention.value": "columns",
        "blocks.0.attention.output": "rows",
        "blocks.0.mlp.gate": "columns",
        "blocks.0.mlp.up": "columns",
        "blocks.0.mlp.down": "rows",
    }
    assert [name for name in plan(decoder(), 2) if "mlp" in name] == [
        "blocks.0.mlp.up", "blocks.0.mlp.down", "blocks.1.mlp.up", "blocks.1.mlp.down",
    ]  # fmt: skip


def of(name: str, **options: Any) -> dict[str, Any]:
    return {"class_path": name, "init_args": options}


@pytest.mark.parametrize(
    ("changes", "among"),
    [
        ({}, 3),
        ({"attention": "MultiQuery"}, 2),
        ({"heads": 4, "attention": of("GroupedQuery", key_value_heads=2)}, 4),
        ({"heads": 4, "mlp": of("GELU", expansion=0.6)}, 4),
        ({"mlp": of("GELU", dropout=0.1)}, 2),
        ({"attention": of("MultiHead", dropout=0.1)}, 2),
        ({"attention": of("MultiHead", qk_norm=True)}, 2),
        ({"attention": of("MultiHead", sinks=True)}, 2),
        ({"attention": "LinearAttention"}, 2),
        ({"mlp": "Experts"}, 2),
        ({"position": "T5Bias"}, 2),
    ],
    ids=[
        "heads", "key-value heads", "groups", "hidden units", "dropout", "attention dropout", "qk_norm", "sinks",
        "LinearAttention", "Experts", "T5Bias",
    ],
)  # fmt: skip
def test_parts_that_cannot_be_split_are_named(changes: dict[str, Any], among: int, refused: Refused) -> None:
    with refused():
        plan(decoder(changes), among)


@pytest.mark.parametrize("part", ["position", "mlp", "output"])
def test_subclasses_of_known_parts_are_refused(part: str, refused: Refused) -> None:
    model = decoder()
    if part == "position":
        model.position.__class__ = type("OwnWay", (type(model.position),), {"head_independent": False})
    elif part == "mlp":
        mlp: Any = model.blocks[0].mlp
        mlp.__class__ = type("OwnWay", (type(mlp),), {"forward": lambda self, x: x})
    else:
        output: Any = model.blocks[0].attention.output  # type: ignore[union-attr]
        output.__class__ = type("OwnWay", (nn.Linear,), {"forward": lambda self, x: x})
    with refused():
        plan(model, 2)


def test_a_model_of_another_kind_is_refused(refused: Refused) -> None:
    class Own(type(decoder())):  # type: ignore[misc]
        def forward(self, *inputs: Any) -> Any:
            return super().forward(*inputs)

    model = decoder()
    model.__class__ = Own
    with refused():
        plan(model, 2)
    with refused():
        check_model(nn.Linear(2, 2), AdamW, Processes(1, 2, True))


def test_optimisers_that_look_at_whole_matrices_are_refused(refused: Refused) -> None:
    check_optimizer(AdamW)
    check_optimizer(SGD)
    for optimizer in (MuonAdamW, Adafactor):
        with refused():
            check_optimizer(optimizer)


@pytest.mark.parametrize(
    "changes",
    [
        {"trainer.devices": 4},
        {"optim.optimizer.init_args.fused": True},
        {"optim.optimizer": "MuonAdamW"},
        {"trainer.precision": "16-mixed"},
    ],
    ids=str,
)
def test_settings_that_would_fail_in_training_are_refused(changes: dict[str, Any], refused: Refused) -> None:
    with refused():
        check(override(RUN, {**TWO, **changes}))


def test_tensor_parallelism_does_not_divide_the_batch(refused: Refused) -> None:
    one_row = {"data.batch_size": 1}
    check(override(RUN, {**TWO, **one_row}))
    with refused():
        check(override(RUN, {**TWO, "trainer.strategy": "ddp", **one_row}))


# two processes -------------------------------------------------------------------------------------------------------


@pytest.mark.extra
def test_split_layers_compute_the_same_as_the_whole(tmp_path: Path) -> None:
    """Logits, gradients and what is seen inside, for every kind of part that fits; see tensor_world.py."""
    script = Path(__file__).parents[1] / "tensor_world.py"
    running = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / "meet"), str(rank)], stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=120)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], errors
