"""What is said of arms at rates of their own is put to the test, and a choice that is taken as certain is caught."""

import numpy as np
import pytest
from scipy import stats

from lm.analysis.rates import regrets
from statistics_audit.audit import NOISES
from statistics_audit.rates import audit_rates, curve_of


def test_the_bound_is_that_of_a_two_way_layout() -> None:
    """Rates and seeds add up but for a rest of +-.1 or .2, whose variance over two degrees of freedom is .06."""
    rest = np.array([[0.1, -0.1], [-0.2, 0.2], [0.1, -0.1]])
    values_rs = np.array([[2.3], [2.0], [2.1]]) + np.array([[0.0, 0.5]]) + rest
    found = regrets({"arm": curve_of(values_rs)})
    reach = stats.t.ppf(0.95, 2) * np.sqrt(0.06)  # of two means of two seeds each
    assert found["arm"] == pytest.approx(reach - 0.1)
    assert regrets({"arm": curve_of(values_rs - rest)})["arm"] == pytest.approx(0, abs=1e-9)


def test_a_rate_that_was_lost_bounds_nothing() -> None:
    values_rs = np.array([[np.nan, 2.0], [2.0, 2.1], [2.2, 2.3]])
    alone = np.array([[np.nan, np.nan], [2.0, 2.5], [np.nan, 3.0]])
    assert np.isfinite(regrets({"arm": curve_of(values_rs)})["arm"])
    assert regrets({"arm": curve_of(alone), "lost": curve_of(alone * np.nan)}) == {"arm": 0, "lost": 0}


@pytest.mark.extra
@pytest.mark.slow
def test_a_choice_that_is_taken_as_certain_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    normal = {"normal": NOISES["normal"]}
    assert {one.verdict for one in audit_rates(np.random.default_rng(1), 150, normal)} == {"ok"}
    monkeypatch.setattr("statistics_audit.rates.regrets", lambda curves: dict.fromkeys(curves, 0.0))
    assert "NOT OK" in {one.verdict for one in audit_rates(np.random.default_rng(1), 400, normal)}
