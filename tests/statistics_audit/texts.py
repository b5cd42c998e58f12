"""The method put to the test where the text that is evaluated is a sample too: what is claimed of other text.

An experiment is a difference per token of seeds s on documents d: a part of each seed, one of each document, and one of
both, as crossed random effects; the truth is the mean over all seeds and all documents.
"""

import math
from collections.abc import Iterator

import numpy as np

from lm.analysis.answers import decide
from lm.analysis.claims import Claim
from lm.stats.power import CHANCE
from lm.stats.tests import ALPHA, sign_flip_p
from lm.stats.two_way import TwoWay, cover_texts, degrees, detectable_on_texts, set_p_over_texts, two_way
from lm.stats.verdicts import DIRECTIONS, Comparison, confirm, explore
from statistics_audit.finding import Array, Finding

SEEDS, DOCUMENTS = 6, 60
RATIOS = {"half": 0.5, "three quarters": 0.75, "twice": 2.0}
"""The standard error over texts, in that over seeds; .75 is what the quickstart's differences have."""

DISCOVERY_RATIOS = {"as large as": 1.0, "three times": 3.0}
DISCOVERY_ARMS, DISCOVERY_SEEDS = 7, 9

MARGIN = 2.0
EQUIVALENT = Claim("", "nll", "equivalent", {"arm": 1.0, "base": -1.0}, margin=MARGIN)

OFF = 0.02
"""By how much less a power may be than promised, as documents of unequal lengths tell less of their noise; it may be
more by twice that, as the uncertainty of two variances together is taken to be the larger of what it may be."""


def drawn(random: np.random.Generator, ratio: float) -> tuple[Array, Array]:
    """An experiment whose arm changes nothing: sums over documents (s, d), and tokens (d,)."""
    tokens_d = lengths(random)
    return scattered(random, ratio, tokens_d), tokens_d


def lengths(random: np.random.Generator) -> Array:
    """Tokens of the documents of an evaluation (d,)."""
    found: Array = np.ceil(random.lognormal(4, 0.7, DOCUMENTS))
    return found


def scattered(random: np.random.Generator, ratio: float, tokens_d: Array, seeds: int = SEEDS) -> Array:
    """Sums over documents (s, d) of an arm that changes nothing."""
    seed_s = random.normal(size=(seeds, 1))
    document_d = ratio * np.sqrt(DOCUMENTS / seeds) * random.normal(size=DOCUMENTS)
    both_sd = random.normal(size=(seeds, DOCUMENTS))
    found: Array = (seed_s + document_d + both_sd) * tokens_d
    return found


def truth(ratio: float, tokens_d: Array) -> TwoWay:
    """The noise of what `scattered` draws, which is known."""
    uneven = float((tokens_d**2).sum() / tokens_d.sum() ** 2)
    twice = uneven / SEEDS
    seeds, floor = 1 / SEEDS + twice, ratio**2 * DOCUMENTS / SEEDS * uneven
    text, both = floor + twice, seeds + floor
    freedom = both**2 / (seeds**2 / (SEEDS - 1) + text**2 / degrees(1 / uneven))
    root = math.sqrt
    return TwoWay(root(seeds), root(text), root(floor), root(both), freedom, DOCUMENTS, 1 / uneven)


def audit_texts(random: np.random.Generator, experiments: int) -> Iterator[Finding]:
    """How often an interval over seeds alone, and one over seeds and text, leave out the truth about other text.

    There is a verdict exactly where the interval leaves out zero, which here is the truth: these are the false claims.
    """
    for name, ratio in RATIOS.items():
        alone = wide = 0
        for _ in range(experiments):
            difference_sd, tokens_d = drawn(random, ratio)
            sample = (difference_sd.sum(axis=1) / tokens_d.sum()).tolist()
            one = Comparison(sample, p=sign_flip_p(sample))
            confirm([one])
            alone += one.significant
            cover_texts(one, two_way(difference_sd, tokens_d), ALPHA)
            wide += one.significant
        title = f"false claims of other text, whose noise is {name} that of {SEEDS} seeds"
        yield Finding(f"{title}: seeds alone", alone, experiments, 0.0, ALPHA, binding=False)
        yield Finding(f"{title}: seeds and text", wide, experiments, 0.0, ALPHA)


