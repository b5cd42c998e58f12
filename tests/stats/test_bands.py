"""The simultaneous band covers a whole curve as often as it says, and is no wider than it needs to be."""

import math

import numpy as np
import pytest
from scipy import stats

from lm.stats.bands import FEWEST, simultaneous_band
from lm.stats.tests import t_interval


def random_walks(seeds: int, points: int, rng: np.random.Generator) -> np.ndarray:
    """Curves whose neighbouring points correlate, as the losses of a run do."""
    return np.cumsum(rng.standard_normal((seeds, points)), axis=1)


@pytest.mark.parametrize(("seeds", "points"), [(3, 20), (6, 12)])
def test_the_band_covers_the_whole_curve(seeds: int, points: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lm.stats.bands.DRAWS", 1_000)
    rng, covered, experiments = np.random.default_rng(1), 0, 100
    for _ in range(experiments):
        band = simultaneous_band(random_walks(seeds, points, rng))
        covered += bool(np.all((band[0] <= 0) & (band[1] >= 0)))
    assert covered / experiments >= 0.91


def test_the_band_lies_between_students_interval_and_bonferronis() -> None:
    sample = random_walks(8, 30, np.random.default_rng(2))
    band = simultaneous_band(sample)
    single, shared = stats.t.isf(0.025, 7), stats.t.isf(0.025 / 30, 7)
    assert 1.1 * single < band[2] < 0.95 * shared
    assert np.all(band[0] < [t_interval(column.tolist())[0] for column in sample.T])


def test_curves_that_move_as_one_have_students_interval() -> None:
    sample = np.random.default_rng(3).standard_normal((8, 1)) * np.linspace(1, 2, 20)
    assert simultaneous_band(sample)[2] == pytest.approx(stats.t.isf(0.025, 7), rel=0.03)


def test_few_seeds_share_the_level_over_the_points() -> None:
    sample = random_walks(FEWEST - 1, 10, np.random.default_rng(4))
    assert simultaneous_band(sample)[2] == pytest.approx(stats.t.isf(0.025 / 10, FEWEST - 2), rel=1e-12)


def test_points_without_spread_have_no_width() -> None:
    sample = random_walks(6, 10, np.random.default_rng(5))
    sample[:, 0] = 0.25
    band = simultaneous_band(sample)
    assert (band[0][0], band[1][0]) == (0.25, 0.25)
    assert np.isfinite(band[0]).all()
    assert simultaneous_band(np.ones((4, 3)))[2] == 0.0


def test_one_seed_has_no_band() -> None:
    band = simultaneous_band(np.ones((1, 4)))
    assert np.isnan(band[0]).all()
    assert math.isnan(band[2])


def test_the_same_sample_gives_the_same_band() -> None:
    sample = random_walks(6, 50, np.random.default_rng(6))
    np.testing.assert_array_equal(simultaneous_band(sample)[0], simultaneous_band(sample)[0])
