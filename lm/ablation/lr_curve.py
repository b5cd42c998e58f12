"""Every arm over a grid of learning rates, on seeds of its own, and the rate at which each is best.

The grid is an experiment like any other, an arm for each arm and rate: its cells are known by what they compute, and a
grid that was killed goes on where it stopped.
"""

from dataclasses import replace
from typing import Any

from lm.ablation.experiment import Experiment
from lm.ablation.plan import Plan
from lm.analysis.rates import rate_curve
from lm.analysis.results import load
from lm.report.rates import DESCRIBED
from lm.store.files import to_json, write_atomic
from lm.store.formats import RATES
from lm.store.store import Store

RATE = "optim.lr"


def called(arm: str, rate: float) -> str:
    """What an arm at a rate is called among those of the grid."""
    return f"{arm}.lr{rate!r}"


def gridded(experiment: Experiment) -> Experiment:
    """The grid of an experiment, as an experiment that judges nothing."""
    grid = experiment.grid
    assert grid is not None
    arms = {
        called(arm, rate): {**changes, RATE: rate} for arm, changes in experiment.arms.items() for rate in grid.rates
    }
    first = called(experiment.baseline, grid.rates[0])
    return replace(
        experiment,
        name=f"{experiment.name}.lr_curve",
        title=f"{experiment.title} (over learning rates)",
        design=replace(experiment.design, kind="arms", arms=arms, baseline=first, levels={}, aliases=[]),
        seeds=grid.seeds,
        inference=replace(
            experiment.inference, confirmatory=[], declared={}, axes={}, secondary=[], margin={}, looks=()
        ),
        claims=(),
        grid=None,
        data_seeds=(),
    )


def write_rates(plan: Plan, store: Store) -> dict[str, Any]:
    """Leaves `lr_curve.json` in the folder of an experiment whose grid was trained; returns what each arm won with."""
    experiment = plan.experiment
    grid = experiment.grid
    assert grid is not None
    results = load(store.out / gridded(experiment).name)
    arms: dict[str, Any] = {}
    for arm in experiment.arms:
        names = {rate: called(arm, rate) for rate in grid.rates}
        curve = rate_curve(results, names)
        arms[arm] = {
            "shared": float(plan.first(arm).config["optim"]["lr"]),
            "best": None if curve.best is None else curve.rates[curve.best],
            "names": {repr(rate): name for rate, name in names.items()},
        }
    described = {"experiment": results.manifest["name"], "arms": arms}
    write_atomic(store.out / experiment.name / DESCRIBED, to_json(RATES.stamped(described)))
    return {arm: {"changes": None if of["best"] is None else {RATE: of["best"]}} for arm, of in arms.items()}
