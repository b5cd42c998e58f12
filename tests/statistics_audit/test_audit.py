"""The audit finds what is known of the method, and would find a method that is wrong."""

import bisect
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from messages import CheckMessage, RefusedCommand
from rich.console import Console
from scipy import stats
from scipy.optimize import brentq

from lm.analysis.results import load
from lm.stats.power import power
from lm.stats.sequential import sequential
from lm.stats.tests import rate_interval, sign_flip_p, t_interval
from lm.stats.verdicts import Comparison
from statistics_audit import audit as module
from statistics_audit.__main__ import main
from statistics_audit.audit import (
    FULL,
    NOISES,
    Size,
    audit,
    audit_cells,
    audit_equivalence,
    audit_joint,
    audit_null,
    audit_power,
    audit_sequential,
    differences,
    sign_flip_ps,
)
from statistics_audit.finding import RARE, Finding
from statistics_audit.show import all_right, expected, show_audit, to_json
from statistics_audit.texts import audit_discoveries, audit_text_claims, audit_text_power, audit_texts

GOOD = Finding("good", 40, 1000, 0.0, 0.05)
BAD = Finding("bad", 100, 1000, 0.0, 0.05)
SHORT = Finding("short", 850, 1000, 0.93, 1.0, binding=False)


def audits_row(start: str, findings: list[Finding]) -> Finding:
    (found,) = [finding for finding in findings if finding.name.startswith(start)]
    return found


@pytest.mark.parametrize(("count", "n"), [(40, 1), (40, 2), (40, 6), (40, 10), (5000, 3)])
@pytest.mark.parametrize("digits", [1, 9], ids=["ties", "no ties"])
def test_many_samples_at_once_are_tested_as_one_by_one(count: int, n: int, digits: int) -> None:
    samples = np.random.default_rng(n).normal(0.3, 1.0, (count, n)).round(digits)
    assert sign_flip_ps(samples)[-40:].tolist() == [sign_flip_p(sample) for sample in samples[-40:].tolist()]


@pytest.mark.parametrize("name", NOISES)
def test_noise_has_mean_zero_and_symmetric_differences(name: str) -> None:
    noise = NOISES[name]
    assert noise(np.random.default_rng(0), (400_000,)).mean() == pytest.approx(0, abs=0.02)
    pairs = differences(np.random.default_rng(0), noise, noise, (20_000, 1, 1)).ravel()
    assert stats.ks_2samp(pairs[::2], -pairs[1::2]).pvalue > 0.01


def test_arms_share_the_baseline_of_their_experiment() -> None:
    found = differences(np.random.default_rng(0), NOISES["normal"], NOISES["normal"], (5000, 2, 3))
    assert found.shape == (5000, 2, 3)
    assert np.corrcoef(found[:, 0].ravel(), found[:, 1].ravel())[0, 1] == pytest.approx(0.5, abs=0.03)
    assert np.corrcoef(found[:, 0, 0], found[:, 0, 1])[0, 1] == pytest.approx(0.0, abs=0.05)


@pytest.fixture(scope="module")
def findings() -> list[Finding]:
    return audit()


@pytest.mark.extra
def test_every_binding_promise_is_kept(findings: list[Finding]) -> None:
    assert [finding.name for finding in findings if finding.verdict == "NOT OK"] == []
    assert len({finding.name for finding in findings}) == len(findings)
    assert all(low <= finding.found <= high for finding in findings for low, high in [finding.interval])
    assert 2 * RARE * len(findings) < 0.001
    assert json.loads(to_json(findings))["verified"]


@pytest.mark.extra
def test_what_the_method_cannot_do_is_said(findings: list[Finding]) -> None:
    for start in ("the BCa interval covers, normal noise, 6", "false claims, skewed against normal noise, 3 arms, 10"):
        assert audits_row(start, findings).verdict == "falls short"


def test_a_test_at_twice_the_level_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "bonferroni", lambda p: p)
    found = list(audit_null(np.random.default_rng(1), 2_000))
    assert audits_row("false claims, normal noise, 3 arms,", found).verdict == "NOT OK"


@pytest.mark.extra
def test_looking_often_without_paying_for_it_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "sequential", lambda sample, planned, maximum, alpha: sequential(sample, planned, maximum, 0.1)
    )
    found = list(audit_sequential(np.random.default_rng(1), 300, (12,)))
    assert audits_row("false claims, normal noise", found).verdict == "NOT OK"


def test_overstated_power_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_known_spread(n: int, sd: float, alpha: float) -> float:
        return sd * brentq(lambda effect: power(n, effect, 1.0, alpha) - 0.8, 0.0, 100.0)

    monkeypatch.setattr(module, "detectable", at_known_spread)
    rows = list(audit_power(np.random.default_rng(1), 4_000))
    assert [row.verdict for row in rows] == ["NOT OK"] * 4


@pytest.mark.extra
def test_students_test_of_equivalence_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def students(sample: list[float], margin: float) -> float:
        return max(
            float(stats.ttest_1samp(sample, -margin, alternative="greater").pvalue),
            float(stats.ttest_1samp(sample, margin, alternative="less").pvalue),
        )

    monkeypatch.setattr(module, "equivalence_p", students)
    found = list(audit_equivalence(np.random.default_rng(1), 600))
    assert audits_row("false equivalence, skewed downwards noise, 10", found).verdict == "NOT OK"


