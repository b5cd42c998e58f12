"""The fitted temperature against scipy's minimiser, exactly known answers, and what it must leave alone."""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
import torch
from helpers import known
from messages import CheckMessage, Refused
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn.functional import cross_entropy

from lm.metrics.tokens import fit_temperature, loss_and_slope, scale_logits

Batch = tuple[Tensor, Tensor]


def sampled(n: int = 3000, v: int = 30, scale: float = 1.0, seed: int = 0, dtype: torch.dtype = torch.float64) -> Batch:
    """Logits `scale` times those that the targets are sampled from."""
    random = torch.Generator().manual_seed(seed)
    logits_nv = 2 * torch.randn(n, v, generator=random, dtype=torch.float64)
    targets_n = torch.multinomial(logits_nv.softmax(1), 1, generator=random)[:, 0]
    return (scale * logits_nv).to(dtype), targets_n


def passes_over(*batches: Batch) -> Callable[[], Iterator[Batch]]:
    return lambda: iter(batches)


def scipys(logits_nv: Tensor, targets_n: Tensor) -> float:
    def loss(log_temperature: float) -> float:
        return float(cross_entropy(logits_nv.double() / math.exp(log_temperature), targets_n))

    found = minimize_scalar(loss, bounds=(-5, 5), method="bounded", options={"xatol": 1e-10})
    return math.exp(found.x)


@pytest.mark.parametrize("scale", [0.008, 0.3, 3.0, 100.0])
def test_the_temperature_is_scipys(scale: float) -> None:
    batch = sampled(scale=scale)
    found = fit_temperature(passes_over(batch))
    assert found == pytest.approx(scipys(*batch), rel=1e-5)
    assert found == pytest.approx(scale, rel=0.1)


@pytest.mark.parametrize("temperature", [0.2, 1.0, 3.0])
def test_temperature_is_recovered_from_calibrated_targets(temperature: float) -> None:
    counts_cv = torch.tensor([[70, 20, 9, 1], [40, 30, 20, 10], [97, 1, 1, 1]])
    logits_nv = temperature * counts_cv.double().log().repeat_interleave(100, 0)
    targets_n = torch.cat([torch.arange(4).repeat_interleave(counts_v) for counts_v in counts_cv])
    assert fit_temperature(passes_over((logits_nv, targets_n))) == pytest.approx(temperature, abs=1e-6)


def test_a_temperature_next_to_the_bound_is_not_jumped_over() -> None:
    batch = sampled(1000, scale=0.0075, seed=2)
    assert fit_temperature(passes_over(batch)) == pytest.approx(scipys(*batch), rel=1e-5)


def test_the_loss_and_its_slope_are_torchs() -> None:
    logits_nv, targets_n = sampled(100, 7)
    log_temperature = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    expected = cross_entropy(logits_nv / log_temperature.exp(), targets_n, reduction="sum")
    expected.backward()
    found = loss_and_slope(logits_nv, targets_n, log_temperature.detach())
    torch.testing.assert_close(found, torch.stack([expected.detach(), known(log_temperature.grad)]), rtol=1e-12, atol=0)


def test_batches_and_ignored_targets_change_nothing() -> None:
    logits_nv, targets_n = sampled(400, scale=2)
    whole = fit_temperature(passes_over((logits_nv, targets_n)))
    padded = (torch.full((5, 30), math.nan, dtype=torch.float64), torch.full((5,), -100))
    parts = zip(logits_nv.split(37), targets_n.split(37), strict=True)
    assert fit_temperature(passes_over(*parts, padded)) == pytest.approx(whole, rel=1e-9)


def test_half_precision_is_fitted_exactly() -> None:
    logits_nv, targets_n = sampled(500, scale=2, dtype=torch.bfloat16)
    found = fit_temperature(passes_over((logits_nv, targets_n)))
    assert found == pytest.approx(scipys(logits_nv, targets_n), rel=1e-5)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.37])
def test_scaling_logits_of_half_precision_makes_no_ties(temperature: float) -> None:
    logits_nv = torch.arange(1, 3, 2**-7).bfloat16().repeat(2, 1)  # neighbours in bfloat16
    assert (logits_nv / 1.37).diff().eq(0).any(), "in bfloat16 there are"
    scaled_nv = scale_logits(logits_nv, temperature)
    assert (scaled_nv.diff() > 0).eq(logits_nv.diff() > 0).all()
    torch.testing.assert_close(scaled_nv.double(), logits_nv.double() / temperature, rtol=1e-6, atol=0)


def test_it_takes_few_passes() -> None:
    batch, calls = sampled(500, scale=3), []

    def passes() -> list[Batch]:
        calls.append(1)
        return [batch]

    fit_temperature(passes)
    assert len(calls) <= 20


@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_a_model_always_right_has_a_small_bounded_temperature(scale: float) -> None:
    logits_nv, _ = sampled(200, scale=scale)
    found = fit_temperature(passes_over((logits_nv, logits_nv.argmax(1))))
    assert math.exp(-5) <= found < 0.05


def test_a_model_always_wrong_has_the_largest_temperature() -> None:
    logits_nv, _ = sampled(200)
    assert fit_temperature(passes_over((logits_nv, logits_nv.argmin(1)))) == pytest.approx(math.exp(5))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_it_works_whatever_the_mode_of_gradients(context: Callable[[], AbstractContextManager[object]]) -> None:
    logits_nv, targets_n = sampled(200)
    expected = fit_temperature(passes_over((logits_nv, targets_n)))
    with context():
        copy_nv = logits_nv.clone().requires_grad_(context is torch.enable_grad)
        assert fit_temperature(passes_over((copy_nv, targets_n))) == expected


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_refused(bad: float, check_message: CheckMessage) -> None:
    logits_nv, targets_n = sampled(20)
    logits_nv[3, (targets_n[3] + 1) % 30] = bad
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - its message is compared
        fit_temperature(passes_over((logits_nv, targets_n)))
    check_message(re.sub(r"\d+\.\d+", "N", str(caught.value)))


def test_no_tokens_are_refused(refused: Refused) -> None:
    logits_nv, _ = sampled(20)
    for batches in ((), ((logits_nv, torch.full((20,), -100)),)):
        with refused(ValueError):
            fit_temperature(passes_over(*batches))
