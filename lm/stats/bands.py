"""A band around a mean curve that holds at every point at once: Student's max-t, by simulation.

Legend: s seeds, n points of a curve, d draws.
"""

import math

import numpy as np
import scipy

from lm.stats.tests import ALPHA

DRAWS = 4000  # simulated samples; the level is met to a third of a percent
CHUNK = 2**22  # largest number of simulated values in memory at a time
FEWEST = 5  # seeds from which the correlation of the points is estimated; with fewer they share the level (Bonferroni)


def simultaneous_band(sample_sn: np.ndarray, level: float = ALPHA) -> tuple[np.ndarray, np.ndarray, float]:
    """Return both ends of a band that covers the whole mean curve with a chance of 1 - `level`, and its multiple.

    That of the standard error at each point: the quantile of the largest |t| of simulated normal samples whose points
    correlate as those of the sample do (Montiel Olea and Plagborg-Møller 2019), from Student's to Bonferroni's. NaN for
    fewer than two seeds.
    """
    seeds, mean_n = len(sample_sn), sample_sn.mean(axis=0)
    if seeds < 2:
        return np.full_like(mean_n, math.nan), np.full_like(mean_n, math.nan), math.nan
    error_n = sample_sn.std(axis=0, ddof=1) / math.sqrt(seeds)
    spread_sn = (sample_sn - mean_n)[:, error_n > 0]
    points = spread_sn.shape[1]
    critical = -scipy.special.stdtrit(seeds - 1, level / 2 / points) if points else 0.0
    if seeds >= FEWEST and points > 1:
        unit_sn = spread_sn / np.linalg.norm(spread_sn, axis=0)
        random, largest = np.random.default_rng(0), []
        for draws in np.array_split(np.arange(DRAWS), math.ceil(DRAWS * seeds * points / CHUNK)):
            drawn_dsn = random.standard_normal((len(draws), seeds, seeds)) @ unit_sn
            error_dn = drawn_dsn.std(axis=1, ddof=1) / math.sqrt(seeds)
            largest.append(np.abs(drawn_dsn.mean(axis=1) / error_dn).max(axis=1))
        single = -scipy.special.stdtrit(seeds - 1, level / 2)
        critical = np.clip(np.quantile(np.concatenate(largest), 1 - level), single, critical)
    return mean_n - critical * error_n, mean_n + critical * error_n, float(critical)
