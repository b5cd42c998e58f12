"""Optimisers in groups, at the rate of a schedule, against torch's own and against formulas written out."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from helpers import RUN, decoder
from messages import Refused
from torch import Tensor, nn

from lm.config.components import build, resolve
from lm.config.tree import override
from lm.training.objective import CrossEntropy
from lm.training.optim import UNUSABLE, MuonAdamW, Optim, decay_groups, tables
from lm.training.schedule import Constant, Schedule, WarmupCosine, WarmupLinear

# rate


@pytest.mark.parametrize("schedule", [WarmupCosine(3, 0.2), Constant(2), Constant()])
def test_update_t_uses_the_rate_of_the_schedule_at_t(schedule: Schedule) -> None:
    total = 9
    parameter = nn.Parameter(torch.zeros(2, 2))
    optimizer, scheduler = Optim(0.5, torch.optim.SGD, schedule, CrossEntropy()).build([parameter], total)
    rates = []
    for _ in range(total):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([0.5 * schedule.factor(t, total) for t in range(1, total + 1)], rel=1e-12)


# groups


class Small(nn.Module):
    """Matrices, vectors, a tied matrix and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(5, 3)
        self.norm = nn.LayerNorm(3)
        self.head = nn.Linear(3, 5)
        self.head.weight = self.tokens.weight
        self.frozen = nn.Linear(3, 3).requires_grad_(False)


def test_only_matrices_decay_and_every_trainable_parameter_is_there_once() -> None:
    model = Small()
    decaying, plain = decay_groups(model.parameters())
    assert decaying == {"params": [model.tokens.weight]}
    assert plain == {"params": [model.norm.weight, model.norm.bias, model.head.bias], "weight_decay": 0.0}


def test_a_model_of_matrices_alone_has_one_group() -> None:
    assert len(decay_groups(nn.Linear(2, 2, bias=False).parameters())) == 1


