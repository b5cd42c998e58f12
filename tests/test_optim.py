"""Schedules, objective and optimiser against torch's own and against formulas written out."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from lm.optim import Constant, CrossEntropy, Optim, Schedule, WarmupCosine, decay_groups, warmup_cosine

# schedules


@pytest.mark.parametrize(
    ("t", "factor"), [(1, 0.1), (5, 0.5), (10, 1.0), (35, 0.5 + 0.5 * math.sqrt(0.5)), (60, 0.5), (110, 0.0)]
)
def test_warmup_cosine_worked_by_hand(t: int, factor: float) -> None:
    assert warmup_cosine(t, 10, 110) == pytest.approx(factor, abs=1e-15)


@pytest.mark.parametrize(("warmup", "total", "final"), [(0, 10, 0.0), (3, 20, 0.1), (1, 7, 1.0), (19, 20, 0.3)])
def test_the_schedule_peaks_after_warmup_and_ends_at_its_final_share(warmup: int, total: int, final: float) -> None:
    factors = [warmup_cosine(t, warmup, total, final) for t in range(warmup, total + 1)]
    assert factors[0] == 1.0
    assert factors[-1] == pytest.approx(final, abs=1e-15)
    assert (np.diff(factors) <= 0).all()
    assert warmup_cosine(total + 5, warmup, total, final) == factors[-1]
    assert np.diff([warmup_cosine(t, warmup, total, final) for t in range(warmup + 1)]) == pytest.approx(
        [1 / warmup] * warmup if warmup else []
    )


def test_the_cosine_is_torchs() -> None:
    warmup, total, final = 5, 30, 0.1
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    torchs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total - warmup, eta_min=final)
    for t in range(warmup, total + 1):
        assert warmup_cosine(t, warmup, total, final) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        optimizer.step()
        torchs.step()


def test_a_constant_rate_warms_up_linearly_and_stays() -> None:
    assert [Constant(4).factor(t, 8) for t in range(1, 9)] == [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]
    assert [Constant().factor(t, 3) for t in range(1, 4)] == [1, 1, 1]


@pytest.mark.parametrize("schedule", [WarmupCosine(3, 0.2), Constant(2), Constant()])
def test_update_t_is_made_at_the_rate_of_the_schedule_at_t(schedule: Schedule) -> None:
    total = 9
    parameter = nn.Parameter(torch.zeros(2, 2))
    optimizer, scheduler = Optim(0.5, torch.optim.SGD, schedule, CrossEntropy()).build([parameter], total)
    rates = []
    for _ in range(total):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([0.5 * schedule.factor(t, total) for t in range(1, total + 1)], rel=1e-12)


# objective


def logits_and_targets(n: int = 12, v: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    logits_nv = 3 * torch.randn(n, v, generator=random, dtype=torch.float64)
    return logits_nv, torch.randint(v, (n,), generator=random)


def test_cross_entropy_worked_by_hand() -> None:
    logits_nv = torch.tensor([[2, 1, 0.1, -1, 0.5], [1.2, 0, 0.3, 2, -0.2]], dtype=torch.float64)
    assert float(CrossEntropy().loss(logits_nv, torch.tensor([0, 3]))) == pytest.approx(0.6063537, abs=5e-8)
    single = torch.tensor([[2, 1, 0.1]], dtype=torch.float64)
    assert float(CrossEntropy().loss(single, torch.tensor([0]))) == pytest.approx(0.4170299, abs=5e-8)


def test_the_gradient_of_cross_entropy_is_p_minus_y() -> None:
    logits_nv = torch.tensor([[5, 0.5]], dtype=torch.float64, requires_grad=True)
    CrossEntropy().loss(logits_nv, torch.tensor([0])).backward()
    torch.testing.assert_close(logits_nv.grad, torch.tensor([[-0.0109869, 0.0109869]]).double(), atol=5e-8, rtol=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_label_smoothing_is_cross_entropy_against_mixed_targets(smoothing: float) -> None:
    logits_nv, targets_n = logits_and_targets()
    v = logits_nv.shape[1]
    mixed_nv = (1 - smoothing) * nn.functional.one_hot(targets_n, v).double() + smoothing / v
    by_hand = -(mixed_nv * (logits_nv - logits_nv.exp().sum(1, keepdim=True).log())).sum(1).mean()
    found = CrossEntropy(smoothing).loss(logits_nv, targets_n)
    torchs = nn.functional.cross_entropy(logits_nv, targets_n, label_smoothing=smoothing)
    torch.testing.assert_close(found, by_hand, rtol=1e-12, atol=0)
    torch.testing.assert_close(found, torchs, rtol=1e-12, atol=0)


# optimiser


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


# refusing


@pytest.mark.parametrize("lr", [0.0, -1.0, math.inf, math.nan])
def test_a_rate_that_is_no_positive_number_is_refused(lr: float) -> None:
    with pytest.raises(ValueError, match=f"lr={lr} must be a finite number above 0"):
        Optim(lr, torch.optim.SGD, Constant(), CrossEntropy())


def test_numbers_out_of_range_are_refused_by_name_and_value() -> None:
    with pytest.raises(ValueError, match=r"label_smoothing=1\.0 must lie in \[0, 1\)"):
        CrossEntropy(1.0)
    with pytest.raises(ValueError, match=r"final=1\.5 must lie in \[0, 1\]"):
        WarmupCosine(1, 1.5)
    with pytest.raises(ValueError, match="warmup=-1 must be 0 or more steps"):
        WarmupCosine(-1)
    with pytest.raises(ValueError, match="warmup=-1 must be 0 or more steps"):
        Constant(-1)
