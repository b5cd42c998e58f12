"""Sections of files are read as they are declared, and what is wrong is one line that names the place."""

from typing import Annotated, Any, Required, TypedDict

import pytest
from messages import Refused

from lm.config.keys import Also, Changes, Name, Text
from lm.config.nodes import read_section
from lm.config.reading import Seeds

Rate = Annotated[float, Also(exclusiveMinimum=0)]


class Inner(TypedDict, total=False):
    """A part of a node."""

    low: Required[Annotated[Rate, "The smallest."]]
    count: Annotated[int, "How many.", Also(minimum=1, maximum=9, default=3)]


class Node(TypedDict, total=False):
    """Every kind of value that files declare."""

    kind: Required[Annotated[str, "What it is.", Also(enum=["plain", "coloured"])]]
    title: Text
    name: Name
    common: Changes
    seeds: Seeds | Inner
    rates: Annotated[list[Rate], Also(minItems=2)] | Inner
    margin: Rate | dict[str, Rate] | None
    listed: list[str] | None
    parts: Annotated[dict[str, Inner | None], Also(maxProperties=2)]
    share: Annotated[float, Also(minimum=0, exclusiveMaximum=1)] | None
    exact: Annotated[bool, Also(default=False)]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({}, {}),
        ({"title": 1984, "name": 3}, {"title": "1984", "name": "3"}),
        ({"title": None, "common": None, "listed": None}, {"title": "", "common": {}, "listed": []}),
        ({"margin": None}, {"margin": {}}),
        ({"common": {"a.b": None, 3: [1]}}, {"common": {"a.b": None, "3": [1]}}),
        ({"seeds": "0-5"}, {"seeds": "0-5"}),
        ({"seeds": {"low": 1}}, {"seeds": {"low": 1.0, "count": 3}}),
        ({"rates": ["1e-3", 2]}, {"rates": [0.001, 2.0]}),
        ({"margin": {"nll": "0.5"}}, {"margin": {"nll": 0.5}}),
        ({"share": None, "exact": True}, {"share": None, "exact": True}),
        ({"parts": {"a": {"low": 2, "count": 4}}}, {"parts": {"a": {"low": 2.0, "count": 4}}}),
    ],
    ids=str,
)
def test_values_are_read_as_their_hints_say(given: dict[str, Any], read: dict[str, Any]) -> None:
    assert read_section({"kind": "plain", **given}, Node, "here") == {"kind": "plain", "exact": False, **read}


@pytest.mark.parametrize(
    "given",
    [
        [],
        {"knid": 1},
        {"model.width": 1},
        {"kind": "colored"},
        {"kind": None},
        {"title": [1]},
        {"common": 0},
        {"seeds": {}},
        {"rates": [1]},
        {"rates": [1, 0]},
        {"rates": [1, True]},
        {"rates": 1},
        {"rates": {"low": "x"}},
        {"rates": {"low": "\u0661"}},
        {"rates": {"low": 1, "count": 10}},
        {"rates": {"low": 1, "count": 2.0}},
        {"margin": False},
        {"margin": {"nll": float("inf")}},
        {"margin": 10**400},
        {"listed": "a"},
        {"listed": [3]},
        {"parts": {"a": 0}},
        {"parts": {"a": None}},
        {"parts": dict.fromkeys("abc")},
        {"share": 1},
        {"exact": "no"},
    ],
    ids=lambda given: str(given)[:50],
)
def test_a_wrong_value_is_one_line(refused: Refused, given: Any) -> None:
    with refused():
        read_section({"kind": "plain", **given} if isinstance(given, dict) else given, Node, "here")


def test_a_path_that_ends_in_a_colon_is_a_file(refused: Refused) -> None:
    for tree in ({}, {"kind": 1}):
        with refused():
            read_section(tree, Node, "a.yaml:")
