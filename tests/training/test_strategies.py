"""Strategies of `trainer.strategy`: how many processes divide what, and which strategies are refused."""

from typing import Any

import pytest
import torch
from helpers import RUN
from lightning.pytorch.strategies import StrategyRegistry

from lm.config.tree import InputError, override
from lm.training.cell import check
from lm.training.strategies import check_sharded, check_strategy

SETTINGS = {"strategy": "auto", "precision": None, "sync_batchnorm": False, "num_nodes": 1}


def strategy(name: str, devices: int, num_nodes: int = 1) -> Any:
    built = StrategyRegistry.get(name)
    built.parallel_devices, built.num_nodes = [torch.device("cpu")] * devices, num_nodes
    return built


def test_processes_divide_rows_under_fsdp2_and_layers_under_tensor_parallel() -> None:
    assert strategy("fsdp2", 4).sizes() == (4, 1)
    assert strategy("fsdp2", 4, num_nodes=2).sizes() == (8, 1)
    assert strategy("tensor_parallel", 4).sizes() == (1, 4)
    with pytest.raises(InputError, match="layers among the devices of one machine; expected 1, or strategy fsdp2"):
        strategy("tensor_parallel", 4, num_nodes=2).sizes()


@pytest.mark.parametrize("name", ["deepspeed", "deepspeed_stage_3", "DeepSpeed"])
def test_deepspeed_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(InputError, match=r"keeps weights, .* expected another, such as ddp or fsdp2") as caught:
        check_sharded({**SETTINGS, "strategy": name})
    assert "\n" not in str(caught.value)


def test_a_class_of_strategies_is_refused() -> None:
    node = {"class_path": "lightning.pytorch.strategies.ModelParallelStrategy", "init_args": {}}
    with pytest.raises(InputError, match=r"trainer\.strategy"):
        check(override(RUN, {"trainer.strategy": node}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"strategy": "ddp_fork"}, "'ddp_fork' forks its processes, which works in `lm fit` alone"),
        ({"num_nodes": 2}, "trainer.num_nodes: 2 machines train one cell in `lm fit` alone"),
    ],
)
def test_strategies_that_fork_or_span_machines_are_refused(changes: dict[str, Any], words: str) -> None:
    check_strategy(SETTINGS)
    with pytest.raises(InputError, match=words):
        check_strategy({**SETTINGS, **changes})
