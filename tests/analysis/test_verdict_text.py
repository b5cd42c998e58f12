"""Verdicts in words: better and worse for whoever reads them."""

import math

import pytest

from lm.analysis.verdict_text import brief_verdict, display_verdict


@pytest.mark.parametrize(
    ("verdict", "metric", "text"),
    [
        ("better (on 5 of 6 seeds; 1 diverged)", "nll", "better (on 5 of 6 seeds; 1 diverged)"),
        ("exploratory: lower, q = 0.0059", "nll", "better (exploratory, q=.006)"),
        ("exploratory: lower, q = 1", "accuracy", "worse (exploratory, q=1.000)"),
        ("exploratory: higher, q = 1e-05 (arm unhealthy: x)", "nll", "worse (exploratory, q=.000; arm unhealthy: x)"),
        ("exploratory: higher, q = 0.01", "nll~3", "worse (exploratory, q=.010)"),
        ("exploratory: higher, q = 0.01", "parameters", "higher (exploratory, q=.010)"),
        ("exploratory: 3 seeds cannot tell (6 could)", "nll", "3 seeds cannot tell (exploratory; 6 could)"),
        ("higher", "parameters", "higher"),
    ],
)
def test_verdicts_on_directed_quantities_begin_with_better_or_worse(verdict: str, metric: str, text: str) -> None:
    assert display_verdict(verdict, metric) == text


@pytest.mark.parametrize(
    ("verdict", "metric", "difference", "text"),
    [
        ("better", "nll", -0.0504, "better by 0.050"),
        ("worse, but within 0.02", "nll", 0.0144, "worse by 0.014, but within 0.02"),
        ("better (found at 6 of at most 8 seeds), but within 0.02", "nll", -0.01, "better by 0.010, but within 0.02"),
        ("exploratory: lower, q = 0.0059", "nll", -0.0504, "better by 0.050, exploratory"),
        ("exploratory: lower, q = 0.0059", "accuracy", -0.0072, "worse by 0.0072, exploratory"),
        ("exploratory: higher, q = 0.0059", "parameters", 1234.0, "higher by 1,234, exploratory"),
        ("exploratory: within 0.02, q = 0.0059", "nll", 0.0054, "equal within 0.02, exploratory"),
        ("equivalent within 0.02", "nll", 0.0054, "equal within 0.02"),
        ("better", "nll", -0.00001, "better by 1e-05"),
        ("better (on 5 of 6 seeds; 1 diverged)", "nll", -0.05, "better by 0.050, on 5 of 6 seeds"),
        ("worse (relu unhealthy: dead layer)", "nll", 0.05, "worse by 0.050, unhealthy"),
        ("inconclusive (on 5 of 6 seeds; 1 failed)", "nll", 0.05, "inconclusive, on 5 of 6 seeds"),
        ("inconclusive: found over seeds, not over texts", "nll", 0.05, "found over seeds, not over texts"),
        ("4 seeds cannot reach significance (6 could)", "nll", 0.05, "4 seeds cannot reach significance"),
        ("not comparable: tokenizers differ", "nll", 0.05, "not comparable: tokenizers differ"),
        ("no pair to compare (3 diverged)", "nll", math.nan, "no pair to compare"),
        ("baseline", "nll", math.nan, "baseline"),
    ],
)
def test_a_brief_verdict_names_direction_and_size(verdict: str, metric: str, difference: float, text: str) -> None:
    assert brief_verdict(verdict, metric, difference) == text
