"""Variance components: against least squares, against known causes, and where nothing varies."""

import math

import numpy as np
import pytest
from statsmodels.regression.linear_model import OLS

from lm.stats.components import components


def table(rows: int, columns: int, spread: tuple[float, float, float], seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    first, second, rest = spread
    noise = rest * random.normal(size=(rows, columns))
    return 2 + first * random.normal(size=(rows, 1)) + second * random.normal(size=(1, columns)) + noise


def test_variances_are_those_of_the_mean_squares_of_least_squares() -> None:
    values = table(5, 3, (1.0, 0.5, 0.3))
    i, j = (place.ravel() for place in np.indices(values.shape))
    rows, columns = (np.eye(n)[at] for n, at in ((5, i), (3, j)))
    both = np.hstack([rows, columns[:, 1:]])
    left = [float(OLS(values.ravel(), design).fit().ssr) for design in (both, columns, rows)]
    of_rows, of_columns, rest = (left[1] - left[0]) / 4, (left[2] - left[0]) / 2, left[0] / 8
    found = components(values)
    expected = ((of_rows - rest) / 3, (of_columns - rest) / 5, rest)
    assert (found.first, found.second, found.rest) == pytest.approx(expected)


def test_known_causes_are_found_on_the_average() -> None:
    spread = (0.3, 0.2, 0.1)
    found = [components(table(8, 6, spread, seed)) for seed in range(40)]
    for name, true in zip(("first", "second", "rest"), spread, strict=True):
        values = [getattr(one, name) for one in found]
        assert np.mean(values) == pytest.approx(true**2, abs=4 * np.std(values) / math.sqrt(len(values)))
    truth = np.square(spread) / np.square(spread).sum()
    for place, true in enumerate(truth):  # 38 of 40 are promised
        assert sum(one.shares[place][1] <= true <= one.shares[place][2] for one in found) >= 34


def test_idle_causes_have_no_share_and_shares_add_up() -> None:
    found = components(np.array([[1.0, 1.1, 0.9], [2.0, 2.1, 1.9]]))
    assert found.rest == pytest.approx(0, abs=1e-30)
    assert sum(share for share, _, _ in found.shares) == pytest.approx(1)
    assert components(np.array([[1.0, 2.0], [2.0, 1.0]])).first == 0


def test_all_may_be_noise_where_neither_cause_need_be_one() -> None:
    found = [components(table(8, 8, (0.0, 0.0, 1.0), seed)) for seed in range(40)]
    neither = [not any(low for _, low, _ in one.shares[:2]) for one in found]
    assert [one.shares[2][2] == 1 for one in found] == neither
    assert sum(neither) >= 34  # 38 are promised


def test_equal_values_have_no_shares() -> None:
    assert all(math.isnan(number) for share in components(np.ones((3, 2))).shares for number in share)
