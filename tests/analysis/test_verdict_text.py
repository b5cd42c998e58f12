"""Verdicts in words: better and worse for whoever reads them."""

import math

import pytest
from messages import CheckMessage

from lm.analysis.verdict_text import brief_verdict, display_verdict


@pytest.mark.parametrize(
    ("verdict", "metric"),
    [
        ("better (on 5 of 6 seeds; 1 diverged)", "nll"),
        ("exploratory: lower, q = 0.0059", "nll"),
        ("exploratory: lower, q = 1", "accuracy"),
        ("exploratory: higher, q = 1e-05 (arm unhealthy: x)", "nll"),
        ("exploratory: higher, q = 0.01", "nll~3"),
        ("exploratory: higher, q = 0.01", "parameters"),
        ("exploratory: 3 seeds cannot tell (6 could)", "nll"),
        ("higher", "parameters"),
    ],
)
def test_verdicts_on_directed_quantities_begin_with_better_or_worse(
    verdict: str, metric: str, check_message: CheckMessage
) -> None:
    check_message(display_verdict(verdict, metric))


@pytest.mark.parametrize(
    ("verdict", "metric", "difference"),
    [
        ("better", "nll", -0.0504),
        ("worse, but within 0.02", "nll", 0.0144),
        ("better (found at 6 of at most 8 seeds), but within 0.02", "nll", -0.01),
        ("exploratory: lower, q = 0.0059", "nll", -0.0504),
        ("exploratory: lower, q = 0.0059", "accuracy", -0.0072),
        ("exploratory: higher, q = 0.0059", "parameters", 1234.0),
        ("exploratory: within 0.02, q = 0.0059", "nll", 0.0054),
        ("equivalent within 0.02", "nll", 0.0054),
        ("better", "nll", -0.00001),
        ("better (on 5 of 6 seeds; 1 diverged)", "nll", -0.05),
        ("worse (relu unhealthy: dead layer)", "nll", 0.05),
        ("inconclusive (on 5 of 6 seeds; 1 failed)", "nll", 0.05),
        ("inconclusive: found over seeds, not over documents", "nll", 0.05),
        ("4 seeds cannot reach significance (6 could)", "nll", 0.05),
        ("not comparable: tokenizers differ", "nll", 0.05),
        ("no pair to compare (3 diverged)", "nll", math.nan),
        ("baseline", "nll", math.nan),
    ],
)
def test_a_brief_verdict_names_direction_and_size(
    verdict: str, metric: str, difference: float, check_message: CheckMessage
) -> None:
    check_message(brief_verdict(verdict, metric, difference))
