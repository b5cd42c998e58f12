"""Types of the JSON files in a results folder: one declaration a file, by which it is written, checked and read."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from annotated_types import Ge
from typing_extensions import TypedDict

Status = Literal["ok", "diverged", "failed"]
Count = Annotated[int, Ge(0)]

GitState = TypedDict("GitState", {"commit": str | None, "dirty": bool | None})
"""A checkout: its commit, and whether it had uncommitted changes; None without a checkout."""

OwnCode = TypedDict("OwnCode", {"known_by": str, "git": GitState | None})
"""The code of a user's own class: its fingerprint, and the checkout that it was in."""

Weights = TypedDict("Weights", {"bytes": Count, "sha256": str})
"""Identity of a cell's checkpoint: its size in bytes and the hash of its file."""


Imported = TypedDict("Imported", {"folder": str, "model_type": str, "files": dict[str, str]})
"""A model that another program trained: its folder, its family, and the SHA-256 of the files that were read."""


class Branched(TypedDict):
    """The cell whose checkpoint a run began from, and the optimiser step of that checkpoint."""

    cell: str
    step: int


class Provenance(TypedDict):
    """Code, packages and machine of a run; times in seconds since 1970.

    `seconds` is the time of its last attempt by a monotonic clock. `resumed` counts how often the run was resumed from
    a checkpoint; older records say only whether it was. `branched` is there for a run that began where a longer one
    was. `checksum` is of all else in the record on disk; the store checks and removes it.
    """

    lm: str
    git: GitState
    source: NotRequired[str]
    packages: dict[str, str]
    python: str
    host: str
    cores: int | None
    threads: int
    device: str
    environment: NotRequired[dict[str, str]]
    precision: str | None
    code: dict[str, OwnCode] | None
    started: float
    finished: float
    seconds: NotRequired[float]
    resumed: int | bool
    branched: NotRequired[Branched]
    checkpoint: NotRequired[Weights | None]
    imported: NotRequired[Imported]
    checksum: NotRequired[str]


class Text(TypedDict):
    """Statistics of the data; counts by split. `unigram_nll` is the loss of a unigram model on validation.

    `revision` is the commit of a dataset of the Hugging Face hub, by corpus where there are several.
    """

    fingerprint: str
    tokenizer: str
    vocabulary: int
    documents: dict[str, int]
    tokens: dict[str, int]
    bytes: dict[str, int]
    unknown: dict[str, int]
    end_of_text: int | None
    unigram_nll: NotRequired[float | None]
    revision: NotRequired[str | dict[str, str]]


Evaluated = TypedDict("Evaluated", {"split": str, "tokens": Count | None, "of": NotRequired[Count]})
"""The tokens on which the metrics were measured, and those of the split where they are a part of it."""

Reliability = TypedDict("Reliability", {"count": list[int], "confidence": list[float], "accuracy": list[float]})
"""A reliability diagram: for each bin its tokens, their mean confidence and their accuracy."""


class Inside(TypedDict):
    """Measurements inside the model at one step: by layer, or by layer and head."""

    entropy: list[list[float]]
    first_share: list[list[float]]
    largest_logit: list[list[float]] | list[float]
    residual_norm: list[float]
    gradient_norm: dict[str, list[float]]
    block_share: NotRequired[list[float]]
    dead_share: NotRequired[list[float]]


Pairing = TypedDict("Pairing", {"order": str, "batches": int})
"""The hash of the training rows in their order, and the number of their batches."""

Checksum = TypedDict("Checksum", {"rows": Count, "sha256": str})
"""Identity of a learning curve: the number of its rows and the hash of its file."""


class DocumentsOf(Checksum):
    """Identity of the losses by document: a row is a `document`, `each` of them at most, or a `stretch` of text."""

    kind: str
    each: Count


Outcome = dict[str, Any]  # parts of a record that training and evaluation fill in
Ending = Mapping[str, Any]  # result of a cell: its record; for a pruned one, which has none, only a status and an error


