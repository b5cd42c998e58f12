"""Sections of an experiment's file: stages of seeds, a grid of rates, a search for every arm, a ladder of sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Required, TypedDict

from lm.config.keys import NUMBER, Also, Changes
from lm.config.nodes import read_section
from lm.config.plain import shown
from lm.config.reading import MOST_SEEDS, Seeds, read_seeds
from lm.config.tree import InputError, Tree, path_name
from lm.search.space import Space, SpacePaths, read_space
from lm.search.spec import PRUNERS, SAMPLERS, Method, Pruner, Sampler, SweepSpec, check_methods, read_method
from lm.stats.sequential import plan_looks
from lm.stats.tests import ALPHA
from lm.store.metrics import describe, parse_average


def _read_selection_seeds(section: Mapping[str, Any], metric: str, confirmation: Sequence[int], path: str) -> list[int]:
    """Return the seeds on which a winner is chosen by a metric. Raises InputError for one that also confirms it."""
    if describe(metric).better is None:
        raise InputError(f"{path}: arms are judged by {metric}, of which neither more nor less is better")
    seeds = read_seeds(section["seeds"], f"{path}.seeds")
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


class CrossedSeeds(TypedDict):
    """Initial values crossed with orders of the data: every arm is trained with each pair."""

    init: Required[Annotated[Seeds, "Of the initial values and of dropout: the seeds that verdicts are over."]]
    data: Required[Annotated[Seeds, "Orders of the data, in which every arm is trained with each of them."]]


def read_stages(stages: Mapping[str, Any], comparisons: int, path: str) -> tuple[int, ...]:
    """Return the numbers of seeds after which to look. Raises InputError naming `path`."""
    first, last = stages["min"], stages["max"]
    if first > last:
        raise InputError(f"{path}: min={first} is more than max={last}")
    return plan_looks(first, last, stages["stages"], ALPHA / max(1, comparisons))


# a grid of learning rates --------------------------------------------------------------------------------------------

MIN_RATES, MAX_RATES = 3, 100
CURVE_SEEDS = [1000, 1001, 1002]  # seeds of a grid of learning rates, where the experiment names none


Rate = Annotated[float, Also(exclusiveMinimum=0)]


class RatesNode(TypedDict, total=False):
    """Rates from low to high, evenly in their logarithm."""

    low: Required[Annotated[Rate, "The smallest rate."]]
    high: Required[Annotated[Rate, "The largest rate."]]
    n: Required[Annotated[int, "How many, both ends with them.", Also(minimum=MIN_RATES, maximum=MAX_RATES)]]


class CurveNode(TypedDict, total=False):
    """A grid of learning rates for every arm; arms are then compared each at its own best rate."""

    rates: Required[
        Annotated[
            Annotated[list[Rate], Also(minItems=MIN_RATES, maxItems=MAX_RATES)] | RatesNode,
            "The rates: a list, or {low, high, n}; fewer do not bracket the best one.",
        ]
    ]
    seeds: Annotated[
        Seeds, "Every rate is trained with each; none of them confirms a winner.", Also(default=CURVE_SEEDS)
    ]


@dataclass(frozen=True)
class Grid:
    """Learning rates in rising order, and the seeds that each is trained with."""

    rates: tuple[float, ...]
    seeds: list[int]


def read_grid(curve: Mapping[str, Any], metric: str, confirmation: Sequence[int], path: str) -> Grid:
    """Read the `lr_curve` section of an experiment judged by `metric` on `confirmation` seeds. Raises InputError."""
    seeds = _read_selection_seeds(curve, metric, confirmation, path)
    rates = curve["rates"]
    if isinstance(rates, Mapping):
        low, high, last = rates["low"], rates["high"], rates["n"] - 1
        if not low < high:
            raise InputError(f"{path}.rates: expected low below high, found {low} and {high}")
        inner = [float(f"{low * (high / low) ** (index / last):z.6g}") for index in range(1, last)]
        rates = [low, *inner, high]
    if len(set(rates)) < len(rates):
        raise InputError(f"{path}.rates: expected different rates, found {shown(rates)}")
    return Grid(tuple(sorted(rates)), seeds)


# learning rates around each arm's own ---------------------------------------------------------------------------------

BRACKET = "rates"  # what `tune` is for a learning rate of each arm's own
RATE = "optim.lr"  # where a configuration has it
NO_SEARCH = "none"  # what `tune` is where every arm has the rate of the file
BRACKET_SEEDS = [1000, 1001]  # seeds of the rates, where the experiment names none
FACTOR, MOST_RATES = 2.0, 7


class BracketNode(TypedDict, total=False):
    """Rates around that of each arm, and further ones for all, until the best of each lies between two others."""

    factor: Annotated[
        float, "Each rate divided by the one below it.", Also(exclusiveMinimum=1, maximum=100, default=FACTOR)
    ]
    at_most: Annotated[
        int,
        "Rates of an arm at most; an arm whose best is the lowest or the highest even then has no verdict.",
        Also(minimum=MIN_RATES, maximum=MAX_RATES, default=MOST_RATES),
    ]
    seeds: Annotated[
        Seeds,
        "Every rate is trained with each, 2 or more; none confirms a winner. More make the choice more certain.",
        Also(default=BRACKET_SEEDS),
    ]


class RatesTuningNode(TypedDict):
    """A learning rate of its own for every arm, at which it is judged."""

    rates: Required[Annotated[BracketNode | None, "How it is found."]]


@dataclass(frozen=True)
class Bracket:
    """The search for each arm's learning rate, as `BracketNode` describes it."""

    factor: float
    at_most: int
    seeds: list[int]

    def rate(self, shared: float, step: int) -> float:
        """Return the rate that lies some steps above or below an arm's own."""
        return float(f"{shared * self.factor**step:z.6g}") if step else shared


