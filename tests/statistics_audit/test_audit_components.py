"""Shares of initial values and data order are covered, and intervals of half the length are caught."""

from dataclasses import replace

import numpy as np
import pytest

from lm.stats.components import Components
from lm.stats.components import components as estimate
from statistics_audit import components
from statistics_audit.components import audit_components


def test_shares_are_covered_and_short_intervals_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "TABLES", ((4, 4),))
    assert {one.verdict for one in audit_components(np.random.default_rng(1), 100)} == {"ok"}

    def shortened(values: np.ndarray) -> Components:
        found = estimate(values)
        return replace(
            found, shares=tuple((share, (low + share) / 2, (high + share) / 2) for share, low, high in found.shares)
        )

    monkeypatch.setattr(components, "components", shortened)
    assert "NOT OK" in {one.verdict for one in audit_components(np.random.default_rng(1), 200)}
