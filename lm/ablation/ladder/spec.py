"""Section `ladder` of an experiment's file: the same arms at several sizes, each with its own training tokens."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Required, TypedDict

from lm.ablation.sections import read_section
from lm.config.keys import Also, Changes
from lm.config.plain import shown
from lm.config.reading import Seeds, read_changes, read_mapping, read_seeds
from lm.config.tree import InputError, Tree, path_name
from lm.store.metrics import describe

MAX_RUNGS = 20
MAX_TOKENS = 10**15


class RungNode(TypedDict, total=False):
    """One size of a ladder."""

    common: Annotated[Changes, "Changes to the base that make this size, for every arm; after those of the experiment."]
    seeds: Annotated[Seeds | None, "Instead of the experiment's."]
    tokens: Annotated[float | None, "Training tokens of this rung.", Also(exclusiveMinimum=0)]
    tokens_per_parameter: Annotated[
        float | None, "Training tokens of this rung, for each parameter of its baseline.", Also(exclusiveMinimum=0)
    ]
    rates: Annotated[dict[str, float], "Learning rates of arms at this size, instead of theirs; found by a curve."]


class MarginNode(TypedDict, total=False):
    """The slopes that count as none, per decade of compute."""

    difference: Annotated[float, "Of the difference, in the unit of the headline.", Also(exclusiveMinimum=0)]
    gain: Annotated[float, "Of the compute-equivalent gain, as a factor such as 1.1.", Also(exclusiveMinimum=1)]


class LadderNode(TypedDict, total=False):
    """A ladder: all arms at several sizes."""

    rungs: Required[
        Annotated[
            dict[str, RungNode | None],
            "Sizes by name, from the least compute to the most.",
            Also(minProperties=2, maxProperties=MAX_RUNGS),
        ]
    ]
    tokens: Annotated[float | None, "Training tokens of every rung.", Also(exclusiveMinimum=0)]
    tokens_per_parameter: Annotated[
        float | None, "Training tokens of every rung, for each parameter of its baseline.", Also(exclusiveMinimum=0)
    ]
    warmup: Annotated[
        float | None, "Share of the steps that the warm-up of the schedule takes.", Also(minimum=0, exclusiveMaximum=1)
    ]
    forecast: Annotated[bool, "Whether the rungs below forecast the top one.", Also(default=True)]
    margin: Annotated[MarginNode | None, "The slopes that count as none, per decade of compute."]


@dataclass(frozen=True)
class RungSpec:
    """One size of a ladder as `RungNode` describes it: changes to every arm, seeds, training tokens, learning rates."""

    changes: dict[str, Any]
    seeds: list[int]
    tokens: float | None
    tokens_per_parameter: float | None
    rates: dict[str, float]


@dataclass(frozen=True)
class LadderSpec:
    """A ladder as `LadderNode` describes it; `settings` given with the command go before the changes of its rungs."""

    rungs: dict[str, RungSpec]
    warmup: float | None
    forecast: bool
    margin: dict[str, float]
    settings: dict[str, Any]


EXCLUDED = {
    "tiers": "the rungs of a ladder are its sizes; give another size a file of its own",
    "tune": "every rung would have rates of its own; tune the smallest rung in an experiment, and carry them up",
    "lr_curve": "every rung would have rates of its own; find the best at the smallest rung, and carry it up",
    "data_seeds": "the variance of a run is that of one size; vary seed and order apart in an experiment of one rung",
    "claims": "a claim is answered by one experiment's results, and a ladder has those of several",
}
"""Keys that an experiment with a ladder cannot have, and why."""


def read_ladder(
    experiment: Tree, seeds: list[int], metric: str, settings: Mapping[str, Any], path: str, same_seeds: bool = False
) -> LadderSpec | None:
    """Read the `ladder` section of an experiment; None where it has none. Raises InputError naming the path.

    Seeds and metric are the experiment's, settings those given with the command. With `same_seeds` the command gives
    the seeds, which go before those of a rung.
    """
    if "ladder" not in experiment:
        return None
    for key, reason in EXCLUDED.items():
        if experiment.get(key):
            raise InputError(f"{path}: {key}: does not go with a ladder: {reason}")
    if isinstance(experiment.get("seeds"), Mapping):
        raise InputError(f"{path}: seeds: a ladder has no stages, as each rung's law rests on all of its seeds")
    if describe(metric).better != "lower":
        raise InputError(
            f"{path}: metric: a ladder follows a loss that falls with compute, such as nll; found {metric}"
        )
    path = f"{path}: ladder"
    missing = "a ladder needs sizes by name, from the smallest"
    tree = read_section({} if experiment["ladder"] is None else experiment["ladder"], LadderNode, path, missing=missing)
    nodes = read_mapping(tree["rungs"], f"{path}.rungs")
    if not 2 <= len(nodes) <= MAX_RUNGS:
        raise InputError(
            f"{path}.rungs: expected 2 to {MAX_RUNGS} rungs, found {len(nodes)}; a law takes 3, and one more where "
            "the top one is forecast"
        )
    rungs = {
        path_name(name, f"{path}.rungs"): _read_rung(node, tree, seeds, same_seeds, path, name)
        for name, node in nodes.items()
    }
    forecast, warmup, margin = tree.get("forecast", True), tree.get("warmup"), dict[str, float]()
    margin_node = {} if tree.get("margin") is None else tree["margin"]
    for key, value in read_section(margin_node, MarginNode, f"{path}.margin").items():
        above, expected = (1.0, "a factor above 1 such as 1.1") if key == "gain" else (0.0, "a number above 0")
        margin[key] = _read_number(value, f"{path}.margin.{key}", expected, above)
    if not isinstance(forecast, bool):
        raise InputError(f"{path}.forecast: expected true or false, found {shown(forecast)}")
    if warmup is not None:
        warmup = _read_number(warmup, f"{path}.warmup", "a share from 0 to 1", 0, 1, inclusive=True)
    return LadderSpec(rungs, warmup, forecast, margin, dict(settings))


def _read_rung(
    node: Any, ladder: Mapping[str, Any], seeds: list[int], same_seeds: bool, ladder_path: str, name: str
) -> RungSpec:
    """Read a rung; its tokens are those of the `ladder` unless it gives its own. Raises InputError."""
    path = f"{ladder_path}.rungs.{name}"
    hint = "; changes to the base stand under common"
    tree = read_section({} if node is None else node, RungNode, path, dotted=hint)
    changes = read_changes(tree.get("common"), f"{path}.common")
    if "seed" in changes:
        raise InputError(f"{path}.common.seed: seeds belong to the experiment, so that arms are paired; use seeds")
    own, shared = (
        {key: section[key] for key in ("tokens", "tokens_per_parameter") if section.get(key) is not None}
        for section in (tree, ladder)
    )
    size = own or shared
    if len(size) > 1:
        raise InputError(f"{path}: expected tokens or tokens_per_parameter, found both")
    if size and "trainer.max_steps" in changes:
        raise InputError(f"{path}.common.trainer.max_steps: follows from {min(size)}; leave one of them out")
    expected = f"a number above 0 and below {MAX_TOKENS:z.0e}"
    tokens = {
        key: _read_number(value, f"{path if own else ladder_path}.{key}", expected, below=MAX_TOKENS)
        for key, value in size.items()
    }
    if isinstance(tree.get("seeds"), Mapping):
        raise InputError(f"{path}.seeds: a ladder has no stages; give a number of seeds or a list")
    if tree.get("seeds") is not None and not same_seeds:
        seeds = read_seeds(tree["seeds"], f"{path}.seeds")
    rates = {
        arm: _read_number(rate, f"{path}.rates.{arm}", "a number above 0")
        for arm, rate in read_changes(tree.get("rates"), f"{path}.rates").items()
    }
    return RungSpec(changes, seeds, tokens.get("tokens"), tokens.get("tokens_per_parameter"), rates)


def _read_number(
    value: Any, path: str, expected: str, above: float = 0, below: float = math.inf, inclusive: bool = False
) -> float:
    """Return a number between two ends; text where YAML took it for that, as in 1e6. Raises InputError."""
    number = value
    if isinstance(value, str):
        try:
            number = float(value.encode("ascii"))
        except ValueError:
            number = None
    valid = isinstance(number, int | float) and not isinstance(number, bool) and above <= number < below
    if not valid or (number == above and not inclusive):
        raise InputError(f"{path}: expected {expected}, found {shown(value)}")
    return float(number)
