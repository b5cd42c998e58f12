"""Sections of files are read as they are declared, and what is wrong is one line that names the place."""

from typing import Annotated, Any, Required, TypedDict

import pytest
from helpers import refusal

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
    ("given", "words"),
    [
        ([], "here: expected a mapping of kind, title, name, "),
        ({"knid": 1}, "here: no key 'knid'. Did you mean kind? It takes kind, title, "),
        ({"model.width": 1}, "; changes to the base stand under common"),
        ({"kind": "colored"}, "here.kind: no choice 'colored'. Did you mean coloured? Choose from plain, coloured"),
        ({"kind": None}, "here.kind: expected text, found None"),
        ({"title": [1]}, "here.title: expected text, found [1]"),
        ({"common": 0}, "here.common: expected a mapping, found 0"),
        ({"seeds": {}}, "here.seeds: low is missing: The smallest."),
        ({"rates": [1]}, "here.rates: expected a list of at least 2, found 1"),
        ({"rates": [1, 0]}, "here.rates[1]: expected a number above 0, found 0"),
        ({"rates": [1, True]}, "here.rates[1]: expected a number above 0, found True"),
        ({"rates": 1}, "here.rates: expected a list of at least 2 or a mapping of low, count, found 1"),
        ({"rates": {"low": "x"}}, "here.rates.low: expected a number above 0, found 'x'"),
        ({"rates": {"low": "\u0661"}}, "here.rates.low: expected a number above 0"),
        ({"rates": {"low": 1, "count": 10}}, "here.rates.count: expected a whole number from 1 to 9, found 10"),
        ({"rates": {"low": 1, "count": 2.0}}, "here.rates.count: expected a whole number from 1 to 9, found 2.0"),
        ({"margin": False}, "here.margin: expected a number above 0 or a mapping, found False"),
        ({"margin": {"nll": float("inf")}}, "here.margin.nll: expected a number above 0, found inf"),
        ({"margin": 10**400}, "here.margin: expected a number above 0 or a mapping"),
        ({"listed": "a"}, "here.listed: expected a list, found 'a'"),
        ({"listed": [3]}, "here.listed[0]: expected text, found 3"),
        ({"parts": {"a": 0}}, "here.parts.a: expected a mapping of low, count, found 0"),
        ({"parts": {"a": None}}, "here.parts.a: low is missing"),
        ({"parts": dict.fromkeys("abc")}, "here.parts: expected a mapping of at most 2, found 3"),
        ({"share": 1}, "here.share: expected a number from 0 and below 1, found 1"),
        ({"exact": "no"}, "here.exact: expected true or false, found 'no'"),
    ],
    ids=str,
)
def test_a_wrong_value_is_one_line(given: Any, words: str) -> None:
    with refusal(words):
        read_section({"kind": "plain", **given} if isinstance(given, dict) else given, Node, "here")


def test_a_path_that_ends_in_a_colon_is_a_file() -> None:
    for tree, words in (({}, "a.yaml: kind is missing: What it is."), ({"kind": 1}, "a.yaml: kind: expected text")):
        with refusal(words):
            read_section(tree, Node, "a.yaml:")
