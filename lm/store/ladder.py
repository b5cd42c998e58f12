"""What lies in `ladder.json`: the rungs of a ladder, each an experiment with a folder of its own beside it."""

from typing import Any, NotRequired, TypedDict


class RungOf(TypedDict):
    """A rung: its experiment's name, and what a run of the baseline there is.

    `compute` is the training FLOPs of a run of each arm.
    """

    name: str
    experiment: str
    seeds: list[int]
    parameters: int
    tokens: int
    steps: int
    compute: dict[str, float]


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
