"""The method put to the test where no seed pairs the runs: how often it is wrong, and what its intervals cover."""

from collections.abc import Iterator, Mapping

import numpy as np

from lm.stats.tests import ALPHA
from lm.stats.unpaired import Unpaired, confirm_unpaired, unpaired_p
from lm.stats.verdicts import DIRECTIONS
from statistics_audit.finding import Array, Finding, Noise

DESIGNS = ((1, 6, 6), (3, 7, 5))
"""Arms, runs of each, runs of the baseline."""

UNEQUAL_NOISES = ("normal", "skewed")
UNEQUAL = ((4, 8), (8, 4), (6, 6))
SPREAD = 3.0
"""Runs of an arm and of the baseline, and the arm's spread in that of the baseline: Welch's test about holds for normal
noise, and no test for skewed noise."""


def audit_unpaired(random: np.random.Generator, experiments: int, noises: Mapping[str, Noise]) -> Iterator[Finding]:
    """How often arms that change nothing are called different, and their intervals cover the truth together.

    Every other arm has an effect where intervals are judged. All arms of an experiment meet one baseline. The last rows
    are of arms with the baseline's mean and another spread, of which nothing is promised.

    Args:
        random: of the simulation.
        experiments: of each row.
        noises: of mean zero, by name.
    """
    for name, noise in noises.items():
        for arms, n, m in DESIGNS:
            truth = [float(place % 2) for place in range(arms)]
            claims = covered = 0
            for _ in range(experiments):
                groups, base = noise(random, (arms, n)), noise(random, (m,))
                claims += _claims(judged(groups, base))
                family = judged(groups + np.array(truth)[:, None], base)
                covered += all(one.low <= true <= one.high for one, true in zip(family, truth, strict=True))
            of = f"{name} noise, {arms} arm{'s' * (arms > 1)}, {n} runs against {m}"
            yield Finding(f"false claims of unpaired runs, {of}", claims, experiments, 0.0, ALPHA)
            yield Finding(f"joint intervals of unpaired runs cover, {of}", covered, experiments, 1 - ALPHA, 1.0)
    for name, noise in ((name, noises[name]) for name in UNEQUAL_NOISES if name in noises):
        for n, m in UNEQUAL:
            claims = sum(
                _claims(judged(SPREAD * noise(random, (1, n)), noise(random, (m,)))) for _ in range(experiments)
            )
            title = f"false claims of unpaired runs, {name} noise, {n} of {SPREAD:z.3g} times the spread against {m}"
            yield Finding(title, claims, experiments, 0.0, ALPHA, binding=False)


def judged(groups: Array, base: Array) -> list[Unpaired]:
    """The comparisons of arms with a baseline that no seed pairs, as `lm compare` judges them.

    Args:
        groups: runs of each arm, arms x runs.
        base: runs of the baseline.
    """
    of_base = base.tolist()
    family = [Unpaired([], arm_values=one, base_values=of_base, p=unpaired_p(one, of_base)) for one in groups.tolist()]
    confirm_unpaired(family)
    return family


def _claims(family: list[Unpaired]) -> bool:
    return any(one.verdict.kind in DIRECTIONS for one in family)
