"""Seeds that are added after looks keep their promise, and looks that cost nothing are caught."""

import numpy as np
import pytest

from lm.analysis.answers import decide
from lm.stats.verdicts import confirm
from statistics_audit.audit import NOISES
from statistics_audit.looks import audit_added_seeds, audit_claims_of_added_seeds

NORMAL = {"normal": NOISES["normal"]}


@pytest.mark.extra
def test_looks_that_cost_nothing_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {one.verdict for one in audit_added_seeds(np.random.default_rng(1), 150, NORMAL)} == {"ok"}
    monkeypatch.setattr("statistics_audit.looks.confirm", lambda family, looks: confirm(family))
    assert "NOT OK" in {one.verdict for one in audit_added_seeds(np.random.default_rng(1), 600, NORMAL)}


@pytest.mark.extra
def test_looks_that_cost_a_claim_nothing_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {one.verdict for one in audit_claims_of_added_seeds(np.random.default_rng(1), 150, NORMAL)} == {"ok"}
    monkeypatch.setattr("statistics_audit.looks.decide", lambda claim, numbers, look: decide(claim, numbers))
    assert "NOT OK" in {one.verdict for one in audit_claims_of_added_seeds(np.random.default_rng(1), 600, NORMAL)}
