"""Sections of an experiment's file: stages of seeds, a grid of rates, a search for every arm, a ladder of sizes."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Required, TypedDict, TypeGuard

from lm.config.keys import Also, Changes, keys, required
from lm.config.plain import shown
from lm.config.reading import MOST_SEEDS, Seeds, read_changes, read_mapping, read_seeds
from lm.config.tree import InputError, Tree, nearest, path_name
from lm.search.space import Space, SpacePaths, read_space
from lm.search.spec import PRUNERS, SAMPLERS, Method, Pruner, Sampler, SweepSpec, check_methods, read_method
from lm.stats.sequential import plan_looks
from lm.stats.tests import ALPHA
from lm.store.metrics import describe, parse_average


def read_section(
    value: Any, node: type, path: str, expected: str = "", missing: str = "", inside: str = "", dotted: str = ""
) -> dict[str, Any]:
    """Return a mapping that has only the keys of a TypedDict. Raises InputError naming the path, and the nearest key.

    Messages say what was `expected` for a mapping, what is `missing`, without which required keys are not checked, and
    have `inside` after an unknown key and `dotted` after one with a dot.
    """
    names = keys(node)
    if not isinstance(value, Mapping):
        raise InputError(f"{path}: expected {expected or 'a mapping of ' + ', '.join(names)}, found {shown(value)}")
    for key in value:
        if key not in names:
            near, hint = nearest(str(key), names), dotted if "." in str(key) else ""
            raise InputError(f"{path}: no key {shown(key)}{inside}.{near} It takes {', '.join(names)}{hint}")
    for key in required(node) if missing else ():
        if key not in value:
            raise InputError(f"{path}: {key} is missing; {missing}")
    return dict(value)


@contextlib.contextmanager
def prefix_errors(prefix: str) -> Iterator[None]:
    """Put a prefix before the message of an InputError that is raised inside."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{prefix}: {error}") from None


