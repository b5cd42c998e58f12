"""Variance components of two crossed causes, one value for each pair of their levels.

Legend: i first cause (rows), j second cause (columns), s draws.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAWS = 4_000  # draws of the unknown variances for an interval

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Components:
    """Variances of y_ij = mean + a_i + b_j + e_ij, each of the three with its share of their sum.

    What is left over, e, holds what the two causes do only together, which one value a pair cannot tell from noise.
    `shares` are (share, low, high) of a, b and e; NaN where the values do not vary.
    """

    first: float
    second: float
    rest: float
    shares: tuple[tuple[float, float, float], ...]


def components(values_ij: Array) -> Components:
    """Estimate variance components of finite values, 2 x 2 or larger, by moments; a negative one counts as zero.

    Mean squares of a two-way table (Searle, Casella, McCulloch 1992, chapter 4) are set equal to what they are expected
    to be. The 95 % intervals of the shares are generalised ones (Weerahandi 1993): each mean square over a draw of its
    chi-squared distribution stands for the variance it is of. They ask for normal effects, and are wide for few levels.
    That of the rest reaches to 1 where those of both causes reach to 0, as they say the same.
    """
    rows, columns = values_ij.shape
    freedom = (rows - 1, columns - 1, (rows - 1) * (columns - 1))
    row_i, column_j = (values_ij.mean(axis=axis) - values_ij.mean() for axis in (1, 0))
    left_ij = values_ij - values_ij.mean() - row_i[:, None] - column_j
    sums = (columns * (row_i**2).sum(), rows * (column_j**2).sum(), (left_ij**2).sum())
    squares = [float(total) / free for total, free in zip(sums, freedom, strict=True)]
    variances, shares = _solved(squares, values_ij.shape)
    random = np.random.default_rng(0)
    drawn = [square * free / random.chisquare(free, DRAWS) for square, free in zip(squares, freedom, strict=True)]
    low, high = np.full((2, 3), np.nan)
    if sum(variances):
        low, high = np.nanquantile(_solved(drawn, values_ij.shape)[1], (0.025, 0.975), axis=1)
        high[2] = high[2] if low[:2].any() else 1.0
    triples = tuple((float(share), float(a), float(b)) for share, a, b in zip(shares, low, high, strict=True))
    first, second, rest = (float(variance) for variance in variances)
    return Components(first, second, rest, triples)


def _solved(squares: Sequence[Array | float], shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Solve for the variances with such expected mean squares, none below zero, (3,) or (3, s), and their shares."""
    (first, second, rest), (rows, columns) = squares, shape
    above_noise = np.maximum(0.0, (first - rest) / columns), np.maximum(0.0, (second - rest) / rows)
    variances = np.stack((*above_noise, np.asarray(rest)))
    total = variances.sum(axis=0)
    return variances, np.divide(variances, total, out=np.full_like(variances, np.nan), where=total > 0)
