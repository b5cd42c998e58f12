"""What is detectable over seeds and text: against simulated experiments judged by plain formulas, and limits."""

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from lm.analysis.audit import sign_flip_ps
from lm.analysis.audit_text import lengths, scattered, truth
from lm.stats.power import detectable
from lm.stats.tests import ALPHA
from lm.stats.text_power import detectable_floor, detectable_on_texts, power_on_texts
from lm.stats.two_way import TwoWay

Array = np.ndarray


def found(sums_xsd: Array, tokens_d: Array) -> float:
    """The share of experiments x in which both tests find a difference, by formulas written out."""
    _, n, m = sums_xsd.shape
    total = tokens_d.sum()
    scale_d, effective = (m - 1) / m / (total - tokens_d) ** 2, total**2 / (tokens_d**2).sum()
    mean_xs, sum_xd = sums_xsd.sum(axis=2) / total, sums_xsd.mean(axis=1)
    mean_x = mean_xs.mean(axis=1)
    seeds_x = mean_xs.var(axis=1, ddof=1) / n
    text_x = (scale_d * (sum_xd - mean_x[:, None] * tokens_d) ** 2).sum(axis=1)
    left_xsd = sums_xsd - sum_xd[:, None] - (mean_xs - mean_x[:, None])[:, :, None] * tokens_d
    twice_x = (scale_d * left_xsd**2).sum(axis=(1, 2)) / (n * (n - 1))
    both_x = np.maximum(seeds_x + text_x - twice_x, np.maximum(seeds_x, text_x))
    freedom_x = np.maximum(both_x**2 / (seeds_x**2 / (n - 1) + text_x**2 / (effective - 1)), min(n, m) - 1)
    p_x = 2 * stats.t.sf(np.abs(mean_x) / np.sqrt(both_x), freedom_x)
    return float(np.mean((sign_flip_ps(mean_xs) <= ALPHA) & (p_x <= ALPHA)))


@pytest.mark.parametrize("ratio", [0.5, 0.75, 2.0])
def test_what_is_said_to_be_found_four_times_in_five_is(ratio: float) -> None:
    random = np.random.default_rng(5)
    tokens_d = lengths(random)
    noise = truth(ratio, tokens_d)
    effect = detectable_on_texts(6, noise)
    assert power_on_texts(6, effect, noise) == pytest.approx(0.8, abs=1e-6)
    drawn = np.stack([scattered(random, ratio, tokens_d) for _ in range(3000)])
    assert found(drawn + effect * tokens_d, tokens_d) == pytest.approx(0.8, abs=0.03)
    assert found(drawn, tokens_d) <= stats.binom.isf(1e-6, 3000, ALPHA) / 3000


def test_text_makes_what_is_detectable_larger_and_no_seeds_make_it_less_than_its_floor() -> None:
    tokens_d = lengths(np.random.default_rng(5))
    of_ratio = [detectable_on_texts(6, truth(ratio, tokens_d)) for ratio in (0.0, 0.5, 1.0, 2.0)]
    assert of_ratio == sorted(of_ratio)
    noise = truth(1.0, tokens_d)
    assert detectable(6, noise.seeds * math.sqrt(6)) < of_ratio[2]
    least = detectable_floor(noise)
    assert 0 < least < of_ratio[2]
    seeds, held = noise.seeds / 100, noise.effective
    many = TwoWay(seeds, noise.floor, noise.floor, math.hypot(seeds, noise.floor), held - 1, 60, held)
    assert detectable_on_texts(12, many) == pytest.approx(least, rel=0.02)


@pytest.mark.parametrize("alpha", [0.05, 0.0125])
def test_the_floor_is_students_over_documents(alpha: float) -> None:
    noise = TwoWay(0.3, 0.2, 0.1, 0.35, 8.0, 40, 40.0)
    size = TTestPower().solve_power(nobs=40, alpha=alpha, power=0.8)
    assert detectable_floor(noise, alpha) == pytest.approx(size * math.sqrt(40) * 0.1, rel=1e-3)


def test_limits() -> None:
    noise = TwoWay(0.3, 0.2, 0.1, 0.35, 8.0, 40, 40.0)
    assert detectable_on_texts(5, noise) == math.inf
    assert power_on_texts(5, 9.0, noise) == 0.0
    none = TwoWay(0.0, 0.0, 0.0, 0.0, math.inf, 40, 40.0)
    assert (detectable_on_texts(6, none), detectable_floor(none)) == (0.0, 0.0)
    assert (power_on_texts(6, 0.1, none), power_on_texts(6, 0.0, none)) == (1.0, 0.0)


def test_documents_of_unequal_lengths_make_what_is_detectable_larger() -> None:
    of_lengths = [TwoWay(0.1, 0.3, 0.3, 0.32, 20.0, 40, effective) for effective in (40.0, 12.0, 4.0)]
    for smallest in (lambda noise: detectable_on_texts(8, noise), detectable_floor):
        found = [smallest(noise) for noise in of_lengths]
        assert found == sorted(found)
        assert found[0] < 0.95 * found[2]
