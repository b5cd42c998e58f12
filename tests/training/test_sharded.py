"""Weights shared out among processes: what is refused. The rest: test_ranks.py."""

from typing import Any

import pytest
import torch
from helpers import RUN
from torch import nn

from lm.config.tree import InputError, override
from lm.metrics.gradients import clip_by_norm, clip_by_value
from lm.training.cell import check
from lm.training.strategies import PRECISIONS

SHARDED = {"trainer.strategy": "fsdp2", "trainer.devices": 2, "trainer.accelerator": "cpu"}


def test_sharding_is_no_part_of_the_identity() -> None:
    assert check(override(RUN, SHARDED)).id == check(RUN).id


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trainer.precision": "16-mixed"}, "fsdp2 does not support '16-mixed'; expected one of 32-true,"),
        ({"trainer.sync_batchnorm": True}, "trainer.sync_batchnorm: strategy fsdp2 does not .* expected strategy ddp"),
        ({"model.norm": "BatchNorm"}, "batch norm would see the rows of each of 2 processes alone"),
        ({"model.block": "ReZero"}, r"fsdp2 shares out parameters by their rows, and blocks.0.\S+share is a single"),
        ({"trainer.strategy": "fsdp"}, r"trainer.strategy: 'fsdp' flattens weights, .* such as ddp or fsdp2"),
        ({"trainer.strategy": "fsdp_cpu_offload"}, "such as ddp or fsdp2"),
        ({"trainer.strategy": "fsdp3"}, "such as ddp or fsdp2"),
    ],
)
def test_settings_that_cannot_be_sharded_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
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
