"""The search that every arm gets for its nuisance parameters: the same space, budget and seeds for each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Required, TypedDict

from lm.config.keys import Also, keys, required
from lm.config.plain import shown
from lm.config.reading import Seeds, read_seeds
from lm.config.tree import InputError, Tree, nearest
from lm.search.distributions import SpacePaths
from lm.search.space import Space, read_space
from lm.search.spec import PRUNERS, SAMPLERS, Method, Pruner, Sampler, SweepSpec, check_methods, read_method
from lm.store.metrics import describe, parse_average

SEEDS = [1000]
"""Of the trials, where the experiment names none."""


class TuningNode(TypedDict, total=False):
    """The same search for every arm; the winner is trained anew on the experiment's seeds."""

    space: Required[Annotated[SpacePaths, "What is searched: the nuisance parameters."]]
    trials: Required[Annotated[int, "Trials of each arm, whatever becomes of them.", Also(minimum=1)]]
    seeds: Annotated[Seeds, "Every trial is trained with each; none of them confirms a winner.", Also(default=SEEDS)]
    sampler: Annotated[Sampler, "How values are drawn."]
    pruner: Annotated[Pruner, "How trials are stopped early."]


KEYS = keys(TuningNode)


@dataclass(frozen=True)
class Tuning:
    """What each arm is given.

    Args:
        space: the nuisance parameters.
        trials: how many, whatever becomes of them.
        seeds: every trial is trained with each; the confirmation uses none of them.
        sampler, pruner: how values are drawn and trials stopped.
        metric: what the winner is best in.
    """

    space: Space
    trials: int
    seeds: list[int]
    sampler: Method
    pruner: Method
    metric: str

    def spec(self, arm: str, title: str, tree: Tree) -> SweepSpec:
        """The search of one arm, which starts from its configuration."""
        better = str(describe(self.metric).better)
        return SweepSpec(
            arm, title, tree, self.space, {self.metric: better}, self.trials, self.seeds, self.sampler, self.pruner
        )


def read_tuning(tree: Any, metric: str, confirmation: Sequence[int], path: str) -> Tuning:
    """The `tune` node of an experiment that is judged by `metric` on the seeds of `confirmation`.

    Raises:
        InputError: naming `path`.
    """
    if not isinstance(tree, Mapping):
        raise InputError(f"{path}: expected a mapping with space and trials, found {shown(tree)}")
    for key in tree:
        if key not in KEYS:
            raise InputError(f"{path}: no key {key!r}.{nearest(str(key), KEYS)} It takes {', '.join(KEYS)}")
    for key in required(TuningNode):
        if key not in tree:
            raise InputError(f"{path}: {key} is missing; tuning needs a space and a number of trials for each arm")
    if parse_average(metric) is not None:
        raise InputError(f"{path}: arms are judged by {metric}, a mean over validations, which a search does not know")
    if "@" in metric:
        raise InputError(f"{path}: arms are judged by {metric}, a loss at a length, which a search does not know")
    if describe(metric).better is None:
        raise InputError(f"{path}: arms are judged by {metric}, of which neither more nor less is better")
    if type(tree["trials"]) is not int or tree["trials"] < 1:
        raise InputError(f"{path}.trials: expected a whole number from 1, found {shown(tree['trials'])}")
    seeds = read_seeds(tree.get("seeds", SEEDS), f"{path}.seeds")
    if shared := sorted(set(seeds) & set(confirmation)):
        raise InputError(
            f"{path}.seeds: {shared} confirm the winner; a winner is confirmed on seeds it was not chosen on"
        )
    tuning = Tuning(
        space=read_space(tree["space"], f"{path}.space"),
        trials=tree["trials"],
        seeds=seeds,
        sampler=read_method(tree.get("sampler", "tpe"), SAMPLERS, f"{path}.sampler"),
        pruner=read_method(tree.get("pruner", "none"), PRUNERS, f"{path}.pruner"),
        metric=metric,
    )
    check_methods(tuning.spec("", "", {}), path)
    return tuning
