"""What is said over several experiments is put to the test, and intervals that are too short are caught."""

from dataclasses import replace

import numpy as np
import pytest

from lm.stats.meta import OverExperiments
from statistics_audit import experiments
from statistics_audit.audit import paired_noises
from statistics_audit.experiments import NUMBERS, TAUS, audit_experiments, summarise
from statistics_audit.finding import Array, Finding

NORMAL = {"normal": paired_noises()["normal"]}


def verdicts(findings: list[Finding]) -> set[str]:
    return {finding.verdict for finding in findings}


@pytest.mark.extra
def test_false_claims_are_rare_and_another_experiment_is_covered() -> None:
    findings = list(audit_experiments(np.random.default_rng(1), 200, NORMAL))
    assert len(findings) == 2 * len(NUMBERS) * len(TAUS)
    assert verdicts(findings) == {"ok"}


@pytest.mark.extra
def test_intervals_of_half_the_length_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def shortened(differences: Array) -> OverExperiments:
        found = summarise(differences)
        ends = {name: (getattr(found, name) + found.mean) / 2 for name in ("low", "high", "next_low", "next_high")}
        return replace(found, **ends)

    monkeypatch.setattr(experiments, "summarise", shortened)
    monkeypatch.setattr(experiments, "TAUS", (2.0,))
    findings = list(audit_experiments(np.random.default_rng(1), 300, NORMAL))
    assert verdicts([one for one in findings if one.name.startswith("false claims")]) == {"NOT OK"}
