"""Loss, perplexity, accuracy and calibration against torch's and torchmetrics' own, in one pass or in many."""

import math
from typing import Any, Literal

import numpy as np
import pytest
import torch
from helpers import Patch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot
from torchmetrics.classification import MulticlassCalibrationError

from lm.data import IGNORED
from lm.metrics.tokens import (
    TokenStatistics,
    bits_per_byte,
    calibration_floor,
    corrected_calibration_error,
    largest_logits,
    perplexity,
    row_slices,
)

V, WIDE = 11, 1000
CLASSES = torch.tensor([1, 0])
SCORES = ("nll", "perplexity", "bits_per_byte", "accuracy", "brier")
NUMBERS = (*SCORES, "ece", "mce", "ece_adaptive", "ece_corrected", "ece_floor", "ece_classwise")


def data(n: int = 400, scale: float = 3.0, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Logits that favour the target somewhat, and targets."""
    random = torch.Generator().manual_seed(seed)
    targets_n = torch.randint(V, (n,), generator=random)
    logits_nv = scale * torch.randn(n, V, generator=random, dtype=torch.float64)
    logits_nv[torch.arange(n), targets_n] += scale
    return logits_nv.to(dtype), targets_n


def wide(scale: float) -> tuple[Tensor, Tensor]:
    """Logits in single precision over many tokens, and targets that are often the top."""
    random = torch.Generator().manual_seed(0)
    logits_nv = scale * torch.randn(1500, WIDE, generator=random)
    often_n = torch.rand(1500, generator=random) < 0.5
    return logits_nv, torch.where(often_n, logits_nv.argmax(1), torch.randint(WIDE, (1500,), generator=random))


def statistics(*batches: tuple[Tensor, Tensor], table: Tensor | None = None, bins: int = 15) -> TokenStatistics:
    metric = TokenStatistics(torch.arange(V) if table is None else table, bins, CLASSES)
    for logits_nv, targets_n in batches:
        metric.update(logits_nv, targets_n)
    return metric


def measured(*batches: tuple[Tensor, Tensor], **options: Any) -> dict[str, Any]:
    return statistics(*batches, **options).compute()


def test_losses_and_accuracy_are_those_of_torch() -> None:
    logits_nv, targets_n = data()
    found = measured((logits_nv, targets_n))
    assert found["nll"] == pytest.approx(float(cross_entropy(logits_nv, targets_n)), rel=1e-13)
    expected = float((logits_nv.argmax(1) == targets_n).double().mean())
    assert 0.1 < expected < 0.95
    assert found["accuracy"] == expected
    distance_nv = logits_nv.softmax(1) - one_hot(targets_n, V)
    assert found["brier"] == pytest.approx(float(distance_nv.square().sum(1).mean()), rel=1e-13)
    nats = float(cross_entropy(logits_nv, targets_n, reduction="sum"))
    expected_bits = nats / math.log(2) / sum(targets_n.tolist())  # the table says token i is i bytes
    assert found["bits_per_byte"] == pytest.approx(expected_bits, rel=1e-12)
    assert math.isnan(bits_per_byte(1.0, 0))


@pytest.mark.parametrize("scale", [0.3, 5.0])
def test_ece_is_torchmetrics(scale: float) -> None:
    logits_nv, targets_n = data(3000, scale)
    torchs = MulticlassCalibrationError(num_classes=V, n_bins=15, norm="l1")
    expected = float(torchs(logits_nv.softmax(1), targets_n))
    assert measured((logits_nv, targets_n))["ece"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("scale", "norm"), [(0.3, "l1"), (5.0, "max")])
def test_calibration_of_a_large_vocabulary_is_torchmetrics(scale: float, norm: Literal["l1", "max"]) -> None:
    logits_nv, targets_n = wide(scale)
    expected = float(MulticlassCalibrationError(WIDE, n_bins=15, norm=norm)(logits_nv.softmax(1), targets_n))
    found = measured((logits_nv, targets_n), table=torch.ones(WIDE, dtype=torch.int64))
    assert found["ece" if norm == "l1" else "mce"] == pytest.approx(expected, abs=1e-6)


def test_the_classwise_error_is_that_of_each_class_averaged() -> None:
    logits_nv, targets_n = data(2000, 1.0)
    errors = []
    for token in CLASSES.tolist():
        chance_n, is_n = logits_nv.softmax(1)[:, token].numpy(), (targets_n == token).double().numpy()
        edges = np.linspace(0, 1, 16)
        right, confidence = (np.histogram(chance_n, edges, weights=weight)[0] for weight in (is_n, chance_n))
        errors.append(np.abs(right - confidence).sum() / 2000)
    assert measured((logits_nv, targets_n))["ece_classwise"] == pytest.approx(np.mean(errors), rel=1e-12)
    plain = TokenStatistics(torch.arange(V))
    plain.update(logits_nv, targets_n)
    assert "ece_classwise" not in plain.compute()


def test_the_other_calibration_errors_are_those_of_the_confidences() -> None:
    logits_nv, targets_n = data(60_000, 1.0)
    confidence_n, top_n = logits_nv.softmax(1).max(1)
    correct_n = (top_n == targets_n).double()
    found = measured((logits_nv, targets_n))
    place_n, values = (confidence_n * 15).floor().long(), (correct_n * 0 + 1, confidence_n, correct_n)
    sums = [torch.zeros(15, dtype=torch.float64).scatter_add_(0, place_n, value_n) for value_n in values]
    assert found["ece_corrected"] == corrected_calibration_error(found["ece"], found["ece_floor"])
    sums[2] = torch.zeros(15, dtype=torch.float64).scatter_add_(0, place_n, confidence_n * (1 - confidence_n))
    assert found["ece_floor"] == pytest.approx(calibration_floor(*sums), rel=1e-10)
    excess_n = (correct_n - confidence_n)[confidence_n.argsort()].numpy()
    expected = sum(abs(part.sum()) for part in np.array_split(excess_n, 15)) / len(excess_n)
    assert found["ece_adaptive"] == pytest.approx(expected, abs=1e-4)


def test_many_updates_are_one() -> None:
    logits_nv, targets_n = data(100)
    whole, parts = measured((logits_nv, targets_n)), measured(*zip(logits_nv.split(7), targets_n.split(7), strict=True))
    assert parts["evaluated_tokens"] == whole["evaluated_tokens"] == 100
    assert parts["reliability"]["count"] == whole["reliability"]["count"]
    for name in NUMBERS:
        assert parts[name] == pytest.approx(whole[name], rel=1e-12)


def test_the_states_of_two_processes_add_up() -> None:
    logits_nv, targets_n = data(100)
    first = statistics((logits_nv[:37], targets_n[:37]))
    second = statistics((logits_nv[37:], targets_n[37:]))
    whole = statistics((logits_nv, targets_n))
    first.merge_state(second)
    for name in whole.metric_state:
        torch.testing.assert_close(getattr(first, name), getattr(whole, name), rtol=1e-13, atol=1e-15)


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
    found = measured((logits_nv, torch.tensor([0, 0])), table=torch.ones(3, dtype=torch.int64))
    assert found["reliability"]["count"] == [0] * 14 + [2]
    assert found["ece"] == 0.5


def test_a_perplexity_past_float64_is_infinite() -> None:
    logits_nv = torch.tensor([[0.0, 1e4]], dtype=torch.float64)
    found = measured((logits_nv, torch.tensor([0])), table=torch.ones(2, dtype=torch.int64))
    assert (found["nll"], found["perplexity"]) == (1e4, math.inf)


def test_a_loss_that_is_not_a_number_gives_no_perplexity() -> None:
    assert math.isnan(perplexity(math.nan))
    found = measured((torch.full((1, V), math.nan), torch.tensor([0])))
    assert math.isnan(found["nll"])
    assert math.isnan(found["perplexity"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_of_half_precision_are_measured_exactly(dtype: torch.dtype) -> None:
    logits_nv, targets_n = data(5000, dtype=dtype)
    found, expected = measured((logits_nv, targets_n)), measured((logits_nv.double(), targets_n))
    for name in NUMBERS:
        assert found[name] == pytest.approx(expected[name], rel=1e-6)
    assert found["accuracy"] == expected["accuracy"]


@pytest.mark.parametrize("vocabulary", [1, 5, 128, 511, 512, 513, 1000])
def test_the_largest_logit_is_found_at_its_first_place(vocabulary: int) -> None:
    random = torch.Generator().manual_seed(0)
    logits_nv = torch.randint(-3, 4, (300, vocabulary), generator=random).double()  # full of ties
    logits_nv[0], logits_nv[1], logits_nv[2, -1], logits_nv[3, -1] = -math.inf, 0.0, 9.0, math.nan
    for found, expected in zip(largest_logits(logits_nv), logits_nv.max(1), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_large_vocabulary_is_measured_part_by_part(dtype: torch.dtype, monkeypatch: Patch) -> None:
    monkeypatch.setattr("lm.metrics.tokens.LOGITS_PER_CHUNK", 200_000)
    logits_nv, targets_n = wide(3.0)
    logits_nv = logits_nv.to(dtype)
    before_nv, targets_n[::7] = logits_nv.clone(), -100
    assert len(list(row_slices(logits_nv))) > 3
    found = measured((logits_nv.requires_grad_(), targets_n), table=torch.ones(WIDE, dtype=torch.int64))
    torch.testing.assert_close(logits_nv.detach(), before_nv, rtol=0, atol=0)
    exact_nv, targets_n = before_nv[targets_n >= 0].double(), targets_n[targets_n >= 0]
    assert found["nll"] == pytest.approx(float(cross_entropy(exact_nv, targets_n)), rel=1e-6)
    assert found["accuracy"] == float((exact_nv.argmax(1) == targets_n).double().mean())
    brier = (exact_nv.softmax(1) - one_hot(targets_n, WIDE)).square().sum(1).mean()
    assert found["brier"] == pytest.approx(float(brier), rel=1e-6)


def test_a_small_loss_keeps_its_digits_in_single_precision() -> None:
    logits_nv = torch.tensor([[100.0, 77.0, 75.5], [80.0, 60.25, 30.0]])
    targets_n = torch.tensor([0, 0])
    found = measured((logits_nv, targets_n), table=torch.ones(3, dtype=torch.int64))
    expected_n = torch.tensor(
        [math.log1p(math.exp(-23) + math.exp(-24.5)), math.log1p(math.exp(-19.75) + math.exp(-50))]
    )
    assert found["nll"] == pytest.approx(float(expected_n.double().mean()), rel=1e-6)


CASTS = {
    "to float32": lambda module: module.to(torch.float32),
    "bfloat16 within a model": lambda module: torch.nn.Sequential(module).to(torch.bfloat16)[0],
    "half within a model": lambda module: torch.nn.Sequential(module).half()[0],
}


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS.keys())
def test_sums_stay_exact_when_the_model_is_cast(cast: Any) -> None:
    metric = cast(TokenStatistics(torch.arange(V), classes=CLASSES))
    for _ in range(2):
        assert {metric.nll.dtype, metric.count_m.dtype, metric.confidence_m.dtype} == {torch.float64}
        assert {metric.tokens.dtype, metric.bytes.dtype, metric.bytes_table.dtype} == {torch.int64}
        for seed in range(3):  # more than bfloat16 can count to
            metric.update(*data(400, seed=seed))
        found, expected = metric.compute(), measured(*(data(400, seed=seed) for seed in range(3)))
        assert found == expected
        metric.reset()


# clusters ------------------------------------------------------------------------------------------------------------


def test_cluster_sums_add_up_to_totals_without_ignored_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(60, V, generator=generator), torch.randint(V, (60,), generator=generator)
    cluster = torch.arange(60) // 25
    targets[::7] = IGNORED
    metric = TokenStatistics(torch.arange(V), clusters=3)
    for some in (slice(0, 30), slice(30, 60)):
        metric.update(logits[some], targets[some], cluster[some])
    found = metric.compute()
    nll, tokens = found["clusters"]
    losses = cross_entropy(logits.double(), targets, reduction="none", ignore_index=IGNORED)
    assert nll == pytest.approx(torch.stack([losses[cluster == d].sum() for d in range(3)]).numpy(), rel=1e-6)
    assert tokens.tolist() == [int((targets[cluster == d] != IGNORED).sum()) for d in range(3)]
    assert nll.sum() / tokens.sum() == pytest.approx(found["nll"], rel=1e-12)
    metric.update(logits, targets)
    assert "clusters" not in metric.compute(), "not all tokens were told apart"
