"""The findings, as a table for people and as JSON for machines."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from worked_examples.judge import Finding, Verdict, as_text
from worked_examples.rows import Row, plain

SHOWN = 4
"""Numbers of a figure that the table shows; JSON has all."""

WIDTH = 160
"""Columns of a table that goes to a file or a pipe."""


def all_right(findings: Sequence[Finding]) -> bool:
    """Whether no example is off."""
    return all(finding.verdict != "OFF" for finding in findings)


def of_source(row: Row) -> Mapping[str, Any]:
    """The figures as the source has them; empty where it prints none."""
    if isinstance(row.stated, Mapping):
        return row.stated
    return row.computed if row.stated == "same" else {}


def to_json(findings: Sequence[Finding]) -> str:
    """All of every finding. A number that is not finite is null."""
    rows = [
        {
            "id": finding.row.id,
            "section": finding.row.section,
            "formula": finding.row.formula,
            "verdict": finding.verdict,
            "source": plain(of_source(finding.row)),
            "computed": plain(finding.row.computed),
            "at_most": plain(finding.row.at_most),
            "at_least": plain(finding.row.at_least),
            "ours": {name: _finite(finding.ours.get(name)) for name in finding.row.quantities},
            "erratum": finding.row.erratum,
            "note": finding.row.note,
            "reasons": list(finding.reasons),
        }
        for finding in findings
    ]
    return json.dumps({"verified": all_right(findings), "rows": rows}, indent=2)


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """A row for each example, then in words what is wrong in the source and what is off, and how many there are."""
    console.print(_table(findings))
    for line in _remarks(findings):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    counts = Counter(finding.verdict for finding in findings)
    words: dict[Verdict, str] = {
        "agrees": "agree",
        "holds": "hold",
        "erratum in the source": "are errata in the source",
        "OFF": "are OFF",
    }
    summary = ", ".join(f"{counts[verdict]} {word}" for verdict, word in words.items())
    console.print(f"{len(findings)} worked examples: {summary}", highlight=False)


def console() -> Console:
    """The terminal, or a console wide enough for the table."""
    found = Console()
    return found if found.is_terminal else Console(width=WIDTH)


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(highlight=False)
    for name in ("id", "formula", "the source's", "ours", "verdict"):
        table.add_column(name, overflow="fold", no_wrap=name == "id")
    section = None
    for finding in findings:
        row = finding.row
        if row.section != section and section is not None:
            table.add_section()
        section = row.section
        source = _figures(of_source(row), row) or "-"
        cells = (row.id, row.formula, source, _ours(finding), finding.verdict)
        table.add_row(*map(Text, cells))
    return table


def _ours(finding: Finding) -> str:
    row, ours = finding.row, finding.ours
    if any(name not in ours for name in row.quantities):
        return "-"
    lines = [_figures({name: ours[name] for name in row.computed}, row)] if row.computed else []
    for names, sign in ((row.at_most, "<="), (row.at_least, ">=")):
        lines += [f"{name} {ours[name]:z.1e} {sign} {float(names[name]):zg}" for name in names]
    return "\n".join(lines)


def _figures(figures: Mapping[str, Any], row: Row) -> str:
    named = len(row.computed) > 1
    return "\n".join(f"{name}: {_short(value)}" if named else _short(value) for name, value in figures.items())


def _short(value: Any) -> str:
    numbers = list(_leaves(value))
    if len(numbers) <= SHOWN:
        return as_text(value)
    return f"{', '.join(map(as_text, numbers[:SHOWN]))}, ... ({len(numbers)} numbers)"


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _remarks(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        row = finding.row
        if row.erratum is not None and finding.verdict != "OFF":
            figures = [
                f" ({name}: {as_text(printed)} printed, {as_text(finding.ours[name])} right)"
                for name, printed in row.differently_stated.items()
            ]
            yield f"erratum, {row.id}: {row.erratum}{''.join(figures)}"
        if row.note is not None:
            yield f"note, {row.id}: {row.note}"
        yield from (f"OFF, {row.id}: {reason}" for reason in finding.reasons)


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None
