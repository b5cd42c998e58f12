"""What a simulation found of a promise, and when a promise counts as broken."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lm.stats.tests import rate_interval

Array = NDArray[np.float64]
Noise = Callable[[np.random.Generator, tuple[int, ...]], Array]
"""Draws noise of mean zero."""

RARE = 2e-6
"""How often at most chance alone breaks an end of a promise that is kept: with 250 rows of two ends, fewer than 1 in
1,000 audits of a method that is right say NOT OK."""


@dataclass(frozen=True)
class Finding:
    """In how many of so many simulated experiments something happened, and in what share it may.

    Args:
        name: what is counted.
        events: how often it happened.
        trials: how often it could have.
        at_least: of the share, as promised.
        at_most: of the share, as promised.
        binding: whether the reports rely on the promise; where another is broken, that is said and nothing more.
        each: trials of one experiment, which do not count as independent.
    """

    name: str
    events: int
    trials: int
    at_least: float
    at_most: float
    binding: bool = True
    each: int = 1

    @property
    def found(self) -> float:
        """The share."""
        return self.events / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        """Of the share, 99 %."""
        return self._within(0.99)

    @property
    def ok(self) -> bool:
        """Whether what is promised lies in the 99 % interval; for a promise that binds, in one that is hardly ever
        wrong, as there are many rows."""
        low, high = self._within(1 - 2 * RARE if self.binding else 0.99)
        return low <= self.at_most and high >= self.at_least

    @property
    def verdict(self) -> Literal["ok", "falls short", "NOT OK"]:
        """In words; only a binding promise that is broken is not OK."""
        if self.ok:
            return "ok"
        return "NOT OK" if self.binding else "falls short"

    def _within(self, confidence: float) -> tuple[float, float]:
        return rate_interval(round(self.events / self.each), round(self.trials / self.each), confidence)
