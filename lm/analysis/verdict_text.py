"""Verdicts in words: as table.csv keeps them, in a table for a reader, and in a few words on a card or in a figure."""

import math
import re
from collections.abc import Sequence

from lm.stats.verdicts import DIRECTIONS, Verdict
from lm.store.metrics import describe

LABELS = {
    "not judged": "-",
    "no pair": "no pair to compare",
    "no runs": "no runs to compare",
    "seeds only": "inconclusive: found over seeds, not over documents",
    "choice": "inconclusive: found at the chosen learning rates, which may not be the best",
}


def format_verdict(verdict: Verdict) -> str:
    """Format a verdict in a few words.

    >>> format_verdict(Verdict("too few", pairs=4, needed=6))
    '4 seeds cannot reach significance (6 could)'
    >>> format_verdict(Verdict("better", pairs=6, needed=8, within=0.02, staged=True))
    'better (found at 6 of at most 8 seeds), but within 0.02'
    >>> format_verdict(Verdict("too few", pairs=3, needed=4, against=5))
    '3 runs against 5 cannot reach significance (4 against 4 could)'
    """
    return f"exploratory: {_explored(verdict)}" if verdict.exploratory else _confirmed(verdict)


def _confirmed(verdict: Verdict) -> str:
    inside = "" if math.isnan(verdict.within) else f"within {verdict.within:zg}"
    if verdict.kind in DIRECTIONS:
        when = f" (found at {verdict.pairs} of at most {verdict.needed} seeds)" if verdict.staged else ""
        return f"{verdict.kind}{when}" + (f", but {inside}" if inside else "")
    if verdict.kind == "equivalent":
        return f"equivalent {inside}"
    if verdict.kind == "too few" and verdict.against:
        runs = f"{verdict.pairs} run{'s' * (verdict.pairs != 1)} against {verdict.against}"
        return f"{runs} cannot reach significance ({verdict.needed} against {verdict.needed} could)"
    if verdict.kind == "too few":
        return f"{format_seeds(verdict.pairs)} cannot reach significance ({verdict.needed} could)"
    if verdict.kind == "too early":
        return f"too early: first look at {verdict.needed} seeds"
    if verdict.kind == "undecided":
        return f"undecided after {verdict.pairs} of at most {verdict.needed} seeds"
    return LABELS.get(verdict.kind, verdict.kind)


def _explored(verdict: Verdict) -> str:
    if verdict.kind == "too few":
        return f"{format_seeds(verdict.pairs)} cannot tell ({verdict.needed} could)"
    text = f"within {verdict.within:zg}" if verdict.kind == "equivalent" else LABELS.get(verdict.kind, verdict.kind)
    return text if math.isnan(verdict.q) else f"{text}, q = {verdict.q:z.2g}"


def format_seeds(count: int) -> str:
    """Format a number of seeds."""
    return f"{count} seed{'s' * (count != 1)}"


def list_seeds(seeds: Sequence[object]) -> str:
    """Format seeds as `seed 1` or `seeds 1, 2`."""
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def seed_ranges(seeds: Sequence[int | str], to: str = "-") -> str:
    """Format seeds with ranges of consecutive ones.

    >>> seed_ranges([0, 1, 2, 5])
    '0-2, 5'
    """
    ranges: list[list[int | str]] = []
    for seed in seeds:
        last = ranges[-1][-1] if ranges else None
        if isinstance(last, int) and seed == last + 1:
            ranges[-1].append(seed)
        else:
            ranges.append([seed])
    return ", ".join(f"{part[0]}{to}{part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in ranges)


EXPLORATORY = re.compile(r"exploratory: (.*?)(?:, q = ([-+.e\d]+))?( \(.*)?$")
DIRECTION = re.compile(r"^(lower|higher)\b")


def display_verdict(verdict: str, metric: str = "") -> str:
    """Format a verdict of table.csv for a reader: better or worse first, an exploratory one marked behind it.

    >>> display_verdict("exploratory: lower, q = 0.0059 (on 5 of 6 seeds; 1 diverged)", "nll")
    'better (exploratory, q=.006; on 5 of 6 seeds; 1 diverged)'
    >>> display_verdict("exploratory: higher, q = 0.0059", "parameters")
    'higher (exploratory, q=.006)'
    """
    match = EXPLORATORY.match(verdict)
    if match is None:
        return verdict
    kind, q, suffix = match.groups("")
    label = "exploratory" + (f", q={float(q):z.3f}".replace("=0.", "=.") if q else "")
    return f"{_valued(kind, metric)} ({label}" + (f"; {suffix.removeprefix(' (')}" if suffix else ")")


def brief_verdict(verdict: str, metric: str, difference: float) -> str:
    """Say in a few words how an arm compares with the baseline by a verdict of table.csv, and by how much.

    >>> brief_verdict("exploratory: lower, q = 0.0059", "nll", -0.0504)
    'better by 0.050, exploratory'
    >>> brief_verdict("equivalent within 0.02 (on 5 of 6 seeds; 1 diverged)", "nll", -0.0011)
    'equal within 0.02, on 5 of 6 seeds'
    >>> brief_verdict("worse (found at 6 of at most 8 seeds) (relu unhealthy: dead layer)", "nll", 0.0011)
    'worse by 0.0011, unhealthy'
    """
    match = EXPLORATORY.match(verdict)
    text, suffix = (match[1], match[3] or "") if match else (verdict.partition(" (")[0], verdict.partition(" (")[2])
    text = text.removeprefix("inconclusive: ")
    if (word := _valued(text, metric).split(" ")[0].rstrip(",")) in DIRECTIONS:
        margin = re.search(r", but within [-+.e\d]+", verdict)
        size, digits = abs(difference), describe(metric).digits
        decimals = max(0, digits - 1) if size >= 10.0 ** (2 - digits) else digits  # one less where two digits are left
        amount = f"{size:z.1g}" if size < 0.5 * 10.0**-digits else f"{size:z,.{decimals}f}"
        text = f"{word} by {amount}{margin[0] if margin else ''}"
    elif within := re.match(r"(?:equivalent )?(within .*)", text):
        text = f"equal {within[1]}"
    pairs = re.search(r"on \d+ of \d+ (?:seeds|runs)", suffix)
    marks = ["exploratory" if match else "", pairs[0] if pairs else "", "unhealthy" if "unhealthy" in suffix else ""]
    return ", ".join(filter(None, [text, *marks]))


def _valued(kind: str, metric: str) -> str:
    """Turn lower and higher at the beginning of a text into better and worse where the quantity has a direction."""
    better = describe(metric).better
    return kind if better is None else DIRECTION.sub(lambda m: "better" if m[1] == better else "worse", kind, count=1)
