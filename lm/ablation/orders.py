"""Initial values and order of the data varied apart: the baseline with every seed, in every one of several orders.

That is an experiment like any other, an arm for each order; a cell whose order is that of its seed is one of the
baseline's own.
"""

from dataclasses import replace

from lm.ablation.experiment import Experiment
from lm.analysis.orders import ENDING


def arm_of(data_seed: int) -> str:
    """What the baseline in an order is called among those of the grid."""
    return f"order_{data_seed}"


def ordered(experiment: Experiment) -> Experiment:
    """The baseline in each of the experiment's orders, as an experiment that judges nothing."""
    base = experiment.arms[experiment.baseline]
    arms = {arm_of(one): {**base, "data_seed": one} for one in experiment.data_seeds}
    design = replace(
        experiment.design, kind="arms", arms=arms, baseline=arm_of(experiment.data_seeds[0]), levels={}, aliases=[]
    )
    inference = replace(experiment.inference, confirmatory=[], declared={}, axes={}, secondary=[], margin={}, looks=())
    return replace(
        experiment,
        name=f"{experiment.name}{ENDING}",
        title=f"{experiment.title} (orders of the data)",
        design=design,
        inference=inference,
        claims=(),
        data_seeds=(),
        tuning=None,
        grid=None,
    )
