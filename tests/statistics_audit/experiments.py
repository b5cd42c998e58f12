"""Summaries over several experiments put to the test: how often they are wrong, and what their intervals cover."""

from collections.abc import Iterator, Mapping

import numpy as np

from lm.stats.meta import OverExperiments, over_experiments
from lm.stats.tests import ALPHA
from statistics_audit.finding import Array, Finding, Noise

NUMBERS = (3, 6)
"""Experiments that a summary is of; of fewer than three it claims nothing."""

TAUS = (0.0, 0.5, 2.0)
"""Standard deviations of true differences, in that of a difference's noise over seeds."""

SEEDS = 6


def audit_experiments(random: np.random.Generator, trials: int, noises: Mapping[str, Noise]) -> Iterator[Finding]:
    """How often arms that change nothing on average are called different, and the next experiment is covered.

    Each experiment has its own true difference and a standard error that is known from its seeds alone.

    Args:
        random: of the simulation.
        trials: summaries of each row.
        noises: of mean zero, by name.
    """
    for name, noise in noises.items():
        for number in NUMBERS:
            for tau in TAUS:
                claims = covered = 0
                for _ in range(trials):
                    *truth, another = random.normal(0, tau, number + 1)
                    found = summarise(np.array(truth)[:, None] + noise(random, (number, SEEDS)))
                    claims += not found.low <= 0 <= found.high
                    covered += found.next_low <= another <= found.next_high
                of = f"{name} noise, {number} experiments of {SEEDS} seeds, true differences {tau:z.3g} apart"
                yield Finding(f"false claims over experiments, {of}", claims, trials, 0.0, ALPHA)
                yield Finding(f"intervals of another experiment cover, {of}", covered, trials, 1 - ALPHA, 1.0)


def summarise(differences: Array) -> OverExperiments:
    """The summary of paired differences, experiments x seeds."""
    errors = differences.std(axis=1, ddof=1) / np.sqrt(differences.shape[1])
    return over_experiments(differences.mean(axis=1).tolist(), errors.tolist())