def test_decay_shrinks_matrices_and_leaves_gains_and_offsets() -> None:
    model = Small().double()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    factory = lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.1)  # noqa: E731
    optimizer, _ = Optim(0.5, factory, Constant(), CrossEntropy()).build(model.parameters(), 1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    for name, parameter in model.named_parameters():
        shrunk = 1 - 0.5 * 0.1 if name == "tokens.weight" else 1.0
        torch.testing.assert_close(parameter.detach(), shrunk * before[name], rtol=1e-14, atol=0)


def test_adamw_steps_are_those_of_the_formula() -> None:
    lr, decay, (b1, b2), eps, total = 0.03, 0.1, (0.9, 0.99), 1e-8, 6
    random = np.random.default_rng(0)
    matrix, vector = random.normal(size=(3, 2)), random.normal(size=4)
    parameters = [nn.Parameter(torch.tensor(matrix)), nn.Parameter(torch.tensor(vector))]
    factory = lambda p, rate: torch.optim.AdamW(p, rate, betas=(b1, b2), eps=eps, weight_decay=decay)  # noqa: E731
    optimizer, scheduler = Optim(lr, factory, WarmupCosine(2, 0.1), CrossEntropy()).build(parameters, total)
    expected, moments = [matrix.copy(), vector.copy()], [(np.zeros((3, 2)),) * 2, (np.zeros(4),) * 2]
    for t in range(1, total + 1):
        rate = lr * (t / 2 if t < 2 else 0.1 + 0.9 * (1 + math.cos(math.pi * (t - 2) / (total - 2))) / 2)
        for i, wd in enumerate((decay, 0.0)):
            g = random.normal(size=expected[i].shape)
            parameters[i].grad = torch.tensor(g)
            m, v = b1 * moments[i][0] + (1 - b1) * g, b2 * moments[i][1] + (1 - b2) * g**2
            moments[i] = (m, v)
            step = (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
            expected[i] = (1 - rate * wd) * expected[i] - rate * step
        optimizer.step()
        scheduler.step()
        for parameter, value in zip(parameters, expected, strict=True):
            np.testing.assert_allclose(parameter.detach().numpy(), value, rtol=1e-12, atol=1e-14)


# every optimiser


USABLE: dict[str, dict[str, Any]] = {
    "Adam": {"weight_decay": 0.1, "betas": [0.8, 0.9]},
    "AdamW": {"weight_decay": 0.1, "betas": [0.8, 0.9]},
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "RMSprop": {"alpha": 0.9, "momentum": 0.5, "weight_decay": 0.1},
}


def configured(name: str, options: dict[str, Any], changes: dict[str, Any] | None = None) -> Optim:
    """The Optim that a configuration describes."""
    node = {"class_path": name, "init_args": options}
    tree = override({"optim": RUN["optim"]}, {"optim.lr": 0.05, "optim.optimizer": node, **(changes or {})})["optim"]
    return build(resolve(tree, Optim), Optim)


def gradients(parameters: list[nn.Parameter], seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=random, dtype=parameter.dtype)


@pytest.mark.parametrize("name", USABLE)
def test_an_optimiser_named_in_a_configuration_steps_as_torchs_does(name: str) -> None:
    optim, total = configured(name, USABLE[name], {"optim.schedule": "WarmupLinear", "optim.schedule.warmup": 3}), 7
    values = [torch.randn(3, 2, dtype=torch.float64), torch.randn(4, dtype=torch.float64)]
    own, torchs = ([nn.Parameter(value.clone()) for value in values] for _ in range(2))
    optimizer, scheduler = optim.build(own, total)
    groups = [{"params": [torchs[0]]}, {"params": [torchs[1]], "weight_decay": 0.0}]
    expected = getattr(torch.optim, name)(groups, lr=0.05, **USABLE[name])
    for t in range(1, total + 1):
        gradients(own, t)
        gradients(torchs, t)
        for group in expected.param_groups:
            group["lr"] = 0.05 * WarmupLinear(3).factor(t, total)
        optimizer.step()
        scheduler.step()
        expected.step()
        for parameter, other in zip(own, torchs, strict=True):
            torch.testing.assert_close(parameter, other, rtol=1e-12, atol=1e-15)


def test_adams_decay_goes_through_the_moments_and_adamws_does_not() -> None:
    value, steps = torch.randn(3, 2, dtype=torch.float64), {}
    for name in ("Adam", "AdamW"):
        parameter = nn.Parameter(value.clone())
        optimizer, _ = configured(name, {"weight_decay": 0.1, "eps": 1e-12}, {"optim.schedule": "Constant"}).build(
            [parameter], 1
        )
        gradients([parameter], 0)
        gradient = parameter.grad
        optimizer.step()
        steps[name] = parameter.detach()
    assert isinstance(gradient, Tensor)
    coupled = value - 0.05 * (gradient + 0.1 * value).sign()  # the first step of Adam is the sign of its gradient
    torch.testing.assert_close(steps["Adam"], coupled, rtol=1e-8, atol=0)
    torch.testing.assert_close(steps["AdamW"], (1 - 0.05 * 0.1) * value - 0.05 * gradient.sign(), rtol=1e-8, atol=0)


@pytest.mark.parametrize("cls", UNUSABLE, ids=lambda cls: cls.__name__)
def test_an_optimiser_that_cannot_work_is_refused_with_the_reason(cls: type, refused: Refused) -> None:
    with refused():
        configured(cls.__name__, {})


def test_nesterov_without_momentum_is_refused_when_the_optimiser_is_built() -> None:
    with pytest.raises(ValueError, match="Nesterov momentum requires a momentum"):
        configured("SGD", {"nesterov": True}).build([nn.Parameter(torch.zeros(2, 2))], 3)


# Muon


def test_tables_are_the_embeddings_and_the_output_projection() -> None:
    tied = decoder({"position": "Learned"})
    assert [name for name, p in tied.named_parameters() if any(p is table for table in tables(tied))] == [
        "embedding.tokens.weight",
        "position.table.weight",
    ]
    untied = decoder({"embedding": {"tied": False}})
    assert len(tables(untied)) == 2


def test_muon_updates_hidden_matrices_and_adamw_the_rest() -> None:
    own, torchs = decoder(), decoder()
    optim = configured("MuonAdamW", {"weight_decay": 0.1, "betas": [0.8, 0.9]}, {"optim.schedule": "Constant"})
    optimizer, _ = optim.build(own.parameters(), 5, tables(own))
    named = dict(torchs.named_parameters())
    hidden = [p for name, p in named.items() if p.ndim == 2 and not name.startswith("embedding")]
    vectors = [p for p in named.values() if p.ndim < 2]
    muon = torch.optim.Muon(hidden, 0.05, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    groups: list[dict[str, Any]] = [
        {"params": [named["embedding.tokens.weight"]]},
        {"params": vectors, "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, 0.05, weight_decay=0.1, betas=(0.8, 0.9))
    assert len(hidden) + len(vectors) + 1 == len(named)
    for t in range(5):
        gradients(list(own.parameters()), t)
        gradients(list(torchs.parameters()), t)
        if t == 3:  # taken up from what was saved
            state = optimizer.state_dict()
            optimizer, _ = optim.build(own.parameters(), 5, tables(own))
            optimizer.load_state_dict(state)
        for each in (optimizer, muon, adamw):
            each.step()
        for parameter, other in zip(own.parameters(), torchs.parameters(), strict=True):
            assert torch.equal(parameter, other)


def test_muon_evaluates_a_closure_once_with_gradients() -> None:
    parameter, calls = nn.Parameter(torch.ones(2, 2)), []

    def closure() -> Tensor:
        calls.append(torch.is_grad_enabled())
        loss = parameter.square().sum()
        loss.backward()
        return loss

    assert MuonAdamW([{"params": [parameter]}], 0.1).step(closure) == 4
    assert calls == [True]
    assert (parameter != 1).all()


# beta2


@pytest.mark.parametrize("name", ["AdamW", "Adam", "MuonAdamW"])
def test_update_t_is_made_with_beta2_at_t(name: str) -> None:
    optim = configured(name, {"betas": [0.8, 0.9]}, {"optim.beta2_warmup": True})
    parameters = [nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2))]
    optimizer, scheduler = optim.build(parameters, 40)
    for t in range(1, 41):
        assert [group["betas"] for group in optimizer.param_groups] == [(0.8, min(0.9, 1 - t**-0.8))] * 2
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * optim.schedule.factor(t, 40), rel=1e-12)
        gradients(parameters, t)
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[-1]["betas"] == (0.8, 0.9)


def test_squared_gradients_are_averaged_with_the_rising_beta2() -> None:
    optim = configured("Adam", {"betas": [0.9, 0.999]}, {"optim.beta2_warmup": True})
    parameter = nn.Parameter(torch.zeros(3, 2, dtype=torch.float64))
    optimizer, scheduler = optim.build([parameter], 20)
    squares = []
    for t in range(1, 21):
        gradients([parameter], t)
        squares.append(parameter.grad.square())  # type: ignore[union-attr]
        optimizer.step()
        scheduler.step()
    average = torch.zeros_like(parameter)
    for t, squared in enumerate(squares, 1):
        average = (1 - t**-0.8) * average + t**-0.8 * squared
    torch.testing.assert_close(optimizer.state[parameter]["exp_avg_sq"], average.detach(), rtol=1e-12, atol=0)


def test_an_optimiser_without_betas_has_no_beta2_to_warm_up(refused: Refused) -> None:
    optim = configured("SGD", {}, {"optim.beta2_warmup": True})
    with refused(ValueError):
        optim.build([nn.Parameter(torch.zeros(2, 2))], 3)


# refusing


@pytest.mark.parametrize("lr", [0.0, -1.0, math.inf, math.nan])
def test_a_rate_that_is_no_positive_number_is_refused(lr: float, refused: Refused) -> None:
    with refused(ValueError):
        Optim(lr, torch.optim.SGD, Constant(), CrossEntropy())
