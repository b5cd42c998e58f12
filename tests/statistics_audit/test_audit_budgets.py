"""What is said of arms over the budget is put to the test, and what claims too much, or nothing, is caught."""

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lm.analysis.budgets import AtBudget, over_budget, verdict_over_budget
from lm.analysis.results import load
from lm.stats.verdicts import Comparison, Verdict, confirm
from statistics_audit import budgets as module
from statistics_audit.audit import NOISES
from statistics_audit.budgets import (
    ALWAYS,
    AT_THE_END,
    DESIGNS,
    EVERYWHERE,
    OPEN,
    PERCENTS,
    audit_budget_power,
    audit_budget_texts,
    audit_budgets,
    drawn,
    faded,
    judged,
    led,
)
from statistics_audit.finding import Finding

pytestmark = pytest.mark.slow


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Finding]]:
    """Audits independent shares of one design under normal noise; the rows by the first word of their names."""

    def run(experiments: int, design: tuple[int, int] = (1, 8)) -> dict[str, Finding]:
        monkeypatch.setattr(module, "DESIGNS", (design,))
        findings = audit_budgets(np.random.default_rng(1), experiments, {"normal": NOISES["normal"]}, (0.0,))
        return {finding.name.partition(" over the budget")[0]: finding for finding in findings}

    return run


CLAIMS, COVER = "false claims", "joint intervals cover"
EARLY, KEPT = "a lead at the end is dated earlier", "a lead that fades is claimed at the end"


def test_arms_are_judged_as_the_report_judges_them(budgeted: Callable[..., Path]) -> None:
    """Down to the words, of arms of which one leads at every share, one at the last, and one never."""
    leads = np.array([[4.0, 4.0, 4.0], [0.0, 0.0, 4.0], [0.0, 0.0, 0.0]])
    sample = drawn(np.random.default_rng(0), NOISES["normal"], 3, 10, 0.5) - leads[:, :, None]
    base = [20.0 + 0.1 * seed for seed in range(sample.shape[2])]
    cells_by_percent = {
        percent: {"base": base, **{f"arm{arm}": (base + of_arm[at]).tolist() for arm, of_arm in enumerate(sample)}}
        for at, percent in enumerate(PERCENTS)
    }
    of_report = list(over_budget(load(budgeted(cells_by_percent, PERCENTS[:-1]))).values())
    of_audit = judged(sample)
    assert [verdict_over_budget(of_arm) for of_arm in of_audit] == [EVERYWHERE, AT_THE_END, OPEN]
    assert list(map(verdict_over_budget, of_report)) == list(map(verdict_over_budget, of_audit))
    for mine, theirs in zip(chain(*of_audit), chain(*of_report), strict=True):
        assert (mine.percent, mine.direction) == (theirs.percent, theirs.direction)
        assert mine.comparison.interval == theirs.comparison.interval == "joint"
        for field in ("p", "p_adjusted", "low", "high"):
            assert getattr(mine.comparison, field) == pytest.approx(getattr(theirs.comparison, field))


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        (("inconclusive", "inconclusive", "inconclusive"), OPEN),
        (("inconclusive", "inconclusive", "better"), AT_THE_END),
        (("better", "better", "better"), EVERYWHERE),
        (("better", "inconclusive", "inconclusive"), faded(25)[0]),
        (("inconclusive", "better", "inconclusive"), faded(50)[0]),
        (("better", "better", "inconclusive"), faded(25, 50)[2]),
    ],
)
def test_verdicts_have_the_words_that_are_counted(kinds: tuple[Any, ...], words: str) -> None:
    of_arm = [
        AtBudget(at, Comparison([0.0], verdict=Verdict(kind)), "") for at, kind in zip(PERCENTS, kinds, strict=True)
    ]
    assert verdict_over_budget(of_arm) == words


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.95])
def test_shares_are_correlated_and_arms_share_a_baseline(correlation: float) -> None:
    difference_abs = drawn(np.random.default_rng(0), NOISES["normal"], 2, 20_000, correlation)
    table = np.asarray(np.corrcoef(difference_abs.reshape(2 * len(PERCENTS), -1)))
    assert table[0, 1:3] == pytest.approx([correlation] * 2, abs=0.03)
    assert table[0, 3:] == pytest.approx([0.5, correlation / 2, correlation / 2], abs=0.03)
    assert difference_abs.mean(axis=2) == pytest.approx(0, abs=0.05)
    assert difference_abs.var(axis=2) == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("design", DESIGNS)
def test_verdicts_over_the_budget_keep_their_promises(
    rows: Callable[..., dict[str, Finding]], design: tuple[int, int]
) -> None:
    findings = rows(100, design)
    assert list(findings) == [CLAIMS, COVER, EARLY, KEPT]
    assert {finding.verdict for finding in findings.values()} == {"ok"}
    assert all(finding.binding for finding in findings.values())


def test_differences_that_are_tested_one_by_one_are_caught(
    rows: Callable[..., dict[str, Finding]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def alone(family: Sequence[Comparison], look: int) -> None:
        for comparison in family:
            confirm([comparison], look)

    monkeypatch.setattr("lm.analysis.budgets.confirm", alone)
    findings = rows(80, (3, 10))
    assert {findings[name].verdict for name in (CLAIMS, COVER)} == {"NOT OK"}


def test_corrections_over_arms_that_omit_shares_are_caught(
    rows: Callable[..., dict[str, Finding]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_share(family: Sequence[Comparison], look: int) -> None:
        for start in range(len(PERCENTS)):
            confirm(family[start :: len(PERCENTS)], look)

    monkeypatch.setattr("lm.analysis.budgets.confirm", by_share)
    findings = rows(400)
    assert {findings[name].verdict for name in (CLAIMS, COVER)} == {"NOT OK"}


def test_verdicts_that_overlook_a_share_are_caught(
    rows: Callable[..., dict[str, Finding]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that dates every lead to the beginning, and one that keeps every lead to the end."""

    def always(of_arm: list[AtBudget]) -> str:
        return EVERYWHERE if any(at.direction for at in of_arm) else OPEN

    monkeypatch.setattr(module, "verdict_over_budget", always)
    findings = rows(40)
    assert {findings[name].verdict for name in (EARLY, KEPT)} == {"NOT OK"}


def test_intervals_that_leave_out_the_text_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DESIGNS", ((1, 8),))
    monkeypatch.setattr(module, "TEXT_RATIOS", {"twice": 2.0})
    assert {finding.verdict for finding in audit_budget_texts(np.random.default_rng(1), 40)} == {"ok"}
    monkeypatch.setattr("lm.analysis.budgets.cover_texts", lambda *_: None)
    assert {finding.verdict for finding in audit_budget_texts(np.random.default_rng(1), 40)} == {"NOT OK"}


def test_a_test_that_finds_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DESIGNS", ((1, 8),))
    too_few, enough = (audit_budget_power(np.random.default_rng(1), 40, NOISES["normal"]) for _ in range(2))
    assert {finding.verdict for finding in too_few} == {"ok"}
    monkeypatch.setattr(module, "sign_flip_p", lambda _: 1.0)
    findings = [finding for finding in enough if finding.name.startswith("finds")]
    assert [finding.verdict for finding in findings] == ["NOT OK"] * 4


def test_a_clear_lead_is_found_after_every_share() -> None:
    sample = led(drawn(np.random.default_rng(0), NOISES["normal"], 1, 8, 0.0), ALWAYS)
    assert [at.direction for at in judged(sample)[0]] == ["better"] * 3
