"""Shares of initial values and data order put to the test: how often their intervals cover the truth."""

from collections.abc import Iterator

import numpy as np

from lm.stats.components import components
from lm.stats.tests import ALPHA
from statistics_audit.finding import Finding

TABLES = ((4, 3), (4, 4), (8, 8))
"""Seeds of initial values and of order: those of the docs, and more."""

SHARES = ((1 / 3, 1 / 3, 1 / 3), (0.8, 0.1, 0.1), (0.1, 0.1, 0.8), (0.0, 0.0, 1.0))
"""Shares of initial values, order and neither alone."""

CAUSES = ("initial values", "data order", "neither alone")


def audit_components(random: np.random.Generator, experiments: int) -> Iterator[Finding]:
    """How often the interval of each share covers it, for normal effects, which it asks for.

    Args:
        random: of the simulation.
        experiments: of each row.
    """
    for rows, columns in TABLES:
        for shares in SHARES:
            covered = np.zeros(3, int)
            for _ in range(experiments):
                sizes = [(rows, 1), (1, columns), (rows, columns)]
                parts = [np.sqrt(share) * random.normal(size=size) for share, size in zip(shares, sizes, strict=True)]
                found = components(sum(parts, np.zeros((rows, columns)))).shares
                covered += [low <= share <= high for share, (_, low, high) in zip(shares, found, strict=True)]
            named = ", ".join(f"{share:.2g}" for share in shares)
            of = f"{rows} seeds of initial values x {columns} of order, shares {named}"
            for cause, count in zip(CAUSES, covered.tolist(), strict=True):
                yield Finding(f"the share of {cause} is covered, {of}", count, experiments, 1 - ALPHA - 0.01, 1.0)
