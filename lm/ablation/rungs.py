"""`ladder:` in an experiment: the same arms at several sizes, with as much text as the baseline asks for at each."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Required, TypedDict

from lm.config.keys import Also, Changes, keys, required
from lm.config.plain import shown
from lm.config.reading import Seeds, read_changes, read_mapping, read_seeds
from lm.config.tree import InputError, Tree, nearest, path_name
from lm.store.metrics import describe

MOST_RUNGS = 20
MOST_TOKENS = 10**15


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
    """The same arms at several sizes."""

    rungs: Required[
        Annotated[
            dict[str, RungNode | None],
            "Sizes by name, from the least compute to the most.",
            Also(minProperties=2, maxProperties=MOST_RUNGS),
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


KEYS, RUNG_KEYS, MARGIN_KEYS = keys(LadderNode), keys(RungNode), keys(MarginNode)


@dataclass(frozen=True)
class RungSpec:
    """One size: its changes, the seeds instead of the experiment's, its text, in tokens or tokens a parameter, and the
    learning rates of arms instead of theirs."""

    changes: dict[str, Any]
    seeds: list[int]
    tokens: float | None
    per_parameter: float | None
    rates: dict[str, float]


@dataclass(frozen=True)
class LadderSpec:
    """A ladder as its experiment's file has it.

    Args:
        rungs: by name, in the order of the file.
        warmup: share of the steps; None where the configurations say.
        forecast: whether the rungs below forecast the top one.
        margin: some of `difference` and `gain`, per decade of compute.
        settings: changes given with the command, which go before those of the rungs.
    """

    rungs: dict[str, RungSpec]
    warmup: float | None
    forecast: bool
    margin: dict[str, float]
    settings: dict[str, Any]


REFUSED = {
    "tiers": "the rungs of a ladder are its sizes; give another size a file of its own",
    "tune": "every rung would have rates of its own; tune the smallest rung in an experiment, and carry them up",
    "lr_curve": "every rung would have rates of its own; find the best at the smallest rung, and carry it up",
    "data_seeds": "the variance of a run is that of one size; vary seed and order apart in an experiment of one rung",
    "claims": "a claim is answered by one experiment's results, and a ladder has those of several",
}
"""What an experiment with a ladder cannot have beside it, and why."""


def read_ladder(
    experiment: Tree, seeds: list[int], metric: str, settings: Mapping[str, Any], path: str, same_seeds: bool = False
) -> LadderSpec | None:
    """The `ladder` of an experiment; None where it has none.

    Args:
        experiment: the file.
        seeds: of the experiment.
        metric: its headline.
        settings: changes given with the command.
        path: of the file.
        same_seeds: whether those of the experiment go before those of a rung, as where the command gives them.

    Raises:
        InputError: naming the place.
    """
    if "ladder" not in experiment:
        return None
    for key, reason in REFUSED.items():
        if experiment.get(key):
            raise InputError(f"{path}: {key}: does not go with a ladder: {reason}")
    if isinstance(experiment.get("seeds"), Mapping):
        raise InputError(f"{path}: seeds: a ladder has no stages, as each rung's law rests on all of its seeds")
    if describe(metric).better != "lower":
        raise InputError(
            f"{path}: metric: a ladder follows a loss that falls with compute, such as nll; found {metric}"
        )
    path = f"{path}: ladder"
    tree = _node(experiment["ladder"], KEYS, path)
    for key in required(LadderNode):
        if key not in tree:
            raise InputError(f"{path}: {key} is missing; a ladder needs sizes by name, from the smallest")
    of_rungs = read_mapping(tree["rungs"], f"{path}.rungs")
    if not 2 <= len(of_rungs) <= MOST_RUNGS:
        raise InputError(
            f"{path}.rungs: expected 2 to {MOST_RUNGS} rungs, found {len(of_rungs)}; a law takes 3, and one more where "
            "the top one is forecast"
        )
    rungs = {
        path_name(name, f"{path}.rungs"): _rung(one, tree, seeds, path, str(name), same_seeds)
        for name, one in of_rungs.items()
    }
    margin = _node(tree.get("margin"), MARGIN_KEYS, f"{path}.margin")
    forecast = tree.get("forecast", True)
    if not isinstance(forecast, bool):
        raise InputError(f"{path}.forecast: expected true or false, found {shown(forecast)}")
    return LadderSpec(
        rungs,
        None if tree.get("warmup") is None else _number(tree["warmup"], 0, 1, f"{path}.warmup", "a share from 0 to 1"),
        forecast,
        {key: _margin(key, value, f"{path}.margin.{key}") for key, value in margin.items()},
        dict(settings),
    )


def _node(node: Any, known: tuple[str, ...], path: str) -> dict[str, Any]:
    """A mapping of known keys, empty for null. Raises InputError."""
    if node is None:
        return {}
    if not isinstance(node, Mapping):
        raise InputError(f"{path}: expected a mapping of {', '.join(known)}, found {shown(node)}")
    for key in node:
        if key not in known:
            near = nearest(str(key), known)
            dotted = "; changes to the base stand under common" if known is RUNG_KEYS and "." in str(key) else ""
            raise InputError(f"{path}: no key {shown(key)}.{near} It takes {', '.join(known)}{dotted}")
    return dict(node)


def _rung(node: Any, whole: Mapping[str, Any], seeds: list[int], ladder: str, name: str, same_seeds: bool) -> RungSpec:
    """A rung; what it does not say of its text is said by `whole`, the ladder at the path `ladder`."""
    path = f"{ladder}.rungs.{name}"
    tree = _node(node, RUNG_KEYS, path)
    changes = read_changes(tree.get("common"), f"{path}.common")
    if "seed" in changes:
        raise InputError(f"{path}.common.seed: seeds belong to the experiment, so that arms are paired; use seeds")
    own = {key: tree[key] for key in ("tokens", "tokens_per_parameter") if tree.get(key) is not None}
    asked = own or {key: whole[key] for key in ("tokens", "tokens_per_parameter") if whole.get(key) is not None}
    if len(asked) > 1:
        raise InputError(f"{path}: expected tokens or tokens_per_parameter, found both")
    if asked and "trainer.max_steps" in changes:
        raise InputError(f"{path}.common.trainer.max_steps: follows from {min(asked)}; leave one of them out")
    where = path if own else ladder
    tokens = {key: _above_zero(value, f"{where}.{key}", MOST_TOKENS) for key, value in asked.items()}
    chosen = tree.get("seeds")
    if isinstance(chosen, Mapping):
        raise InputError(f"{path}.seeds: a ladder has no stages; give a number of seeds or a list")
    given = seeds if same_seeds or chosen is None else read_seeds(chosen, f"{path}.seeds")
    rates = read_changes(tree.get("rates"), f"{path}.rates")
    own_rates = {arm: _above_zero(rate, f"{path}.rates.{arm}") for arm, rate in rates.items()}
    return RungSpec(changes, given, tokens.get("tokens"), tokens.get("tokens_per_parameter"), own_rates)


def _above_zero(value: Any, path: str, most: float = math.inf) -> float:
    expected = "a number above 0" if math.isinf(most) else f"a number above 0 and below {most:z.0e}"
    found = _number(value, 0, most, path, expected)
    if not found:
        raise InputError(f"{path}: expected {expected}, found 0")
    return found


def _number(value: Any, low: float, high: float, path: str, expected: str) -> float:
    """A number; as text where YAML took it for that, as in 1e6. Raises InputError."""
    try:
        found = float(value.encode("ascii")) if isinstance(value, str) else value
    except ValueError:
        found = None
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise InputError(f"{path}: expected {expected}, found {shown(value)}")
    if not low <= found < high:
        raise InputError(f"{path}: expected {expected}, found {shown(value)}")
    return float(found)


def _margin(key: str, value: Any, path: str) -> float:
    least, expected = (1.0, "a factor above 1 such as 1.1") if key == "gain" else (0.0, "a number above 0")
    found = _number(value, least, math.inf, path, expected)
    if found == least:
        raise InputError(f"{path}: expected {expected}, found {shown(value)}")
    return found
