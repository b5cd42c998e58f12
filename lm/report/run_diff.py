"""Differences between two runs, arms or configurations, as tables and as JSON."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console

from lm.analysis.run_diff import RunDiff, format_value
from lm.report.render import print_table
from lm.store.quantities import QUANTITIES, describe


def diff_json(difference: RunDiff) -> dict[str, Any]:
    """Return the output of `lm diff --json`."""
    return asdict(difference)


def show_diff(difference: RunDiff, names: tuple[str, str], console: Console, measured: bool) -> None:
    """Print the differences, a table a kind; `measured` where both sides are runs."""
    say = lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True)  # noqa: E731
    say(f"A: {names[0]}")
    say(f"B: {names[1]}")
    kinds: Mapping[str, Any] = {"configuration": difference.configuration}
    if measured:
        kinds = {**kinds, "text": difference.text, "code and circumstances": difference.circumstances}
    for title, pairs in kinds.items():
        if not pairs:
            say(f"{title}: no difference")
            continue
        print_table(
            "", [title, "A", "B"], [[name, format_value(a), format_value(b)] for name, (a, b) in pairs.items()], console
        )
    if not measured:
        return
    first = [name for name in QUANTITIES if name in difference.metrics]
    rows = [_row(name, *difference.metrics[name]) for name in dict.fromkeys([*first, *difference.metrics])]
    if not rows:
        say("metrics: none were measured")
        return
    seeds = difference.seeds
    mean = f"metrics, means of {seeds[0]} and {seeds[1]} seeds" if seeds != (1, 1) else "metrics"
    print_table(mean, ["metric", "A", "B", "B - A"], rows, console)


def _row(name: str, a: float | None, b: float | None) -> list[str]:
    numbers = ["-" if number is None else f"{number:z.6g}" for number in (a, b)]
    return [describe(name).label, *numbers, "-" if a is None or b is None else f"{b - a:+z.4g}"]
