"""What lies in `ladder.json`: the rungs of a ladder, each an experiment with a folder of its own beside it."""

from typing import Any, NotRequired, TypedDict


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
