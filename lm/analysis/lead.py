"""Differences of losses over training: which arm is ahead of the baseline, and from which step on."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lm.analysis.pace import validation_curves
from lm.analysis.results import Records
from lm.stats.bands import simultaneous_band

STEPS_AHEAD = "steps ahead"  # metric of a claim: the last steps of training for which one arm stays ahead of another


@dataclass(frozen=True)
class Lead:
    """The paired difference of an arm's validation loss to the baseline's, at every validation."""

    arm: str  # name of the arm
    by_seed: pd.DataFrame  # arm minus baseline, a row a step, a column a seed
    low: np.ndarray  # lower end of the simultaneous 95 % band at each step; NaN for one seed
    high: np.ndarray  # its upper end

    @property
    def mean(self) -> np.ndarray:
        """The mean over seeds at each step."""
        return self.by_seed.mean(axis=1).to_numpy()

    def words(self) -> str:
        """Describe the lead: `ahead from step 200 on`, and from which step on the whole band is."""
        steps, mean = self.by_seed.index.to_numpy(), self.mean
        side = "ahead" if mean[-1] < 0 else "behind" if mean[-1] > 0 else ""
        if not side:
            return "even at the end"
        sign = np.sign(mean[-1])
        nearer = self.high if sign < 0 else self.low
        beyond = last_stretch(np.nan_to_num(sign * nearer, nan=-1.0) > 0)
        surely = f", the whole band from step {steps[beyond]:zg} on" if beyond < len(steps) else ""
        return f"{side} from step {steps[last_stretch(sign * mean > 0)]:zg} on{surely}"


def last_stretch(holds: np.ndarray) -> int:
    """Return the index from which a condition holds up to the end; the length where it does not hold there."""
    failures = np.flatnonzero(~holds)
    return int(failures[-1]) + 1 if len(failures) else 0


def leads(results: Records) -> list[Lead]:
    """Compute the difference over training of each arm that shares validations with the baseline."""
    of_arms = ((arm, differences_by_step(results, arm, results.arms[0])) for arm in results.arms[1:])
    bands = ((arm, by_seed, simultaneous_band(by_seed.to_numpy().T)) for arm, by_seed in of_arms if not by_seed.empty)
    return [Lead(arm, by_seed, band.low_n, band.high_n) for arm, by_seed, band in bands]


def differences_by_step(results: Records, arm: str, against: str) -> pd.DataFrame:
    """Return the differences of the validation losses of two arms: a row a common step, a column a common seed."""
    own, other = validation_curves(results, arm, against)
    return (own - other).dropna()


def steps_ahead(results: Records, contrast: Mapping[str, float]) -> dict[int, float]:
    """Return for each seed the last steps for which the arm of weight 1 stays ahead of the other; 0 for none."""
    arm, against = sorted(contrast, key=lambda name: -contrast[name])
    by_seed, counts = differences_by_step(results, arm, against), dict[int, float]()
    for seed, differences in by_seed.items():
        start = last_stretch(differences.to_numpy() < 0)
        steps = by_seed.index
        counts[int(str(seed))] = float(steps[-1] - steps[start]) if start < len(steps) else 0.0
    return {seed: count for seed, count in counts.items() if math.isfinite(count)}
