"""Loss, perplexity, accuracy and calibration against torch's and torchmetrics' own, in one pass or in many."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torchmetrics.classification import MulticlassCalibrationError

from lm.metrics.tokens import (
    TokenStatistics,
    bits_per_byte,
    confidence_bins,
    expected_calibration_error,
    perplexity,
)

V = 11


def data(n: int = 400, scale: float = 3.0, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Logits that favour the target somewhat, and targets."""
    random = torch.Generator().manual_seed(seed)
    targets_n = torch.randint(V, (n,), generator=random)
    logits_nv = scale * torch.randn(n, V, generator=random, dtype=torch.float64)
    logits_nv[torch.arange(n), targets_n] += scale
    return logits_nv.to(dtype), targets_n


def statistics(*batches: tuple[Tensor, Tensor], table: Tensor | None = None, bins: int = 15) -> TokenStatistics:
    metric = TokenStatistics(torch.arange(V) if table is None else table, bins)
    for logits_nv, targets_n in batches:
        metric.update(logits_nv, targets_n)
    return metric


def measured(*batches: tuple[Tensor, Tensor], **options: Any) -> dict[str, Any]:
    return statistics(*batches, **options).compute()


def test_nll_is_the_mean_cross_entropy() -> None:
    logits_nv, targets_n = data()
    assert measured((logits_nv, targets_n))["nll"] == pytest.approx(
        float(cross_entropy(logits_nv, targets_n)), rel=1e-13
    )


def test_loss_and_perplexity_worked_by_hand() -> None:
    logits_nv = torch.tensor([[2, 1, 0.1, -1, 0.5], [1.2, 0, 0.3, 2, -0.2]], dtype=torch.float64)
    found = measured((logits_nv, torch.tensor([0, 3])), table=torch.ones(5, dtype=torch.int64))
    assert found["nll"] == pytest.approx(0.6063537, abs=5e-8)
    assert found["perplexity"] == pytest.approx(1.8337328, abs=1e-7)
    assert found["accuracy"] == 1.0


def test_accuracy_is_the_share_of_targets_on_top() -> None:
    logits_nv, targets_n = data()
    expected = float((logits_nv.argmax(1) == targets_n).double().mean())
    assert 0.1 < expected < 0.95
    assert measured((logits_nv, targets_n))["accuracy"] == expected


@pytest.mark.parametrize("scale", [0.3, 1.0, 5.0])
def test_ece_is_torchmetrics(scale: float) -> None:
    logits_nv, targets_n = data(3000, scale)
    torchs = MulticlassCalibrationError(num_classes=V, n_bins=15, norm="l1")
    expected = float(torchs(logits_nv.softmax(1), targets_n))
    assert measured((logits_nv, targets_n))["ece"] == pytest.approx(expected, abs=1e-6)


def test_ece_worked_by_hand() -> None:
    count_m, confidence_m = torch.tensor([2.0, 0.0, 2.0]), torch.tensor([0.5, 0.0, 1.8])
    assert expected_calibration_error(count_m, confidence_m, torch.tensor([1.0, 0.0, 1.0])) == pytest.approx(
        (abs(1.0 - 0.5) + abs(1.0 - 1.8)) / 4, abs=1e-7
    )


def test_bits_per_byte_count_the_bytes_of_the_targets() -> None:
    logits_nv, targets_n = data()
    nats = float(cross_entropy(logits_nv, targets_n, reduction="sum"))
    expected = nats / math.log(2) / sum(targets_n.tolist())  # the table says token i is i bytes
    assert measured((logits_nv, targets_n))["bits_per_byte"] == pytest.approx(expected, rel=1e-12)
    assert bits_per_byte(8 * math.log(2), 4) == pytest.approx(2.0)
    assert math.isnan(bits_per_byte(1.0, 0))


def test_many_updates_are_one() -> None:
    logits_nv, targets_n = data(100)
    whole, parts = measured((logits_nv, targets_n)), measured(*zip(logits_nv.split(7), targets_n.split(7), strict=True))
    assert parts["evaluated_tokens"] == whole["evaluated_tokens"] == 100
    assert parts["reliability"]["count"] == whole["reliability"]["count"]
    for name in ("nll", "perplexity", "bits_per_byte", "accuracy", "ece"):
        assert parts[name] == pytest.approx(whole[name], rel=1e-12)


def test_the_states_of_two_processes_add_up_to_those_of_one() -> None:
    logits_nv, targets_n = data(100)
    first = statistics((logits_nv[:37], targets_n[:37]))
    second = statistics((logits_nv[37:], targets_n[37:]))
    whole = statistics((logits_nv, targets_n))
    first.merge_state(second)
    for name in ("nll", "tokens", "bytes", "count_m", "confidence_m", "correct_m"):
        torch.testing.assert_close(getattr(first, name), getattr(whole, name), rtol=1e-13, atol=0)