class Record(TypedDict):
    """`record.json`: the result of a cell. Values that were not measured are None or empty."""

    format: int
    id: str
    status: Status
    error: str | None
    traceback: NotRequired[str | None]
    diverged: dict[str, Any] | None
    steps: Count | None
    metrics: dict[str, float | None]
    evaluated: Evaluated | None
    reliability: Reliability | None
    initial: Inside | None
    final: Inside | None
    flags: list[str]
    ignores_gradient_scale: NotRequired[bool]
    evaluations: dict[str, Any]
    cost: dict[str, float | None]
    pairing: Pairing | None
    curve: Checksum | None
    documents: NotRequired[DocumentsOf | None]
    test_documents: NotRequired[DocumentsOf | None]
    items: NotRequired[dict[str, DocumentsOf]]
    data: Text
    provenance: Provenance


def evaluated_tokens(record: Record) -> int:
    """Return the number of tokens on which a record's metrics were measured; 0 without an evaluation."""
    return (record["evaluated"] or {"tokens": None})["tokens"] or 0


class Arm(TypedDict):
    """An arm: the resolved differences from the baseline as (its value, the arm's), and its cells by seed."""

    changes: dict[str, tuple[Any, Any]]
    levels: NotRequired[dict[str, str]]
    parameters: NotRequired[int]
    flops_per_token: NotRequired[float | None]
    tokens_per_step: NotRequired[int]
    cells: dict[str, str]


Timing = TypedDict("Timing", {"way": dict[str, Any], "milliseconds": float, "compiled_in": NotRequired[float | None]})
Ways = TypedDict("Ways", {"chosen": dict[str, Any], "measured": list[Timing], "device": str, "threads": int})
"""The choice of `auto`, and how long a step took in each of the ways that were tried."""

Adaptive = TypedDict("Adaptive", {"looks": list[int], "maximum": int})
"""Seeds in stages: the numbers of seeds of the interim looks, and the maximum."""

DesignOf = TypedDict("DesignOf", {"kind": str, "aliases": NotRequired[list[str]]})
"""The kind of the design, and the effects that it cannot separate."""


class ClaimOf(TypedDict):
    """A claim as in the experiment's file: see lm/analysis/claims.py."""

    claim: str
    metric: str
    relation: str
    contrast: NotRequired[dict[str, float]]
    over: NotRequired[dict[str, float]]
    margin: NotRequired[float]
    low: NotRequired[float]
    high: NotRequired[float]
    exact: NotRequired[bool]
    source: NotRequired[str]
    tier: NotRequired[str]
    kind: NotRequired[str]
    seeds: NotRequired[list[int]]
    seen: NotRequired[list[int]]


Registration = TypedDict("Registration", {"written": str | None, "seen": list[int]})
"""The time at which a claim was written, None if unknown, and the seeds that had results by then."""


class ExperimentRegistration(TypedDict):
    """Registration of an experiment, as its manifest has it: when it was made, and what differs from it since."""

    registered: str
    finished: int  # of its runs that had results by then
    sha256: str
    changes: list[str]


class ArmRate(TypedDict):
    """The learning rate of an arm: the shared one and its best, None where no rate ended well.

    `end` is `lowest` or `highest` where no lower or higher rate than the best was tried, else empty. `regret` bounds by
    how much the best rate may miss the best one of those tried in the headline quantity, as few seeds chose it;
    `rivals` are the rates that these seeds do not tell from the best.
    """

    shared: float
    best: float | None
    end: str
    regret: NotRequired[float]
    rivals: NotRequired[list[float]]


EarlierLook = TypedDict("EarlierLook", {"seeds": list[int], "comparisons": int})
"""Seeds whose results could be known before others were asked for, and how many comparisons shared the 5 % then."""


