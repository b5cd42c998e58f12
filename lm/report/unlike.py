"""What differs between two runs, two arms or two configurations, as tables and as JSON."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console

from lm.analysis.run_diff import RunDiff, format_value
from lm.report.page import show
from lm.store.quantities import QUANTITIES, describe


def unlike_json(found: RunDiff) -> dict[str, Any]:
    """What `lm diff` prints, for programs."""
    return asdict(found)


def show_unlike(found: RunDiff, names: tuple[str, str], console: Console, measured: bool) -> None:
    """Prints what differs, a table a kind; `measured` where both sides are runs."""
    say = lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True)  # noqa: E731
    say(f"A: {names[0]}")
    say(f"B: {names[1]}")
    kinds: Mapping[str, Any] = {"configuration": found.configuration}
    if measured:
        kinds = {**kinds, "text": found.text, "code and circumstances": found.circumstances}
    for title, pairs in kinds.items():
        if not pairs:
            say(f"{title}: no difference")
            continue
        show(
            "", [title, "A", "B"], [[name, format_value(a), format_value(b)] for name, (a, b) in pairs.items()], console
        )
    if not measured:
        return
    first = [name for name in QUANTITIES if name in found.metrics]
    rows = [_row(name, *found.metrics[name]) for name in dict.fromkeys([*first, *found.metrics])]
    if not rows:
        say("metrics: none were measured")
        return
    seeds = found.seeds
    mean = f"metrics, means of {seeds[0]} and {seeds[1]} seeds" if seeds != (1, 1) else "metrics"
    show(mean, ["metric", "A", "B", "B - A"], rows, console)


def _row(name: str, a: float | None, b: float | None) -> list[str]:
    numbers = ["-" if one is None else f"{one:z.6g}" for one in (a, b)]
    return [describe(name).label, *numbers, "-" if a is None or b is None else f"{b - a:+z.4g}"]
