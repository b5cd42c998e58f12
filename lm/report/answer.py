"""The answer of an experiment in a sentence: which arm is best, by how much, and how sure that is."""

import math
import re
from collections.abc import Sequence
from typing import Any

import pandas as pd

from lm.analysis.external.runs import Runs
from lm.analysis.results import Records
from lm.analysis.verdict_text import brief_verdict, format_seeds
from lm.report.tables import compared, mean_and_sd, span
from lm.stats.verdicts import DIRECTIONS, Better
from lm.store.metrics import describe

MOST_NAMES = 4  # largest number of arms of a kind that a sentence names

LOST_RUNS = re.compile(r" \(((?:on \d+ of \d+ |(?:baseline: )?\d+ (?:diverged|failed|damaged))[^()]*)\)")
ON_SEEDS = re.compile(r",? ?on \d+ of \d+ (?:seeds|runs)")
"""What a verdict of table.csv, and a brief one, say of the runs that it rests on."""

UNORDERED = "their order among themselves is not tested"


def answer(results: Records | Runs, table: pd.DataFrame) -> str:
    """State which arms are best in the headline quantity, by how much and how sure, in one sentence."""
    baseline, headline = results.arms[0], results.judged[0]
    better = results.better[headline] if isinstance(results, Runs) else describe(headline).better
    if len(results.arms) == 1:
        (row,) = table[table.metric == headline].itertuples()
        return f"One arm, compared with nothing: {describe(headline).label} {mean_and_sd(row)}, {format_seeds(row.n)}."
    rows = [row for row in compared(table.assign(better=better), headline, better) if math.isfinite(row.difference)]
    if not rows:
        return f"Nothing is certain: no arm can be compared with {baseline} yet."
    ahead = [row for row in rows if direction(row) in ("better", "higher")]
    behind = [row for row in rows if direction(row) in ("worse", "lower")]
    if certain := ahead or behind:
        named = [row for row in certain if row.family != "exploratory"] or certain  # the confirmed ones, if any is
        sizes = f"{', ' * (len(named) > 1) or ' '}by {_sizes(named)}"
        first = f"{_names(named)} {'is' if len(named) == 1 else 'are'} {direction(named[0])} than {baseline}{sizes}"
        return f"{'; '.join([first, *_others(rows, named)])}."
    if alike := dict.fromkeys(filter(None, map(equality, rows))):
        groups = [(words, [row for row in rows if equality(row) == words]) for words in alike]
        clauses = [f"{_names(group, baseline)} are {words}, {_sample(group)}" for words, group in groups]
        unsure = [row for row in rows if not equality(row)]
        return f"{'; '.join([*clauses, *([f'not certain: {_names(unsure)}'] if unsure else [])])}."
    largest = max(rows, key=lambda row: abs(row.difference))
    words, verb = brief(largest).replace(", exploratory", ""), directed(largest).partition(" ")[0]
    reason = ON_SEEDS.sub("", words.partition(", ")[2] if " by " in words else words)
    with_sample = not re.search("seeds?|runs? against", reason)
    size, reason = _sizes([largest], with_sample), reason + _lost([largest]) * (not with_sample)
    return f"Nothing is certain: in the mean {largest.arm} is {verb} than {baseline} by {size}: {reason}."


def _sizes(rows: Sequence[Any], with_sample: bool = True) -> str:
    """Format the size of a difference with its interval, or the range of several, with unit and number of seeds."""
    sizes = sorted((abs(row.difference), _number(abs(row.difference), row)) for row in rows)
    size = f"{sizes[0][1]} {interval(rows[0])}".rstrip() if len(rows) == 1 else span(sizes[0][1], sizes[-1][1])
    size = f"{size} {describe(rows[0].metric).unit}".rstrip()
    count = sum(row.family == "exploratory" for row in rows)
    marks = [_sample(rows)] * with_sample + ["exploratory" if count == len(rows) else "some exploratory"] * bool(count)
    return ", ".join([size, *marks])


