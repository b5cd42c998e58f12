"""What `auto` came to, in words."""

from collections.abc import Mapping
from typing import Any


def describe_autotune(found: Mapping[str, Any]) -> str:
    """What was chosen for each setting of the trainer, and how fast each way was, in a line.

    Args:
        found: a decision of `lm.runs.ways`, as a manifest has it.
    """
    chosen = found["chosen"]
    settings = ", ".join(
        f"{name} {value if isinstance(value, str) else str(value).lower()}" for name, value in chosen.items()
    )
    timed = "; ".join(_timed(one, list(chosen)) for one in found["measured"])
    return f"auto: {settings}. A step takes {timed} ({found['device']}, threads: {found['threads']})."


def _timed(one: Mapping[str, Any], names: list[str]) -> str:
    way = " ".join(filter(None, (_named(name, one["way"][name]) for name in names)))
    compiled = f" after {one['compiled_in']:z.0f} s of compiling" if one.get("compiled_in") else ""
    return f"{one['milliseconds']:z.4g} ms {way or 'as written'}{compiled}"


def _named(name: str, value: Any) -> str:
    if name == "compile":
        return "compiled" if value else ""
    return str(value)
