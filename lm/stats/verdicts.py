"""Verdicts on the arms of one family from their paired differences: tests, corrections, intervals.

A family is the comparisons that are corrected together. Each confirmatory one is tested at its share of alpha
(Bonferroni), and its interval is what the test does not reject: Holm's test finds more, but has no such intervals. The
exploratory ones are tested by Benjamini and Hochberg.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from lm.stats import tests
from lm.stats.power import detectable
from lm.stats.sequential import (
    anytime_interval,
    anytime_p,
    anytime_pairs_needed,
    anytime_sign_p,
    left_after,
    repeated_interval,
    sequential,
    stage_alpha,
)
from lm.stats.tests import ALPHA, smallest_p

Better = Literal["lower", "higher"] | None
Interval = Literal["plain", "joint", "repeated", "seeds-and-text"]
"""Student's 95 %; the test's own, 95 % for a family together; one that holds at every look, at the share of its arm;
one that holds on other text too."""

Unclaimed = Literal["not judged", "baseline", "no pair", "no runs", "identical", "too few", "too early", "undecided"]
Direction = Literal["better", "worse", "higher", "lower"]
# Kind of verdict; `seeds only`: found over seeds, not over documents; `choice`: found at the learning rates that were
# chosen, which may not be the best. In stages it is too early before the first look, and undecided between two.
Kind = Literal[Unclaimed, Direction, "equivalent", "inconclusive", "seeds only", "choice"]
DIRECTIONS = ("better", "worse", "higher", "lower")


@dataclass(frozen=True)
class Verdict:
    """Outcome of a comparison, without wording.

    `pairs` it rests on: in stages those at which the difference was found, or the last look; the runs of the arm where
    runs are not paired, and `against` those of the baseline. `needed` pairs could say more: the first look if too
    early, else in stages the most there may be. `within` is the margin within which the difference lies, besides what
    `kind` says, and `q` the adjusted p of an exploratory verdict; NaN for others.
    """

    kind: Kind
    pairs: int = 0
    needed: int = 0
    within: float = math.nan
    q: float = math.nan
    staged: bool = False
    exploratory: bool = False
    against: int = 0


@dataclass
class Comparison:
    """Paired differences of an arm to the baseline and their statistics; NaN for those not computed.

    `low` and `high` are the interval to show, `plain_low` and `plain_high` Student's 95 %. `detectable` is the smallest
    difference that these seeds, and where the interval covers text this text, would have shown four times in five;
    `detectable_floor` is what more seeds do not lower. `p_adjusted` and `q` are p adjusted in a confirmatory and an
    exploratory family. `level` is the p at which a test in stages finds a difference. `p_equivalent` is that of
    equivalence within the margin, adjusted by Holm or as q is. `p_both` and `p_equivalent_both` are over seeds and
    text, not adjusted.
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
    detectable_floor: float = math.nan
    p: float = math.nan
    p_both: float = math.nan
    p_adjusted: float = math.nan
    q: float = math.nan
    level: float = math.nan
    p_equivalent: float = math.nan
    p_equivalent_both: float = math.nan
    significant: bool = False
    verdict: Verdict = Verdict("not judged")

    @property
    def mean(self) -> float:
        """Mean difference; NaN for none."""
        return float(np.mean(self.differences)) if self.differences else math.nan

    @property
    def identical(self) -> bool:
        """True if all differences are zero, and there are some."""
        return bool(self.differences) and not any(self.differences)


def cover_choice(comparison: Comparison, below: float, above: float) -> None:
    """Widen an interval by what a choice made on other seeds leaves open, and withdraw claims that go beyond it."""
    if (below or above) and comparison.differences:
        comparison.low, comparison.high = comparison.low - below, comparison.high + above
        withdraw(comparison, comparison.low, comparison.high, "choice")


def hold_too(comparison: Comparison, other: Comparison, lower: bool) -> None:
    """Reach as far down, or up, as another comparison that may be the true one, and withdraw what that does not show.

    An intersection-union test (Berger 1982, Technometrics 24:295): a claim stands where each of these comparisons makes
    it, tested alone. Equivalence is withdrawn only at the end in question, where neither its test nor the interval
    shows it.
    """
    if not comparison.differences:
        return
    if lower:
        comparison.low = min(comparison.low, other.low)
    else:
        comparison.high = max(comparison.high, other.high)
    verdict, threatened = comparison.verdict, (comparison.mean > 0) == lower
    if verdict.kind in DIRECTIONS and threatened and other.verdict.kind != verdict.kind:
        comparison.significant, verdict = False, replace(verdict, kind="choice")
    within = other.low > -comparison.margin if lower else other.high < comparison.margin
    if not within and math.isnan(other.verdict.within):
        kind = "inconclusive" if verdict.kind == "equivalent" else verdict.kind
        verdict = replace(verdict, kind=kind, within=math.nan)
    comparison.verdict = verdict
    for name in ("p", "p_both", "p_adjusted", "q") if threatened else ():
        setattr(comparison, name, max(getattr(comparison, name), getattr(other, name)))


