"""Differences between two runs, or between two configurations."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lm.analysis.comparability import provenance_of
from lm.config.plain import shown
from lm.config.tree import Tree, differences
from lm.store.record import Record
from lm.store.validation import is_number

Pairs = dict[str, tuple[Any, Any]]
"""Values of both sides by name, None for nothing."""

TEXT = ("fingerprint", "tokenizer", "vocabulary", "documents", "tokens", "bytes")
"""Fields of a record's data that are compared."""


@dataclass(frozen=True)
class RunDiff:
    """Differences between two sides: in the resolved configurations by dotted path, the text, the provenance.

    `metrics` holds the numbers of both sides, also where they are alike, each the mean of as many `seeds`.
    """

    configuration: Pairs
    text: Pairs = field(default_factory=dict)
    circumstances: Pairs = field(default_factory=dict)
    metrics: Pairs = field(default_factory=dict)
    seeds: tuple[int, int] = (1, 1)


def _pairs(left: Mapping[str, Any], right: Mapping[str, Any]) -> Pairs:
    names = list(dict.fromkeys([*left, *right]))
    return {name: (left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name)}


def diff_configurations(left: Tree, right: Tree) -> RunDiff:
    """Compare two resolved configurations."""
    return RunDiff(differences(left, right))


def diff_runs(configs: tuple[Tree, Tree], records: tuple[list[Record], list[Record]]) -> RunDiff:
    """Compare two runs, or two arms with the runs of each that went well, whose metrics are then means."""
    left, right = records
    text: Pairs = {}
    circumstances: Pairs = {}
    if left and right:
        text = _pairs(*({name: side[0]["data"].get(name) for name in TEXT} for side in records))
        circumstances = _pairs(*map(_joined, records))
    means = [_means(side) for side in records]
    metric_names = [name for name in means[0] if name in means[1]] + [name for side in means for name in side]
    metrics = {name: (means[0].get(name), means[1].get(name)) for name in dict.fromkeys(metric_names)}
    return RunDiff(differences(*configs), text, circumstances, metrics, (len(left), len(right)))


def _joined(records: list[Record]) -> dict[str, str]:
    """Join the provenance of several runs, all values of each field."""
    provenances = [provenance_of(record) for record in records]
    names = dict.fromkeys(name for provenance in provenances for name in provenance)
    return {name: " and ".join(dict.fromkeys(of[name] for of in provenances if name in of)) for name in names}


def _means(records: list[Record]) -> dict[str, float]:
    """Average every quantity that all of the records have."""
    means: dict[str, float] = {}
    for name in dict.fromkeys(name for record in records for name in (*record["metrics"], *record["cost"])):
        values = [record["metrics"].get(name, record["cost"].get(name)) for record in records]
        numbers = [float(value) for value in values if is_number(value) and value is not None]
        if len(numbers) == len(records):
            means[name] = math.fsum(numbers) / len(numbers)
    return means


def format_value(value: Any) -> str:
    """Format a value of a configuration in a line."""
    return "-" if value is None else value if isinstance(value, str) else shown(value)