def read_bracket(node: Any, metric: str, confirmation: Sequence[int], path: str) -> Bracket | None:
    """Return the search for learning rates that `tune` asks for; None for another search. Raises InputError."""
    if isinstance(node, Mapping) and BRACKET not in node:
        return None
    if not isinstance(node, Mapping) and node != BRACKET:
        expected = f"{BRACKET}, {NO_SEARCH}, or a mapping of {BRACKET} or of space and trials"
        raise InputError(f"{path}: expected {expected}, found {shown(node)}")
    options = read_section({} if node == BRACKET else node[BRACKET], BracketNode, f"{path}.{BRACKET}")
    seeds = _read_selection_seeds(options, metric, confirmation, path)
    if len(seeds) < 2:
        raise InputError(f"{path}.{BRACKET}.seeds: expected 2 seeds or more, which show how certain the choice is")
    return Bracket(options["factor"], options["at_most"], seeds)


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


def read_tuning(tune: Mapping[str, Any], metric: str, confirmation: Sequence[int], path: str) -> Tuning:
    """Read the `tune` section of an experiment judged by `metric` on `confirmation` seeds. Raises InputError."""
    if parse_average(metric) is not None:
        raise InputError(f"{path}: arms are judged by {metric}, a mean over validations, which a search does not know")
    if "@" in metric:
        raise InputError(f"{path}: arms are judged by {metric}, measured after training, which a search does not know")
    seeds = _read_selection_seeds(tune, metric, confirmation, path)
    space = read_space(tune["space"], f"{path}.space")
    sampler = read_method(tune.get("sampler", "tpe"), SAMPLERS, f"{path}.sampler")
    pruner = read_method(tune.get("pruner", "none"), PRUNERS, f"{path}.pruner")
    trials = tune["trials"] if sampler.name != "grid" else min(tune["trials"], space.points())
    tuning = Tuning(space, trials, seeds, sampler, pruner, metric)
    check_methods(tuning.spec("", "", {}), path)
    return tuning


# a ladder ------------------------------------------------------------------------------------------------------------

