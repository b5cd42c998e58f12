"""Verdicts in the words that tables print."""

import math

from lm.stats.verdicts import DIRECTIONS, Verdict

LABELS = {
    "not judged": "-",
    "no pair": "no pair to compare",
    "no runs": "no runs to compare",
    "seeds only": "inconclusive: found over seeds, not over texts",
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
