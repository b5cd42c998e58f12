"""A search as read from study.json: best trials, importances of its parameters, warnings."""

import importlib.util
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lm.config.plain import clipped, shown
from lm.config.tree import InputError
from lm.report.render import Section
from lm.report.tables import heading, number
from lm.store.files import read_json
from lm.store.formats import SEARCH
from lm.store.metrics import METRICS
from lm.store.record import StudyManifest
from lm.store.validation import check_shape

STATES = ("complete", "pruned", "failed", "open")
SHOWN = 10  # number of trials in the table of the best
MOST_PARAMETERS = 24  # largest number of parameters in tables and figures
ABSENT = -0.15  # position of a parameter without a value
EDGE = 0.05  # share of a range at each end in which a best value suggests that the range is too narrow


@dataclass(frozen=True)
class Study:
    """A search as read from disk."""

    manifest: StudyManifest  # content of study.json
    # a row a trial: number, state, seconds, reason, each objective, each parameter (missing if not drawn)
    trials: pd.DataFrame
    ranked: tuple[str, ...] = ()  # parameters by importance, the largest first; empty where it is not known

    @property
    def objectives(self) -> dict[str, str]:
        """Directions of the objectives by quantity, `lower` or `higher`."""
        return dict(self.manifest["objectives"])

    @property
    def space(self) -> dict[str, dict[str, Any]]:
        """Parameters by name: `{low, high, log, step, int}` or `{choices}`."""
        described: Any = self.manifest["space"]  # of two kinds, told apart by `choices`
        return dict(described)

    @property
    def shown_space(self) -> dict[str, dict[str, Any]]:
        """Parameters in tables and figures: all, or of too many the most important, else the first."""
        space = self.space
        shown = set(list(dict.fromkeys([*self.ranked, *space]))[:MOST_PARAMETERS])
        return {name: described for name, described in space.items() if name in shown}

    @property
    def complete(self) -> pd.DataFrame:
        """The trials that were trained to their end."""
        return self.trials[self.trials.state == "complete"]

    @property
    def best(self) -> pd.DataFrame:
        """The complete trials, best first; with several objectives those that no other beats in all of them."""
        complete = self.complete
        signs = {name: 1.0 if direction == "lower" else -1.0 for name, direction in self.objectives.items()}
        if len(signs) > 1:
            costs = (complete[list(signs)] * pd.Series(signs)).to_numpy(dtype=float)
            beaten = [bool(((costs <= row).all(axis=1) & (costs < row).any(axis=1)).any()) for row in costs]
            complete = complete[[not is_beaten for is_beaten in beaten]]
        first, direction = next(iter(self.objectives.items()))
        return complete.sort_values([first, "number"], ascending=[direction == "lower", True])


def load_study(folder: Path) -> Study:
    """Read `study.json`. Raises InputError where it is missing, damaged or of another version."""
    path = folder / "study.json"
    manifest: Any = SEARCH.read(read_json(path), path)
    check_shape(manifest, StudyManifest, path, "run `lm sweep` again")
    described: Any = manifest["space"]
    if damage := next(_damages(manifest, described), ""):
        raise InputError(f"{path}: is damaged, {damage}; run `lm sweep` again")
    objectives, space, own = list(manifest["objectives"]), list(described), ("number", "state", "seconds", "reason")
    rows = []
    for trial in manifest["study"]:
        values = trial["values"] or [math.nan] * len(objectives)
        rows.append([*(trial[key] for key in own), *values, *(trial["params"].get(name) for name in space)])
    return Study(manifest, pd.DataFrame(rows, columns=[*own, *objectives, *space]))


