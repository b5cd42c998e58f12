"""Every arm over a grid of learning rates, on seeds of its own, and the rate at which each is best.

The grid is an experiment like any other, an arm for each arm and rate: its cells are known by what they compute, and a
grid that was killed goes on where it stopped.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from lm.ablation.experiment import Experiment
from lm.ablation.plan import Plan
from lm.analysis.rates import RateCurve, rate_curve
from lm.analysis.results import load
from lm.config.tree import InputError, Tree
from lm.report.rates import DESCRIBED
from lm.store.files import read_json, to_json, write_atomic
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


def read_rates(folder: Path) -> dict[str, tuple[Tree, RateCurve]]:
    """Return the curve of each arm of an experiment, with the configuration of a cell of it.

    Raises:
        InputError: where `lr_curve.json` or what it names cannot be read.
    """
    path = folder / DESCRIBED
    described = RATES.read(read_json(path), path)
    try:
        grid = load(folder.parent / f"{folder.name}.lr_curve")
        curves = {}
        for arm, of_arm in described["arms"].items():
            names = {float(rate): str(name) for rate, name in of_arm["names"].items()}
            config = next(filter(None, map(grid.configuration, names.values())), None)
            if config is not None:
                curves[str(arm)] = config, rate_curve(grid, names)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: is damaged ({type(error).__name__}); run `lm ablate` again") from None
    return curves
