"""Compare a new report with the one on disk: tables, columns, rows, figures and entries that the new one lacks.

Wording is not compared: notes change with the records, and headings with the kind of interval.
"""

import csv
import html
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lm.analysis.results import Results
from lm.config.tree import ReportWouldShrinkError
from lm.store.files import read_csv_rows, write_atomic

NOTHING = ("", "-")
"""Entries that mean a missing number."""

FIRST = "the first table"
MOST_NAMED = 6

Key = tuple[str, ...]


@dataclass(frozen=True)
class ParsedTable:
    """A table as text: headings, and rows by as many first cells as make them unique."""

    columns: list[str]
    rows: dict[Key, dict[str, str]]


@dataclass
class ReportContents:
    """Contents of a page: its tables by section, all sections, and its figures."""

    tables: dict[str, ParsedTable] = field(default_factory=dict)
    sections: list[str] = field(default_factory=lambda: [FIRST])
    figures: list[str] = field(default_factory=list)


def read_page(page: str) -> ReportContents:
    """Parse a Markdown page of a report."""
    contents, lines = ReportContents(), dict[str, list[list[str]]]()
    for line in page.splitlines():
        if line.startswith("## "):
            contents.sections.append(line.removeprefix("## "))
        elif line.startswith("| "):
            cells = line.removeprefix("| ").removesuffix(" |").split(" | ")
            lines.setdefault(contents.sections[-1], []).append([_plain(cell) for cell in cells])
        else:
            contents.figures += re.findall(r"^!\[[^\]]*\]\((.+)\.png\)$", line)
    contents.tables = {section: parse_table(table_lines[0], table_lines[2:]) for section, table_lines in lines.items()}
    return contents


def _plain(cell: str) -> str:
    """Return the text that a cell of Markdown shows."""
    return html.unescape(re.sub(r"\\(.)", r"\1", cell)).replace("**", "")


def parse_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> ParsedTable:
    """Build a table from its headings and its rows."""
    columns = [re.sub(r" *\[.*?\]", "", head) for head in heads]
    width = next(
        (n for n in range(1, len(columns)) if len({tuple(row[:n]) for row in rows}) == len(rows)), len(columns)
    )
    return ParsedTable(columns, {tuple(row[:width]): dict(zip(columns, row, strict=False)) for row in rows})


def missing_content(before: str, after: str, rows: bool = True) -> list[str]:
    """List what one page holds and another lacks.

    Args:
        before: the existing page.
        after: the page that would replace it.
        rows: True to compare rows too; the best trials of a search may change.
    """
    old, new = read_page(before), read_page(after)
    missing = [f"the section {section!r}" for section in old.sections if section not in new.sections]
    for section, table in old.tables.items():
        if section in new.tables:
            missing += _missing_from_table(table, new.tables[section], section, rows)
        elif section in new.sections:
            missing.append(f"the table of {section!r}")
    figures = [name for name in old.figures if name not in new.figures]
    return missing + ([f"the figure{'s' * (len(figures) > 1)} {', '.join(figures)}"] if figures else [])


def missing_csv_content(before: str, after: str, name: str) -> list[str]:
    """List what one CSV file holds and another lacks."""
    try:
        old, new = (read_csv_rows(text) or [[]] for text in (before, after))
    except csv.Error:  # no CSV: what is there is no report
        return []
    return _missing_from_table(parse_table(old[0], old[1:]), parse_table(new[0], new[1:]), name, rows=True)


def _missing_from_table(old: ParsedTable, new: ParsedTable, where: str, rows: bool) -> list[str]:
    missing = [f"the column {column!r} of {where}" for column in old.columns if column not in new.columns]
    if not rows:
        return missing
    if missing_rows := [" ".join(key) for key in old.rows if key not in new.rows]:
        more = f" and {len(missing_rows) - 1} more" if len(missing_rows) > 1 else ""
        missing.append(f"the row {missing_rows[0]!r}{more} of {where}")
    cells, entries = 0, Counter[str]()
    for key in old.rows.keys() & new.rows.keys():
        row = new.rows[key]
        entries.update(c for c, text in old.rows[key].items() if text not in NOTHING and row.get(c, text) in NOTHING)
        cells += _run_count(row) < _run_count(old.rows[key])
    for column, count in sorted(entries.items()):
        missing.append(f"{count} {'entries' if count > 1 else 'entry'} of {column!r} of {where}")
    return missing + ([f"cells behind {cells} row{'s' * (cells > 1)} of {where}"] if cells else [])


def _run_count(row: Mapping[str, str]) -> int:
    """Return the number of runs behind a row: 5 for `5, 1 diverged`."""
    count = re.match(r"\d+", row.get("n", ""))
    return int(count[0]) if count else 0


def explain_missing(results: Results) -> str:
    """State which records and curves of an experiment are missing or damaged."""
    cells = {cell for arm in results.manifest["arms"].values() for cell in arm["cells"].values()}
    ended_well = {r["id"] for r in results.records.values() if r is not None and r["status"] == "ok"}
    without_curve = sum(not results.store.history(cell).is_file() for cell in ended_well)
    damaged = len(results.corrupt_records) + sum(
        results.store.history(cell).is_file() for cell in results.corrupt_curves
    )
    damaged += len(results.corrupt_documents)
    records = sum(not results.store.finished(cell) for cell in cells)
    parts = [
        (records, "the records of {} cells are not there"),
        (without_curve, "the curves of {} cells are not there"),
    ]
    reasons = [words.format(f"{count} of {len(cells)}") for count, words in parts if count]
    return (
        "; ".join(reasons + ([f"{damaged} damaged"] if damaged else []))
        or "none of its records and curves is missing: another version may have written it"
    )


# writing -------------------------------------------------------------------------------------------------------------


def write_unless_lossy(
    folder: Path, files: Mapping[str, str | bytes], missing: Sequence[str], why: str, replace: bool
) -> str:
    """Write the files of a report unless it lacks content of the old one; return a warning line.

    Args:
        folder: folder of the report.
        files: contents by name; the page comes last.
        missing: content that the new report lacks.
        why: reason for the missing content.
        replace: True to write it nevertheless.

    Raises:
        ReportWouldShrinkError: if content is missing and `replace` is False; nothing is written then.
    """
    line = ""
    if missing:
        named = ", ".join(missing[:MOST_NAMED]) + (
            f" and {len(missing) - MOST_NAMED} more" * (len(missing) > MOST_NAMED)
        )
        line = f"{folder / 'table.md'}: the report that is there has what the new one lacks: {named} ({why})"
        if not replace:
            raise ReportWouldShrinkError(f"{line}; nothing was written, --replace writes the new one")
    for name, content in files.items():
        write_atomic(folder / name, content)
    return line


def read_existing(path: Path) -> str:
    """Return the text of a file that a report is to replace; empty where there is none."""
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