def _damages(manifest: StudyManifest, space: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Describe invalid content of trials, and impossible objectives, methods, seeds or search space."""
    for trial in manifest["study"]:
        title, values = f"trial {trial['number']}", trial["values"]
        if trial["state"] not in STATES:
            yield f"{title} is {clipped(trial['state'], 80)}"
        lacking = trial["state"] == "complete" and None in (values or [None])
        if lacking or (values and len(values) != len(manifest["objectives"])):
            yield f"{title} has the values {shown(values)}"
        for name, of in space.items():
            value, choices = trial["params"].get(name), of.get("choices")
            within = choices is None and isinstance(value, int | float) and of["low"] <= value <= of["high"]
            if value is not None and not within and value not in (choices or ()):
                yield f"{title} has {clipped(name, 80)}={shown(value)}"
    for name, direction in manifest["objectives"].items():
        if name not in METRICS or direction not in ("lower", "higher"):
            yield f"objectives hold {clipped(name, 80)}: {clipped(direction, 80)}"
    for name, of in space.items():
        low, high = of.get("low", 0), of.get("high", 1)
        if not low < high or (of.get("log") and low <= 0) or of.get("choices") == []:
            yield f"space.{clipped(name, 80)} holds nothing"
    if not (manifest["objectives"] and manifest["methods"] and manifest["seeds"]):
        yield "objectives, methods or seeds are empty"


def position(value: Any, described: Mapping[str, Any]) -> float:
    """Return the position of a value on its parameter's axis, from 0 to 1; log-scaled ranges by logarithm."""
    if value is None or pd.isna(value):
        return ABSENT
    if "choices" in described:
        return float(described["choices"].index(value) / max(1, len(described["choices"]) - 1))
    low, high = described["low"], described["high"]
    if described["log"]:
        return math.log(float(value) / low) / math.log(high / low)
    return float((float(value) - low) / (high - low))


def edge(value: Any, described: Mapping[str, Any]) -> str | None:
    """Return `low` or `high` where a value lies within 5 % of that end of its range."""
    share = position(value, described)
    if "choices" in described or share == ABSENT:
        return None
    return "low" if share <= EDGE else "high" if share >= 1 - EDGE else None


def warnings_of(study: Study) -> list[str]:
    """Warn of parameters whose best value, or most values on a front, lie at an end of the range."""
    several, warnings = len(study.objectives) > 1, []
    best = study.best if several else study.best.head(1)
    for name, described in study.space.items():
        values = [value for value in best[name] if value is not None and not pd.isna(value)]
        for end in ("low", "high"):
            count = sum(edge(value, described) == end for value in values)
            if count > len(values) / 2:
                which = f"{count} of {len(values)} on the front lie" if several else "the best trial lies"
                warnings.append(
                    f"{name}: {which} at the {end} end of its range, {format_value(described[end], 4)}: widen the "
                    "range, or the best may be missed."
                )
    return warnings


def notes(study: Study) -> list[str]:
    """List the notes on trials, seeds, sampler and pruner."""
    manifest, counts = study.manifest, study.trials.state.value_counts()
    states = ", ".join(f"{counts[state]} {state}" for state in STATES if state in counts)
    lines = [f"{len(study.trials)} of {manifest['trials']} trials: {states or 'none yet'}."]
    for reason, rows in study.trials[study.trials.state == "failed"].groupby("reason"):
        word = "trials" if len(rows) > 1 else "trial"
        lines.append(f"Failed: {word} {', '.join(map(str, rows.number))}: {reason}. It tells the sampler nothing.")
    mean = f"Each trial is the mean over seeds {', '.join(map(str, manifest['seeds']))}."
    lines.append(mean if len(manifest["seeds"]) > 1 else f"One seed ({manifest['seeds'][0]}) a trial.")
    if len(study.complete) > 1:
        best = f"The best of {len(study.complete)} looks better than it is"
        lines[-1] += f" {best}: confirm it on fresh seeds with an ablation."
    for method in manifest["methods"]:
        sampler = ", ".join(f"{key} {value}" for key, value in method["sampler"].items() if key != "name")
        named = f"sampler {method['sampler']['name']} ({sampler}), pruner {method['pruner']['name']}"
        lines.append(f"From trial {method['from_trial']}: {named}.")
    if len(manifest["methods"]) > 1 and manifest["methods"][-1]["sampler"]["name"] not in ("grid", "qmc"):
        lines.append("A search that was taken up suggests other values than one that ran through.")
    if len(study.space) > MOST_PARAMETERS:
        lines.append(
            f"Tables and figures show {MOST_PARAMETERS} of {len(study.space)} parameters: the most important, or the "
            "first without importances. study.json has all."
        )
    return lines


def format_value(value: Any, digits: int = 5) -> str:
    """Format a value of a parameter or an objective; a dash where there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return f"{value:z.{digits}g}" if isinstance(value, float) else str(value)


FEWEST = 10  # smallest number of complete trials for importances

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

    Intervals are the 2.5 and 97.5 percentiles over trials resampled with a seed.
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
    varying, by_objective = {name: space[name] for name in names}, {}
    for quantity in objectives:
        point = shares(complete, quantity, varying, seed)
        resamples = [resample for rows in draws if (resample := complete.iloc[rows])[quantity].nunique() > 1]
        resampled = [shares(resample, quantity, varying, seed) for resample in resamples]
        low, high = np.percentile(np.array(resampled), [2.5, 97.5], axis=0)
        ranked = [Importance(n, *map(float, v)) for n, *v in zip(names, point, low, high, strict=True)]
        by_objective[quantity] = sorted(ranked, key=lambda row: -row.share)
    return by_objective


def shares(trials: pd.DataFrame, quantity: str, space: dict[str, dict[str, Any]], seed: int) -> list[float]:
    """Return each parameter's own share of the variance, in the order of `space`; they sum to 1."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {name: distribution(described) for name, described in space.items()}
    numeric = {name: described for name, described in space.items() if "choices" not in described}
    kinds = {name: int if described["int"] else float for name, described in numeric.items()}
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    for _, row in trials.iterrows():
        params = {name: kinds[name](row[name]) if name in kinds else row[name] for name in space}
        value = float(row[quantity])
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=value))
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


def importance_lines(importances: dict[str, list[Importance]] | str) -> list[str]:
    """Format importances as lines of text, or state why there are none."""
    if isinstance(importances, str):
        return [f"No importances: {importances}"]
    lines = [
        "Exploratory: shares of the variance that a random forest, fitted to the complete trials, gives each parameter "
        "(fANOVA), with 95 % bootstrap intervals over trials. Samplers crowd where it looks good, so the trials are no "
        "even sample of the space; options drawn in some trials only are left out; wide intervals mean: not known."
    ]
    for quantity, rows in importances.items():
        shares = "; ".join(f"{row.name} {row.share:z.2f} [{row.low:z.2f}, {row.high:z.2f}]" for row in rows)
        lines.append(f"{METRICS[quantity].label}: {shares}")
    return lines


def best_section(study: Study) -> Section:
    """Build the table of the best trials, with a column for each parameter; below it warnings and notes."""
    arrows = {"lower": " ↓", "higher": " ↑"}
    objectives = [heading(name).rstrip(" ↓↑") + arrows[direction] for name, direction in study.objectives.items()]
    rows = []
    for _, row in study.best.head(SHOWN).iterrows():
        values = [number(float(row[quantity]), METRICS[quantity].digits) for quantity in study.objectives]
        rows.append([str(row["number"]), *values, *(format_value(row[name], 4) for name in study.shown_space)])
    title = ("Pareto front" if len(study.objectives) > 1 else "Best trials") if rows else ""
    columns = ["trial", *objectives, *study.shown_space]
    return Section(title, columns, rows, [*warnings_of(study), *notes(study)])
