"""Paths into records, such as `initial/gradient_norm/mlp_out/-1`: which lead to a number, as far as is known."""

from collections.abc import Mapping
from typing import Any

from lm.config.tree import nearest

NUMBER = "a number"
NUMBERS = "a list of numbers, or of lists of them"
TEXT = "text"
UNKNOWN = "what is measured there"

ANY = "*"
"""Stands for every name that is not listed beside it."""

Leads = Mapping[str, Any]

BINS: Leads = {"count": NUMBERS, "confidence": NUMBERS, "accuracy": NUMBERS}
LENGTHS: Leads = {
    ANY: {"tokens": NUMBER, "nll": NUMBER, "sliding_nll": NUMBER, "by_position": NUMBERS, "error": TEXT},
}
SPLIT: Leads = {
    "reliability": BINS,
    "scaled": {"fitted_on": TEXT, "validation_nll": NUMBERS, "reliability": BINS, ANY: UNKNOWN},
    "text": {ANY: UNKNOWN},
    "lengths": LENGTHS,
    ANY: UNKNOWN,
}
INSIDE: Leads = {
    **dict.fromkeys(("entropy", "largest_logit", "first_share", "residual_norm", "dead_share"), NUMBERS),
    "gradient_norm": {ANY: NUMBERS},
}
SECTIONS: Leads = {
    "initial": INSIDE,
    "final": INSIDE,
    "evaluations": {"lengths": LENGTHS, ANY: SPLIT},
    "reliability": BINS,
    "metrics": {ANY: NUMBER},
    "cost": {ANY: NUMBER},
    "data": {
        **dict.fromkeys(("fingerprint", "tokenizer"), TEXT),
        **{name: {ANY: NUMBER} for name in ("documents", "tokens", "bytes", "unknown")},
        **dict.fromkeys(("vocabulary", "end_of_text"), NUMBER),
    },
}
"""What lies in the parts of a record into which a path may lead."""


def dead_end(path: str) -> str:
    """Why a path into a record leads to no number; empty where it does, or where that is not known beforehand."""
    lead: Any = SECTIONS
    way: list[str] = []
    for step in path.split("/"):
        here = "/".join(way)
        if lead is UNKNOWN:
            return ""
        if lead is NUMBERS:
            if not step.removeprefix("-").isdecimal():
                return f"{here} is {NUMBERS}, of which {step!r} is no place"
        elif not isinstance(lead, Mapping):
            return f"{here} is {lead}, and nothing lies below it"
        elif not step or (step not in lead and ANY not in lead):
            return f"{here or 'a record'} has no {step!r}.{nearest(step, list(lead))} It has {', '.join(lead)}"
        else:
            lead = lead.get(step, lead.get(ANY))
        way.append(step)
    if lead is TEXT:
        return f"{path} is text, and a claim is about a number"
    if isinstance(lead, Mapping):
        named = [name for name in lead if name != ANY]
        below = f", such as {path}/{named[0]}" if named else ""
        return f"{path} holds several things by name, and a claim is about a number; go on to one of them{below}"
    return ""
