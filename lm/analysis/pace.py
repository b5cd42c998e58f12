"""Differences over training: which arm is ahead of the baseline, and when it is as good as it at its end."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from lm.analysis.results import Records, curves, one_tokenizer
from lm.stats.bands import simultaneous_band
from lm.store.record import Record, evaluated_tokens

CURVES = {"nll": "validation_nll", "bits_per_byte": "validation_bits_per_byte"}  # on the same batches everywhere

UNITS = ("steps", "FLOPs", "seconds")


@dataclass(frozen=True)
class StepsToBaselineLoss:
    """Share of the baseline's steps, FLOPs and seconds that an arm needs to reach its final loss, by seed.

    `shares` holds the seeds on which the arm reached it; a share is above one where the arm is slower. FLOPs are left
    out where they were not counted. `missed` are the seeds on which the arm never did.
    """

    arm: str
    shares: dict[str, list[float]] = field(default_factory=dict)
    missed: list[int] = field(default_factory=list)

    @property
    def seeds(self) -> int:
        """Number of seeds, of those that reached the loss and those that did not."""
        return len(self.shares.get("steps", [])) + len(self.missed)


def validation_curves(results: Records, arm: str, against: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the validation losses of two arms, a row a step, a column for each seed evaluated on the same text.

    There are none where losses are per token and tokenizers differ.
    """
    column = CURVES.get(results.headline, CURVES["nll"])
    if column == CURVES["nll"] and not one_tokenizer(results):
        return pd.DataFrame(), pd.DataFrame()
    own, other = curves(results, arm, column), curves(results, against, column)
    seeds = []
    for seed in own.columns.intersection(other.columns):
        records = (results.records[side, seed] for side in (arm, against))
        seeds += [seed] if len({evaluated_tokens(record) for record in records if record is not None}) == 1 else []
    return own[seeds], other[seeds]


def steps_to_baseline_loss(results: Records) -> list[StepsToBaselineLoss]:
    """Compute the cost of reaching the baseline's final loss, of the same seed and for the first time, for each arm."""
    return [steps for arm in results.arms[1:] if (steps := _pace(results, arm)).seeds]


def _pace(results: Records, arm: str) -> StepsToBaselineLoss:
    shares: dict[str, list[float]] = {unit: [] for unit in UNITS}
    missed = []
    arm_curves, base_curves = validation_curves(results, arm, results.arms[0])
    for seed in arm_curves.columns:
        own, theirs = arm_curves[seed].dropna(), base_curves[seed].dropna()
        if own.empty or theirs.empty:
            continue
        target = float(theirs.iloc[-1])
        needed = steps_to_reach(list(own.index), list(own), target)
        if math.isnan(needed):
            missed.append(seed)
            continue
        share = needed / steps_to_reach(list(theirs.index), list(theirs), target)
        rates = [_per_step(record) for record in results.pairs(arm)[seed]]
        for unit in UNITS:
            if all(unit in rate for rate in rates):
                shares[unit].append(share * rates[0][unit] / rates[1][unit])
    return StepsToBaselineLoss(arm, {unit: values for unit, values in shares.items() if values}, missed)


def _per_step(record: Record) -> Mapping[str, float]:
    steps, cost = record["steps"] or math.nan, record["cost"]
    flops, seconds = (cost.get("flops_per_token") or 0) * (cost.get("tokens") or 0), cost.get("train_seconds") or 0
    costs = {"steps": 1.0, "FLOPs": flops / steps, "seconds": seconds / steps}
    return {unit: number for unit, number in costs.items() if number > 0}


def mean_share(shares: Sequence[float]) -> float:
    """Return the mean of shares; NaN for none."""
    return sum(shares) / len(shares) if shares else math.nan


def steps_to_reach(steps: Sequence[float], losses: Sequence[float], target: float) -> float:
    """Return the step at which a curve's running minimum reaches `target`, interpolated; NaN where it never does."""
    curve = np.column_stack([steps, losses])
    curve = curve[np.isfinite(curve).all(axis=1)]
    lowest = np.minimum.accumulate(curve[:, 1])
    reached = np.flatnonzero(lowest <= target)
    if not len(reached):
        return math.nan
    index = int(reached[0])
    if index == 0:
        return float(curve[0, 0])
    (before, above), (after, below) = (curve[index - 1, 0], lowest[index - 1]), (curve[index, 0], lowest[index])
    return float(before + (after - before) * (above - target) / (above - below))


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
        surely = f", the whole band from step {steps[beyond]:z.0f} on" if beyond < len(steps) else ""
        return f"{side} from step {steps[last_stretch(sign * mean > 0)]:z.0f} on{surely}"


def last_stretch(holds: np.ndarray) -> int:
    """Return the index from which a condition holds up to the end; the length where it does not hold there."""
    failures = np.flatnonzero(~holds)
    return int(failures[-1]) + 1 if len(failures) else 0


def leads(results: Records) -> list[Lead]:
    """Compute the difference over training of each arm that shares validations with the baseline."""
    of_arms = ((arm, differences_by_step(results, arm, results.arms[0])) for arm in results.arms[1:])
    bands = ((arm, by_seed, simultaneous_band(by_seed.to_numpy().T)) for arm, by_seed in of_arms if not by_seed.empty)
    return [Lead(arm, by_seed, low_n, high_n) for arm, by_seed, (low_n, high_n, _) in bands]


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
