"""An experiment's file: its keys, and how it is read: arms or a design, seeds, how differences are judged, claims."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Required, TypedDict

from lm.ablation.design import MAX_ARMS, Design, DesignNode, read_design
from lm.ablation.sections import (
    BRACKET,
    NO_SEARCH,
    RATE,
    Bracket,
    CrossedSeeds,
    CurveNode,
    Grid,
    LadderNode,
    LadderSpec,
    RatesTuningNode,
    Stages,
    Tuning,
    TuningNode,
    read_bracket,
    read_grid,
    read_ladder,
    read_stages,
    read_tuning,
)
from lm.analysis.claims import Claim, ClaimNode, read_claim
from lm.analysis.results import HEADLINE
from lm.config.imported import add_module_folder
from lm.config.keys import Also, Changes, Name, Text
from lm.config.nodes import one_of, read_section
from lm.config.reading import (
    Seeds,
    read_base,
    read_seeds,
    report_name,
    require_kind,
    resolve_file,
)
from lm.config.tree import InputError, Tree, load_yaml, override, path_name, run_id
from lm.config.usual_names import suggest
from lm.stats.tests import ALPHA, seeds_needed, smallest_p
from lm.store.archive import TWINS
from lm.store.metrics import (
    AT_LENGTH,
    AVERAGED,
    EXTRA,
    METRICS,
    OF_TASK,
    ON_CORPUS,
    VALIDATION_METRICS,
    describe,
    is_at_length,
    is_of_task,
    parse_average,
)
from lm.store.record import ArmRate

COSTS = ("parameters", "flops_per_token", "tokens", "steps", "train_seconds")  # in which arms may differ otherwise

AXES = ("scientific", "nuisance", "fixed")
EQUAL_KINDS = ("steps", "tokens", "flops", "seconds")  # costs that can be held equal, by the steps of an arm

GENERALISE = ("text", "seeds")  # scopes of the headline's interval: other text and other seeds, or other seeds alone
MAX_DIGITS = 9  # digits of a length in tokens
# a quantity of the table, one at a length or of a task, or the mean of one over the last validations
Quantity = (
    Annotated[str, Also(enum=list(METRICS))]
    | Annotated[str, Also(pattern=f"^({'|'.join(AT_LENGTH)})@[0-9]{{1,{MAX_DIGITS}}}$")]
    | Annotated[str, Also(pattern=f"^({'|'.join(map(re.escape, OF_TASK))})([.].+)?@.+$")]
    | Annotated[str, Also(pattern=f"^{AVERAGED}$")]
    | Annotated[str, Also(pattern=f"^({EXTRA}|{ON_CORPUS}).+$")]
)

Share = Annotated[float, Also(exclusiveMinimum=0, exclusiveMaximum=1)]
Margin = Annotated[float, Also(exclusiveMinimum=0)]


class Tier(TypedDict, total=False):
    """An experiment at another size."""

    base: Annotated[str, "Another configuration to start from, relative to this file."]
    common: Annotated[Changes, "Changes to it, added to those of the experiment."]
    seeds: Annotated[Seeds | Stages | CrossedSeeds, "Instead of the experiment's."]


class ExperimentFile(TypedDict, total=False):
    """An ablation: a baseline, the arms that differ from it, and seeds."""

    title: Annotated[Text, "What the report is headed with; the file's name where left out."]
    base: Required[Annotated[str, "The configuration that every arm starts from, relative to this file."]]
    baseline: Annotated[Name, "The arm that the others are compared with; a design names its own."]
    arms: Annotated[
        dict[str, Changes],
        "For each arm, dotted paths and what to put there. A component given for a path replaces the whole node.",
        Also(maxProperties=MAX_ARMS, examples=[{"gelu": {}, "swiglu": {"model.mlp": "SwiGLU"}}]),
    ]
    design: Annotated[DesignNode, "Arms made from factors, instead of arms."]
    seeds: Required[
        Annotated[
            Seeds | Stages | CrossedSeeds,
            "Every arm is trained with each: a list, how many, stages that add seeds, or initial values and orders.",
        ]
    ]
    data_seeds: Annotated[
        Seeds,
        "Orders of the data in which the baseline is trained with every seed, so that the report can say what share of "
        "the variance is the order's and what the initial values'.",
    ]
    common: Annotated[Changes, "Changes to the base, for every arm."]
    metric: Annotated[Quantity, "The headline: what arms are judged by.", Also(default=HEADLINE)]
    secondary: Annotated[
        list[Quantity] | None, "Quantities that are judged beside the headline and share the 5 % with it."
    ]
    margin: Annotated[
        Margin | dict[str, Margin] | None,
        "For each judged quantity, the difference below which arms count as equivalent; a number is the headline's.",
    ]
    confirmatory: Annotated[
        bool | list[Name],
        "The arms whose comparisons share the 5 %; the others are explored. false makes all of it exploratory.",
        Also(default=True),
    ]
    generalise: Annotated[
        str,
        "What intervals of judged quantities and of claims cover: other text as well as other seeds, or seeds alone.",
        Also(enum=list(GENERALISE), default="text"),
    ]
    declared: Annotated[
        dict[str, list[Annotated[str, Also(enum=list(COSTS))]]] | None,
        "For some arms, costs in which they are meant to differ from the baseline; others are marked.",
    ]
    axes: Annotated[
        dict[str, Annotated[str, Also(enum=list(AXES))]] | None,
        "For some dotted paths, whether they are what is asked about, a nuisance, or held fixed.",
    ]
    claims: Annotated[list[ClaimNode] | None, "Statements that the report answers."]
    equal: Annotated[
        str,
        "What arms have the same of; they train for as many steps as that pays for.",
        Also(enum=list(EQUAL_KINDS), default="steps"),
    ]
    tune: Annotated[
        Annotated[str, Also(pattern=f"^({BRACKET}|{NO_SEARCH})$")] | TuningNode | RatesTuningNode,
        "A search for every arm, with the same budget; `rates` for a learning rate of its own, at which it is judged: "
        "the default where claims are tested; `none` for the rate of the file.",
    ]
    lr_curve: Annotated[CurveNode, "Learning rates that every arm is trained over before each is compared at its best."]
    tiers: Annotated[dict[str, Tier] | None, "The same experiment at other sizes, run with --tier."]
    budgets: Annotated[
        list[Share] | None,
        "Shares of the training, such as 0.25, with which all of it is trained too, each with a schedule of its own.",
    ]
    corpora: Annotated[
        dict[str, Changes] | None,
        "Texts on each of which all of it is trained: for each, changes to the base, such as of data.corpus.",
        Also(
            examples=[
                {"python": {}, "mine": {"data.corpus": {"class_path": "LocalText", "init_args": {"path": "a.txt"}}}}
            ]
        ),
    ]
    ladder: Annotated[LadderNode, "The same arms at several sizes, and what they are worth with more compute."]
    notes: Annotated[Text, "Printed under the table."]


@dataclass(frozen=True)
class Inference:
    """Rules by which an experiment's differences are judged, as `ExperimentFile` describes them.

    `looks` are the numbers of seeds after which to look and perhaps to stop; none where all are trained at once.
    """

    metric: str = HEADLINE
    secondary: list[str] = field(default_factory=list)
    margin: dict[str, float] = field(default_factory=dict)
    confirmatory: list[str] = field(default_factory=list)
    declared: dict[str, list[str]] = field(default_factory=dict)
    axes: dict[str, str] = field(default_factory=dict)
    looks: tuple[int, ...] = ()
    equal: str = "steps"
    generalise: str = "text"

    @property
    def comparisons(self) -> int:
        """The number of tests that share alpha: of every confirmatory arm in every judged quantity."""
        return len(self.confirmatory) * (1 + len(self.secondary))


@dataclass(frozen=True)
class Experiment:
    """One ablation: a baseline and the arms that differ from it, as `ExperimentFile` describes them.

    `tree` is the configuration that every arm starts from, `autotuned` the decision on settings that were `auto`
    (`lm.inference.autotune.Decision`).
    """

    name: str
    title: str
    tree: Tree
    design: Design
    seeds: list[int]
    inference: Inference = field(default_factory=Inference)
    claims: tuple[Claim, ...] = ()
    notes: str = ""
    tier: str = ""
    tuning: Tuning | None = None
    grid: Grid | None = None
    bracket: Bracket | None = None
    rates: dict[str, ArmRate] = field(default_factory=dict)  # each arm's own learning rate, once it is known
    ladder: LadderSpec | None = None
    corpora: dict[str, dict[str, Any]] = field(default_factory=dict)  # of each text, its changes to the tree
    budgets: tuple[int, ...] = ()  # shorter trainings, in percent of the steps
    data_seeds: tuple[int, ...] = ()
    crossed: bool = False  # whether all arms are trained in each of `data_seeds`, not the baseline alone
    autotuned: dict[str, Any] | None = None
    declared_seeds: tuple[int, ...] = ()  # those of the file; none where they come in stages
    texts: tuple[str, ...] = ()  # of an experiment on one of several texts, the names of all
    made_of: str = ""  # the `origin` of the experiment that this one was made of, such as one with a smaller budget

    @property
    def origin(self) -> str:
        """Hash of what is compared, the same for all that is made of one experiment, by which reports show it."""
        return self.made_of or run_id([self.tree, self.arms, self.baseline])

    @property
    def baseline(self) -> str:
        """The arm the others are compared with."""
        return self.design.baseline

    @property
    def arms(self) -> dict[str, dict[str, Any]]:
        """For each arm, dotted paths and what to put there."""
        return self.design.arms


def load_experiment(
    path: Path,
    settings: Mapping[str, Any],
    seeds: Any = None,
    tier: str = "",
    option_name: Callable[[str], str] = lambda name: f"--{name}",
    tree: Tree | None = None,
) -> Experiment:
    """Read an experiment file, or a mapping with what a file holds. Raises InputError naming the path.

    Args:
        path: the YAML file, or the name of a shipped one; `base` in it is relative to it.
        settings: dotted changes to the base, applied to every arm before its own.
        seeds: instead of the file's, in the same grammar.
        tier: another size of the same experiment, one of its `tiers`; its name is added to the experiment's.
        option_name: returns the name of `seeds` or `tier` in messages.
        tree: the mapping; `path` is then the experiment's name, and `base` relative to the current folder.
    """
    if tree is None:
        path = resolve_file(path, "experiment")
        add_module_folder(path.parent)
        tree = load_yaml(path)
    require_kind(tree, path, "experiment")
    tree = at_tier(read_section(tree, ExperimentFile, f"{path}:"), tier, path, option_name("tier"))
    name = report_name(path, tier)
    design = _read_design(tree, path)
    base = read_base(tree, path)
    inference = read_inference(tree, design, path)
    plan = _read_seed_plan(tree, seeds, inference, path, option_name)
    inference = replace(inference, looks=plan.looks)
    claims = [
        read_claim(claim, list(design.arms), design.baseline, f"{path}: claims[{index}]")
        for index, claim in enumerate(tree.get("claims", []))
    ]
    ladder = read_ladder(tree, plan.seeds, inference.metric, settings, str(path), same_seeds=seeds is not None)
    tree = {"tune": _default_tuning(tree, design, claims, inference.metric), **tree}
    tuning, bracket = _read_tuning(tree, inference.metric, plan.seeds, path)
    return Experiment(
        name=name,
        title=tree.get("title") or path.stem,
        tree=override(base, settings),
        design=design,
        seeds=plan.seeds,
        inference=inference,
        claims=tuple(replace(claim, seeds=plan.declared or plan.seeds) for claim in claims),
        notes=tree.get("notes", ""),
        tier=tier,
        tuning=tuning,
        bracket=bracket,
        grid=read_grid(tree["lr_curve"], inference.metric, plan.seeds, f"{path}: lr_curve")
        if "lr_curve" in tree
        else None,
        ladder=ladder,
        corpora=_read_corpora(tree, settings, path),
        budgets=_read_budgets(tree, plan.looks, path),
        data_seeds=tuple(plan.orders),
        crossed=plan.crossed,
        declared_seeds=tuple(plan.declared),
    )


def _ending(name: str, where: str) -> str:
    """Return the name of a tier or a text, which ends that of a folder. Raises InputError for one that is in use."""
    if f".{path_name(name, where)}" in TWINS:
        raise InputError(f"{where}: {name!r} ends the folder of what is made of an experiment; give it another name")
    return name


def _read_corpora(tree: Tree, settings: Mapping[str, Any], path: Path) -> dict[str, dict[str, Any]]:
    """Return the changes of each text, those of the command above them. Raises InputError."""
    corpora = {_ending(text, f"{path}: corpora"): changes for text, changes in tree.get("corpora", {}).items()}
    if "corpora" in tree and (len(corpora) < 2 or "ladder" in tree):
        reason = "a ladder" if "ladder" in tree else f"{next(iter(corpora))} alone" if corpora else "none"
        raise InputError(f"{path}: corpora: expected two texts or more, and no ladder; found {reason}")
    return {text: {**changes, **settings} for text, changes in corpora.items()}


def _default_tuning(tree: Tree, design: Design, claims: Sequence[Claim], metric: str) -> str:
    """Return what `tune` is where a file does not say: rates, where a claim could be one of a rate that fits an arm."""
    is_tested = any(not (claim.exact or claim.kind == "identity" or claim.before_training) for claim in claims)
    has_rates = "lr_curve" in tree or any(RATE in changes for changes in design.arms.values())
    return BRACKET if is_tested and not has_rates and describe(metric).better is not None else NO_SEARCH


def _read_tuning(tree: Tree, metric: str, seeds: list[int], path: Path) -> tuple[Tuning | None, Bracket | None]:
    """Return what `tune` asks for: a search of every arm, or learning rates. Raises InputError."""
    if tree["tune"] == NO_SEARCH:
        return None, None
    if "lr_curve" in tree:
        raise InputError(f"{path}: tune and lr_curve both choose a rate for each arm; expected one of them")
    where = f"{path}: tune"
    if (bracket := read_bracket(tree["tune"], metric, seeds, where)) is not None:
        return None, bracket
    return read_tuning(tree["tune"], metric, seeds, where), None


def _read_budgets(tree: Tree, looks: tuple[int, ...], path: Path) -> tuple[int, ...]:
    """Return the shares of training in percent, rising. Raises InputError for one that is no whole percent."""
    if looks and tree.get("budgets"):
        raise InputError(f"{path}: budgets: are tested together, and seeds in stages one look after the other; use one")
    percents = [round(100 * share, 6) for share in tree.get("budgets", [])]
    if len(set(percents)) < len(percents) or any(percent % 1 for percent in percents):
        raise InputError(f"{path}: budgets: expected shares in whole percent, each once, found {tree['budgets']}")
    return tuple(sorted(map(int, percents)))


@dataclass(frozen=True)
class SeedPlan:
    """Seeds of an experiment, when to look at them, and the orders of the data in which they are trained too.

    `declared` are those of the file, which its claims are about; none where they come in stages.
    """

    seeds: list[int]
    looks: tuple[int, ...]
    declared: list[int]
    orders: list[int]
    crossed: bool


def _read_seed_plan(
    tree: Tree, seeds: Any, inference: Inference, path: Path, option_name: Callable[[str], str]
) -> SeedPlan:
    """Read the seeds of a file, or `seeds` of the command instead of them. Raises InputError."""
    where, value = f"{path}: seeds", tree["seeds"]
    declared = [] if isinstance(value, Mapping) else read_seeds(value, where)
    if _is_crossed(value):
        declared = read_seeds(read_section(value, CrossedSeeds, where)["init"], f"{where}.init")
    if seeds is not None:
        where, value = option_name("seeds"), seeds
    in_orders, listed = tree.get("data_seeds"), f"{path}: data_seeds"
    if crossed := _is_crossed(value):
        if "ladder" in tree:
            raise InputError(f"{where}: a ladder has no orders of the data; expected seeds alone")
        if in_orders is not None:
            raise InputError(f"{where}: data are the orders already; expected no data_seeds beside them")
        pair, listed = read_section(value, CrossedSeeds, where), f"{where}.data"
        value, in_orders = pair["init"], pair["data"]
    chosen, looks = _read_seeds_or_stages(value, tree, inference, f"{where}.init" if crossed else where)
    orders = [] if in_orders is None else read_seeds(in_orders, listed)
    if in_orders is not None and (len(orders) < 2 or len(chosen) < 2 or looks):
        raise InputError(
            f"{listed}: expected two orders or more and two seeds or more, not in stages, found "
            f"{len(orders)} and {'stages' if looks else len(chosen)}; with fewer the variance cannot be split"
        )
    return SeedPlan(chosen, looks, declared, orders, crossed)


def _is_crossed(seeds: Any) -> bool:
    return isinstance(seeds, Mapping) and bool({*CrossedSeeds.__annotations__} & {*seeds})


def _read_seeds_or_stages(
    value: Any, tree: Tree, inference: Inference, where: str
) -> tuple[list[int], tuple[int, ...]]:
    """Return the seeds, and the numbers of them after which to look if they come in stages. Raises InputError."""
    if not isinstance(value, Mapping):
        return read_seeds(value, where), ()
    if tree.get("claims"):
        raise InputError(
            f"{where}: stages end where differences are found, so that no claim's test would hold its level; "
            "give a number of seeds, or leave the claims to another experiment"
        )
    looks = read_stages(read_section(value, Stages, where), inference.comparisons, where)
    return read_seeds(list(range(looks[-1])), where), looks


def at_tier(tree: Tree, tier: str, path: Path, option: str = "--tier") -> Tree:
    """Return the experiment at another size: `tiers` may give another base, more common changes, other seeds."""
    tiers = tree.get("tiers", {})
    for name in tiers:
        _ending(name, f"{path}: tiers")
    if not tier:
        return tree
    if path_name(tier, option) not in tiers:
        raise InputError(
            f"{path}: has no tier {tier!r}; {'it has ' + ', '.join(tiers) if tiers else 'the file names no tiers'}"
        )
    return {**tree, **tiers[tier], "common": tree.get("common", {}) | tiers[tier].get("common", {})}


def _read_design(tree: Tree, path: Path) -> Design:
    """Return the arms, listed or made by a design; a baseline may be named in either case. Raises InputError."""
    if ("arms" in tree) == ("design" in tree):
        raise InputError(f"{path}: expected arms or a design, found {'both' if 'arms' in tree else 'neither'}")
    if "design" in tree:
        design = read_design(tree["design"], f"{path}: design")
    elif "baseline" in tree:
        design = Design("arms", tree["arms"], tree["baseline"])
    else:
        raise InputError(f"{path}: baseline is missing; name the arm that the others are compared with")
    for name, changes in design.arms.items():
        path_name(name, f"{path}: arms")
        for key in ("seed", "data_seed"):
            if key in changes:
                hint = f"arms.{name}.{key}: seeds belong to the experiment, so that arms are paired; use {key}s"
                raise InputError(f"{path}: {hint}")
    baseline = one_of(tree.get("baseline", design.baseline), design.arms, f"{path}: baseline", "arm")
    texts = {f"corpora.{text}": changes for text, changes in (tree.get("corpora") or {}).items()}
    for where, changes in {"common": tree.get("common"), **texts}.items():
        if "seed" in (changes or {}):
            hint = "a seed belongs to a cell, and all arms have the same ones; use seeds"
            raise InputError(f"{path}: {where}.seed: {hint}")
    return replace(design, baseline=baseline)


def read_inference(tree: Tree, design: Design, path: Path) -> Inference:
    """Read how the differences of an experiment are judged. Raises InputError."""
    metric, secondary = str(tree["metric"]), list(map(str, tree.get("secondary", [])))
    declared = tree.get("declared", {})
    judged, others = [metric, *secondary], [arm for arm in design.arms if arm != design.baseline]
    _check_quantity(metric, f"{path}: metric")
    for name in secondary:
        _check_quantity(name, f"{path}: secondary")
    if len(set(judged)) < len(judged):
        raise InputError(f"{path}: secondary: a quantity is given twice in {', '.join(judged)}")
    confirmatory = tree["confirmatory"]
    if isinstance(confirmatory, bool):
        confirmatory = others if confirmatory else []
    for arm in declared:
        one_of(arm, others, f"{path}: declared", "arm")
    confirmatory = [one_of(arm, others, f"{path}: confirmatory", "arm") for arm in confirmatory]
    if len(set(confirmatory)) < len(confirmatory):
        raise InputError(f"{path}: confirmatory: an arm is given twice in {confirmatory}")
    margins = tree.get("margin", {})
    margins = margins if isinstance(margins, dict) else {metric: margins}
    if strange := next((quantity for quantity in margins if quantity not in judged), None):
        listed = ", ".join(judged)
        raise InputError(f"{path}: margin.{strange}: is not judged, {listed} is; name it in metric or secondary")
    axes, equal, generalise = tree.get("axes", {}), tree["equal"], tree["generalise"]
    return Inference(metric, secondary, margins, confirmatory, declared, axes, equal=equal, generalise=generalise)


def _check_quantity(name: str, path: str) -> None:
    """Refuse a quantity that no table holds. Raises InputError."""
    if "~" in name:
        if parse_average(name) is None:
            hint = f"means of the last N are {'~N, '.join(VALIDATION_METRICS)}~N, N from 2"
            raise InputError(f"{path}: no quantity {name!r}; {hint}")
    elif "@" not in name:
        if name not in METRICS and not name.startswith((EXTRA, ON_CORPUS)):
            near = suggest(name, list(METRICS), "metrics")
            raise InputError(f"{path}: no quantity {name!r}.{near} Choose from {', '.join(METRICS)}")
    elif not is_of_task(name) and (not is_at_length(name) or len(name.partition("@")[2]) > MAX_DIGITS):
        of_task = f"of a task {'@TASK, '.join(OF_TASK)}@TASK"
        raise InputError(f"{path}: no quantity {name!r}; at a length there are {'@N, '.join(AT_LENGTH)}@N, {of_task}")


def shortage(experiment: Experiment) -> str:
    """Return why the seeds cannot reach a verdict, and how many can; an empty string where they can."""
    judged = experiment.inference.comparisons or min(1, len(experiment.arms) - 1)
    return too_few(len(experiment.seeds), judged)


def shortage_over_budget(experiment: Experiment) -> str:
    """Return the same for the table over the budget, which judges every arm after each share of the training."""
    further = len(experiment.budgets)
    reason = too_few(len(experiment.seeds), (len(experiment.arms) - 1) * (1 + further)) if further else ""
    return f"over the budget {reason}" if reason else ""


def too_few(seeds: int, judged: int) -> str:
    """Return why so many seeds cannot reach a verdict on as many comparisons; empty where they can, or for none."""
    if not judged or smallest_p(seeds) <= ALPHA / judged:
        return ""
    return (
        f"{seeds} seed{'s' if seeds > 1 else ''} cannot reach a verdict: the smallest possible p is "
        f"{smallest_p(seeds):z.3g}; a significant difference takes {seeds_needed(judged)} seeds"
    )


def check_power(experiment: Experiment) -> None:
    """Refuse seeds with which the confirmatory comparisons cannot reach significance. Raises InputError.

    Those that are crossed with orders of the data are for the shares of the variance, and need not reach it.
    """
    if experiment.inference.comparisons and not experiment.crossed and (reason := shortage(experiment)):
        hint = "give more seeds, set confirmatory: false or list fewer arms there, or go on with --underpowered"
        raise InputError(f"{experiment.name}: {reason}; {hint}")
