"""What is said of arms at rates of their own is put to the test, and a choice that is taken as certain is caught."""

import numpy as np
import pytest
from scipy import stats
from statsmodels.api import OLS

from statistics_audit.audit import NOISES
from statistics_audit.rates import audit_rates, curve_of, regrets


def test_the_bound_is_that_of_a_two_way_layout() -> None:
    """Rates and seeds add up but for a rest of +-.1 or .2, whose variance over two degrees of freedom is .06."""
    rest = np.array([[0.1, -0.1], [-0.2, 0.2], [0.1, -0.1]])
    values_rs = np.array([[2.3], [2.0], [2.1]]) + np.array([[0.0, 0.5]]) + rest
    found = regrets({"arm": curve_of(values_rs)}, 0.05)
    reach = stats.t.ppf(0.95, 2) * np.sqrt(0.06)  # of two means of two seeds each
    assert found["arm"] == pytest.approx(reach - 0.1)
    assert regrets({"arm": curve_of(values_rs - rest)})["arm"] == pytest.approx(0, abs=1e-9)


def test_an_arm_that_breaks_down_does_not_widen_the_others() -> None:
    draw = np.random.default_rng(0)
    values_ars = np.array([[0.1], [0.0], [0.1], [0.3]]) + 0.01 * draw.normal(size=(4, 4, 2))
    whole = regrets({str(arm): curve_of(values_rs) for arm, values_rs in enumerate(values_ars)})
    values_ars[3, 2:] += [[0.2, 2.0], [3.0, 3.5]]
    broken = regrets({str(arm): curve_of(values_rs) for arm, values_rs in enumerate(values_ars)})
    assert whole == dict.fromkeys("0123", 0.0)
    assert broken == dict.fromkeys("0123", 0.0)
    noisy = values_ars.copy()
    noisy[3, 2] = [-2.0, 2.1]  # little worse than the best, with noise that hides which is better
    assert regrets({str(arm): curve_of(values_rs) for arm, values_rs in enumerate(noisy)})["3"] > 1
    assert regrets({str(arm): curve_of(values_rs) for arm, values_rs in enumerate(noisy)})["0"] == 0


def test_the_noise_that_stands_out_is_that_of_an_f_test() -> None:
    """A rate of one arm alone: what it adds is its studentised deletion residual (Cook and Weisberg 1982), squared."""
    draw = np.random.default_rng(3)
    values_rs = np.array([[0.0], [0.005], [0.6], [0.9], [1.2]]) + 0.01 * draw.normal(size=(5, 2))
    design = np.column_stack([np.kron(np.eye(5), np.ones((2, 1))), np.tile([0.0, 1.0], 5)])
    found = []
    for size in (0.01, 0.02, 0.05, 0.2):
        noisy_rs = values_rs.copy()
        noisy_rs[4] += [size, -size]
        deleted = OLS(noisy_rs.ravel(), design).fit().get_influence().resid_studentized_external[8]
        stands_out = 2 * stats.t.sf(abs(deleted), 3) < 0.01 / 5
        curve = curve_of(noisy_rs)
        left_out = regrets({"arm": curve_of(noisy_rs[:4])}, 0.025)
        every = OLS(noisy_rs.ravel(), design).fit()
        reach = float(stats.t.ppf(0.95, 4)) * np.sqrt(every.ssr / 4)
        gap = np.diff(np.sort(noisy_rs.mean(axis=1)))[0]
        assert regrets({"arm": curve}, 0.05)["arm"] == pytest.approx(left_out["arm"] if stands_out else reach - gap)
        assert left_out["arm"] > 0
        found.append(stands_out)
    assert {*found} == {True, False}


def test_a_rate_that_was_lost_bounds_nothing() -> None:
    values_rs = np.array([[np.nan, 2.0], [2.0, 2.1], [2.2, 2.3]])
    alone = np.array([[np.nan, np.nan], [2.0, 2.5], [np.nan, 3.0]])
    assert np.isfinite(regrets({"arm": curve_of(values_rs)})["arm"])
    assert regrets({"arm": curve_of(alone), "lost": curve_of(alone * np.nan)}) == {"arm": 0, "lost": 0}


@pytest.mark.extra
def test_a_choice_that_is_taken_as_certain_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    normal = {"normal": NOISES["normal"]}
    assert {one.verdict for one in audit_rates(np.random.default_rng(1), 150, normal)} == {"ok"}
    monkeypatch.setattr("statistics_audit.rates.misses", lambda curves, alpha=0: {arm: {} for arm in curves})
    assert "NOT OK" in {one.verdict for one in audit_rates(np.random.default_rng(1), 400, normal)}