def withdraw(comparison: Comparison, low: float, high: float, kind: Kind) -> None:
    """Withdraw equivalence beyond an interval, and a direction where that of the comparison holds 0, then `kind`."""
    verdict = comparison.verdict
    if not -comparison.margin < low <= high < comparison.margin:
        without = "inconclusive" if verdict.kind == "equivalent" else verdict.kind
        verdict = replace(verdict, within=math.nan, kind=without)
    if verdict.kind in DIRECTIONS and comparison.low <= 0 <= comparison.high:
        comparison.significant = False
        verdict = replace(verdict, kind=kind)
    comparison.verdict = verdict


def plain(differences: Sequence[float], margin: float = math.nan) -> Comparison:
    """Describe differences by their plain interval, without a test."""
    low, high = tests.t_interval(differences)
    return Comparison(differences, None, margin, low, high, plain_low=low, plain_high=high)


def measure(differences: Sequence[float], better: Better = None, margin: float = math.nan) -> Comparison:
    """Describe differences with p, bootstrap interval and effect size."""
    comparison = plain(differences, margin)
    comparison.better, comparison.p = better, tests.sign_flip_p(differences)
    comparison.bootstrap_low, comparison.bootstrap_high = tests.bootstrap_interval(differences)
    size = tests.effect_size(differences)
    comparison.effect, comparison.effect_low, comparison.effect_high = size.hedges, size.low, size.high
    return comparison


def _equivalence(family: Sequence[Comparison], look: int = 0) -> list[float]:
    of_signs = {"test": anytime_sign_p} if look else {}
    return [
        math.nan if math.isnan(each.margin) else tests.equivalence_p(each.differences, each.margin, **of_signs)
        for each in family
    ]


def confirm(family: Sequence[Comparison], look: int = 0, compared: int | None = None) -> None:
    """Judge confirmatory comparisons: sign-flip tests with joint intervals, and tests of equivalence (Holm).

    After a first `look` at so many pairs, by tests that hold at any time, at what this look left of alpha;
    `compared` comparisons shared it then, as many as now unless it is said.
    """
    count, with_margin = len(family), sum(not math.isnan(comparison.margin) for comparison in family)
    alpha, alpha_equivalent = left_after(look, compared or count), left_after(look, with_margin, 1, True)
    equivalence = tests.holm(_as_of_alpha(_equivalence(family, look), alpha_equivalent), with_margin)
    interval = anytime_interval if look else tests.sign_flip_interval
    _set_anytime_p(family, look)
    intervals = [interval(each.differences, alpha / count) for each in family]
    set_joint(family, intervals, _as_of_alpha([each.p for each in family], alpha))
    for comparison, p_equivalent in zip(family, equivalence, strict=True):
        pairs, comparison.p_equivalent = len(comparison.differences), p_equivalent
        if pairs > 1 and not look:
            comparison.detectable = detectable(pairs, float(np.std(comparison.differences, ddof=1)), ALPHA / count)
        comparison.interval = "repeated" if look else "joint"
        comparison.verdict = verdict(comparison, count, alpha)
        if look and comparison.verdict.kind == "too few":
            comparison.verdict = replace(comparison.verdict, needed=anytime_pairs_needed(alpha / count))
        if comparison.identical:
            comparison.verdict = Verdict("identical", pairs)


def _set_anytime_p(family: Sequence[Comparison], look: int) -> None:
    for comparison in family if look else ():
        comparison.p = anytime_p(comparison.differences)


def _as_of_alpha(p_values: Sequence[float], alpha: float) -> list[float]:
    """Return p values that are at most `ALPHA` where these are at most the `alpha` left by a look; NaN stays NaN."""
    return [p if p <= 0 or math.isnan(p) else min(1.0, p * (ALPHA / alpha)) for p in p_values]


def set_joint(
    family: Sequence[Comparison], intervals: Sequence[tuple[float, float]], p_values: Sequence[float] | None = None
) -> None:
    """Set p at Bonferroni's share of alpha, what it finds, and the joint intervals, given at the same share."""
    adjusted = tests.bonferroni([comparison.p for comparison in family] if p_values is None else p_values)
    for comparison, p, ends in zip(family, adjusted, intervals, strict=True):
        comparison.p_adjusted, comparison.significant, comparison.interval = p, p <= ALPHA, "joint"
        comparison.low, comparison.high = _align_interval_with_test(comparison, *ends)


def _align_interval_with_test(comparison: Comparison, low: float, high: float) -> tuple[float, float]:
    """Adjust an interval to leave out zero exactly where the test, for which rounded sums tie, found a difference."""
    if comparison.identical:
        return 0.0, 0.0
    if comparison.significant and low <= 0 <= high:
        return (math.nextafter(0.0, 1.0), high) if comparison.mean > 0 else (low, math.nextafter(0.0, -1.0))
    return (low, high) if comparison.significant else (min(low, 0.0), max(high, 0.0))


