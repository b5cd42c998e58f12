"""What is detectable over seeds and text: against simulated experiments judged by plain formulas, and limits."""

import math

import numpy as np
import pytest
from scipy import stats
from statistics_audit.audit import sign_flip_ps
from statistics_audit.texts import lengths, scattered, truth

from lm.stats.power import detectable
from lm.stats.tests import ALPHA
from lm.stats.two_way import TwoWay, detectable_floor, detectable_on_texts, two_way

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


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_detectable_effects_on_texts_have_80_percent_power(ratio: float) -> None:
    """Or some more: the uncertainty of two variances together is taken to be the larger of what it may be."""
    random = np.random.default_rng(5)
    tokens_d = lengths(random)
    null_xsd = np.stack([scattered(random, ratio, tokens_d) for _ in range(600)])
    assert found(null_xsd, tokens_d) <= stats.binom.isf(1e-6, 600, ALPHA) / 600
    effects = [detectable_on_texts(6, two_way(sums_sd, tokens_d)) for sums_sd in null_xsd[:40]]
    powers = [found(null_xsd[40:] + effect * tokens_d, tokens_d) for effect in effects]
    assert 0.75 < np.mean(powers) < 0.88


def test_text_raises_the_detectable_effect_to_a_floor() -> None:
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
def test_the_floor_has_80_percent_power_over_documents(alpha: float) -> None:
    noise, random = TwoWay(0.3, 0.2, 0.1, 0.35, 8.0, 12, 12.0), np.random.default_rng(1)
    shown = random.normal(size=(20_000, 12)).std(axis=1, ddof=1)
    effects = detectable_floor(noise, alpha) / 0.1 * shown / math.sqrt(12)
    p = stats.ttest_1samp(random.normal(size=(20_000, 12)) + effects[:, None], 0.0, axis=1).pvalue
    assert np.mean(p <= alpha) == pytest.approx(0.8, abs=0.01)


def test_limits() -> None:
    noise = TwoWay(0.3, 0.2, 0.1, 0.35, 8.0, 40, 40.0)
    assert detectable_on_texts(5, noise) == math.inf
    none = TwoWay(0.0, 0.0, 0.0, 0.0, math.inf, 40, 40.0)
    assert (detectable_on_texts(6, none), detectable_floor(none)) == (0.0, 0.0)


def test_documents_of_unequal_lengths_make_what_is_detectable_larger() -> None:
    of_lengths = [TwoWay(0.1, 0.3, 0.3, 0.32, 20.0, 40, effective) for effective in (40.0, 12.0, 4.0)]
    for smallest in (lambda noise: detectable_on_texts(8, noise), detectable_floor):
        found = [smallest(noise) for noise in of_lengths]
        assert found == sorted(found)
        assert found[0] < 0.95 * found[2]
