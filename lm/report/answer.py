"""The answer of an experiment in a sentence: which arm is best, by how much, and how sure that is."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from lm.analysis.results import Records
from lm.analysis.verdict_text import brief_verdict, format_seeds
from lm.report.figures.differences import sorted_rows
from lm.report.tables import mean_and_sd
from lm.stats.verdicts import DIRECTIONS
from lm.store.metrics import describe

MOST_NAMES = 3
"""Largest number of arms of a kind that a sentence names."""


def answer(results: Records, compared: pd.DataFrame) -> str:
    """State which arm is best in the headline quantity, by how much and how sure, in one sentence."""
    baseline = results.arms[0]
    if len(results.arms) == 1:
        (row,) = compared[compared.metric == results.headline].itertuples()
        size = f"{describe(row.metric).label} {mean_and_sd(row)}, {format_seeds(row.n)}"
        return f"One arm, compared with nothing: {size}."
    of_headline = sorted_rows(compared, results.headline, describe(results.headline).better)
    rows = [row for row in of_headline if row.pairs > 0 and math.isfinite(row.difference)]
    if not rows:
        return f"Nothing is certain: no arm can be compared with {baseline} yet."
    certain = [row for row in rows if direction(row)]
    ahead = [row for row in certain if direction(row) in ("better", "higher")]
    behind = [row for row in certain if direction(row) in ("worse", "lower")]
    if ahead:
        confirmed = [row for row in ahead if row.family != "exploratory"]
        best = max(confirmed or ahead, key=lead)
        first = f"{best.arm} is {direction(best)} than {baseline} by {_size(best)}"
        return f"{'; '.join([first, *_others(rows, best)])}."
    if len(behind) == len(of_headline):
        nearest = max(behind, key=lead)
        verb = {"worse": "better", "lower": "higher"}[direction(nearest)]
        every = f"every other arm, the nearest of which is {nearest.arm}," if len(behind) > 1 else str(nearest.arm)
        return f"{baseline} is {verb} than {every} by {_size(nearest)}."
    if behind:
        last = min(behind, key=lead)
        first = f"No arm is certain to be {'better' if direction(last) == 'worse' else 'higher'} than {baseline}"
        return f"{'; '.join([first, f'{last.arm} is {direction(last)} by {_size(last)}', *_others(rows, last)])}."
    if all(brief(row).startswith("equal") for row in rows):
        return f"{_names(rows)} and {baseline} are {brief(rows[0])}, {format_seeds(rows[0].pairs)}."
    largest = max(rows, key=lambda row: abs(row.difference))
    words, verb = brief(largest).removesuffix(", exploratory"), directed(largest).partition(" ")[0]
    reason = words.partition(", ")[2] if " by " in words else words
    size = _size(largest, with_seeds="seeds" not in reason)
    return f"Nothing is certain: in the mean {largest.arm} is {verb} than {baseline} by {size}: {reason}."


def _size(row: Any, with_seeds: bool = True) -> str:
    """Format the size of a difference with its interval, unit and seeds."""
    size = " ".join(filter(None, [_number(abs(row.difference), row), interval(row), describe(row.metric).unit]))
    marks = [format_seeds(row.pairs)] * with_seeds + ["exploratory"] * (row.family == "exploratory")
    return ", ".join([size, *marks])


def _others(rows: Sequence[Any], named: Any) -> list[str]:
    """List the other arms by what is certain of them."""
    others = [row for row in rows if row.arm != named.arm]
    clauses = []
    for word in DIRECTIONS:
        if of_word := [row for row in others if direction(row) == word]:
            clauses.append(f"{'also ' * (direction(named) == word)}{word}: {_names(of_word)}")
    equal = [row for row in others if brief(row).startswith("equal")]
    for words in dict.fromkeys(brief(row).partition(",")[0] for row in equal):
        clauses.append(f"{words}: {_names([row for row in equal if brief(row).startswith(words)])}")
    if unsure := [row for row in others if not direction(row) and row not in equal]:
        ahead = ", some of them ahead of it in the mean" if len(unsure) > 1 else ", though ahead of it in the mean"
        is_ahead = direction(named) == "better" and any(lead(row) > lead(named) for row in unsure)
        clauses.append(f"not certain: {_names(unsure)}{ahead * is_ahead}")
    return clauses


def _names(rows: Sequence[Any]) -> str:
    """Name arms, or count those after the first few."""
    names, left = [str(row.arm) for row in rows[:MOST_NAMES]], len(rows) - MOST_NAMES
    return ", ".join(names) + (f" and {left} more" if left > 0 else "")


# one comparison ------------------------------------------------------------------------------------------------------


def brief(row: Any) -> str:
    """Return the verdict of a row in a few words, such as `better by 0.050, exploratory`."""
    return brief_verdict(str(row.verdict), str(row.metric), row.difference)


def direction(row: Any) -> str:
    """Return `better`, `worse`, `higher` or `lower` for a certain difference of healthy arms, else an empty text."""
    words = brief(row)
    word = words.split(" ")[0]
    return word if word in DIRECTIONS and "unhealthy" not in words else ""


def lead(row: Any) -> float:
    """Return by how much an arm is better than the baseline; higher where no direction is better."""
    return -row.difference if describe(row.metric).better == "lower" else row.difference


def most_certain(rows: Sequence[Any], most: int) -> list[Any]:
    """Choose at most so many comparisons, certain ones before others; their order stays."""
    chosen = sorted(rows, key=lambda row: not direction(row))[:most]
    return [row for row in rows if row in chosen]


def directed(row: Any) -> str:
    """Format a mean difference with its interval, in the direction that it has: `better by 0.050 [0.021, 0.080]`."""
    if not math.isfinite(row.difference):
        return ""
    words = ("higher", "lower") if describe(row.metric).better is None else ("better", "worse")
    return f"{words[lead(row) < 0]} by {_number(abs(row.difference), row)} {interval(row)}".rstrip()


def interval(row: Any) -> str:
    """Format the interval of a difference, counted in the direction of its mean; empty without an end."""
    low, high = (row.low, row.high) if row.difference >= 0 else (-row.high, -row.low)
    return f"[{_number(low, row)}, {_number(high, row)}]" if math.isfinite(low) or math.isfinite(high) else ""


def _number(value: float, row: Any) -> str:
    """Format a number with a decimal less than in a table, unless the difference is too small for that."""
    digits = describe(row.metric).digits
    decimals = max(0, digits - 1) if abs(row.difference) >= 10.0 ** (2 - digits) else digits
    return "-" if math.isnan(value) else f"{value:z,.{decimals}f}".replace("inf", "∞")