def _sample(rows: Sequence[Any]) -> str:
    counts = [int(row.pairs or row.n) for row in rows]
    what = "seed" if rows[0].pairs else "run"
    return f"{span(str(min(counts)), str(max(counts)))} {what}{'s' * (max(counts) != 1)}{_lost(rows)}"


def _lost(rows: Sequence[Any]) -> str:
    """Format the runs that were lost as verdicts have them, ` (on 6 of 9 seeds; 3 diverged)`; empty for none."""
    texts = [(f"{row.arm} " * (len(rows) > 1), LOST_RUNS.search(str(row.verdict))) for row in rows]
    named = "; ".join(name + match[1] for name, match in texts if match)
    return f" ({named})" * bool(named)


def _others(rows: Sequence[Any], named: Sequence[Any]) -> list[str]:
    """List what is certain of the other arms, and that the named ones are not compared with each other."""
    others, word_of_named = [row for row in rows if row not in named], direction(named[0])
    clauses = [UNORDERED] * (len(named) > 1 and word_of_named in ("better", "higher"))
    for word in DIRECTIONS:
        for explored in (False, True):
            alike = [row for row in others if direction(row) == word and (row.family == "exploratory") == explored]
            also = "also " * (word == word_of_named)
            clauses += [f"{also}{word}{', exploratory' * explored}: {_names(alike)}"] if alike else []
    for words in dict.fromkeys(filter(None, map(equality, others))):
        clauses.append(f"{words}: {_names([row for row in others if equality(row) == words])}")
    if unsure := [row for row in others if not direction(row) and not equality(row)]:
        ahead = f", {'some of them' if len(unsure) > 1 else 'though'} ahead of {'it' if len(named) == 1 else 'them'}"
        is_ahead = word_of_named == "better" and any(lead(row) > max(map(lead, named)) for row in unsure)
        clauses.append(f"not certain: {_names(unsure)}{f'{ahead} in the mean' * is_ahead}")
    return clauses


def _names(rows: Sequence[Any], *more: str) -> str:
    """Name arms, or count those after the first few."""
    names = [str(row.arm) for row in rows]
    if len(names) > MOST_NAMES:
        names[MOST_NAMES - 1 :] = [f"{len(names) - MOST_NAMES + 1} more"]
    names += more
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def brief(row: Any) -> str:
    """Return the verdict of a row in a few words, such as `better by 0.050, exploratory`."""
    return brief_verdict(str(row.verdict), str(row.metric), row.difference)


def direction(row: Any) -> str:
    """Return `better`, `worse`, `higher` or `lower` for a certain difference of healthy arms, else an empty text."""
    words = brief(row)
    word = words.split(" ")[0]
    return word if word in DIRECTIONS and "unhealthy" not in words else ""


def equality(row: Any) -> str:
    """Return `identical`, or `equal within 0.02`, of healthy arms, and that it is exploratory; else an empty text."""
    words = brief(row).split(", ")
    alike = words[0].startswith(("equal", "identical")) and "unhealthy" not in words
    return ", ".join(word for word in words[: 2 * alike] if word in (words[0], "exploratory"))


def lead(row: Any) -> float:
    """Return by how much an arm is better than the baseline; higher where no direction is better."""
    return -row.difference if _better(row) == "lower" else row.difference


def _better(row: Any) -> Better:
    return getattr(row, "better", describe(row.metric).better)


def most_certain(rows: Sequence[Any], most: int) -> list[Any]:
    """Choose at most so many comparisons, certain ones before others; their order stays."""
    chosen = sorted(rows, key=lambda row: not direction(row))[:most]
    return [row for row in rows if row in chosen]


def directed(row: Any) -> str:
    """Format a mean difference with its interval, in the direction that it has: `better by 0.050 [0.021, 0.080]`."""
    if not math.isfinite(row.difference) or brief(row).startswith("identical"):
        return ""
    words = ("higher", "lower") if _better(row) is None else ("better", "worse")
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