def test_targets_to_be_ignored_count_for_nothing() -> None:
    logits_nv, targets_n = data(60)
    kept_n = torch.arange(60) % 3 > 0
    found = measured((logits_nv, torch.where(kept_n, targets_n, -100)), (logits_nv[:5], torch.full((5,), -100)))
    assert found == measured((logits_nv[kept_n], targets_n[kept_n]))
    assert found["evaluated_tokens"] == 40


def test_a_reset_forgets_everything() -> None:
    metric = statistics(data(50, seed=1))
    metric.reset()
    metric.update(*data(20))
    assert metric.compute() == measured(data(20))


def test_the_reliability_diagram_holds_the_means_of_each_bin() -> None:
    logits_nv, targets_n = data(500, 1.0)
    confidence_n, top_n = logits_nv.softmax(1).max(1)
    found = measured((logits_nv, targets_n))["reliability"]
    for m in range(15):
        inside = (confidence_n >= m / 15) & (confidence_n < (m + 1) / 15)
        assert found["count"][m] == int(inside.sum())
        if inside.any():
            assert found["confidence"][m] == pytest.approx(float(confidence_n[inside].mean()), rel=1e-12)
            assert found["accuracy"][m] == pytest.approx(float((top_n == targets_n)[inside].double().mean()), rel=1e-12)
        else:
            assert (found["confidence"][m], found["accuracy"][m]) == (0.0, 0.0)


def test_a_confidence_of_exactly_one_falls_into_the_last_bin() -> None:
    logits_nv = torch.tensor([[1000.0, 0.0, 0.0], [0.0, 1e4, 0.0]])
    top_n, confidence_n, bin_n = confidence_bins(logits_nv, 15)
    assert (top_n.tolist(), confidence_n.tolist(), bin_n.tolist()) == ([0, 1], [1.0, 1.0], [14, 14])
    found = measured((logits_nv, torch.tensor([0, 0])), table=torch.ones(3, dtype=torch.int64))
    assert found["reliability"]["count"] == [0] * 14 + [2]
    assert found["ece"] == 0.5


def test_a_perplexity_past_float64_is_infinite() -> None:
    logits_nv = torch.tensor([[0.0, 1e4]], dtype=torch.float64)
    found = measured((logits_nv, torch.tensor([0])), table=torch.ones(2, dtype=torch.int64))
    assert (found["nll"], found["perplexity"]) == (1e4, math.inf)


@pytest.mark.parametrize("nll", [0.0, 1.0, 100.0, 709.0, 709.7])
def test_a_perplexity_within_float64_is_the_exponential(nll: float) -> None:
    assert perplexity(nll) == math.exp(nll)


def test_a_loss_that_is_not_a_number_gives_no_perplexity() -> None:
    assert math.isnan(perplexity(math.nan))
    found = measured((torch.full((1, V), math.nan), torch.tensor([0])))
    assert math.isnan(found["nll"])
    assert math.isnan(found["perplexity"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_of_half_precision_are_measured_exactly(dtype: torch.dtype) -> None:
    logits_nv, targets_n = data(5000, dtype=dtype)
    found, expected = measured((logits_nv, targets_n)), measured((logits_nv.double(), targets_n))
    for name in ("nll", "perplexity", "bits_per_byte", "ece"):
        assert found[name] == pytest.approx(expected[name], rel=1e-6)
    assert found["accuracy"] == expected["accuracy"]


CASTS = {
    "half": lambda module: module.half(),
    "to bfloat16": lambda module: module.to(torch.bfloat16),
    "to float32": lambda module: module.to(torch.float32),
    "bfloat16 within a model": lambda module: torch.nn.Sequential(module).to(torch.bfloat16)[0],
    "half within a model": lambda module: torch.nn.Sequential(module).half()[0],
}


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS.keys())
def test_sums_stay_exact_when_the_model_is_cast(cast: Any) -> None:
    metric = cast(TokenStatistics(torch.arange(V)))
    for _ in range(2):
        assert {metric.nll.dtype, metric.count_m.dtype, metric.confidence_m.dtype} == {torch.float64}
        assert {metric.tokens.dtype, metric.bytes.dtype, metric.bytes_table.dtype} == {torch.int64}
        for seed in range(3):  # more than bfloat16 can count to
            metric.update(*data(400, seed=seed))
        found, expected = metric.compute(), measured(*(data(400, seed=seed) for seed in range(3)))
        assert found == expected
        metric.reset()
