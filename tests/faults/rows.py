"""What `make faults` leaves: a file of JSON with a row for each fault, and the same as a table."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.machine import describe_machine
from lm import __version__
from lm.report.status import duration
from lm.store.files import to_json, write_atomic

FORMAT = 1

WIDTH = 170
"""Columns where there is no terminal."""


@dataclass(frozen=True)
class Row:
    """A fault and what came of it."""

    fault: str
    about: str
    came_to: str  # `same table`, `differs` or `left out`
    injected: int = 0  # how often it was done
    runs: int = 0  # that were disturbed
    commands: int = 0  # that were given for it
    seconds: float = 0.0  # that it took, with those of the undisturbed run where it was the first to need it
    hits: dict[str, int] = field(default_factory=dict)  # `injected` by what was hit
    note: str = ""  # in what runs differ, or why it was left out


def console() -> Console:
    """Return the terminal, or a console wide enough for the table."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=WIDTH)


def write(rows: Sequence[Row], asked: dict[str, Any], out: Path) -> None:
    """Writes the file."""
    found = {"format": FORMAT, "lm": __version__, **asked, "machine": describe_machine(1)}
    write_atomic(out, to_json({**found, "faults": [asdict(row) for row in rows]}))


def show(rows: Sequence[Row], to: Console) -> None:
    """The table, and below it what there is to say of its lines."""
    table = Table(highlight=False)
    table.add_column("fault", overflow="fold")
    for header in ("injected", "runs", "commands"):
        table.add_column(header, justify="right")
    table.add_column("what came of it")
    table.add_column("time", justify="right")
    for row in rows:
        counts = [str(count) if row.runs else "-" for count in (row.injected, row.runs, row.commands)]
        table.add_row(*map(Text, (row.fault, *counts, row.came_to, duration(row.seconds) if row.runs else "-")))
    to.print(table)
    for row in rows:
        for line in filter(None, (by_hit(row), row.note)):
            to.print(f"{row.fault}: {line}", highlight=False, markup=False, soft_wrap=True)


def by_hit(row: Row) -> str:
    """What was hit how often, where more than one thing was."""
    counts = sorted(row.hits.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{count} x {what}" for what, count in counts) if len(counts) > 1 else ""
