"""Experiments made from an experiment: on each text, over learning rates or orders of the data, with arms' winners.

Each is an experiment like any other: its cells are identified by what they compute, and one that was interrupted
resumes.
"""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lm.ablation.experiment import Experiment
from lm.ablation.plan import Plan
from lm.analysis.effects import ENDING, order_name
from lm.analysis.rates import RateCurve, rate_curve
from lm.analysis.results import load
from lm.config.tree import InputError, Tree, override
from lm.report.tuning import DESCRIBED
from lm.store.files import read_json, to_json, write_atomic
from lm.store.formats import RATES
from lm.store.store import Store

RATE = "optim.lr"


def arm_at_rate(arm: str, rate: float) -> str:
    """Return the name that an arm at a learning rate has in the grid."""
    return f"{arm}.lr{rate!r}"


def _without_verdicts(experiment: Experiment, arms: dict[str, dict[str, Any]], baseline: str) -> Experiment:
    """Return the experiment with other arms, of which it judges none."""
    inference = replace(experiment.inference, confirmatory=[], declared={}, axes={}, secondary=[], margin={}, looks=())
    design = replace(experiment.design, kind="arms", arms=arms, baseline=baseline, levels={}, aliases=[])
    return replace(experiment, design=design, inference=inference, claims=(), tuning=None, grid=None, data_seeds=())


def expand_rates(experiment: Experiment) -> Experiment:
    """Return the grid of learning rates of an experiment, with an arm for each arm and rate."""
    grid = experiment.grid
    assert grid is not None
    pairs = itertools.product(experiment.arms.items(), grid.rates)
    arms = {arm_at_rate(arm, rate): {**changes, RATE: rate} for (arm, changes), rate in pairs}
    return replace(
        _without_verdicts(experiment, arms, arm_at_rate(experiment.baseline, grid.rates[0])),
        name=f"{experiment.name}.lr_curve",
        title=f"{experiment.title} (over learning rates)",
        seeds=grid.seeds,
    )


def expand_corpora(experiment: Experiment) -> list[Experiment]:
    """Return the experiment on each of its texts, called `NAME.TEXT`; itself where its file names none."""
    return [
        replace(
            experiment,
            name=f"{experiment.name}.{text}",
            title=f"{experiment.title} ({text})",
            tree=override(experiment.tree, changes),
            corpora={},
        )
        for text, changes in experiment.corpora.items()
    ] or [experiment]


def expand_orders(experiment: Experiment) -> Experiment:
    """Return the baseline, or all arms, with every seed in each order of the data; some cells are the experiment's.

    Each arm and order is an arm: `order_0` of the baseline, `ARM.order_0` of another one.
    """
    grid = itertools.product(experiment.arms.items(), experiment.data_seeds)
    arms = {
        order_name("" if arm == experiment.baseline else arm, order): {**changes, "data_seed": order}
        for (arm, changes), order in grid
        if experiment.crossed or arm == experiment.baseline
    }
    first = order_name("", experiment.data_seeds[0])
    return replace(
        _without_verdicts(experiment, arms, first),
        name=f"{experiment.name}{ENDING}",
        title=f"{experiment.title} (orders of the data)",
    )


def with_winners(experiment: Experiment, winners: Mapping[str, Any]) -> Experiment:
    """Return the experiment with each arm's winning changes; an arm without a winner keeps the shared values."""
    arms = {arm: {**changes, **(winners[arm]["changes"] or {})} for arm, changes in experiment.arms.items()}
    design, name, title = replace(experiment.design, arms=arms), f"{experiment.name}.tuned", experiment.title
    named = replace(experiment, name=name, title=f"{title} (each arm tuned)", design=design)
    return replace(named, claims=(), tuning=None, grid=None, data_seeds=())


def write_rates(plan: Plan, store: Store) -> dict[str, Any]:
    """Write `lr_curve.json` for an experiment whose grid was trained; return the winning changes of each arm."""
    experiment = plan.experiment
    grid = experiment.grid
    assert grid is not None
    results = load(store.out / expand_rates(experiment).name)
    arms: dict[str, Any] = {}
    for arm in experiment.arms:
        names = {rate: arm_at_rate(arm, rate) for rate in grid.rates}
        curve = rate_curve(results, names)
        arms[arm] = {
            "shared": float(plan.first(arm).config["optim"]["lr"]),
            "best": None if curve.best is None else curve.rates[curve.best],
            "names": {repr(rate): name for rate, name in names.items()},
        }
    content = {"experiment": results.manifest["name"], "arms": arms}
    write_atomic(store.out / experiment.name / DESCRIBED, to_json(RATES.stamped(content)))
    return {arm: {"changes": None if entry["best"] is None else {RATE: entry["best"]}} for arm, entry in arms.items()}


def read_rates(folder: Path) -> dict[str, tuple[Tree, RateCurve]]:
    """Return the curve of each arm, with the configuration of a cell. Raises InputError for a damaged file."""
    path = folder / DESCRIBED
    content = RATES.read(read_json(path), path)
    try:
        grid = load(folder.parent / f"{folder.name}.lr_curve")
        curves = {}
        for arm, entry in content["arms"].items():
            names = {float(rate): str(name) for rate, name in entry["names"].items()}
            config = next(filter(None, map(grid.configuration, names.values())), None)
            if config is not None:
                curves[str(arm)] = config, rate_curve(grid, names)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: is damaged ({type(error).__name__}); run `lm ablate` again") from None
    return curves
