"""Seeds added after looks put to the test: how many are added, and whether any are, depends on what was seen."""

from collections.abc import Iterator, Mapping

import numpy as np

from lm.analysis.answers import DECIDED, Answer, decide
from lm.analysis.claims import Claim
from lm.analysis.results import FEWEST_LOOKED_AT
from lm.stats.tests import ALPHA, sign_flip_p
from lm.stats.verdicts import DIRECTIONS, Comparison, confirm
from statistics_audit.finding import Array, Finding, Noise

FIRST = (2, 4, 6, 8)
"""Seeds at the first look."""

LOOKS, NEAR = 3, 0.15
"""Looks at most, and the p up to which two seeds are added and beyond which four are."""

COVERED, DETECTED = 0.94, 0.5
"""Coverage of the last interval at least, as a first interval of 95 % may be the last; power at least."""

EFFECT = 1.5
"""A clear difference, in standard deviations of one."""

MARGIN = 2.0
LESS = Claim("", "nll", "less", {"arm": 1.0, "base": -1.0})
EQUIVALENT = Claim("", "nll", "equivalent", {"arm": 1.0, "base": -1.0}, margin=MARGIN)


def audit_added_seeds(random: np.random.Generator, experiments: int, noises: Mapping[str, Noise]) -> Iterator[Finding]:
    """How often seeds that are added until something is found find a difference where there is none.

    Args:
        random: of the simulation.
        experiments: of each row.
        noises: of mean zero, by name.
    """
    for name, noise in noises.items():
        for first in FIRST:
            title = f"{name} noise, {first} seeds and up to {LOOKS - 1} times more"
            ended = [_last_look(_differences(random, noise), first) for _ in range(experiments)]
            false = sum(one.verdict.kind in DIRECTIONS for one in ended)
            yield Finding(f"false claims with seeds added after looks, {title}", false, experiments, 0.0, ALPHA)
            if name == "normal":
                covered = sum(one.low <= 0 <= one.high for one in ended)
                yield Finding(f"the interval of the last look covers, {title}", covered, experiments, COVERED, 1.0)
                found = [_last_look(_differences(random, noise) + 2**0.5 * EFFECT, first) for _ in range(experiments)]
                detected = sum(one.verdict.kind in DIRECTIONS for one in found)
                yield Finding(f"finds a clear difference, {title}", detected, experiments, DETECTED, 1.0)


def audit_claims_of_added_seeds(
    random: np.random.Generator, experiments: int, noises: Mapping[str, Noise]
) -> Iterator[Finding]:
    """How often a claim is answered wrongly whose seeds are added until it is answered, each by itself at 5 %.

    Args:
        random: of the simulation.
        experiments: of each row.
        noises: of mean zero, by name.
    """
    for name, noise in noises.items():
        for first in FIRST:
            title = f"{name} noise, {first} seeds and up to {LOOKS - 1} times more"
            ended = [_last_answer(LESS, _differences(random, noise), first) for _ in range(experiments)]
            wrong = sum(one.verdict in DECIDED for one in ended)
            yield Finding(
                f"false answers to a claim with seeds added after looks, {title}", wrong, experiments, 0.0, ALPHA
            )
            at_margin = [
                _last_answer(EQUIVALENT, MARGIN + _differences(random, noise), first) for _ in range(experiments)
            ]
            wrong = sum(one.verdict == "reproduced" for one in at_margin)
            yield Finding(f"false equivalence with seeds added after looks, {title}", wrong, experiments, 0.0, ALPHA)
            if name == "normal":
                covered = sum(one.low <= 0 <= one.high for one in ended)
                title = f"the interval of a claim at the last look covers, {title}"
                yield Finding(title, covered, experiments, COVERED, 1.0)


def _differences(random: np.random.Generator, noise: Noise) -> Array:
    most = max(FIRST) + 4 * LOOKS
    return noise(random, (most,)) - noise(random, (most,))


def _last_look(differences: Array, first: int) -> Comparison:
    """The comparison with which someone ends who adds seeds until a difference is found."""
    seeds, first_look = first, 0
    for place in range(LOOKS):
        sample = differences[:seeds].tolist()
        comparison = Comparison(sample, p=sign_flip_p(sample))
        confirm([comparison], first_look)
        if comparison.verdict.kind in DIRECTIONS or place == LOOKS - 1:
            break
        first_look = first_look or seeds * (seeds >= FEWEST_LOOKED_AT)
        seeds += 2 if comparison.p <= NEAR else 4
    return comparison


def _last_answer(claim: Claim, differences: Array, first: int) -> Answer:
    """The answer with which someone ends who adds seeds until there is one."""
    seeds, first_look = first, 0
    for place in range(LOOKS):
        answer = decide(claim, differences[:seeds].tolist(), look=first_look)
        if answer.verdict in DECIDED or place == LOOKS - 1:
            break
        first_look = first_look or seeds * (seeds >= FEWEST_LOOKED_AT)
        seeds += 2 if answer.p <= NEAR else 4
    return answer
