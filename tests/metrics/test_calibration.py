"""Calibration errors from sums over bins, against scipy's distributions, simulation and sorting."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from lm.metrics.tokens import (
    FINE_BINS,
    adaptive_calibration_error,
    bin_index,
    calibration_floor,
    classwise_calibration_error,
    corrected_calibration_error,
    expected_calibration_error,
    fine_bin_index,
    maximum_calibration_error,
)


def sums_over_bins(bins: int, bin_n: Tensor, *values: Tensor) -> list[Tensor]:
    return [torch.zeros(bins, dtype=torch.float64).index_add_(0, bin_n, value_n) for value_n in values]


def confidences(n: int, seed: int = 0, power: float = 1.0) -> Tensor:
    """In (0, 1), nearer to 1 for small powers."""
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** power


def floor_of(confidence_n: Tensor, bins: int = 15) -> float:
    ones_n = torch.ones_like(confidence_n)
    variance_n = confidence_n * (1 - confidence_n)
    return calibration_floor(*sums_over_bins(bins, bin_index(confidence_n, bins), ones_n, confidence_n, variance_n))


SHARES_M = np.array([1, 80, 110, 120, 100, 80, 65, 55, 45, 45, 35, 40, 65, 45, 114]) / 1000
"""Of the tokens in each bin, as a small language model has them."""


def corrected(tokens: int, odds_ratio: float, samples: int = 400) -> tuple[float, float, float]:
    """Mean corrected error of samples whose odds of being right are a multiple of those of the confidence; the true
    error; and the mean floor."""
    random = np.random.default_rng(0)
    odds_m = (centre_m := (np.arange(15) + 0.5) / 15) / (1 - centre_m) * odds_ratio
    chance_m = odds_m / (1 + odds_m)
    found = []
    for count_m in random.multinomial(tokens, SHARES_M, size=samples):
        correct_m = random.binomial(count_m, chance_m)
        count, confidence, correct = (torch.from_numpy(x * 1.0) for x in (count_m, count_m * centre_m, correct_m))
        error = expected_calibration_error(count, confidence, correct)
        floor = calibration_floor(count, confidence, confidence * (1 - torch.from_numpy(centre_m)))
        found.append((corrected_calibration_error(error, floor), floor))
    mean, floor = np.mean(found, axis=0)
    return float(mean), float((SHARES_M * np.abs(chance_m - centre_m)).sum()), float(floor)


@pytest.mark.parametrize(("tokens", "left"), [(500, 0.015), (1500, 0.008), (10_000, 0.003)])
def test_calibrated_model_keeps_quarter_of_floor_after_correction(tokens: int, left: float) -> None:
    found, _, floor = corrected(tokens, 1.0)
    assert found == pytest.approx(left, abs=2e-3)
    assert 0.2 < found / floor < 0.34


@pytest.mark.parametrize(("tokens", "odds_ratio"), [(500, 0.5), (1500, 1.25), (10_000, 0.5)])
def test_corrected_error_has_little_bias(tokens: int, odds_ratio: float) -> None:
    found, true, floor = corrected(tokens, odds_ratio)
    assert -0.25 * floor < found - true < 0.15 * floor


def test_error_below_floor_is_corrected_to_zero() -> None:
    assert corrected_calibration_error(0.02, 0.03) == 0.0
    assert corrected_calibration_error(0.05, 0.03) == pytest.approx(0.04, rel=1e-12)
    assert corrected_calibration_error(0.3, 0.003) == pytest.approx(0.3, rel=1e-4)


@pytest.mark.parametrize("tokens", [1, 2, 7, 3000])
@pytest.mark.parametrize("chance", [1e-4, 0.03, 0.5, 0.999])
def test_the_floor_of_equal_confidences_is_a_binomial_deviation(tokens: int, chance: float) -> None:
    count, mean = torch.tensor([tokens], dtype=torch.float64), tokens * chance
    right = np.arange(tokens + 1)
    expected = (np.abs(right - mean) * stats.binom.pmf(right, tokens, chance)).sum() / tokens
    found = calibration_floor(count, count * chance, count * chance * (1 - chance))
    assert found == pytest.approx(expected, rel=1e-7)


def test_the_floor_of_large_bins_is_normal() -> None:
    confidence_n = confidences(10**6)
    variance_m = sums_over_bins(15, bin_index(confidence_n, 15), confidence_n * (1 - confidence_n))[0]
    expected = float((2 / math.pi * variance_m).sqrt().sum()) / 10**6
    assert floor_of(confidence_n) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("tokens", "power"), [(40, 1.0), (40, 0.02), (400, 0.05)])
def test_the_floor_is_the_mean_error_of_calibrated_samples(tokens: int, power: float) -> None:
    confidence_n = confidences(tokens, power=power)
    bin_n, random = bin_index(confidence_n, 15), torch.Generator().manual_seed(1)
    right_nd = (torch.rand(tokens, 4000, generator=random, dtype=torch.float64) < confidence_n[:, None]).double()
    excess_md = torch.zeros(15, 4000, dtype=torch.float64).index_add_(0, bin_n, right_nd - confidence_n[:, None])
    sampled_d = excess_md.abs().sum(0) / tokens
    expected, error = float(sampled_d.mean()), float(sampled_d.std()) / math.sqrt(4000)
    assert 4 * error < 0.08 * expected
    assert floor_of(confidence_n) == pytest.approx(expected, abs=4 * error)


def test_a_model_that_is_certain_has_no_floor() -> None:
    assert floor_of(torch.ones(50, dtype=torch.float64)) == 0.0


def fine_sums(confidence_n: Tensor, correct_n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    fine_n = fine_bin_index((1 - confidence_n) / confidence_n)
    count, confidence, correct = sums_over_bins(
        FINE_BINS, fine_n, torch.ones_like(confidence_n), confidence_n, correct_n
    )
    return count, confidence, correct


def sorted_error(confidence_n: Tensor, correct_n: Tensor, bins: int = 15) -> float:
    order = confidence_n.numpy().argsort(kind="stable")
    excess_n = (correct_n - confidence_n).numpy()[order]
    return sum(abs(part.sum()) for part in np.array_split(excess_n, bins)) / len(order)


@pytest.mark.parametrize(("power", "true_power"), [(1.0, 1.3), (0.01, 1.0), (4.0, 1.3)])
def test_equal_mass_bins_are_those_of_sorting(power: float, true_power: float) -> None:
    confidence_n = confidences(150_000, power=power)
    random = torch.Generator().manual_seed(1)
    correct_n = (torch.rand(150_000, generator=random, dtype=torch.float64) < confidence_n**true_power).double()
    expected = sorted_error(confidence_n, correct_n)
    assert adaptive_calibration_error(*fine_sums(confidence_n, correct_n)) == pytest.approx(expected, abs=1e-4)


def test_equal_mass_bins_are_exact_without_shared_fine_bins() -> None:
    center_g = torch.cat([torch.linspace(0.05, 0.9, 10), 1 - 10.0 ** -torch.arange(2, 7)]).double()
    confidence_n = center_g.repeat_interleave(20)
    correct_n = (confidences(300, seed=3) < 0.6).double()
    expected = sorted_error(confidence_n, correct_n)
    assert adaptive_calibration_error(*fine_sums(confidence_n, correct_n)) == pytest.approx(expected, rel=1e-12)


def test_equal_mass_bins_divide_equal_confidences_in_proportion() -> None:
    confidence_n = torch.full((1000,), 0.7, dtype=torch.float64)
    correct_n = (torch.arange(1000) % 5 > 0).double()
    assert adaptive_calibration_error(*fine_sums(confidence_n, correct_n)) == pytest.approx(0.1, rel=1e-12)


def test_fine_bins_tell_confidences_near_one_apart() -> None:
    against_n = torch.tensor([1e4, 0.9, 1e-3, 1e-5, 1e-6], dtype=torch.float64)
    fine_n = fine_bin_index(against_n)
    assert fine_n.diff().min() > 200
    expected = (16 + stats.logistic.ppf(1 / (1 + against_n.numpy()))) / 32 * FINE_BINS
    assert fine_n.tolist() == np.floor(expected).astype(int).tolist()
    edges_n = torch.tensor([math.inf, 1e30, 0.0, 1e-30, math.nan], dtype=torch.float64)
    assert fine_bin_index(edges_n).tolist() == [0, 0, FINE_BINS - 1, FINE_BINS - 1, 0]


def test_bins_hold_their_lower_edge_and_the_last_both() -> None:
    confidence_n = torch.tensor([0.0, 0.2499, 0.25, 0.5, 0.75, 0.9999, 1.0])
    assert bin_index(confidence_n, 4).tolist() == [0, 0, 1, 2, 3, 3, 3]


def test_nothing_measured_is_not_a_number() -> None:
    none = torch.zeros(15, dtype=torch.float64)
    assert math.isnan(expected_calibration_error(none, none, none))
    assert math.isnan(maximum_calibration_error(none, none, none))
    assert math.isnan(corrected_calibration_error(math.nan, math.nan))
    assert math.isnan(calibration_floor(none, none, none))
    assert math.isnan(adaptive_calibration_error(none, none, none))
    assert math.isnan(classwise_calibration_error(none[None], 0))
