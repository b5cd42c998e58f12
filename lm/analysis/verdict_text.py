"""What the statistics found, in the words that tables print."""

import math

from lm.stats.verdicts import DIRECTIONS, Verdict

LABELS = {
    "not judged": "-",
    "no pair": "no pair to compare",
    "no runs": "no runs to compare",
    "seeds only": "inconclusive: found over seeds, not over texts",
}


def format_verdict(found: Verdict) -> str:
    """A verdict in a few words.

    >>> format_verdict(Verdict("too few", pairs=4, needed=6))
    '4 seeds cannot reach significance (6 could)'
    >>> format_verdict(Verdict("better", pairs=6, needed=8, within=0.02, staged=True))
    'better (found at 6 of at most 8 seeds), but within 0.02'
    >>> format_verdict(Verdict("too few", pairs=3, needed=4, against=5))
    '3 runs against 5 cannot reach significance (4 against 4 could)'
    """
    return f"exploratory: {_explored(found)}" if found.exploratory else _confirmed(found)


def _confirmed(found: Verdict) -> str:
    inside = "" if math.isnan(found.within) else f"within {found.within:zg}"
    if found.kind in DIRECTIONS:
        when = f" (found at {found.pairs} of at most {found.needed} seeds)" if found.staged else ""
        return f"{found.kind}{when}" + (f", but {inside}" if inside else "")
    if found.kind == "equivalent":
        return f"equivalent {inside}"
    if found.kind == "too few" and found.against:
        runs = f"{found.pairs} run{'s' * (found.pairs != 1)} against {found.against}"
        return f"{runs} cannot reach significance ({found.needed} against {found.needed} could)"
    if found.kind == "too few":
        return f"{format_seeds(found.pairs)} cannot reach significance ({found.needed} could)"
    if found.kind == "too early":
        return f"too early: first look at {found.needed} seeds"
    if found.kind == "undecided":
        return f"undecided after {found.pairs} of at most {found.needed} seeds"
    return LABELS.get(found.kind, found.kind)


def _explored(found: Verdict) -> str:
    if found.kind == "too few":
        return f"{format_seeds(found.pairs)} cannot tell ({found.needed} could)"
    said = f"within {found.within:zg}" if found.kind == "equivalent" else LABELS.get(found.kind, found.kind)
    return said if math.isnan(found.q) else f"{said}, q = {found.q:z.2g}"


def format_seeds(count: int) -> str:
    """A number of seeds."""
    return f"{count} seed{'s' * (count != 1)}"