class Manifest(TypedDict):
    """`experiment.json`: the input of a report beside the records."""

    format: int
    name: str
    title: str
    tier: str
    notes: str
    baseline: str
    metric: str
    secondary: list[str]
    margin: dict[str, float]
    confirmatory: list[str]
    declared: dict[str, list[str]]
    axes: dict[str, str] | None
    equal: str
    adaptive: Adaptive | None
    design: DesignOf
    origin: NotRequired[str]  # the same for an experiment and what is made of it
    command: list[str] | None
    claims: list[ClaimOf]
    registered: NotRequired[dict[str, Registration]]
    seeds: list[int]
    declared_seeds: NotRequired[list[int]]  # of the file, where the command asked for fewer
    earlier_looks: NotRequired[list[EarlierLook]]
    generalise: NotRequired[str]
    registration: NotRequired[ExperimentRegistration]
    rates: NotRequired[dict[str, ArmRate]]
    budgets: NotRequired[list[int]]
    ways: NotRequired[Ways | None]
    arms: dict[str, Arm]


Chosen = TypedDict("Chosen", {"name": str, "options": NotRequired[dict[str, Any]]})
"""A sampler or a pruner, with its options."""

StudyChoices = TypedDict("StudyChoices", {"choices": list[str]})  # the choices of a search for one setting

StudyRange = TypedDict("StudyRange", {"low": float, "high": float, "log": bool, "step": float | None, "int": bool})
"""The range of a search for one setting; numbers are `step` apart, at any distance if it is None."""

StudyMethod = TypedDict("StudyMethod", {"sampler": Chosen, "pruner": Chosen, "from_trial": int})
"""The sampler and the pruner of the trials from a number on."""


class Trial(TypedDict):
    """One trial of a search: `params` of the sampler, `cells` by seed, values `reported` by step."""

    number: int
    state: str
    params: dict[str, float | str]
    values: list[float | None] | None
    reason: str | None
    seconds: float | None
    cells: NotRequired[dict[str, str]]
    reported: NotRequired[dict[str, float | None]]


class StudyManifest(TypedDict):
    """`study.json`: the input of a search's report beside the records."""

    format: int
    name: str
    title: str
    notes: str
    objectives: dict[str, str]
    space: dict[str, StudyChoices | StudyRange]
    trials: int
    seeds: list[int]
    methods: list[StudyMethod]
    study: list[Trial]


TunedArm = TypedDict("TunedArm", {"changes": dict[str, Any] | None, "value": float | None, "trial": int | None})
"""The best trial of an arm's search; None without one."""


class TunedManifest(TypedDict):
    """`tuned.json`: the tuning of an experiment's arms, and the best trials."""

    format: int
    metric: str
    trials: int
    seeds: list[int]
    sampler: Chosen
    pruner: Chosen
    arms: dict[str, TunedArm]


PackManifest = TypedDict("PackManifest", {"format": int, "name": str, "members": dict[str, list[tuple[str, int]]]})
"""`pack.json`: the experiment's name, and for each member of the pack its files in order, with their bytes."""


class RateAt(TypedDict):
    """The learning rate of an arm at a rung, and the experiment whose curve has it as its best rate; None without one.

    `lower` and `higher` are the next rates on that curve, `seeds` is the number of its seeds.
    """

    rate: float
    curve: str | None
    lower: float | None
    higher: float | None
    seeds: int


class ArmSize(TypedDict):
    """Trainable parameters and training tokens of a run of an arm."""

    parameters: int
    tokens: int


class RungOf(TypedDict):
    """A rung: its experiment's name, and the size of a run of the baseline.

    `compute` is the training FLOPs of a run of each arm, `rates` its learning rate; older files have no rates. The last
    three are those of ladders that train sizes at several lengths: the name of the size, its length, each arm's size.
    """

    name: str
    experiment: str
    seeds: list[int]
    parameters: int
    tokens: int
    steps: int
    compute: dict[str, float]
    rates: NotRequired[dict[str, RateAt]]
    size: NotRequired[str]
    tokens_per_parameter: NotRequired[float]
    sizes: NotRequired[dict[str, ArmSize]]


class LadderManifest(TypedDict):
    """`ladder.json`: the input of a ladder's report beside its rungs' manifests and records.

    `margin` is per decade of compute: of the `difference`, and of the `gain` as a factor. `ways` is the choice of
    `auto`.
    """

    format: int
    name: str
    title: str
    notes: str
    command: list[str] | None
    baseline: str
    arms: list[str]
    metric: str
    margin: dict[str, float]
    forecast: bool
    ways: NotRequired[Ways]
    rungs: list[RungOf]
