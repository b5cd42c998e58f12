"""What may be said of the arms of one family, each with its paired differences: tests, corrections, verdicts.

A family is the comparisons that are corrected together: of all its arms, in the headline and the quantities declared
beside it. Each confirmatory one is tested at its share of alpha (Bonferroni), so that any false claim among them is
rare, and its interval is what the test does not reject at that share. So the intervals of a family cover the truth
together, and one leaves out zero exactly where there is a verdict. Holm's test finds more where several arms differ,
but has no such intervals: with an end cut off at zero wherever it alone finds a difference they cover together in only
92 to 94 of 100 experiments in which some arms differ and others do not. The exploratory ones are tested by Benjamini
and Hochberg, so that few of their claims are false.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lm.stats.power import detectable
from lm.stats.sequential import repeated_interval, sequential, stage_alpha
from lm.stats.tests import (
    ALPHA,
    benjamini_hochberg,
    bonferroni,
    bootstrap_interval,
    effect_size,
    equivalence_p,
    holm,
    seeds_needed,
    sign_flip_interval,
    sign_flip_p,
    smallest_p,
    t_interval,
    values_needed,
)

Better = Literal["lower", "higher"] | None
Interval = Literal["plain", "joint", "repeated"]
"""Student's 95 %; the test's own, 95 % for a family together; one that holds at every look, at the share of its arm."""


@dataclass
class Comparison:
    """Paired differences of an arm to the baseline, and what was found in them; NaN for what was not asked.

    `low` and `high` are the interval to show, `plain_low` and `plain_high` Student's 95 %. `detectable` is the smallest
    difference that these seeds would have shown four times in five, at the level of a confirmatory test. `p_adjusted`
    and `q` are p adjusted in a confirmatory and an exploratory family. `level` is the p at which a test in stages finds
    a difference. `p_equivalent` is that of equivalence within the margin, adjusted by Holm or as q is.
    """

    differences: Sequence[float]
    better: Better = None
    margin: float = math.nan
    low: float = math.nan
    high: float = math.nan
    interval: Interval = "plain"
    plain_low: float = math.nan
    plain_high: float = math.nan
    bootstrap_low: float = math.nan
    bootstrap_high: float = math.nan
    effect: float = math.nan
    effect_low: float = math.nan
    effect_high: float = math.nan
    detectable: float = math.nan
    p: float = math.nan
    p_adjusted: float = math.nan
    q: float = math.nan
    level: float = math.nan
    p_equivalent: float = math.nan
    significant: bool = False
    verdict: str = "-"

    @property
    def mean(self) -> float:
        """Mean difference; NaN for none."""
        return float(np.mean(self.differences)) if self.differences else math.nan

    @property
    def direction(self) -> str:
        """Which way the arm lies of the baseline, without a judgement."""
        return "higher" if self.mean > 0 else "lower"

    @property
    def identical(self) -> bool:
        """Whether there are differences, and all are zero."""
        return bool(self.differences) and not any(self.differences)


def plain(differences: Sequence[float], margin: float = math.nan) -> Comparison:
    """Differences with their plain interval, of which nothing is claimed."""
    low, high = t_interval(differences)
    return Comparison(differences, None, margin, low, high, plain_low=low, plain_high=high)


def measure(differences: Sequence[float], better: Better = None, margin: float = math.nan) -> Comparison:
    """The same with what is needed to judge them: p, the bootstrap interval and the effect size."""
    found = plain(differences, margin)
    found.better, found.p = better, sign_flip_p(differences)
    found.bootstrap_low, found.bootstrap_high = bootstrap_interval(differences)
    size = effect_size(differences)
    found.effect, found.effect_low, found.effect_high = size.hedges, size.low, size.high
    return found


def _tested(family: Sequence[Comparison]) -> int:
    """How many comparisons have pairs, and share alpha."""
    return max(1, sum(bool(one.differences) for one in family))


def _could_show(one: Comparison, alpha: float) -> None:
    if len(one.differences) > 1:
        one.detectable = detectable(len(one.differences), float(np.std(one.differences, ddof=1)), alpha)


def _equivalence(family: Sequence[Comparison]) -> list[float]:
    return [math.nan if math.isnan(one.margin) else equivalence_p(one.differences, one.margin) for one in family]


def confirm(family: Sequence[Comparison]) -> None:
    """Judges confirmatory comparisons: sign-flip tests with their joint intervals, and tests of equivalence (Holm)."""
    tested, adjusted = _tested(family), bonferroni([one.p for one in family])
    for one, p, p_equivalent in zip(family, adjusted, holm(_equivalence(family)), strict=True):
        one.p_adjusted, one.p_equivalent, one.significant = p, p_equivalent, p <= ALPHA
        one.interval, (one.low, one.high) = "joint", _joint(one, ALPHA / tested)
        _could_show(one, ALPHA / tested)
        margin = None if math.isnan(one.margin) else one.margin
        one.verdict = verdict(one.mean, p, len(one.differences), tested, one.better, margin, p_equivalent)
        if one.identical:
            one.verdict = "identical"


def _joint(one: Comparison, alpha: float) -> tuple[float, float]:
    """What the test does not reject at its share of alpha.

    Sums that agree but for rounding count as tied in the p, and means of random subsets stand for all of many: zero is
    in the interval as the test has it.
    """
    if one.identical:
        return 0.0, 0.0
    low, high = sign_flip_interval(one.differences, alpha)
    if one.significant and low <= 0 <= high:
        return (math.nextafter(0.0, 1.0), high) if one.mean > 0 else (low, math.nextafter(0.0, -1.0))
    return (low, high) if one.significant else (min(low, 0.0), max(high, 0.0))


def confirm_in_stages(family: Sequence[Comparison], adaptive: Mapping[str, Any]) -> None:
    """Judges confirmatory comparisons whose seeds were added in stages: each has its share of alpha.

    The interval becomes one that holds at every look, at that share. An arm is equivalent where two one-sided sign
    tests say so at what its last look may spend; what all looks spend adds up to its share.
    """
    planned, maximum, alpha = adaptive["looks"], adaptive["maximum"], ALPHA / max(1, len(family))
    for one in family:
        look = sequential(one.differences, planned, maximum, alpha)
        one.interval, (one.low, one.high) = "repeated", repeated_interval(one.differences, planned, maximum, alpha)
        one.p = math.nan
        if look is None:
            one.verdict = f"too early: first look at {planned[0]} seeds" if one.differences else "no pair to compare"
            continue
        one.p, one.level, one.significant = look.p, look.level, look.rejected
        within = False
        if not math.isnan(one.margin):
            one.p_equivalent = equivalence_p(one.differences[: look.pairs], one.margin)
            within = one.p_equivalent <= stage_alpha(look.pairs, planned, maximum, alpha)
        if look.rejected_at is not None:
            said = verdict(one.mean, 0.0, maximum, 1, one.better)
            one.verdict = f"{said} (found at {look.rejected_at} of at most {maximum} seeds)"
            one.verdict += f", but within {one.margin:zg}" if within else ""
        elif within:
            one.verdict = f"equivalent within {one.margin:zg}"
        elif look.pairs < maximum:
            one.verdict = f"undecided after {look.pairs} of at most {maximum} seeds"
        else:
            one.verdict = too_few(maximum, len(family)) if smallest_p(maximum) > alpha else "inconclusive"


def explore(family: Sequence[Comparison]) -> None:
    """Judges exploratory comparisons: q of each, and words that claim nothing; the interval stays the plain one."""
    adjusted, equivalent = benjamini_hochberg([one.p for one in family]), benjamini_hochberg(_equivalence(family))
    for one, q, p_equivalent in zip(family, adjusted, equivalent, strict=True):
        one.q, one.p_equivalent = q, p_equivalent
        one.verdict = f"exploratory: {_explored(one)}"


def _explored(one: Comparison) -> str:
    pairs = len(one.differences)
    if not pairs:
        return "no pair to compare"
    if one.identical:
        return "identical"
    if one.q <= ALPHA:
        return f"{one.direction}, q = {one.q:z.2g}"
    if one.p_equivalent <= ALPHA:
        return f"within {one.margin:zg}, q = {one.p_equivalent:z.2g}"
    if smallest_p(pairs) > ALPHA:
        return f"{pairs} seed{'s' * (pairs != 1)} cannot tell ({seeds_needed(1)} could)"
    return f"inconclusive, q = {one.q:z.2g}"


# in words -------------------------------------------------------------------------------------------------------------


def verdict(
    difference: float,
    p_adjusted: float,
    pairs: int,
    comparisons: int,
    better: str | None,
    margin: float | None = None,
    p_equivalent: float = math.nan,
) -> str:
    """What may be said of a difference, in a few words.

    `p_adjusted` is the sign-flip test's and `p_equivalent` that of equivalence within `margin`, each adjusted over all
    comparisons, so that each kind of claim is wrong anywhere in at most `ALPHA` of all experiments. Neither is believed
    of fewer pairs than such a p takes.

    >>> verdict(-0.02, p_adjusted=0.03125, pairs=6, comparisons=1, better="lower")
    'better'
    >>> verdict(-0.02, p_adjusted=0.125, pairs=4, comparisons=1, better="lower")
    '4 seeds cannot reach significance (6 could)'
    """
    if pairs == 0 or math.isnan(difference):
        return "no pair to compare"
    equivalent = margin is not None and p_equivalent <= ALPHA and pairs >= values_needed()
    within = f"within {margin:zg}" if equivalent else ""
    if p_adjusted <= ALPHA and smallest_p(pairs) <= ALPHA:
        return _direction(difference, better) + (f", but {within}" if within else "")
    if within:
        return f"equivalent {within}"
    if smallest_p(pairs) > ALPHA / max(1, comparisons):
        return too_few(pairs, comparisons)
    return "inconclusive"


def too_few(pairs: int, comparisons: int = 1) -> str:
    """That no difference could be found in so few pairs, and how many could do."""
    return f"{pairs} seed{'s' * (pairs != 1)} cannot reach significance ({seeds_needed(comparisons)} could)"


def _direction(difference: float, better: str | None) -> str:
    if better is None:
        return "higher" if difference > 0 else "lower"
    return "better" if (difference < 0) == (better == "lower") else "worse"
