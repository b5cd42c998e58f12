"""Verdicts on the claims of an experiment, at 5 % each, by as few seeds as can answer at that level.

A claim of less or greater is one of the mean over seeds, and has an exact sign-flip test. A claim of a range, a slope
or an equivalence is one of the median, and has a sign test at each end. Of several arms in a loss that is kept by
document, Student's test over seeds and documents has to agree; the interval holds both, and p is the larger.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from lm.analysis.claims import Claim, by_seed, seen_seeds
from lm.analysis.compare import LOST
from lm.analysis.rates import at_all_rivals, at_rivals, regret_bounds, without_best_rate
from lm.analysis.results import Records
from lm.analysis.texts import LOSS_OF, DocumentCache, generalises, noise_over_texts
from lm.analysis.tidy import status_of
from lm.analysis.verdict_text import seed_ranges
from lm.config.tree import InputError
from lm.stats.sequential import (
    anytime_interval,
    anytime_p,
    anytime_pairs_needed,
    anytime_sign_p,
    anytime_values_needed,
    left_after,
)
from lm.stats.tests import (
    ALPHA,
    benjamini_hochberg,
    holm,
    median_interval,
    seeds_needed,
    sign_flip_interval,
    sign_flip_p,
    sign_test_p,
    smallest_p,
    values_needed,
)
from lm.stats.two_way import TwoWay
from lm.store.documents import kept_quantities
from lm.store.metrics import is_of_task

Verdict = Literal["reproduced", "not reproduced", "inconclusive", "not enough seeds"]

# Seeds with which a claim about every seed can be borne out: one seed repeats nothing. Any one can refute it.
MIN_SEEDS_OF_EXACT_CLAIMS = 2

DECIDED = ("reproduced", "not reproduced")
NOT_HELD = "found at the chosen learning rates, which may not be the best"
Scope = Literal["", "seeds", "seeds and text"]  # population that an answer holds of; empty without test or losses


@dataclass(frozen=True)
class Mean:
    """The mean over seeds behind an answer, for a summary over experiments."""

    mean: float
    error: float  # its standard error, over text too where the answer covers it
    lower: float = 0.0  # by how much it may lie lower, and higher, had each arm the best of its learning rates
    higher: float = 0.0


@dataclass(frozen=True)
class Answer:
    """Verdict on a claim by itself, at 5 %: the mean or median over the seeds that entered, its interval and p.

    `p` is that of the verdict's test, or of the one that came nearer to a verdict; NaN for a claim about every seed.
    `p_holm` and `q` adjust it over the claims of the same kind and registration. `post_hoc` is true if the claim was
    written when results of its seeds could be known. `at_one_rate` is the answer with all arms at one shared learning
    rate, where this one is at rates of their own. `mean` is None where no summary over experiments may rest on it: an
    arm is not fit to be compared or has lost runs, there are too few seeds, they were added after a look, or the claim
    is of initial values, which a seed has alike in each experiment.
    """

    claim: Claim
    verdict: Verdict
    estimate: float
    low: float
    high: float
    seeds: int
    note: str = ""
    p: float = math.nan
    p_holm: float = math.nan
    q: float = math.nan
    generalises_over: Scope = ""
    not_over_text_because: str = ""
    post_hoc: bool = False
    at_one_rate: "Answer | None" = None
    mean: Mean | None = None


def answer_claim(results: Records, claim: Claim, read: DocumentCache | None = None) -> Answer:
    """Judge one claim by the results, at 5 %; losses by document that are already `read` are used and added to."""
    found_s = by_seed(results, claim)
    if not found_s:
        nothing = "no seed on which all arms were measured"
        return Answer(claim, "not enough seeds", math.nan, math.nan, math.nan, 0, nothing)
    judged_s, post_hoc, written = _unseen(results, claim, found_s)
    cache = {} if read is None else read
    noise, scope, reason = _of_text(results, claim, list(judged_s), cache)
    look = results.first_look(judged_s).pairs
    decided = decide(claim, list(judged_s.values()), noise, look)
    has_lost = any(status_of(results, arm, seed) in LOST for arm in claim.arms for seed in results.manifest["seeds"])
    if claim.exact and has_lost and decided.verdict == "reproduced":
        decided = replace(decided, verdict="inconclusive")
    if not claim.exact:

        def judge(of: Records, claim: Claim) -> Answer:
            """Judge a claim about the same number on the same seeds of other results."""
            numbers = [number for seed, number in by_seed(of, claim).items() if seed in judged_s]
            return decide(claim, numbers, _of_text(of, claim, list(judged_s), cache)[0], look)

        decided = _over_choice(decided, results, judge)
    unknown = without_best_rate(results, claim.arms)
    if unknown and decided.verdict in DECIDED:
        decided = replace(decided, verdict="inconclusive")
    ill = {} if claim.exact else results.health
    unhealthy = [f"{arm} unhealthy: {ill[arm]}" for arm in claim.arms if ill.get(arm)]
    after = f"after a look at {look} seeds, which used its part of 5 %" if look and not claim.exact else ""
    note = "; ".join(
        filter(None, [*_lost(results, claim, len(found_s)), *unhealthy, unknown, decided.note, written, after])
    )
    judged = replace(decided, note=note, generalises_over=scope, not_over_text_because=reason, post_hoc=post_hoc)
    unfit = unhealthy or unknown or look or has_lost or claim.before_training
    return replace(judged, mean=None) if unfit else judged


def _over_choice(answer: Answer, results: Records, judge: Callable[[Records, Claim], Answer]) -> Answer:
    """Hold the answer at all learning rates that may be as good as those of its arms; without one where it does not.

    The interval reaches to the ends that it has there, and p is the largest of those that the answer rests on, 1 for
    one that lies on the other side. Where the rates were not trained, the interval is widened by what the choice may
    miss, and p is 1 where the answer does not hold then.
    """
    claim, below, above = answer.claim, 0.0, 0.0
    if claim.metric == results.headline:
        at_ends = at_rivals(results, _steepness(claim.over) if claim.over else claim.contrast)
        below, above = regret_bounds(results, claim.contrast, () if at_ends is None else results.rivals)
        lowest, highest = at_ends or ([], [])
    else:  # rates are chosen by the headline: which of them raises another quantity is not known
        pairings = at_all_rivals(results, claim.arms)
        if pairings is None:
            return replace(_withdrawn(answer) if answer.verdict in DECIDED else answer, mean=None)
        lowest = highest = pairings
    lower, higher = ([judge(of, claim) for of in ends] for ends in (lowest, highest))
    low = min([answer.low, *(other.low for other in lower)]) - below
    high = max([answer.high, *(other.high for other in higher)]) + above
    if answer.mean is not None:
        least = min([answer.mean.mean, *(other.mean.mean for other in lower if other.mean)]) - below
        most = max([answer.mean.mean, *(other.mean.mean for other in higher if other.mean)]) + above
        mean = replace(answer.mean, lower=answer.mean.mean - least, higher=most - answer.mean.mean)
        answer = replace(answer, mean=mean)
    if answer.verdict not in DECIDED:
        return replace(answer, low=low, high=high)
    of_mean, is_reproduced = claim.relation in ("less", "greater"), answer.verdict == "reproduced"
    at_least, at_most = claimed(claim)
    if is_reproduced and not of_mean:  # between two ends, each of which can be crossed from one side alone
        above_low = replace(claim, relation="range", low=at_least, high=math.inf, margin=0.0)
        below_high = replace(above_low, low=-math.inf, high=at_most)
        sides = (above_low, lowest), (below_high, highest)
        against = [judge(of, end) for end, at in sides if any(map(math.isfinite, _ends(end))) for of in at]
        beside = [_ends(other.claim)[0] <= other.estimate <= _ends(other.claim)[1] for other in against]
    else:
        is_above = (claim.relation == "greater") == is_reproduced if of_mean else answer.estimate > at_most
        end = claim.margin if of_mean else at_most if is_above else at_least
        against = [judge(of, claim) for of in (lowest if is_above else highest)]
        beside = [other.estimate > end if is_above else other.estimate < end for other in against]
    agree = [same and other.verdict == answer.verdict for other, same in zip(against, beside, strict=True)]
    p = max([answer.p, *(other.p if same else 1.0 for other, same in zip(against, beside, strict=True))])
    if (stands(answer, low, high) or not (below or above)) and all(agree):
        return replace(answer, low=low, high=high, p=p)
    return replace(_withdrawn(answer), low=low, high=high, p=1.0 if all(agree) else p)


def _withdrawn(answer: Answer) -> Answer:
    """Return an answer that is found at the chosen learning rates alone, where no test covers the others."""
    return replace(answer, verdict="inconclusive", note=NOT_HELD, p=1.0)


def stands(answer: Answer, low: float, high: float) -> bool:
    """Return whether an interval from low to high shows what a decided answer says."""
    at_least, at_most = claimed(answer.claim)
    return at_least <= low and high <= at_most if answer.verdict == "reproduced" else high < at_least or low > at_most


def claimed(claim: Claim) -> tuple[float, float]:
    """Return the ends between which a claim has its number."""
    return {"less": (-math.inf, claim.margin), "greater": (claim.margin, math.inf)}.get(claim.relation, _ends(claim))


def _steepness(over: Mapping[str, float]) -> dict[str, float]:
    """Return how a slope over the logarithm of numbers changes with each arm, but for a factor."""
    logs = {arm: math.log(number) for arm, number in over.items()}
    middle = sum(logs.values()) / len(logs)
    return {arm: at - middle for arm, at in logs.items()}


def _unseen(results: Records, claim: Claim, by_seed: dict[int, float]) -> tuple[dict[int, float], bool, str]:
    """Choose the seeds to judge a claim on: those unknown when it was written, or all, post hoc, if these are few."""
    known_seeds = sorted(seen_seeds(results.manifest, claim) & by_seed.keys())
    if not known_seeds or claim.kind == "identity":
        return by_seed, False, ""
    unseen = {seed: number for seed, number in by_seed.items() if seed not in known_seeds}
    sides = (known_seeds, sorted(unseen))
    seen_text, unseen_text = (f"seed{'s' * (len(seeds) != 1)} {seed_ranges(seeds, ' to ')}" for seeds in sides)
    reason = f"results of {seen_text} could be known when it was written"
    fewest = seeds_needed(1) if claim.relation in ("less", "greater") else values_needed()
    if len(unseen) < (MIN_SEEDS_OF_EXACT_CLAIMS if claim.exact else fewest):
        return by_seed, True, f"post hoc: {reason}"
    return unseen, False, f"judged on {unseen_text}, as {reason}"


def decide(claim: Claim, numbers: list[float], noise: TwoWay | None = None, look: int = 0) -> Answer:
    """Judge a claim from one number a seed; over other text as well if its noise is given.

    After a first `look` at so many seeds, by tests that may be looked at at any time, with what this left of alpha.
    """
    if claim.exact:
        low, high = _ends(claim)
        holds = {"less": max(numbers) < claim.margin, "greater": min(numbers) > claim.margin}.get(
            claim.relation, low <= min(numbers) and max(numbers) <= high
        )
        few = holds and len(numbers) < MIN_SEEDS_OF_EXACT_CLAIMS
        verdict: Verdict = "not enough seeds" if few else "reproduced" if holds else "not reproduced"
        note = f"{MIN_SEEDS_OF_EXACT_CLAIMS} could decide" if few else ""
        return Answer(claim, verdict, float(np.mean(numbers)), min(numbers), max(numbers), len(numbers), note)
    of_mean = claim.relation in ("less", "greater")
    judge = functools.partial(_of_mean if of_mean else _of_median, look=look)
    decided, alpha = judge(claim, numbers, noise), _alpha(look, of_mean)
    decided = replace(decided, p=min(1.0, decided.p * (ALPHA / alpha)), mean=_mean(numbers, noise))
    if noise is not None and decided.verdict == "inconclusive" and judge(claim, numbers, None).verdict in DECIDED:
        return replace(decided, note="found over seeds, not over documents")
    return decided


def _mean(numbers: list[float], noise: TwoWay | None) -> Mean | None:
    """Return the mean over seeds with its standard error; None with too few seeds, or where they are all alike."""
    if len(numbers) < seeds_needed(1):
        return None
    error = float(np.std(numbers, ddof=1)) / math.sqrt(len(numbers)) if noise is None else noise.both
    return Mean(float(np.mean(numbers)), error) if error > 0 else None


def adjust_p(answers: Sequence[Answer]) -> list[Answer]:
    """Adjust p over all answers of a kind, those to post-hoc claims by themselves."""
    adjusted = list(answers)
    for family in {(answer.claim.kind, answer.post_hoc) for answer in answers}:
        places = [place for place, answer in enumerate(answers) if (answer.claim.kind, answer.post_hoc) == family]
        p_values = [answers[place].p for place in places]
        for place, p, q in zip(places, holm(p_values), benjamini_hochberg(p_values), strict=True):
            adjusted[place] = replace(answers[place], p_holm=p, q=q)
    return adjusted


def _ends(claim: Claim) -> tuple[float, float]:
    return (-claim.margin, claim.margin) if claim.relation == "equivalent" else (claim.low, claim.high)


def _alpha(look: int, of_mean: bool) -> float:
    """Return the error that a first look leaves: two-sided tests of means, one-sided ones of medians."""
    return left_after(look, sides=2 if of_mean else 1)


def _of_mean(claim: Claim, numbers: list[float], noise: TwoWay | None, look: int) -> Answer:
    """Run the exact sign-flip test of the distance from the margin, with the interval it does not reject."""
    distances, estimate, seeds = [number - claim.margin for number in numbers], float(np.mean(numbers)), len(numbers)
    alpha, interval = _alpha(look, True), anytime_interval if look else sign_flip_interval
    low, high = (claim.margin + end for end in interval(distances, alpha))
    p, note = (anytime_p if look else sign_flip_p)(distances), ""
    if noise is not None:
        low, high = _hull((low, high), noise.interval(estimate, alpha))
        p = max(p, noise.p(estimate - claim.margin))
    verdict: Verdict = "inconclusive"
    if p <= alpha:
        verdict = "reproduced" if (estimate < claim.margin) == (claim.relation == "less") else "not reproduced"
    elif smallest_p(seeds) > alpha:
        needed = anytime_pairs_needed(alpha) if look else seeds_needed(1)
        verdict, note = "not enough seeds", f"{needed} could decide"
    return Answer(claim, verdict, estimate, low, high, seeds, note, p)


def _of_median(claim: Claim, numbers: list[float], noise: TwoWay | None, look: int) -> Answer:
    """Run one-sided sign tests that the median is inside both ends, or beyond one: only one of the two can be wrong."""
    low, high = _ends(claim)
    ends, alpha = sum(map(math.isfinite, (low, high))), _alpha(look, False)
    of_signs = {"test": anytime_sign_p} if look else {}

    def p_beyond(end: float, side: Literal["less", "greater"]) -> float:
        """Return p that the median lies below or above the end: the larger over seeds and over seeds and text."""
        p = sign_test_p(numbers, end, side, **of_signs)
        return p if noise is None else max(p, noise.p(float(np.mean(numbers)) - end, side))

    below, above = (tuple(p_beyond(end, side) for end in (low, high)) for side in ("less", "greater"))
    inside, beyond = max(above[0], below[1]), min(1.0, ends * min(below[0], above[1]))
    p, note = min(inside, beyond), ""
    verdict: Verdict = "inconclusive"
    level = alpha if inside <= beyond else alpha / ends
    needed = anytime_values_needed(level) if look else values_needed(level)
    if p <= alpha:
        verdict = "reproduced" if inside <= beyond else "not reproduced"
    elif len(numbers) < needed:
        verdict, note = "not enough seeds", f"{needed} could decide"
    interval = median_interval(numbers, alpha, **of_signs)
    if noise is not None:
        interval = _hull(interval, noise.interval(float(np.mean(numbers)), 2 * alpha))
    return Answer(claim, verdict, float(np.median(numbers)), *interval, len(numbers), note, p)


def _hull(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    return min(first[0], second[0]), max(first[1], second[1])


def _of_text(results: Records, claim: Claim, seeds: list[int], read: DocumentCache) -> tuple[TwoWay | None, Scope, str]:
    """Return the noise over seeds and text, the scope of the answer, and why text is not covered."""
    records = [record for arm in claim.arms for record in results.of(arm)]
    if claim.exact or not any(map(kept_quantities, records)):
        return None, "", ""
    weights = {arm: weight for arm, weight in claim.contrast.items() if weight}
    reasons = {
        "the experiment asks for it (generalise: seeds)": not generalises(results),
        "a slope": bool(claim.over),
        f"{claim.metric} is not kept by document": claim.metric not in LOSS_OF and not is_of_task(claim.metric),
        "the loss of one arm is claimed of this text": len(weights) < 2,
    }
    for reason, holds in reasons.items():
        if holds:
            return None, "seeds", reason
    try:
        return noise_over_texts(results, weights, claim.metric, seeds, read)[0], "seeds and text", ""
    except InputError as error:
        return None, "seeds", str(error)


def _lost(results: Records, claim: Claim, entered: int) -> list[str]:
    seeds, parts = len(results.manifest["seeds"]), []
    for arm in claim.arms:
        statuses = [status_of(results, arm, seed) for seed in results.manifest["seeds"]]
        parts += [f"{arm} {kind} on {statuses.count(kind)} of {seeds} seeds" for kind in LOST if kind in statuses]
    return [*parts, f"{entered} of {seeds} seeds enter"] if entered < seeds else parts