def is_positive(value: Any) -> TypeGuard[float]:
    """Return True for a finite number above 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _read_selection_seeds(
    tree: Mapping[str, Any], default: list[int], metric: str, confirmation: Sequence[int], path: str
) -> list[int]:
    """Return the seeds on which a winner is chosen by a metric. Raises InputError for one that also confirms it."""
    if describe(metric).better is None:
        raise InputError(f"{path}: arms are judged by {metric}, of which neither more nor less is better")
    seeds = read_seeds(tree.get("seeds", default), f"{path}.seeds")
    if shared := sorted(set(seeds) & set(confirmation)):
        why = "a winner is confirmed on seeds it was not chosen on"
        raise InputError(f"{path}.seeds: {shared} confirm the winner; {why}")
    return seeds


# stages of seeds -----------------------------------------------------------------------------------------------------

STAGES = 4


class Stages(TypedDict, total=False):
    """Seeds added in stages, until every confirmatory difference is found or the seeds are spent."""

    min: Required[Annotated[int, "Seeds before the first look.", Also(minimum=1)]]
    max: Required[Annotated[int, "Seeds at most.", Also(minimum=1, maximum=MOST_SEEDS)]]
    stages: Annotated[int, "Looks.", Also(minimum=1, maximum=MOST_SEEDS, default=STAGES)]


def read_stages(value: Any, comparisons: int, path: str) -> tuple[int, ...]:
    """Return the numbers of seeds after which to look, from `{min, max, stages}`. Raises InputError naming `path`."""
    numbers = {"stages": STAGES, **read_section(value, Stages, path)}
    for key in keys(Stages):
        number = numbers.get(key)
        if type(number) is not int or number < 1:
            raise InputError(f"{path}.{key}: expected a whole number from 1, found {shown(number)}")
    if numbers["min"] > numbers["max"]:
        raise InputError(f"{path}: min={numbers['min']} is more than max={numbers['max']}")
    for key, most in (("max", "seeds at most"), ("stages", "at most, as every one adds a seed")):
        if numbers[key] > MOST_SEEDS:
            raise InputError(f"{path}.{key}: expected {MOST_SEEDS} {most}, found {numbers[key]}")
    return plan_looks(numbers["min"], numbers["max"], numbers["stages"], ALPHA / max(1, comparisons))


# a grid of learning rates --------------------------------------------------------------------------------------------

MIN_RATES, MAX_RATES = 3, 100
CURVE_SEEDS = [1000, 1001, 1002]  # seeds of a grid of learning rates, where the experiment names none


class RatesNode(TypedDict, total=False):
    """Rates from low to high, evenly in their logarithm."""

    low: Required[Annotated[float, "The smallest rate.", Also(exclusiveMinimum=0)]]
    high: Required[Annotated[float, "The largest rate.", Also(exclusiveMinimum=0)]]
    n: Required[Annotated[int, "How many, both ends with them.", Also(minimum=MIN_RATES, maximum=MAX_RATES)]]


class CurveNode(TypedDict, total=False):
    """A grid of learning rates for every arm; arms are then compared each at its own best rate."""

    rates: Required[Annotated[list[float] | RatesNode, "The rates: a list, or {low, high, n}."]]
    seeds: Annotated[
        Seeds, "Every rate is trained with each; none of them confirms a winner.", Also(default=CURVE_SEEDS)
    ]


@dataclass(frozen=True)
class Grid:
    """Learning rates in rising order, and the seeds that each is trained with."""

    rates: tuple[float, ...]
    seeds: list[int]


def read_grid(value: Any, metric: str, confirmation: Sequence[int], path: str) -> Grid:
    """Read the `lr_curve` section of an experiment judged by `metric` on `confirmation` seeds. Raises InputError."""
    tree = read_section(value, CurveNode, path, "a mapping with rates", "expected a list, or {low, high, n}")
    seeds = _read_selection_seeds(tree, CURVE_SEEDS, metric, confirmation, path)
    path, rates = f"{path}.rates", tree["rates"]
    if isinstance(rates, Mapping):
        rates = _spread_rates(rates, path)
    if not isinstance(rates, list):
        raise InputError(f"{path}: expected a list of rates, or {{low, high, n}}, found {shown(rates)}")
    for rate in rates:
        if not is_positive(rate):
            raise InputError(f"{path}: expected numbers above 0, found {shown(rate)}")
    if not MIN_RATES <= len(set(rates)) <= MAX_RATES or len(set(rates)) < len(rates):
        hint = f"{MAX_RATES} at most, found {shown(tree['rates'])}; fewer do not bracket the best one"
        raise InputError(f"{path}: expected {MIN_RATES} different rates or more, {hint}")
    return Grid(tuple(sorted(map(float, rates))), seeds)


def _spread_rates(value: Mapping[str, Any], path: str) -> list[float]:
    """Return the rates of `{low, high, n}`, evenly spaced in their logarithm. Raises InputError."""
    tree = read_section(value, RatesNode, path)
    count = tree.get("n")
    if type(count) is not int or not MIN_RATES <= count <= MAX_RATES:
        raise InputError(f"{path}.n: expected a whole number from {MIN_RATES} to {MAX_RATES}, found {shown(count)}")
    for key in ("low", "high"):
        if not is_positive(tree.get(key)):
            raise InputError(f"{path}.{key}: expected a number above 0, found {shown(tree.get(key))}")
    low, high = tree["low"], tree["high"]
    if not low < high:
        raise InputError(f"{path}: expected low below high, found {low} and {high}")
    inner = [float(f"{low * (high / low) ** (index / (count - 1)):z.6g}") for index in range(1, count - 1)]
    return [low, *inner, high]


# a search for every arm ----------------------------------------------------------------------------------------------

TUNING_SEEDS = [1000]  # seeds of the trials, where the experiment names none


class TuningNode(TypedDict, total=False):
    """A search for every arm, with the same space and budget; the winner is trained anew on the experiment's seeds."""

    space: Required[Annotated[SpacePaths, "What is searched: the nuisance parameters."]]
    trials: Required[Annotated[int, "Trials of each arm, whatever becomes of them.", Also(minimum=1)]]
    seeds: Annotated[
        Seeds, "Every trial is trained with each; none of them confirms a winner.", Also(default=TUNING_SEEDS)
    ]
    sampler: Annotated[Sampler, "How values are drawn."]
    pruner: Annotated[Pruner, "How trials are stopped early."]


