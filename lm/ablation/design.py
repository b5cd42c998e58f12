"""Arms from factors: one at a time, one left out, full and fractional factorials.

A factor has levels, each a mapping of dotted paths to values, the first of which is the plain one.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Required, TypedDict

from lm.config.keys import Also, Changes, Name
from lm.config.nodes import one_of
from lm.config.plain import shown
from lm.config.tree import InputError

KINDS = ("one_at_a_time", "leave_one_out", "factorial", "fractional")
FULL = "full"

MAX_ARMS = 1024  # arms of a design; more are a mistake
MAX_FACTORS = 16  # factors of a fraction; the number of aliases grows as a power of 2 with theirs

Levels = dict[str, dict[str, dict[str, Any]]]  # for each factor its levels, each with dotted paths and values


class DesignNode(TypedDict, total=False):
    """Arms made from factors, instead of a list of arms."""

    kind: Required[Annotated[str, "How the factors are combined.", Also(enum=list(KINDS))]]
    factors: Required[
        Annotated[
            dict[str, Annotated[dict[str, Changes], Also(minProperties=2)]],
            "For each factor its levels, the plain one first, each a mapping of dotted paths to values.",
            Also(minProperties=1),
        ]
    ]
    generators: Annotated[
        dict[str, Annotated[list[Name], Also(minItems=1)]],
        "For a fraction: which factors are made from the product of which others, as in {d: [a, b, c]}.",
        Also(minProperties=1),
    ]


@dataclass(frozen=True)
class Design:
    """Arms, each with dotted paths and what to put there, and the baseline among them.

    `kind` is one of KINDS, or `arms` for an explicit list, which has no `levels`. `aliases` are effects that a fraction
    cannot tell apart, in words.
    """

    kind: str
    arms: dict[str, dict[str, Any]]
    baseline: str
    levels: dict[str, dict[str, str]] = field(default_factory=dict)
    aliases: list[str] = field(default_factory=list)


def read_design(section: Mapping[str, Any], path: str) -> Design:
    """Return the arms of the `design` section of an experiment. Raises InputError naming `path`."""
    kind, factors = section["kind"], section["factors"]
    if "generators" in section and kind != "fractional":
        raise InputError(f"{path}.generators: only a fractional design has them, and this one is {kind}")
    if kind == "fractional":
        return _fractional(factors, section.get("generators"), path)
    if kind == "factorial":
        if (count := math.prod(map(len, factors.values()))) > MAX_ARMS:
            hint = "a fractional design has fewer"
            raise InputError(f"{path}.factors: {count} arms, expected {MAX_ARMS} at most; {hint}")
        crossed = [dict(zip(factors, levels, strict=True)) for levels in itertools.product(*factors.values())]
        return _from_levels(kind, factors, [("+".join(levels.values()), levels) for levels in crossed], "design")
    plain = {factor: next(iter(levels)) for factor, levels in factors.items()}
    if kind == "one_at_a_time":
        others = [(factor, level) for factor, levels in factors.items() for level in list(levels)[1:]]
        arms = [("base", plain), *((level, {**plain, factor: level}) for factor, level in others)]
    else:
        if more := next((factor for factor, levels in factors.items() if len(levels) > 2), None):
            hint = "without the ingredient and with it; one_at_a_time takes more"
            raise InputError(f"{path}.factors.{more}: expected two levels, {hint}; found {', '.join(factors[more])}")
        full = {factor: list(levels)[-1] for factor, levels in factors.items()}
        arms = [(FULL, full), *((f"without_{factor}", {**full, factor: plain[factor]}) for factor in factors)]
    return _from_levels(kind, factors, arms, path)


def _from_levels(kind: str, factors: Levels, levels: Sequence[tuple[str, dict[str, str]]], path: str) -> Design:
    """Return the design of arms by name and level of each factor, the first of which is the baseline."""
    names = [name for name, _ in levels]
    if len(names) > MAX_ARMS:
        raise InputError(f"{path}.factors: {len(names)} arms, expected {MAX_ARMS} at most")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{path}.factors: two arms would be called {twice!r}; give the levels other names")
    arms: dict[str, dict[str, Any]] = {}
    for name, chosen in levels:
        arms[name] = {}
        for factor, level in chosen.items():
            for key, value in factors[factor][level].items():
                if key in arms[name] and arms[name][key] != value:
                    raise InputError(f"design.factors.{factor}.{level}: {key} is set by another factor too")
                arms[name][key] = value
    return Design(kind, arms, names[0], dict(levels))


def _fractional(factors: Levels, generators: Mapping[str, list[str]] | None, path: str) -> Design:
    """Return a two-level fraction: products of the signs of factors set others (Box, Hunter and Hunter)."""
    for factor, levels in factors.items():
        if len(levels) != 2:
            raise InputError(f"{path}.factors.{factor}: a fraction needs two levels, found {', '.join(levels)}")
    if len(factors) > MAX_FACTORS:
        raise InputError(f"{path}.factors: {len(factors)} factors, expected {MAX_FACTORS} at most in a fraction")
    if generators is None:
        *free, last = factors
        generators = {last: free}
    path = f"{path}.generators"
    generators = {
        one_of(factor, factors, path, "factor"): [one_of(name, factors, path, "factor") for name in word]
        for factor, word in generators.items()
    }
    for factor, word in generators.items():
        if not word or set(word) & set(generators):
            raise InputError(f"{path}.{factor}: expected factors that are not made by others, found {shown(word)}")
    free = [factor for factor in factors if factor not in generators]
    if 2 ** len(free) > MAX_ARMS:
        raise InputError(f"{path}: {2 ** len(free)} arms, expected {MAX_ARMS} at most; make more factors of others")
    arms = []
    for signs in itertools.product((-1, 1), repeat=len(free)):
        sign = dict(zip(free, signs, strict=True))
        # The sign that makes the arm of all plain levels one of the fraction, as the baseline.
        sign |= {
            f: (-1) ** (len(word) + 1) * math.prod(sign[other] for other in word) for f, word in generators.items()
        }
        chosen = {f: list(factors[f])[(sign[f] + 1) // 2] for f in factors}
        arms.append(("+".join(chosen.values()), chosen))
    return replace(_from_levels("fractional", factors, arms, "design"), aliases=aliases(list(factors), generators))


def aliases(factors: list[str], generators: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the groups of main effects and two-factor interactions that share a contrast, in words."""
    group: set[frozenset[str]] = {frozenset()}
    for factor, word in generators.items():
        group |= {frozenset({factor, *word}) ^ other for other in group}
    effects = [frozenset(some) for size in (1, 2) for some in itertools.combinations(factors, size)]
    groups, grouped = [], set()
    for effect in effects:
        if effect not in grouped:
            same = [other for other in effects if effect ^ other in group]
            grouped.update(same)
            if len(same) > 1:
                groups.append(" = ".join(" x ".join(sorted(other, key=factors.index)) for other in same))
    return groups
