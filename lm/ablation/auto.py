"""`auto` in an experiment: decided once, on its baseline, and the same for all of its arms."""

import math
from dataclasses import asdict, replace
from pathlib import Path

from lm.ablation.experiment import Experiment
from lm.config.tree import InputError, override
from lm.execution.machine import default_workers, threads_each
from lm.inference.ways import asked, decided


def with_ways(experiment: Experiment, out: Path, workers: int | None) -> Experiment:
    """The experiment with each `auto` of its base replaced by what was found to be fastest for its baseline.

    Args:
        experiment: as it was read.
        out: the results folder, in which decisions are kept.
        workers: cells trained at a time; None for as many as there would be.

    Raises:
        InputError: where an arm asks for `auto` by itself: arms would be computed in different ways.
    """
    for arm, changes in experiment.arms.items():
        for path, value in changes.items():
            if value == "auto" and path.startswith("trainer.") and asked({"trainer": {path.split(".")[1]: value}}):
                raise InputError(
                    f"arm {arm}: {path}: auto would have its arms computed in different ways; give it in the base or "
                    "under common, or name one way here"
                )
    if not asked(experiment.tree):
        return experiment
    baseline = override(experiment.tree, {**experiment.arms[experiment.baseline], "seed": experiment.seeds[0]})
    arms, seeds = len(experiment.arms), len(experiment.seeds)
    workers = workers or default_workers(arms * seeds)
    steps = baseline.get("trainer", {}).get("max_steps")
    in_turn = math.ceil(arms * seeds / workers) * steps if isinstance(steps, int) else None
    _, decision = decided(baseline, out, threads_each(workers), in_turn, arms)
    if decision is None:  # the baseline names its own way
        raise InputError(
            f"{', '.join(asked(experiment.tree))}: auto is decided on the baseline, and {experiment.baseline} names "
            "its own"
        )
    chosen = {f"trainer.{name}": value for name, value in decision.chosen.items()}
    return replace(experiment, tree=override(experiment.tree, chosen), ways=asdict(decision))