@dataclass(frozen=True)
class Tuning:
    """The search that each arm gets, as `TuningNode` describes it; the winner is best in `metric`."""

    space: Space
    trials: int
    seeds: list[int]
    sampler: Method
    pruner: Method
    metric: str

    def spec(self, arm: str, title: str, tree: Tree) -> SweepSpec:
        """Return the search of one arm, which starts from its configuration."""
        objectives, methods = {self.metric: str(describe(self.metric).better)}, (self.sampler, self.pruner)
        return SweepSpec(arm, title, tree, self.space, objectives, self.trials, self.seeds, *methods)


def read_tuning(value: Any, metric: str, confirmation: Sequence[int], path: str) -> Tuning:
    """Read the `tune` section of an experiment judged by `metric` on `confirmation` seeds. Raises InputError."""
    missing = "tuning needs a space and a number of trials for each arm"
    tree = read_section(value, TuningNode, path, "a mapping with space and trials", missing)
    if parse_average(metric) is not None:
        raise InputError(f"{path}: arms are judged by {metric}, a mean over validations, which a search does not know")
    if "@" in metric:
        raise InputError(f"{path}: arms are judged by {metric}, a loss at a length, which a search does not know")
    seeds = _read_selection_seeds(tree, TUNING_SEEDS, metric, confirmation, path)
    if type(tree["trials"]) is not int or tree["trials"] < 1:
        raise InputError(f"{path}.trials: expected a whole number from 1, found {shown(tree['trials'])}")
    space = read_space(tree["space"], f"{path}.space")
    sampler = read_method(tree.get("sampler", "tpe"), SAMPLERS, f"{path}.sampler")
    pruner = read_method(tree.get("pruner", "none"), PRUNERS, f"{path}.pruner")
    tuning = Tuning(space, tree["trials"], seeds, sampler, pruner, metric)
    check_methods(tuning.spec("", "", {}), path)
    return tuning


# a ladder ------------------------------------------------------------------------------------------------------------

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


# keys that an experiment with a ladder cannot have, and why
EXCLUDED = {
    "tiers": "the rungs of a ladder are its sizes; give another size a file of its own",
    "tune": "every rung would have rates of its own; tune the smallest rung in an experiment, and carry them up",
    "lr_curve": "every rung would have rates of its own; find the best at the smallest rung, and carry it up",
    "data_seeds": "the variance of a run is that of one size; vary seed and order apart in an experiment of one rung",
    "claims": "a claim is answered by one experiment's results, and a ladder has those of several",
}


def read_ladder(
    experiment: Tree, seeds: list[int], metric: str, settings: Mapping[str, Any], path: str, same_seeds: bool = False
) -> LadderSpec | None:
    """Read the `ladder` section of an experiment, if any; `same_seeds` of the command go first. Raises InputError."""
    if "ladder" not in experiment:
        return None
    for key, reason in EXCLUDED.items():
        if experiment.get(key):
            raise InputError(f"{path}: {key}: does not go with a ladder: {reason}")
    if isinstance(experiment.get("seeds"), Mapping):
        raise InputError(f"{path}: seeds: a ladder has no stages, as each rung's law rests on all of its seeds")
    if describe(metric).better != "lower":
        expected = "a ladder follows a loss that falls with compute, such as nll"
        raise InputError(f"{path}: metric: {expected}; found {metric}")
    path = f"{path}: ladder"
    missing = "a ladder needs sizes by name, from the smallest"
    tree = read_section({} if experiment["ladder"] is None else experiment["ladder"], LadderNode, path, missing=missing)
    nodes = read_mapping(tree["rungs"], f"{path}.rungs")
    if not 2 <= len(nodes) <= MAX_RUNGS:
        hint = "a law takes 3, and one more where the top one is forecast"
        raise InputError(f"{path}.rungs: expected 2 to {MAX_RUNGS} rungs, found {len(nodes)}; {hint}")
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
