"""Optimisers of `pytorch_optimizer` by dotted path, cautious updates, and which parameters decay."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import RUN, decoder
from messages import Refused
from small_runs import train_cell
from torch import Tensor, nn

from lm.config.components import build, resolve
from lm.config.tree import override
from lm.training.cell import check
from lm.training.evaluate import TrainedCell
from lm.training.objective import CrossEntropy
from lm.training.optim import MuonAdamW, Optim, decay_groups, switches_weights
from lm.training.schedule import Constant

REASON = "needs pytorch_optimizer: pip install 'lm-ablations[optimizers]'"
needs_package = pytest.mark.skipif(importlib.util.find_spec("pytorch_optimizer") is None, reason=REASON)

OPTIONS: dict[str, dict[str, Any]] = {
    "Lion": {"weight_decay": 0.1},
    "SOAP": {"weight_decay": 0.1, "precondition_frequency": 2},
    "Adan": {"weight_decay": 0.1},
    "ScheduleFreeAdamW": {"weight_decay": 0.1, "warmup_steps": 2},
}


def optim_of(name: str, **changes: Any) -> dict[str, Any]:
    node = {"class_path": f"pytorch_optimizer.{name}", "init_args": OPTIONS[name]}
    return {"optim.optimizer": node, "optim.lr": 0.003, **changes}


def configured(name: str, options: dict[str, Any], **changes: Any) -> Optim:
    node = {"class_path": f"pytorch_optimizer.{name}", "init_args": options}
    tree = override(RUN, {"optim.optimizer": node, "optim.schedule": "Constant", "optim.lr": 0.1, **changes})
    optim: Optim = build(resolve(tree["optim"], Optim), Optim)
    return optim


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# optimisers of the package ------------------------------------------------------------------------------------------


@needs_package
def test_lion_is_its_formula() -> None:
    parameter = nn.Parameter(random(3, 4))
    expected, average = parameter.detach().clone(), torch.zeros(3, 4, dtype=torch.float64)
    optimizer, schedule = configured("Lion", {"betas": [0.9, 0.99], "weight_decay": 0.1}).build([parameter], 5)
    for step in range(5):
        gradient = random(3, 4, seed=step + 1)
        parameter.grad = gradient.clone()
        expected = expected * (1 - 0.1 * 0.1) - 0.1 * (0.9 * average + 0.1 * gradient).sign()
        average = 0.99 * average + 0.01 * gradient
        optimizer.step()
        schedule.step()
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-12, atol=1e-12)


@needs_package
def test_schedule_free_adamw_trains_y_and_gives_x() -> None:
    parameter = nn.Parameter(random(3, 4))
    z, x = parameter.detach().clone(), parameter.detach().clone()
    squares = torch.zeros_like(z)
    options = {"betas": [0.9, 0.99], "eps": 1e-8}
    optimizer, schedule = configured("ScheduleFreeAdamW", options).build([parameter], 6)
    assert switches_weights(optimizer)
    for t in range(1, 7):
        gradient = random(3, 4, seed=t)
        parameter.grad = gradient.clone()
        squares = 0.99 * squares + 0.01 * gradient.square()
        z = z - 0.1 * gradient / ((squares / (1 - 0.99**t)).sqrt() + 1e-8)
        x = x + (z - x) / t
        optimizer.step()
        schedule.step()
        torch.testing.assert_close(parameter.detach(), 0.1 * z + 0.9 * x, rtol=1e-9, atol=1e-9)
        optimizer.eval()  # type: ignore[attr-defined]
        torch.testing.assert_close(parameter.detach(), x, rtol=1e-9, atol=1e-9)
        optimizer.train()  # type: ignore[attr-defined]


@needs_package
@pytest.mark.parametrize("name", OPTIONS)
def test_each_has_its_dotted_path_and_ignores_the_gradient_scale(name: str) -> None:
    cell = check(override(RUN, optim_of(name)))
    assert cell.config["optim"]["optimizer"]["class_path"].startswith("pytorch_optimizer.")
    built = build(cell.config["optim"], Optim)
    assert built.ignores_gradient_scale()


@needs_package
@pytest.mark.slow
def test_schedule_free_weights_are_evaluated_as_averages(tmp_path: Path) -> None:
    cell, record, folder = train_cell(tmp_path, optim_of("ScheduleFreeAdamW"))
    checkpoint = torch.load(folder / "last.ckpt", weights_only=True)
    assert not any(group["train_mode"] for group in checkpoint["optimizer_states"][0]["param_groups"])
    trained = TrainedCell(cell, folder / "last.ckpt")
    assert trained.split("validation")["nll"] == pytest.approx(record["metrics"]["nll"], rel=1e-12)


# cautious updates ---------------------------------------------------------------------------------------------------


def cautious(optimizer: Any, **options: Any) -> Optim:
    return Optim(0.1, lambda p, lr: optimizer(p, lr, **options), Constant(), CrossEntropy(), cautious=True)


def test_cautious_adamw_is_algorithm_1() -> None:
    parameter = nn.Parameter(random(4, 5))
    optimizer, _ = cautious(torch.optim.AdamW, betas=(0.9, 0.99), weight_decay=0.1).build([parameter], 6)
    expected, mean, squares = parameter.detach().clone(), *torch.zeros(2, 4, 5, dtype=torch.float64)
    for t in range(1, 7):
        gradient = random(4, 5, seed=t)
        mean, squares = 0.9 * mean + 0.1 * gradient, 0.99 * squares + 0.01 * gradient.square()
        update = mean / (1 - 0.9**t) / ((squares / (1 - 0.99**t)).sqrt() + 1e-8)
        follows = (update * gradient > 0).double()
        scale = follows.numel() / (follows.sum() + 1)
        expected = expected * (1 - 0.1 * 0.1) - 0.1 * update * follows * scale
        parameter.grad = gradient.clone()
        optimizer.step()
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-12, atol=1e-12)
    assert 0 < follows.sum() < follows.numel()


def test_gradients_of_a_closure_are_those_of_its_step() -> None:
    runs = []
    for by_closure in (False, True):
        parameter = nn.Parameter(random(4, 5))
        optimizer, _ = cautious(torch.optim.SGD, momentum=0.9, weight_decay=0.1).build([parameter], 3)
        for t in range(3):

            def closure(parameter: nn.Parameter = parameter, t: int = t) -> float:
                parameter.grad = random(4, 5, seed=t)
                return 1.0

            if not by_closure:
                closure()
            optimizer.step(*[closure][: int(by_closure)])
        runs.append(parameter.detach())
    assert torch.equal(*runs)


def test_a_cautious_step_moves_no_entry_against_its_gradient() -> None:
    model = decoder().double()
    optimizer, _ = cautious(MuonAdamW, weight_decay=0.0).build(model.parameters(), 3)
    for t in range(3):
        before = [p.detach().clone() for p in model.parameters()]
        for index, parameter in enumerate(model.parameters()):
            parameter.grad = random(*parameter.shape, seed=100 * t + index)
        optimizer.step()
        moves = [(p - old) * p.grad for p, old in zip(model.parameters(), before, strict=True) if p.grad is not None]
        assert all((move <= 0).all() for move in moves)
        assert any((move < 0).any() for move in moves)


@needs_package
def test_cautious_updates_of_schedule_free_weights_are_refused(refused: Refused) -> None:
    with refused():
        check(override(RUN, optim_of("ScheduleFreeAdamW", **{"optim.cautious": True})))


# weight decay -------------------------------------------------------------------------------------------------------


def test_decay_of_all_parameters_reaches_gains_and_offsets() -> None:
    model = decoder()
    assert [group.get("weight_decay") for group in decay_groups(model.parameters())] == [None, 0.0]
    assert [group.get("weight_decay") for group in decay_groups(model.parameters(), decay_all=True)] == [None, None]


def test_options_at_their_default_leave_the_id() -> None:
    base = check(RUN)
    assert check(override(RUN, {"optim.decay": "matrices", "optim.cautious": False})).id == base.id
    assert not {"decay", "cautious"} & base.config["optim"].keys()
    assert (
        len({base.id, *(check(override(RUN, {f"optim.{k}": v})).id for k, v in (("decay", "all"), ("cautious", True)))})
        == 3
    )
