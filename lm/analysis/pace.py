"""A difference in units people use: how much of the baseline's training an arm needs to become as good as it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from lm.analysis.results import Records, curves, one_tokenizer
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
    """Return the validation losses of two arms, a row a step, a column for each seed on which both have them.

    Seeds on which the two were not evaluated on the same number of tokens are left out: their losses are of other text.
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
    """Compute the cost of reaching the baseline's loss for each arm with curves.

    The baseline's final loss is the last value of its curve of the same seed. Where its curve went up at the end it
    was that good before: its own steps are counted to the first time too, so that the baseline's share is always one.
    """
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
