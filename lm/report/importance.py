"""Importance of each parameter of a search, with its uncertainty."""

import importlib.util
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

FEWEST = 10
"""Smallest number of complete trials for importances."""

RESAMPLES = 100
TREES = 32


@dataclass(frozen=True)
class Importance:
    """One parameter's share of the variance, with its interval over resampled trials."""

    name: str
    share: float
    low: float
    high: float


def importances(
    complete: pd.DataFrame, objectives: list[str], space: dict[str, dict[str, Any]], seed: int = 0
) -> dict[str, list[Importance]] | str:
    """Return fANOVA importances (Hutter et al. 2014) of each objective, largest first, or why there are none.

    Intervals are the 2.5 and 97.5 percentiles over trials resampled with replacement. The same trials and seed give
    the same numbers. https://proceedings.mlr.press/v32/hutter14.html
    """
    names = [name for name in space if complete[name].notna().all() and complete[name].nunique() > 1]
    if len(names) < 2:
        return "it takes two parameters that are drawn in every trial and vary."
    for quantity in objectives:
        if complete[quantity].nunique() < 2:
            return f"{quantity} is the same in every trial."
    if importlib.util.find_spec("sklearn") is None:  # which has Optuna's forest
        return "fANOVA needs scikit-learn; install it with: pip install scikit-learn"
    generator = np.random.default_rng(seed)
    draws = generator.integers(len(complete), size=(RESAMPLES, len(complete)))
    by_objective = {}
    for quantity in objectives:
        point = shares(complete, quantity, {name: space[name] for name in names}, seed)
        resampled = []
        for rows in draws:
            resample = complete.iloc[rows]
            if resample[quantity].nunique() > 1:
                resampled.append(shares(resample, quantity, {name: space[name] for name in names}, seed))
        low, high = np.percentile(np.array(resampled), [2.5, 97.5], axis=0)
        ranked = [Importance(n, *map(float, v)) for n, *v in zip(names, point, low, high, strict=True)]
        by_objective[quantity] = sorted(ranked, key=lambda row: -row.share)
    return by_objective


def shares(trials: pd.DataFrame, quantity: str, space: dict[str, dict[str, Any]], seed: int) -> list[float]:
    """Return each parameter's own share of the variance, in the order of `space`; they sum to 1."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {name: distribution(described) for name, described in space.items()}
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    study.add_trials(
        [
            optuna.trial.create_trial(
                params={name: _plain(row[name], space[name]) for name in space},
                distributions=distributions,
                value=float(row[quantity]),
            )
            for _, row in trials.iterrows()
        ]
    )
    evaluator = optuna.importance.FanovaImportanceEvaluator(n_trees=TREES, seed=seed)
    by_name = optuna.importance.get_param_importances(study, evaluator=evaluator, params=list(space), normalize=True)
    return [by_name[name] for name in space]


def distribution(described: dict[str, Any]) -> Any:
    """Return Optuna's distribution of a described parameter."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if "choices" in described:
        return CategoricalDistribution(described["choices"])
    low, high, log = described["low"], described["high"], described["log"]
    if described["int"]:
        return IntDistribution(int(low), int(high), log=log, step=int(described["step"] or 1))
    return FloatDistribution(low, high, log=log, step=described["step"])


def _plain(value: Any, described: dict[str, Any]) -> Any:
    if "choices" in described:
        return value
    return int(value) if described["int"] else float(value)
