"""Text on the settings that `auto` chose."""

from collections.abc import Mapping
from typing import Any


def describe_autotune(decision: Mapping[str, Any]) -> str:
    """Describe in a line the setting chosen for each trainer option, and the speed of each candidate.

    Args:
        decision: a decision of `lm.inference.autotune`, as a manifest has it.
    """
    chosen = decision["chosen"]
    settings = ", ".join(
        f"{name} {value if isinstance(value, str) else str(value).lower()}" for name, value in chosen.items()
    )
    timed = "; ".join(_timed(timing, list(chosen)) for timing in decision["measured"])
    return f"auto: {settings}. A step takes {timed} ({decision['device']}, threads: {decision['threads']})."


def _timed(timing: Mapping[str, Any], names: list[str]) -> str:
    way = " ".join(filter(None, (_named(name, timing["way"][name]) for name in names)))
    compiled = f" after {timing['compiled_in']:z.0f} s of compiling" if timing.get("compiled_in") else ""
    return f"{timing['milliseconds']:z.4g} ms {way or 'as written'}{compiled}"


def _named(name: str, value: Any) -> str:
    if name == "compile":
        return "compiled" if value else ""
    return str(value)