@pytest.mark.extra
def test_unadjusted_joint_intervals_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def alone(family: list[Comparison]) -> None:
        for one in family:
            one.low, one.high = t_interval(one.differences)

    monkeypatch.setattr(module, "confirm", alone)
    found = list(audit_joint(np.random.default_rng(1), 150))
    assert audits_row("joint intervals cover, normal noise, 7 arms", found).verdict == "NOT OK"


@pytest.mark.parametrize(("share", "ok"), [(0.95, True), (0.925, True), (0.975, True), (0.90, False), (0.99, False)])
def test_promises_break_where_the_interval_lies_outside(share: float, ok: bool) -> None:
    finding = Finding("t", round(4000 * share), 4000, 0.93, 0.97)
    assert finding.ok is ok
    assert finding.verdict == ("ok" if ok else "NOT OK")


@pytest.mark.parametrize("trials", sorted({FULL.tests, FULL.intervals, FULL.sequences}))
def test_promises_tolerate_chance_and_catch_8_percent_errors(trials: int) -> None:
    """Over a whole audit of 250 rows, each as near to its bound as it may be."""
    broken = bisect.bisect(range(trials), False, key=lambda n: Finding("t", n, trials, 0.0, 0.05).verdict != "ok")
    most = broken - 1
    assert 250 * stats.binom.sf(most, trials, 0.05) < 0.001
    assert stats.binom.cdf(most, trials, 0.08) < 0.001


def test_what_goes_together_counts_as_one() -> None:
    alone, together = (Finding("t", 4 * 340, 4 * 400, 0.92, 0.98, each=each) for each in (1, 4))
    assert alone.found == together.found
    assert (alone.verdict, together.verdict) == ("NOT OK", "ok")
    assert together.interval == rate_interval(340, 400, 0.99)


def test_only_a_broken_promise_that_binds_fails_the_audit() -> None:
    assert all_right([GOOD, SHORT])
    assert not all_right([GOOD, SHORT, BAD])


def test_json_holds_all_of_every_finding() -> None:
    counted: Any = np.int64(40)  # as a sum of numpy's comparisons is
    found = json.loads(to_json([replace(GOOD, events=counted), SHORT, BAD]))
    assert found["verified"] is False
    assert [row["verdict"] for row in found["rows"]] == ["ok", "falls short", "NOT OK"]
    assert found["rows"][0] == {
        "name": "good",
        "events": 40,
        "trials": 1000,
        "found": 0.04,
        "low": pytest.approx(GOOD.interval[0]),
        "high": pytest.approx(GOOD.interval[1]),
        "at_least": 0.0,
        "at_most": 0.05,
        "binding": True,
        "each": 1,
        "verdict": "ok",
    }


def test_the_table_shows_findings_and_verdict_counts(check_message: CheckMessage) -> None:
    stream = io.StringIO()
    show_audit([GOOD, SHORT, BAD], Console(file=stream, width=160))
    text = stream.getvalue()
    for finding in (GOOD, SHORT, BAD):
        (line,) = [line for line in text.splitlines() if f" {finding.name} " in line and "│" in line]
        for part in (
            f"{finding.found:.3f}",
            "[{:.3f}, {:.3f}]".format(*finding.interval),
            expected(finding),
            finding.verdict,
        ):
            assert part in line
    check_message(text.splitlines()[-2:])


@pytest.mark.slow
def test_an_arm_against_itself_keeps_the_error_rate(experiment: Any, check_message: CheckMessage) -> None:
    values = np.random.default_rng(1).lognormal(size=24).tolist()
    folder = experiment({"same": values, "few": values[:11]})
    (found,) = audit_cells(load(folder))
    check_message(found.name)
    assert found.verdict == "ok"
    assert 0.02 < found.found <= 0.06


@pytest.mark.extra
def test_intervals_over_seeds_alone_overclaim_on_text() -> None:
    alone, both = (one.events / one.trials for one in list(audit_texts(np.random.default_rng(0), 60))[-2:])
    assert alone > 0.15
    assert both < 0.12


@pytest.mark.extra
def test_claims_over_seeds_and_text_keep_their_promises() -> None:
    found = [*audit_text_claims(np.random.default_rng(0), 60), *audit_text_power(np.random.default_rng(0), 60)]
    assert [one.name for one in found if one.verdict == "NOT OK"] == []


@pytest.mark.extra
def test_q_over_seeds_alone_overclaims_on_text() -> None:
    rows = list(audit_discoveries(np.random.default_rng(0), 150))
    assert [row.verdict for row in rows] == ["falls short", "ok"] * 2
    assert rows[2].found > 0.5 > 0.1 > rows[3].found


@pytest.mark.extra
def test_the_exit_code_reports_broken_promises(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of so few experiments that no promise can be seen to be broken, until nothing is promised."""
    monkeypatch.setattr(module, "SMALL", Size(tests=20, intervals=4, bootstraps=2, sequences=2, ladders=1, draws=20))
    assert main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verified"] is True
    assert main([]) == 0
    assert f"{len(found['rows'])} audits: " in capsys.readouterr().out
    monkeypatch.setattr("statistics_audit.__main__.all_right", lambda _: False)
    assert main([]) == 1


def test_cells_with_too_few_seeds_cannot_be_audited(
    experiment: Callable[..., Path], refused_command: RefusedCommand
) -> None:
    folder = experiment({"base": [2.0, 2.1], "arm": [1.9, 1.8]})
    refused_command(["--cells", folder], main)