MAX_RUNGS, MAX_LENGTHS = 20, 10
Amount = Annotated[float, Also(exclusiveMinimum=0, exclusiveMaximum=1e15)]
Tokens = Amount | None
Numbers = Amount | Annotated[list[Amount], Also(minItems=2, maxItems=MAX_LENGTHS)]
Lengths = Numbers | Annotated[str, Also(pattern=NUMBER)] | None  # read as LengthsNode, which refuses an empty list


class LengthsNode(TypedDict):
    """One length or several."""

    tokens_per_parameter: Annotated[Numbers, "Training tokens for each parameter."]


class RungNode(TypedDict, total=False):
    """One size of a ladder."""

    common: Annotated[Changes, "Changes to the base that make this size, for every arm; after those of the experiment."]
    seeds: Annotated[Seeds | None, "Instead of the experiment's."]
    seeds_by_length: Annotated[
        list[Seeds] | None, "Seeds of each of several `tokens_per_parameter`, in their order, instead of `seeds`."
    ]
    tokens: Annotated[Tokens, "Training tokens of this rung."]
    tokens_per_parameter: Annotated[
        Lengths, "Training tokens of this rung, for each parameter of its baseline; of a list it is trained at each."
    ]
    rates: Annotated[
        dict[str, Rate] | None, "Learning rates of arms at this size, instead of theirs; found by a curve."
    ]


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
    tokens: Annotated[Tokens, "Training tokens of every rung."]
    tokens_per_parameter: Annotated[
        Lengths, "Training tokens of every rung, for each parameter of its baseline; of a list it is trained at each."
    ]
    warmup: Annotated[
        Annotated[float, Also(minimum=0, exclusiveMaximum=1)] | None,
        "Share of the steps that the warm-up of the schedule takes.",
    ]
    forecast: Annotated[bool, "Whether the rungs below forecast the top one.", Also(default=True)]
    margin: Annotated[MarginNode | None, "The slopes that count as none, per decade of compute."]


@dataclass(frozen=True)
class RungSpec:
    """One size of a ladder, at one length, as `RungNode` describes it.

    `size` names the size where the ladder trains some at several lengths; it is empty elsewhere.
    """

    changes: dict[str, Any]
    seeds: list[int]
    tokens: float | None
    tokens_per_parameter: float | None
    rates: dict[str, float]
    size: str = ""


@dataclass(frozen=True)
class LadderSpec:
    """A ladder as `LadderNode` describes it; `settings` given with the command go before the changes of its rungs."""

    rungs: dict[str, RungSpec]
    warmup: float | None
    forecast: bool
    margin: dict[str, float]
    settings: dict[str, Any]


# keys that an experiment with a ladder cannot have: each is of one size
EXCLUDED = ("tiers", "tune", "lr_curve", "data_seeds", "claims", "budgets")


