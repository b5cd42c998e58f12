"""Tell at which rungs of a ladder a curve of learning rates brackets the rate of an arm.

An arm whose best rate moves with size, carried up at one rate, seems to gain or to fade by the rate alone. So a rate
counts as the best one at a rung only where a curve was trained there, of the same configuration, that has it as its
best rate and a worse one on each side.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm.ablation.lr_curve import read_rates
from lm.ablation.plan import Plan
from lm.analysis.rates import RateCurve
from lm.config.components import resolve
from lm.config.tree import InputError, Tree
from lm.store.record import RateAt
from lm.training.run import Run

OF_TRAINER = ("max_steps", "gradient_clip_val", "accumulate_grad_batches")
"""Settings of the trainer that the best rate hangs on; precision and ways of computing are none of them."""


@dataclass(frozen=True)
class TrainedCurve:
    """An arm over learning rates, as it was trained.

    Args:
        experiment: whose curve it is.
        setting: what the best rate hangs on, as `setting_of` has it.
        curve: losses by rate and seed.
    """

    experiment: str
    setting: Tree
    curve: RateCurve


def setting_of(config: Tree) -> Tree:
    """Return the part of a resolved configuration that the best learning rate hangs on, without the rate itself."""
    optim = {key: value for key, value in config["optim"].items() if key != "lr"}
    trainer = {key: config["trainer"].get(key) for key in OF_TRAINER}
    return {"data": config["data"], "model": config["model"], "optim": optim, "trainer": trainer}


def trained_curves(out: Path) -> list[TrainedCurve]:
    """Return the curves of learning rates of all experiments under `out`; one that cannot be read is none."""
    curves = []
    for path in sorted(out.glob("*/lr_curve.json")):
        try:
            arms = read_rates(path.parent)
        except InputError:
            continue
        for config, curve in arms.values():
            try:
                setting = setting_of(resolve(config, Run))
            except (InputError, KeyError):  # of another version, or with classes that are gone
                continue
            curves.append(TrainedCurve(path.parent.name, setting, curve))
    return curves


def rates_at(plan: Plan, curves: Sequence[TrainedCurve]) -> dict[str, RateAt]:
    """Return the learning rate of each arm of a rung, with the curve that brackets it where there is one."""
    return {arm: _rate_at(plan.first(arm).config, curves) for arm in plan.experiment.arms}


def _rate_at(config: Tree, curves: Sequence[TrainedCurve]) -> RateAt:
    """Judge by the curve with the most seeds among those of this configuration."""
    rate, setting = float(config["optim"]["lr"]), setting_of(config)
    of_setting = [each for each in curves if each.setting == setting and each.curve.best is not None]
    unknown: RateAt = {"rate": rate, "curve": None, "lower": None, "higher": None, "seeds": 0}
    if not of_setting:
        return unknown
    trained = max(of_setting, key=lambda each: each.curve.values_rs.shape[1])
    rates, best = trained.curve.rates, trained.curve.best
    if best is None or trained.curve.edge or abs(rates[best] - rate) > 1e-9 * rate:
        return unknown
    seeds: Any = trained.curve.values_rs.shape[1]
    return {
        "rate": rate,
        "curve": trained.experiment,
        "lower": rates[best - 1],
        "higher": rates[best + 1],
        "seeds": int(seeds),
    }
