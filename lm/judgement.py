"""What may be said of the arms of one family, each with its paired differences: tests, corrections, verdicts.

A family is the arms whose comparisons are corrected together. The confirmatory ones are tested by Holm, so that any
false claim among them is rare; the exploratory ones by Benjamini and Hochberg, so that few of their claims are false.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lm.sequential import repeated_interval, sequential
from lm.statistics import (
    ALPHA,
    attainable,
    benjamini_hochberg,
    bootstrap_interval,
    detectable,
    effect_size,
    equivalence_p,
    holm,
    seeds_needed,
    sign_flip_p,
    smallest_p,
    t_interval,
    verdict,
)

Better = Literal["lower", "higher"] | None


@dataclass
class Comparison:
    """Paired differences of an arm to the baseline, and what was found in them; NaN for what was not asked.

    `detectable` is the smallest difference that these seeds would have shown four times in five, as the test is
    corrected. `p_holm` and `q` are p adjusted in a confirmatory and an exploratory family. `level` is the p at which a
    test in stages finds a difference. `p_equivalent` is that of equivalence within the margin, adjusted as p is.
    """

    differences: Sequence[float]
    low: float = math.nan
    high: float = math.nan
    bootstrap_low: float = math.nan
    bootstrap_high: float = math.nan
    effect: float = math.nan
    effect_low: float = math.nan
    effect_high: float = math.nan
    detectable: float = math.nan
    p: float = math.nan
    p_holm: float = math.nan
    q: float = math.nan
    level: float = math.nan
    p_equivalent: float = math.nan
    significant: bool = False
    verdict: str = "baseline"

    @property
    def mean(self) -> float:
        """Mean difference; NaN for none."""
        return float(np.mean(self.differences)) if self.differences else math.nan

    @property
    def direction(self) -> str:
        """Which way the arm lies of the baseline, without a judgement."""
        return "higher" if self.mean > 0 else "lower"


def measure(differences: Sequence[float], family: int, closely: bool = True) -> Comparison:
    """Intervals and exact p of differences, one of `family` that are corrected together.

    Only `closely` are the bootstrap interval and the effect size found too, which take a tenth of a second.
    """
    found = Comparison(differences, *t_interval(differences), p=sign_flip_p(differences))
    if closely:
        found.bootstrap_low, found.bootstrap_high = bootstrap_interval(differences)
        size = effect_size(differences)
        found.effect, found.effect_low, found.effect_high = size.hedges, size.low, size.high
    if len(differences) > 1:
        spread = float(np.std(differences, ddof=1))
        found.detectable = detectable(len(differences), spread, attainable(len(differences), ALPHA / max(1, family)))
    return found


def _equivalence(family: Sequence[Comparison], margin: float | None) -> list[float]:
    return [math.nan if margin is None else equivalence_p(one.differences, margin) for one in family]


def confirm(family: Sequence[Comparison], better: Better, margin: float | None) -> None:
    """Judges confirmatory comparisons: sign-flip tests and tests of equivalence, each Holm-adjusted."""
    adjusted, equivalent = holm([one.p for one in family]), holm(_equivalence(family, margin))
    for one, p, p_equivalent in zip(family, adjusted, equivalent, strict=True):
        one.p_holm, one.p_equivalent, one.significant = p, p_equivalent, p <= ALPHA
        one.verdict = verdict(one.mean, p, len(one.differences), len(family), better, margin, p_equivalent)
        if one.differences and not any(one.differences):
            one.verdict = "identical"


def confirm_in_stages(
    family: Sequence[Comparison], better: Better, margin: float | None, adaptive: Mapping[str, Any]
) -> None:
    """Judges confirmatory comparisons whose seeds were added in stages: each arm has its share of alpha.

    The interval becomes one that holds at every look. An arm is equivalent where one of its share of alpha lies within
    the margin, which holds at every look too.
    """
    planned, maximum, alpha = adaptive["looks"], adaptive["maximum"], ALPHA / max(1, len(family))
    for one in family:
        look = sequential(one.differences, planned, maximum, alpha)
        one.low, one.high = repeated_interval(one.differences, planned, maximum)
        one.p = math.nan
        if look is None:
            one.verdict = f"too early: first look at {planned[0]} seeds" if one.differences else "no pair to compare"
            continue
        one.p, one.level, one.significant = look.p, look.level, look.rejected
        low, high = repeated_interval(one.differences, planned, maximum, alpha)
        within = margin is not None and -margin < low <= high < margin
        if look.rejected_at is not None:
            said = verdict(one.mean, 0.0, maximum, 1, better)
            one.verdict = f"{said} (found at {look.rejected_at} of at most {maximum} seeds)"
            one.verdict += f", but within {margin:zg}" if within else ""
        elif within:
            one.verdict = f"equivalent within {margin:zg}"
        elif look.pairs < maximum:
            one.verdict = f"undecided after {look.pairs} of at most {maximum} seeds"
        else:
            one.verdict = "inconclusive"


def explore(family: Sequence[Comparison], margin: float | None) -> None:
    """Judges exploratory comparisons: q of each, and words that claim nothing."""
    adjusted, equivalent = benjamini_hochberg([one.p for one in family]), _equivalence(family, margin)
    for one, q, p_equivalent in zip(family, adjusted, benjamini_hochberg(equivalent), strict=True):
        one.q, one.p_equivalent = q, p_equivalent
        one.verdict = f"exploratory: {_explored(one, margin)}"


def _explored(one: Comparison, margin: float | None) -> str:
    pairs = len(one.differences)
    if not pairs:
        return "no pair to compare"
    if not any(one.differences):
        return "identical"
    if one.q <= ALPHA:
        return f"{one.direction}, q = {one.q:z.2g}"
    if margin is not None and one.p_equivalent <= ALPHA:
        return f"within {margin:zg}, q = {one.p_equivalent:z.2g}"
    if smallest_p(pairs) > ALPHA:
        return f"{pairs} seed{'s' * (pairs != 1)} cannot tell ({seeds_needed(1)} could)"
    return f"inconclusive, q = {one.q:z.2g}"
