"""Paths into records, such as `initial/gradient_norm/mlp_out/-1`, and which of them lead to a number."""

from collections.abc import Mapping
from typing import Any

from lm.config.tree import nearest

NUMBER = "a number"
NUMBERS = "a list of numbers, or of lists of them"
TEXT = "text"
UNKNOWN = "unknown"

ANY = "*"  # wildcard for the names that are not listed beside it

Contents = Mapping[str, Any]

BINS: Contents = {"count": NUMBERS, "confidence": NUMBERS, "accuracy": NUMBERS}
LENGTHS: Contents = {
    ANY: {"tokens": NUMBER, "nll": NUMBER, "sliding_nll": NUMBER, "by_position": NUMBERS, "error": TEXT}
}
SPLIT: Contents = {
    "reliability": BINS,
    "scaled": {"fitted_on": TEXT, "validation_nll": NUMBERS, "reliability": BINS, ANY: UNKNOWN},
    "text": {ANY: UNKNOWN},
    "lengths": LENGTHS,
    ANY: UNKNOWN,
}
TASK: Contents = {
    **dict.fromkeys(("task", "sha256", "harness"), TEXT),
    "items": NUMBER,
    "metrics": {ANY: {"value": NUMBER, "stderr": NUMBER}},
}
INSIDE: Contents = {
    **dict.fromkeys(("entropy", "largest_logit", "first_share", "residual_norm", "block_share", "dead_share"), NUMBERS),
    "gradient_norm": {ANY: NUMBERS},
}
SECTIONS: Contents = {
    "initial": INSIDE,
    "final": INSIDE,
    "evaluations": {"lengths": LENGTHS, "tasks": {ANY: TASK}, ANY: SPLIT},
    "reliability": BINS,
    "metrics": {ANY: NUMBER},
    "cost": {ANY: NUMBER},
    "data": {
        **dict.fromkeys(("fingerprint", "tokenizer"), TEXT),
        **{name: {ANY: NUMBER} for name in ("documents", "tokens", "bytes", "unknown")},
        **dict.fromkeys(("vocabulary", "end_of_text", "unigram_nll"), NUMBER),
    },
}
"""Contents of the parts of a record into which a path may lead."""


def path_error(path: str) -> str:
    """Return why a path into a record leads to no number; an empty text if it does, or that is not known beforehand."""
    contents: Any = SECTIONS
    parent = ""
    for step in path.split("/"):
        if contents is UNKNOWN:
            return ""
        if contents is NUMBERS:
            if not step.removeprefix("-").isdecimal():
                return f"{parent} is {NUMBERS}, and {step!r} is no index"
        elif not isinstance(contents, Mapping):
            return f"{parent} is {contents}, and nothing is below it"
        elif not step or (step not in contents and ANY not in contents):
            hint = f"{nearest(step, list(contents))} It has {', '.join(contents)}"
            return f"{parent or 'a record'} has no {step!r}.{hint}"
        else:
            contents = contents.get(step, contents.get(ANY))
        parent = f"{parent}/{step}".lstrip("/")
    if contents is TEXT:
        return f"{path} is text, and a claim needs a number"
    if isinstance(contents, Mapping):
        example = next((f", such as {path}/{name}" for name in contents if name != ANY), "")
        return f"{path} holds several values by name, and a claim needs a number; name one of them{example}"
    return ""
