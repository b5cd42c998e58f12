"""The gradient noise scale, on a problem whose gradients have a known mean and covariance."""

import pytest
import torch
from torch import nn

from lm.metrics.gradients import estimate_noise, measure_noise


@pytest.mark.slow
def test_estimates_are_unbiased_for_gradients_of_known_mean_and_covariance() -> None:
    # The loss (w - x)^2 / 2 has the gradient w - x: mean w, covariance that of x.
    random = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
    spread = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    traces, signals = [], []
    for _ in range(4000):
        pieces = [torch.randn(5, 3, generator=random, dtype=torch.float64) * spread for _ in range(4)]
        losses = [lambda x=piece: ((weight - x) ** 2).sum(-1).mean() / 2 for piece in pieces]
        trace, signal = measure_noise([weight], losses, [5] * 4)
        traces.append(trace)
        signals.append(signal)
    squares = spread.square().sum(), weight.detach().square().sum()
    for values, truth in zip((torch.tensor(traces), torch.tensor(signals)), map(float, squares), strict=True):
        assert abs(float(values.mean()) - truth) < 4 * float(values.std()) / len(values) ** 0.5
        assert float(values.std()) / len(values) ** 0.5 < 0.02 * truth, "the test must be sharp"


def test_equal_pieces_have_no_noise() -> None:
    trace, signal = estimate_noise(small=2.0, big=2.0, small_tokens=3, big_tokens=12)
    assert trace == 0
    assert signal == pytest.approx(2.0)


def test_no_gradient_is_left_behind() -> None:
    weight, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    measure_noise([weight, unused], [lambda: weight.sum(), lambda: (2 * weight).sum()], [1, 1])
    assert weight.grad is None
    assert unused.grad is None
