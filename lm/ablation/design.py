"""Arms from factors: one at a time, one left out, full and fractional factorials.

A factor has levels, each a mapping of dotted paths to values, the first of which is the plain one.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Required, TypedDict

import lm.config.keys
from lm.config.plain import shown
from lm.config.tree import InputError, nearest

KINDS = ("one_at_a_time", "leave_one_out", "factorial", "fractional")
FULL = "full"
MOST_ARMS = 1024
"""A design of more is a slip of the pen."""

MOST_FACTORS = 16
"""Of a fraction; what is aliased with what grows as a power of 2 with their number."""

Changes = dict[str, Any]


class DesignNode(TypedDict, total=False):
    """Arms made from factors, instead of a list of arms."""

    kind: Required[Annotated[str, "How the factors are combined.", lm.config.keys.Also(enum=list(KINDS))]]
    factors: Required[
        Annotated[
            dict[str, Annotated[dict[str, lm.config.keys.Changes], lm.config.keys.Also(minProperties=2)]],
            "For each factor its levels, the plain one first, each a mapping of dotted paths to values.",
            lm.config.keys.Also(minProperties=1),
        ]
    ]
    generators: Annotated[
        dict[str, list[lm.config.keys.Name]],
        "For a fraction: which factors are made from the product of which others, as in {d: [a, b, c]}.",
        lm.config.keys.Also(minProperties=1),
    ]


KEYS = lm.config.keys.keys(DesignNode)


@dataclass(frozen=True)
class Design:
    """Arms and where each stands in its factors.

    Args:
        kind: one of KINDS, or `arms` for an explicit list.
        arms: for each arm, dotted paths and what to put there.
        baseline: the arm the others are compared with.
        levels: for each arm the level of each factor; empty for an explicit list.
        aliases: effects that a fraction cannot tell apart, in words.
    """

    kind: str
    arms: dict[str, Changes]
    baseline: str
    levels: dict[str, dict[str, str]] = field(default_factory=dict)
    aliases: list[str] = field(default_factory=list)


def read_design(tree: Any, path: str) -> Design:
    """The arms that a `design` node of an experiment asks for. Raises InputError naming `path`."""
    if not isinstance(tree, Mapping):
        raise InputError(f"{path}: expected a mapping with kind and factors, found {shown(tree)}")
    for key in tree:
        if key not in KEYS:
            raise InputError(f"{path}: no key {key!r}.{nearest(str(key), KEYS)} It takes {', '.join(KEYS)}")
    kind = tree.get("kind")
    if kind not in KINDS:
        raise InputError(f"{path}.kind: no design {kind!r}.{nearest(str(kind), KINDS)} Choose from {', '.join(KINDS)}")
    if "generators" in tree and kind != "fractional":
        raise InputError(f"{path}.generators: only a fractional design has them, and this one is {kind}")
    factors = _factors(tree.get("factors"), f"{path}.factors")
    crossed = math.prod(len(levels) for levels in factors.values())
    if kind == "factorial" and crossed > MOST_ARMS:
        raise InputError(f"{path}.factors: {crossed} arms, expected {MOST_ARMS} at most; a fractional design has fewer")
    if kind in ("one_at_a_time", "leave_one_out"):
        return _one_at_a_time(factors, path) if kind == "one_at_a_time" else _leave_one_out(factors, path)
    if kind == "factorial":
        combinations = [dict(zip(factors, chosen, strict=True)) for chosen in itertools.product(*factors.values())]
        return _crossed(kind, factors, combinations)
    return _fractional(factors, tree.get("generators"), path)


def _factors(tree: Any, path: str) -> dict[str, dict[str, Changes]]:
    if not isinstance(tree, Mapping) or not tree:
        raise InputError(f"{path}: expected a mapping of factors to their levels, found {shown(tree)}")
    factors: dict[str, dict[str, Changes]] = {}
    for factor, levels in tree.items():
        if not isinstance(levels, Mapping) or len(levels) < 2:
            found = shown(levels)
            raise InputError(f"{path}.{factor}: expected two levels or more, the plain one first, found {found}")
        for level, changes in levels.items():
            if changes is not None and not isinstance(changes, Mapping):
                raise InputError(f"{path}.{factor}.{level}: expected dotted paths and values, found {shown(changes)}")
        factors[str(factor)] = {str(level): dict(changes or {}) for level, changes in levels.items()}
    return factors


def _merged(factors: dict[str, dict[str, Changes]], chosen: Mapping[str, str]) -> Changes:
    changes: Changes = {}
    for factor, level in chosen.items():
        for key, value in factors[factor][level].items():
            if key in changes and changes[key] != value:
                raise InputError(f"design.factors.{factor}.{level}: {key} is set by another factor too")
            changes[key] = value
    return changes


def _named(
    kind: str, factors: dict[str, dict[str, Changes]], named: Sequence[tuple[str, dict[str, str]]], path: str
) -> Design:
    names = [name for name, _ in named]
    if len(names) > MOST_ARMS:
        raise InputError(f"{path}.factors: {len(names)} arms, expected {MOST_ARMS} at most")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{path}.factors: two arms would be called {twice!r}; give the levels other names")
    arms = {name: _merged(factors, chosen) for name, chosen in named}
    return Design(kind, arms, names[0], dict(named))


def _one_at_a_time(factors: dict[str, dict[str, Changes]], path: str) -> Design:
    plain = {factor: next(iter(levels)) for factor, levels in factors.items()}
    named = [("base", plain)]
    for factor, levels in factors.items():
        named += [(level, {**plain, factor: level}) for level in list(levels)[1:]]
    return _named("one_at_a_time", factors, named, path)


def _leave_one_out(factors: dict[str, dict[str, Changes]], path: str) -> Design:
    full = {factor: list(levels)[-1] for factor, levels in factors.items()}
    named = [(FULL, full)]
    for factor, levels in factors.items():
        named.append((f"without_{factor}", {**full, factor: next(iter(levels))}))
    return _named("leave_one_out", factors, named, path)


def _crossed(kind: str, factors: dict[str, dict[str, Changes]], combinations: Sequence[dict[str, str]]) -> Design:
    named = [("+".join(chosen.values()), chosen) for chosen in combinations]
    return _named(kind, factors, named, "design")


# fractions -----------------------------------------------------------------------------------------------------------


def _fractional(factors: dict[str, dict[str, Changes]], generators: Any, path: str) -> Design:
    """A two-level fraction: some factors are set by the product of the signs of others (Box, Hunter and Hunter)."""
    for factor, levels in factors.items():
        if len(levels) != 2:
            raise InputError(f"{path}.factors.{factor}: a fraction needs two levels, found {', '.join(levels)}")
    if len(factors) > MOST_FACTORS:
        raise InputError(f"{path}.factors: {len(factors)} factors, expected {MOST_FACTORS} at most in a fraction")
    if generators is None:
        *free, last = factors
        generators = {last: free}
    made = _generators(generators, list(factors), f"{path}.generators")
    free = [factor for factor in factors if factor not in made]
    if 2 ** len(free) > MOST_ARMS:
        raise InputError(
            f"{path}.generators: {2 ** len(free)} arms, expected {MOST_ARMS} at most; make more factors of others"
        )
    combinations = []
    for signs in itertools.product((-1, 1), repeat=len(free)):
        sign = dict(zip(free, signs, strict=True))
        # The sign that makes the arm of all plain levels one of the fraction, as the baseline.
        sign |= {f: (-1) ** (len(word) + 1) * math.prod(sign[other] for other in word) for f, word in made.items()}
        combinations.append({f: list(factors[f])[(sign[f] + 1) // 2] for f in factors})
    design = _crossed("fractional", factors, combinations)
    return Design(design.kind, design.arms, design.baseline, design.levels, aliases(list(factors), made))


def _generators(tree: Any, factors: list[str], path: str) -> dict[str, list[str]]:
    if not isinstance(tree, Mapping) or not tree:
        raise InputError(f"{path}: expected a mapping such as {{d: [a, b, c]}}, found {shown(tree)}")
    for factor, word in tree.items():
        for name in [factor, *(word if isinstance(word, list) else [])]:
            if name not in factors:
                listed = ", ".join(factors)
                raise InputError(f"{path}: no factor {name!r}.{nearest(str(name), factors)} Choose from {listed}")
        if not isinstance(word, list) or not word or set(word) & set(tree):
            raise InputError(f"{path}.{factor}: expected factors that are not made by others, found {shown(word)}")
    return {str(factor): [str(name) for name in word] for factor, word in tree.items()}


def aliases(factors: list[str], generators: Mapping[str, Sequence[str]]) -> list[str]:
    """Which main effects and two-factor interactions share a contrast, each group in words."""
    words = [frozenset({factor, *word}) for factor, word in generators.items()]
    group: set[frozenset[str]] = {frozenset()}
    for word in words:
        group |= {word ^ other for other in group}
    effects = [frozenset(some) for size in (1, 2) for some in itertools.combinations(factors, size)]
    found, seen = [], set()
    for effect in effects:
        if effect in seen:
            continue
        same = [other for other in effects if effect ^ other in group]
        seen.update(same)
        if len(same) > 1:
            found.append(" = ".join(" x ".join(sorted(other, key=factors.index)) for other in same))
    return found
