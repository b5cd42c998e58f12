"""Whether an optimiser sees the scale of a gradient is declared as it is measured."""

from typing import Any

import pytest
import torch
from torch import nn

from lm.analysis.clipping import DECAYS_APART, DECAYS_IN_GRADIENT, ignores_gradient_scale
from lm.config.choices import choices
from lm.training.objective import CrossEntropy
from lm.training.optim import UNUSABLE, MuonAdamW, Optim
from lm.training.schedule import Constant

SCALE, UPDATES = 1000.0, 12

OPTIMIZERS = {name: cls for name, cls in choices(torch.optim.Optimizer).items() if cls not in UNUSABLE}

OPTIONS: list[dict[str, Any]] = [{}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "decoupled_weight_decay": True}]


def last_update(cls: type[torch.optim.Optimizer], options: dict[str, Any], scale: float) -> torch.Tensor:
    """The last of several updates of a matrix, from gradients of a root mean square near 1e-3 times `scale`.

    Earlier updates are undone, so that weights, and with them decoupled weight decay, are the same at any scale.
    """
    stream = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(6, 4, generator=stream, dtype=torch.float64))
    before = weight.detach().clone()
    optimizer = cls([weight], lr=1e-2, **options)  # type: ignore[call-arg]
    for _ in range(UPDATES):
        with torch.no_grad():
            weight.copy_(before)
        weight.grad = 1e-3 * scale * torch.randn(6, 4, generator=stream, dtype=torch.float64)
        optimizer.step()
    return (weight.detach() - before).flatten()


def takes(cls: Any, options: dict[str, Any]) -> bool:
    try:
        cls([nn.Parameter(torch.zeros(2, 2))], lr=0.1, **options)
    except (TypeError, IndexError):  # MuonAdamW takes groups alone
        return False
    return True


@pytest.mark.parametrize(
    ("name", "options"),
    [(name, options) for name, cls in OPTIMIZERS.items() for options in OPTIONS if takes(cls, options)],
)
def test_updates_ignore_the_scale_of_gradients_where_it_is_declared(name: str, options: dict[str, Any]) -> None:
    small, large = (last_update(OPTIMIZERS[name], options, scale) for scale in (1.0, SCALE))
    ratio = float((large - small).norm() / small.norm())
    assert (ratio < 1e-2) == ignores_gradient_scale(name, options), ratio


def test_every_declared_optimiser_is_one_that_can_be_chosen() -> None:
    assert OPTIMIZERS.keys() >= DECAYS_APART | DECAYS_IN_GRADIENT


class Declared(torch.optim.SGD):
    ignores_gradient_scale = True


class Undeclared(torch.optim.AdamW):
    """Nobody knows what it does beyond AdamW."""


@pytest.mark.parametrize(
    ("cls", "ignores"),
    [(torch.optim.AdamW, True), (MuonAdamW, True), (torch.optim.SGD, False), (Declared, True), (Undeclared, False)],
)
def test_user_optimisers_see_the_scale_unless_declared(cls: Any, ignores: bool) -> None:
    assert Optim(0.1, cls, Constant(), CrossEntropy()).ignores_gradient_scale() is ignores