def read_ladder(
    experiment: Tree, seeds: list[int], metric: str, settings: Mapping[str, Any], path: str, same_seeds: bool = False
) -> LadderSpec | None:
    """Read the `ladder` section of an experiment, if any; `same_seeds` of the command go first. Raises InputError."""
    if "ladder" not in experiment:
        return None
    for key in EXCLUDED:
        if experiment.get(key):
            hint = "is of one size, and a ladder has several; give it an experiment of its own"
            raise InputError(f"{path}: {key}: does not go with a ladder: it {hint}")
    if isinstance(experiment.get("seeds"), Mapping):
        raise InputError(f"{path}: seeds: a ladder has no stages, as each rung's law rests on all of its seeds")
    if describe(metric).better != "lower":
        expected = "a ladder follows a loss that falls with compute, such as nll"
        raise InputError(f"{path}: metric: {expected}; found {metric}")
    path = f"{path}: ladder"
    tree = _read_lengths(experiment["ladder"], path)
    nodes = {name: _read_lengths(rung, f"{path}.rungs.{name}") for name, rung in tree["rungs"].items()}
    rungs: dict[str, RungSpec] = {}
    apart = any(isinstance(section.get("tokens_per_parameter"), list) for section in (tree, *nodes.values()))
    for name, rung in nodes.items():
        where = f"{path}.rungs.{path_name(name, f'{path}.rungs')}"
        spec, ratios = _read_rung(rung, tree, seeds, same_seeds, where)
        seeds_of = _seeds_by_length(rung, max(1, len(ratios)), spec.seeds, same_seeds, where)
        if apart and not ratios:
            raise InputError(f"{where}: expected tokens_per_parameter, as some rung has a list of them")
        names = [name, *(f"{name}.x{ratio:zg}" for ratio in ratios[1:])]
        numbers: list[float | None] = [*ratios] if ratios else [None]
        lengths = dict(zip(names, zip(numbers, seeds_of, strict=True), strict=True))
        if clash := sorted(lengths.keys() & rungs.keys()):
            raise InputError(f"{where}: {clash[0]} is another rung already; expected another name")
        if len(lengths) < len(ratios):
            raise InputError(f"{where}.tokens_per_parameter: expected numbers that differ, found {shown(ratios)}")
        size = name if apart else ""
        rungs |= {
            key: replace(spec, tokens_per_parameter=ratio, seeds=seeds_here, size=size)
            for key, (ratio, seeds_here) in lengths.items()
        }
    return LadderSpec(rungs, tree.get("warmup"), tree["forecast"], tree.get("margin", {}), dict(settings))


def _seeds_by_length(
    rung: Mapping[str, Any], lengths: int, seeds: list[int], same_seeds: bool, path: str
) -> list[list[int]]:
    """Return the seeds of each length of a rung, whose own are `seeds`. Raises InputError."""
    by_length = rung.get("seeds_by_length")
    if by_length is None:
        return [seeds] * lengths
    if rung.get("seeds") is not None:
        raise InputError(f"{path}: expected seeds or seeds_by_length, found both")
    if len(by_length) != lengths:
        expected = f"seeds of each length of tokens_per_parameter, {lengths}"
        raise InputError(f"{path}.seeds_by_length: expected {expected}; found {len(by_length)}")
    return [seeds if same_seeds else read_seeds(own, f"{path}.seeds_by_length") for own in by_length]


def _read_lengths(section: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return a section with its tokens a parameter as numbers. Raises InputError."""
    lengths = {key: section[key] for key in LengthsNode.__annotations__ if section.get(key) is not None}
    return {**section, **(read_section(lengths, LengthsNode, path) if lengths else {})}


def _read_rung(
    rung: Mapping[str, Any], ladder: Mapping[str, Any], seeds: list[int], same_seeds: bool, path: str
) -> tuple[RungSpec, list[float]]:
    """Read a rung and its tokens a parameter, those of the `ladder` unless it gives its own. Raises InputError."""
    changes = rung.get("common", {})
    if "seed" in changes:
        raise InputError(f"{path}.common.seed: seeds belong to the experiment, so that arms are paired; use seeds")
    own, shared = (
        {key: section[key] for key in ("tokens", "tokens_per_parameter") if section.get(key) is not None}
        for section in (rung, ladder)
    )
    size = own or shared
    if len(size) > 1:
        raise InputError(f"{path}: expected tokens or tokens_per_parameter, found both")
    if size and "trainer.max_steps" in changes:
        raise InputError(f"{path}.common.trainer.max_steps: follows from {min(size)}; leave one of them out")
    if rung.get("seeds") is not None and not same_seeds:
        seeds = read_seeds(rung["seeds"], f"{path}.seeds")
    ratio = size.get("tokens_per_parameter", [])
    ratios = ratio if isinstance(ratio, list) else [ratio]
    if ratios != sorted(set(ratios)):
        raise InputError(f"{path}: tokens_per_parameter: expected rising numbers, found {shown(ratios)}")
    return RungSpec(changes, seeds, size.get("tokens"), None, rung.get("rates", {})), ratios
