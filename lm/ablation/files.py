"""What an experiment file may say."""

from typing import Annotated, Required, TypedDict

from lm.ablation.design import MOST_ARMS, DesignNode
from lm.ablation.equal import KINDS
from lm.ablation.rates import CurveNode
from lm.ablation.rungs import LadderNode
from lm.ablation.stages import Stages
from lm.ablation.tuning import TuningNode
from lm.analysis.claims import ClaimNode
from lm.analysis.results import HEADLINE
from lm.config.keys import Also, Changes, Name, Text
from lm.config.reading import Seeds
from lm.store.metrics import AT_LENGTH, AVERAGED, METRICS

COSTS = ("parameters", "flops_per_token", "tokens", "steps", "train_seconds")
"""In what arms may differ besides what they are meant to compare."""

AXES = ("scientific", "nuisance", "fixed")

GENERALISE = ("text", "seeds")
"""What the headline's interval may cover: other text and other seeds, or other seeds alone."""

DIGITS = 9
"""Of a length in tokens."""

Quantity = (
    Annotated[str, Also(enum=list(METRICS))]
    | Annotated[str, Also(pattern=f"^({'|'.join(AT_LENGTH)})@[0-9]{{1,{DIGITS}}}$")]
    | Annotated[str, Also(pattern=f"^{AVERAGED}$")]
)
"""A quantity of the table, one at a length, or the mean of one over the last validations."""


class Tier(TypedDict, total=False):
    """The same experiment at another size."""

    base: Annotated[str, "Another configuration to start from, relative to this file."]
    common: Annotated[Changes, "Changes to it, added to those of the experiment."]
    seeds: Annotated[Seeds | Stages, "Instead of the experiment's."]


class ExperimentFile(TypedDict, total=False):
    """An ablation: a baseline, the arms that differ from it, and seeds."""

    title: Annotated[Text, "What the report is headed with; the file's name where left out."]
    base: Required[Annotated[str, "The configuration that every arm starts from, relative to this file."]]
    baseline: Annotated[Name, "The arm that the others are compared with; a design names its own."]
    arms: Annotated[
        dict[str, Changes],
        "For each arm, dotted paths and what to put there. A component given for a path replaces the whole node.",
        Also(maxProperties=MOST_ARMS),
    ]
    design: Annotated[DesignNode, "Arms made from factors, instead of arms."]
    seeds: Required[
        Annotated[Seeds | Stages, "Every arm is trained with each: a list, how many, or stages that add seeds."]
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
        float | dict[str, float] | None,
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
        str, "What arms have the same of; they train for as many steps as that pays for.", Also(enum=list(KINDS))
    ]
    tune: Annotated[TuningNode, "A search for every arm, with the same budget."]
    lr_curve: Annotated[CurveNode, "Learning rates that every arm is trained over before each is compared at its best."]
    tiers: Annotated[dict[str, Tier] | None, "The same experiment at other sizes, run with --tier."]
    ladder: Annotated[LadderNode, "The same arms at several sizes, and what they are worth with more compute."]
    notes: Annotated[Text, "Printed under the table."]
