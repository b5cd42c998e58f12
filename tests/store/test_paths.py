"""Paths into records: those of real records lead where the plan says they do, and what is no number is refused."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import references
from messages import Refused
from records import blank

from lm.analysis.claims import ClaimNode, read_claim
from lm.analysis.results import value
from lm.config.nodes import read_section
from lm.store.paths import SECTIONS, path_error


def paths(node: Any, way: str) -> Iterator[tuple[str, Any]]:
    """Every path below a node with what lies there; of a list the first and the last place are gone into."""
    yield way, node
    ends = {0: node[0], len(node) - 1: node[-1]} if isinstance(node, list) and node else {}
    below = node.items() if isinstance(node, dict) else ends.items()
    for key, inner in below:
        yield from paths(inner, f"{way}/{key}")


@pytest.mark.extra
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("cell", references.folders("record.json")[::480], ids=lambda cell: cell[:6])
def test_paths_of_committed_records_lead_where_declared(cell: str) -> None:
    record: Any = references.records()[cell]
    for section in SECTIONS.keys() & record.keys():
        for path, found in paths(record[section] or {}, section):
            if isinstance(found, int | float | list) and found != []:
                assert path_error(path) == "", path
                assert math.isfinite(value(record, path)), path
            elif isinstance(found, str | dict) and not path.startswith("evaluations/"):
                assert path_error(path), path
            if isinstance(found, str | dict):
                assert math.isnan(value(record, path)), "not measured, and no crash"


@pytest.mark.parametrize(
    "path",
    [
        "data/tokens",
        "data/fingerprint",
        "data/tokns/train",
        "initial/gradient_norm",
        "initial/entropi",
        "initial/entropy/first",
        "evaluations/test",
        "evaluations/lengths/128",
        "evaluations/lengths/128/error",
        "reliability/count/3/x",
        "metrics/nll/0",
        "metrics/",
        "log data/tokens / initial/entropy",
        "nll - data/tokenizer",
    ],
)
def test_a_claim_on_no_number_is_refused(refused: Refused, path: str) -> None:
    tree = {"claim": "x", "kind": "ours", "metric": path, "relation": "range", "arm": "a", "low": 0}
    with refused():
        read_claim(read_section(tree, ClaimNode, "claims[0]"), ["a", "b"], "a", "claims[0]")


@pytest.mark.parametrize(
    "path", ["data/tokens/validation", "initial/gradient_norm/mlp_out/-1", "evaluations/test/scaled/ece", "cost/tokens"]
)
def test_a_path_that_may_lead_to_a_number_is_accepted(path: str) -> None:
    tree = {"claim": "x", "kind": "ours", "metric": path, "relation": "range", "arm": "a", "low": 0}
    assert read_claim(read_section(tree, ClaimNode, "claims[0]"), ["a", "b"], "a", "claims[0]").metric == path


@pytest.mark.parametrize("found", ["text", "3.5", {"a": 1}, True, None, [], [1, "x"], [[1.0], 2.0, None], math.nan])
def test_what_is_no_number_is_not_measured(found: Any) -> None:
    final: Any = {"entropy": found}
    assert math.isnan(value({**blank(), "final": final}, "final/entropy"))