def audit_text_claims(random: np.random.Generator, experiments: int) -> Iterator[Finding]:
    """How often what differs by the margin itself on other text is claimed to be equivalent within it."""
    for name, ratio in RATIOS.items():
        alone = both = 0
        for _ in range(experiments):
            difference_sd, tokens_d = drawn(random, ratio)
            at_margin = (difference_sd.sum(axis=1) / tokens_d.sum() + MARGIN).tolist()
            alone += decide(EQUIVALENT, at_margin).verdict == "reproduced"
            both += decide(EQUIVALENT, at_margin, two_way(difference_sd, tokens_d)).verdict == "reproduced"
        title = f"false equivalence of other text, whose noise is {name} that of {SEEDS} seeds"
        yield Finding(f"{title}: seeds alone", alone, experiments, 0.0, ALPHA, binding=False)
        yield Finding(f"{title}: seeds and text", both, experiments, 0.0, ALPHA)


def audit_discoveries(random: np.random.Generator, experiments: int) -> Iterator[Finding]:
    """How often exploratory arms that change nothing are called different: by q over seeds alone, and over both p.

    All arms meet one baseline. As every discovery is false, their share is that of experiments with any.
    """
    for name, ratio in DISCOVERY_RATIOS.items():
        with_discoveries = {False: 0, True: 0}
        for _ in range(experiments):
            tokens_d = lengths(random)
            baseline_sd, *arms = (
                scattered(random, ratio, tokens_d, DISCOVERY_SEEDS) for _ in range(DISCOVERY_ARMS + 1)
            )
            for over_text in with_discoveries:
                family = [_explored(arm_sd - baseline_sd, tokens_d, over_text) for arm_sd in arms]
                explore(family)
                with_discoveries[over_text] += any(each.verdict.kind in DIRECTIONS for each in family)
        title = f"false discoveries of {DISCOVERY_ARMS} exploratory arms on other text, whose noise is {name} that of "
        title += f"{DISCOVERY_SEEDS} seeds"
        yield Finding(f"{title}: q over seeds", with_discoveries[False], experiments, 0.0, ALPHA, binding=False)
        yield Finding(f"{title}: q over both p", with_discoveries[True], experiments, 0.0, ALPHA)


def _explored(difference_sd: Array, tokens_d: Array, over_text: bool) -> Comparison:
    """A comparison to explore, with its p over seeds and text where asked for."""
    by_seed = (difference_sd.sum(axis=1) / tokens_d.sum()).tolist()
    comparison = Comparison(by_seed, p=sign_flip_p(by_seed))
    if over_text:
        set_p_over_texts(comparison, two_way(difference_sd, tokens_d))
    return comparison


def audit_text_power(random: np.random.Generator, experiments: int) -> Iterator[Finding]:
    """How often an effect is claimed over seeds and text that other seeds on other text call detectable over both.

    Each experiment's effect comes from the noise of one before it, as it was estimated.
    """
    for name, ratio in RATIOS.items():
        detected = 0
        for _ in range(experiments):
            before_sd, tokens_d = drawn(random, ratio)
            effect = detectable_on_texts(SEEDS, two_way(before_sd, tokens_d))
            difference_sd = scattered(random, ratio, tokens_d) + effect * tokens_d
            by_seed = (difference_sd.sum(axis=1) / tokens_d.sum()).tolist()
            comparison = Comparison(by_seed, p=sign_flip_p(by_seed))
            confirm([comparison])
            cover_texts(comparison, two_way(difference_sd, tokens_d), ALPHA)
            detected += comparison.significant
        title = "finds an effect that as many other seeds call detectable over seeds and text, "
        title += f"whose noise is {name} that of {SEEDS} seeds"
        yield Finding(title, detected, experiments, CHANCE - OFF, CHANCE + 2 * OFF)
