"""What lies in the files of a results folder: one declaration a file, shared by who writes it and all who read it."""

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict

Status = Literal["ok", "diverged", "failed"]


class GitState(TypedDict):
    """A checkout: its commit, and whether it held changes; None where there was none."""

    commit: str | None
    dirty: bool | None


class OwnCode(TypedDict):
    """The code of a user's own class: what it is known by, and the checkout that it lay in."""

    known_by: str
    git: GitState | None


class Weights(TypedDict):
    """By what the checkpoint of a cell is known: its size in bytes and the hash of its file."""

    bytes: int
    sha256: str


class Provenance(TypedDict):
    """Under what circumstances a cell was made; times in seconds since 1970.

    `seconds` is how long its last try took, by a clock that nobody sets. `resumed` is how often the run was taken up
    from a checkpoint; older records say only whether it was.
    `checksum` is of all else in the record as it lies on disk; who reads it through the store does not see it.
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
    resumed: int
    checkpoint: NotRequired[Weights | None]
    checksum: NotRequired[str]


class Text(TypedDict):
    """What the cell's text came to; counts by split. `unigram_nll` is the loss of a unigram model on validation."""

    fingerprint: str
    tokenizer: str
    vocabulary: int
    documents: dict[str, int]
    tokens: dict[str, int]
    bytes: dict[str, int]
    unknown: dict[str, int]
    end_of_text: int | None
    unigram_nll: NotRequired[float | None]


class Evaluated(TypedDict):
    """What the metrics were measured on."""

    split: str
    tokens: int | None


class Reliability(TypedDict):
    """A reliability diagram: of each bin its tokens, their mean confidence and their accuracy."""

    count: list[int]
    confidence: list[float]
    accuracy: list[float]


class Inside(TypedDict):
    """What the model looked like from inside at one moment: by layer, or by layer and head."""

    entropy: list[list[float]]
    first_share: list[list[float]]
    largest_logit: list[list[float]] | list[float]
    residual_norm: list[float]
    gradient_norm: dict[str, list[float]]
    block_share: NotRequired[list[float]]
    dead_share: NotRequired[list[float]]


class Pairing(TypedDict):
    """The hash of the rows in the order in which they were seen, and how many batches they came in."""

    order: str
    batches: int


class Checksum(TypedDict):
    """By what a learning curve is known: its rows and the hash of its file."""

    rows: int
    sha256: str


class DocumentsOf(Checksum):
    """The same of the losses by document: a row is a `document`, `each` of them at most, or a `stretch` of text."""

    kind: str
    each: int


Outcome = dict[str, Any]
"""The parts of a record that training and evaluation fill in, while they do."""

Ending = Mapping[str, Any]
"""What became of a cell: its record, or of a pruned one, which leaves none, a status and an error alone."""


class Record(TypedDict):
    """`record.json`: what became of a cell. What was not measured is None, or empty."""

    format: int
    id: str
    status: Status
    error: str | None
    traceback: NotRequired[str | None]
    diverged: dict[str, Any] | None
    steps: int | None
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
    data: Text
    provenance: Provenance


def evaluated_tokens(record: Record) -> int:
    """The tokens that a record's metrics were measured on; 0 where it was not evaluated."""
    return (record["evaluated"] or {"tokens": None})["tokens"] or 0


# the manifests of experiments and searches ---------------------------------------------------------------------------


class Arm(TypedDict):
    """An arm: the resolved differences from the baseline as (its value, the arm's), and its cells by seed."""

    changes: dict[str, tuple[Any, Any]]
    levels: NotRequired[dict[str, str]]
    parameters: NotRequired[int]
    flops_per_token: NotRequired[float | None]
    tokens_per_step: NotRequired[int]
    cells: dict[str, str]


class Adaptive(TypedDict):
    """Seeds in stages: after how many there is a look, and the most there may be."""

    looks: list[int]
    maximum: int


class DesignOf(TypedDict):
    """How the arms were made: the kind of design, and which effects it cannot tell apart."""

    kind: str
    aliases: NotRequired[list[str]]


class ClaimOf(TypedDict):
    """A claim, as the experiment's file has it: see lm/analysis/claims.py."""

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


class Registration(TypedDict):
    """When a claim was first asked for, None where that is not known, and the seeds whose results could be known."""

    written: str | None
    seen: list[int]


class Manifest(TypedDict):
    """`experiment.json`: all that a report needs beside the records."""

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
    command: list[str] | None
    claims: list[ClaimOf]
    registered: NotRequired[dict[str, Registration]]
    seeds: list[int]
    generalise: NotRequired[str]
    ways: NotRequired[dict[str, Any] | None]
    arms: dict[str, Arm]


class Chosen(TypedDict):
    """A sampler or a pruner, with its options."""

    name: str
    options: NotRequired[dict[str, Any]]


class Choices(TypedDict):
    """What a search chooses from."""

    choices: list[str]


class Range(TypedDict):
    """The numbers that a search draws from; `step` between them, None for any."""

    low: float
    high: float
    log: bool
    step: float | None
    int: bool


class Method(TypedDict):
    """What proposed and pruned the trials from a number on."""

    sampler: Chosen
    pruner: Chosen
    from_trial: int


class Trial(TypedDict):
    """One trial of a search; `params` as the sampler gave them, `cells` by seed, what was `reported` by step."""

    number: int
    state: str
    params: dict[str, float | str]
    values: list[float | None] | None
    reason: str | None
    seconds: float | None
    cells: NotRequired[dict[str, str]]
    reported: NotRequired[dict[str, float | None]]


class StudyManifest(TypedDict):
    """`study.json`: all that the report of a search needs."""

    format: int
    name: str
    title: str
    notes: str
    objectives: dict[str, str]
    space: dict[str, Choices | Range]
    trials: int
    seeds: list[int]
    methods: list[Method]
    study: list[Trial]


class TunedArm(TypedDict):
    """The winner of an arm's search, None without one."""

    changes: dict[str, Any] | None
    value: float | None
    trial: int | None


class TunedManifest(TypedDict):
    """`tuned.json`: how the arms of an experiment were tuned, and what won."""

    format: int
    metric: str
    trials: int
    seeds: list[int]
    sampler: Chosen
    pruner: Chosen
    arms: dict[str, TunedArm]


class PackManifest(TypedDict):
    """`pack.json` of a pack: the experiment's name, and of each member the files in it, in order, with their bytes."""

    format: int
    name: str
    members: dict[str, list[tuple[str, int]]]


# ladder ---------------------------------------------------------------------------------------------------------------


class RateAt(TypedDict):
    """The learning rate of an arm at a rung, and the experiment whose curve has it as its best rate, None without one.

    `lower` and `higher` are the rates beside it on that curve, `seeds` how many seeds the curve has.
    """

    rate: float
    curve: str | None
    lower: float | None
    higher: float | None
    seeds: int


class RungOf(TypedDict):
    """A rung: its experiment's name, and what a run of the baseline there is.

    `compute` is the training FLOPs of a run of each arm, `rates` its learning rate; files of older versions have none.
    """

    name: str
    experiment: str
    seeds: list[int]
    parameters: int
    tokens: int
    steps: int
    compute: dict[str, float]
    rates: NotRequired[dict[str, RateAt]]


class LadderManifest(TypedDict):
    """`ladder.json`: what the report of a ladder needs beside its rungs' manifests and records.

    `margin` is per decade of compute: of the `difference`, and of the `gain` as a factor. `ways` is what
    `auto` came to.
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
    ways: NotRequired[dict[str, Any]]
    rungs: list[RungOf]
