"""What is said of runs that no seed pairs is put to the test, and a test that claims too much is caught."""

import numpy as np
import pytest

from lm.stats.unpaired import Unpaired, confirm_unpaired, measure_unpaired, unpaired_p
from statistics_audit.audit import NOISES
from statistics_audit.finding import Finding
from statistics_audit.unpaired import audit_unpaired, judged


def rows(experiments: int, start: str) -> list[Finding]:
    """Rows of normal noise whose names begin with `start`, without those of unequal spreads."""
    found = list(audit_unpaired(np.random.default_rng(1), experiments, {"equal": NOISES["normal"]}))
    assert len({one.name for one in found}) == len(found) == 4
    return [one for one in found if one.name.startswith(start)]


def test_arms_are_judged_as_those_of_a_comparison_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lm.stats.unpaired.detectable_unpaired", lambda n, m, sd, alpha: 0.0)
    random = np.random.default_rng(3)
    groups, base = random.normal(size=(3, 7)) + np.array([[0.0], [1.5], [3.0]]), random.normal(size=5)
    family = [measure_unpaired(one, base.tolist()) for one in groups.tolist()]
    confirm_unpaired(family)
    found = judged(groups, base)
    assert [(one.verdict, one.low, one.high) for one in found] == [(one.verdict, one.low, one.high) for one in family]


@pytest.mark.extra
def test_false_claims_are_rare_and_intervals_cover() -> None:
    findings = list(audit_unpaired(np.random.default_rng(1), 30, {"normal": NOISES["normal"]}))
    assert {each.verdict for each in findings} == {"ok"}
    assert [each.binding for each in findings] == [True] * 4 + [False] * 3


@pytest.mark.extra
def test_no_test_holds_for_skewed_noise_of_unequal_spreads() -> None:
    findings = list(audit_unpaired(np.random.default_rng(1), 200, {"skewed": NOISES["skewed"]}))
    assert [each.verdict for each in findings] == ["ok"] * 4 + ["falls short", "ok", "falls short"]


@pytest.mark.extra
def test_a_test_at_five_times_the_level_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statistics_audit.unpaired.unpaired_p", lambda mine, base: unpaired_p(mine, base) / 5)
    assert {each.verdict for each in rows(220, "false claims")} == {"NOT OK"}


@pytest.mark.extra
def test_intervals_that_are_too_short_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def alone(family: list[Unpaired]) -> None:
        confirm_unpaired(family)
        for one in family:
            half = 0.35 * (one.high - one.low)
            one.low, one.high = one.mean - half, one.mean + half

    monkeypatch.setattr("statistics_audit.unpaired.confirm_unpaired", alone)
    assert "NOT OK" in {one.verdict for one in rows(220, "joint intervals")}