def confirm_in_stages(family: Sequence[Comparison], adaptive: Mapping[str, Any]) -> None:
    """Judge confirmatory comparisons whose seeds were added in stages, each at its share of alpha, at every look.

    An arm is equivalent where two one-sided sign tests say so at what its last look may spend. Pairs beyond it wait.
    """
    planned, maximum, alpha = adaptive["looks"], adaptive["maximum"], ALPHA / max(1, len(family))
    for comparison in family:
        look = sequential(comparison.differences, planned, maximum, alpha)
        comparison.low, comparison.high = repeated_interval(comparison.differences, planned, maximum, alpha)
        comparison.interval, comparison.p = "repeated", math.nan
        if look is None:
            early = Verdict("too early", len(comparison.differences), planned[0], staged=True)
            comparison.verdict = early if comparison.differences else Verdict("no pair")
            continue
        comparison.p, comparison.level, comparison.significant = look.p, look.level, look.rejected
        comparison.differences = comparison.differences[: look.pairs]
        if not math.isnan(comparison.margin):
            comparison.p_equivalent = tests.equivalence_p(comparison.differences, comparison.margin)
        within = comparison.p_equivalent <= stage_alpha(look.pairs, planned, maximum, alpha)
        kind: Kind = "too few" if smallest_p(maximum) > alpha else "inconclusive"
        if look.rejected_at is not None:
            kind = direction(float(np.mean(comparison.differences[: look.rejected_at])), comparison.better)
        elif comparison.identical:
            kind = "identical"
        elif within or look.pairs < maximum:
            kind = "equivalent" if within else "undecided"
        needed = tests.seeds_needed(len(family)) if kind == "too few" else maximum
        margin = comparison.margin if within and not comparison.identical else math.nan
        comparison.verdict = Verdict(kind, look.rejected_at or look.pairs, needed, margin, staged=True)


def explore(family: Sequence[Comparison], look: int = 0) -> None:
    """Judge exploratory comparisons by Benjamini and Hochberg's q; the interval stays the plain one.

    q is over the larger of p over seeds and p over seeds and text: over seeds alone 10 of 100 are false on other text.
    After a first `look` at so many pairs they are tested as `confirm` does.
    """
    alpha, alpha_equivalent = (left_after(look, len(family), sides, True) for sides in (2, 1))
    _set_anytime_p(family, look)
    p_seeds, p_equivalent_seeds = [comparison.p for comparison in family], _equivalence(family, look)
    p_both = [_larger(p, each.p_both) for p, each in zip(p_seeds, family, strict=True)]
    p_equivalent = [_larger(p, each.p_equivalent_both) for p, each in zip(p_equivalent_seeds, family, strict=True)]
    q_seeds, q_both = (tests.benjamini_hochberg(_as_of_alpha(p_values, alpha)) for p_values in (p_seeds, p_both))
    q_equivalent = tests.benjamini_hochberg(_as_of_alpha(p_equivalent, alpha_equivalent))
    for comparison, of_seeds, q, equivalent in zip(family, q_seeds, q_both, q_equivalent, strict=True):
        comparison.q, comparison.p_equivalent, pairs = q, equivalent, len(comparison.differences)
        judged = Verdict("inconclusive", pairs, q=q)
        if not pairs or comparison.identical:
            judged = Verdict("identical" if pairs else "no pair", pairs)
        elif q <= ALPHA:
            judged = replace(judged, kind=direction(comparison.mean, None))
        elif equivalent <= ALPHA:
            judged = Verdict("equivalent", pairs, within=comparison.margin, q=equivalent)
        elif of_seeds <= ALPHA:
            judged = replace(judged, kind="seeds only")
        elif smallest_p(pairs) > alpha:
            needed = anytime_pairs_needed(alpha) if look else tests.seeds_needed(1)
            judged = Verdict("too few", pairs, needed)
        comparison.verdict = replace(judged, exploratory=True)


def _larger(p_seeds: float, p_both: float) -> float:
    """Return the larger p of two tests that have to agree; the first where the second is NaN."""
    return p_seeds if math.isnan(p_both) else max(p_seeds, p_both)


def verdict(comparison: Comparison, comparisons: int, alpha: float = ALPHA) -> Verdict:
    """Judge one of so many comparisons by its adjusted p and its p of equivalence; `alpha` is what a look left.

    Each kind of claim is wrong anywhere in at most `ALPHA` of all experiments, as each p is adjusted over all
    comparisons. Neither is believed of fewer pairs than such a p takes.
    """
    pairs = len(comparison.differences)
    if math.isnan(comparison.mean):
        return Verdict("no pair")
    equivalent = comparison.p_equivalent <= ALPHA and pairs >= tests.values_needed()
    within = comparison.margin if equivalent else math.nan
    if comparison.p_adjusted <= ALPHA and smallest_p(pairs) <= ALPHA:
        return Verdict(direction(comparison.mean, comparison.better), pairs, within=within)
    if equivalent:
        return Verdict("equivalent", pairs, within=within)
    if smallest_p(pairs) > alpha / max(1, comparisons):
        return Verdict("too few", pairs, tests.seeds_needed(comparisons, alpha))
    return Verdict("inconclusive", pairs)


def direction(difference: float, better: Better) -> Kind:
    """Name the direction of a significant difference: better or worse, else higher or lower."""
    if better is None:
        return "higher" if difference > 0 else "lower"
    return "better" if (difference < 0) == (better == "lower") else "worse"
