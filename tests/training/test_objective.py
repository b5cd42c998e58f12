"""The objective against torch's own and against formulas written out."""

import math
from typing import Any

import pytest
import torch
from helpers import known
from messages import Refused
from torch import nn

from lm.data import IGNORED
from lm.training.objective import CrossEntropy


def logits_and_targets(n: int = 12, v: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    logits_nv = 3 * torch.randn(n, v, generator=random, dtype=torch.float64)
    return logits_nv, torch.randint(v, (n,), generator=random)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_label_smoothing_is_cross_entropy_against_mixed_targets(smoothing: float) -> None:
    logits_nv, targets_n = logits_and_targets()
    v = logits_nv.shape[1]
    mixed_nv = (1 - smoothing) * nn.functional.one_hot(targets_n, v).double() + smoothing / v
    by_hand = -(mixed_nv * (logits_nv - logits_nv.exp().sum(1, keepdim=True).log())).sum(1).mean()
    actual = CrossEntropy(smoothing).loss(logits_nv, targets_n)
    torchs = nn.functional.cross_entropy(logits_nv, targets_n, label_smoothing=smoothing)
    torch.testing.assert_close(actual, by_hand, rtol=1e-12, atol=0)
    torch.testing.assert_close(actual, torchs, rtol=1e-12, atol=0)


# what is ignored


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_without_a_z_loss_it_is_torchs_to_the_bit(smoothing: float, dtype: torch.dtype) -> None:
    logits_nv, targets_n = logits_and_targets()
    logits_nv, targets_n[::3] = logits_nv.to(dtype), IGNORED
    ours, torchs = (logits_nv.clone().requires_grad_() for _ in range(2))
    actual = CrossEntropy(smoothing).loss(ours, targets_n)
    expected = nn.functional.cross_entropy(torchs, targets_n, label_smoothing=smoothing)
    assert actual.dtype == expected.dtype
    assert torch.equal(actual, expected)
    actual.backward()
    expected.backward()
    assert torch.equal(known(ours.grad), known(torchs.grad))


@pytest.mark.parametrize(("smoothing", "z"), [(0.0, 0.0), (0.1, 0.0), (0.0, 1e-2), (0.1, 1e-2)])
def test_ignored_targets_count_for_nothing(smoothing: float, z: float) -> None:
    logits_nv, targets_n = logits_and_targets()
    kept_n = torch.arange(len(targets_n)) % 3 != 0
    objective = CrossEntropy(smoothing, z)
    logits_nv.requires_grad_()
    actual = objective.loss(logits_nv, targets_n.where(kept_n, IGNORED))
    torch.testing.assert_close(actual, objective.loss(logits_nv[kept_n], targets_n[kept_n]), rtol=1e-14, atol=0)
    actual.backward()
    assert (known(logits_nv.grad)[~kept_n] == 0).all()
    assert (known(logits_nv.grad)[kept_n] != 0).all()


@pytest.mark.parametrize(("smoothing", "z"), [(0.0, 0.0), (0.1, 0.0), (0.0, 1e-2), (0.1, 1e-2)])
def test_a_batch_without_targets_has_no_loss_and_no_gradient(smoothing: float, z: float) -> None:
    logits_nv, targets_n = logits_and_targets()
    logits_nv.requires_grad_()
    actual = CrossEntropy(smoothing, z).loss(logits_nv, torch.full_like(targets_n, IGNORED))
    actual.backward()
    assert actual == 0
    assert (known(logits_nv.grad) == 0).all()


def test_a_loss_that_is_not_finite_stays_so() -> None:
    logits_nv, targets_n = logits_and_targets()
    logits_nv[3, 2] = math.nan
    assert CrossEntropy().loss(logits_nv, targets_n).isnan()


# the z-loss


def test_the_z_loss_worked_by_hand() -> None:
    logits_nv = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]], dtype=torch.float64)
    actual = CrossEntropy(z_loss=0.5).loss(logits_nv, torch.tensor([0, 0]))
    plain = (math.log(2) + math.log(4 / 3)) / 2
    assert float(actual) == pytest.approx(plain + 0.5 * (math.log(2) ** 2 + math.log(4) ** 2) / 2, rel=1e-14)


def test_the_z_loss_has_its_analytic_gradient() -> None:
    logits_nv, targets_n = logits_and_targets()
    logits_nv.requires_grad_()
    z = 0.01
    (CrossEntropy(z_loss=z).loss(logits_nv, targets_n) - CrossEntropy().loss(logits_nv, targets_n)).backward()
    log_z_n = logits_nv.detach().exp().sum(1).log()
    expected_nv = z * 2 * log_z_n[:, None] * logits_nv.detach().softmax(1) / len(targets_n)
    torch.testing.assert_close(logits_nv.grad, expected_nv, rtol=1e-12, atol=1e-16)


def test_the_z_loss_of_half_precision_is_summed_in_single() -> None:
    logits_nv, targets_n = logits_and_targets()
    half_nv = logits_nv.bfloat16()
    actual = CrossEntropy(z_loss=1.0).loss(half_nv, targets_n) - CrossEntropy().loss(half_nv, targets_n).float()
    expected = half_nv.float().logsumexp(1).square().mean()
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "options",
    [
        {"label_smoothing": 1.0},
        {"label_smoothing": -0.1},
        {"z_loss": -1e-4},
        {"z_loss": math.nan},
        {"z_loss": math.inf},
    ],
    ids=str,
)
def test_numbers_out_of_range_are_refused_by_name(options: dict[str, Any], refused: Refused) -> None:
    with refused(ValueError):
        CrossEntropy(**options)
