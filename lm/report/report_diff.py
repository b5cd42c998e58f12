"""Compare a new report with the one on disk, and write it unless it lacks something that the old one has.

Compared are the sections and figures of the page, and the columns, rows, entries and run counts of its CSV file.
"""

import csv
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lm.analysis.results import Results
from lm.config.tree import LessError
from lm.store.files import write_atomic
from lm.store.spreadsheet import unmarked_rows

NOTHING = ("", "-")
"""Entries that mean a missing number."""

RETIRED = (
    "All measurements", "Costs", "Figures", "How it was found", "Made under",
    "Training needed to be as good as the baseline",
)  # fmt: skip
"""Sections of older pages that are in table.csv and report.html now, or are compared by what they hold."""

CSV_FILES = ("table.csv", "trials.csv")
MOST_NAMED = 6

Key = tuple[str, ...]


@dataclass(frozen=True)
class ParsedTable:
    """A table as text: headings, and rows by as many first cells as make them unique."""

    columns: list[str]
    rows: dict[Key, dict[str, str]]


def parse_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> ParsedTable:
    """Build a table from its headings and its rows."""
    columns = [*heads]
    width = next(
        (n for n in range(1, len(columns)) if len({tuple(row[:n]) for row in rows}) == len(rows)), len(columns)
    )
    return ParsedTable(columns, {tuple(row[:width]): dict(zip(columns, row, strict=False)) for row in rows})


def missing_from_report(folder: Path, files: Mapping[str, str | bytes]) -> list[str]:
    """List what the report in a folder holds and the new files lack; a file that stays lacks nothing."""
    missing: list[str] = []
    if "table.md" in files:
        missing += missing_content(read_existing(folder / "table.md"), str(files["table.md"]))
    for name in CSV_FILES:
        if name in files:
            missing += missing_csv_content(read_existing(folder / name), str(files[name]), name)
    return missing


def missing_content(before: str, after: str) -> list[str]:
    """List the sections and figures that one page of Markdown holds and another lacks."""
    old, new = (re.findall(r"^## (.+)$", page, re.MULTILINE) for page in (before, after))
    missing = [f"the section {section!r}" for section in old if section not in (*new, *RETIRED)]
    old, new = (re.findall(r"^!\[[^\]]*\]\((.+)\.png\)$", page, re.MULTILINE) for page in (before, after))
    figures = [name for name in old if name not in new]
    return missing + ([f"the figure{'s' * (len(figures) > 1)} {', '.join(figures)}"] if figures else [])


def missing_csv_content(before: str, after: str, name: str) -> list[str]:
    """List what one CSV file holds and another lacks."""
    try:
        old, new = (unmarked_rows(text) or [[]] for text in (before, after))
    except csv.Error:  # no CSV: what is there is no report
        return []
    return _missing_from_table(parse_table(old[0], old[1:]), parse_table(new[0], new[1:]), name)


def _missing_from_table(old: ParsedTable, new: ParsedTable, where: str) -> list[str]:
    missing = [f"the column {column!r} of {where}" for column in old.columns if column not in new.columns]
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


def publish(
    folder: Path, files: Mapping[str, str | bytes], show: Callable[[], None], why: Callable[[], str], replace: bool
) -> None:
    """Print a report, then write its files unless it lacks content of the old one, with a warning where it does.

    Args:
        folder: folder of the report.
        files: contents by name; the page comes last.
        show: prints the report; the files are written even if standard output is closed early.
        why: returns the reason for missing content.
        replace: True to overwrite a report with more content.

    Raises:
        LessError: if content is missing and `replace` is False; nothing is written then.
    """
    missing, line = missing_from_report(folder, files), ""
    try:
        show()
    finally:
        if missing:
            more = f" and {len(missing) - MOST_NAMED} more" * (len(missing) > MOST_NAMED)
            named = ", ".join(missing[:MOST_NAMED]) + more
            line = f"{folder / 'table.md'}: the existing report has what the new one lacks: {named} ({why()})"
            if not replace:
                raise LessError(f"{line}; nothing was written, --replace writes the new one")
        for name, content in files.items():
            write_atomic(folder / name, content)
    if line:
        print(f"lm: {line}", file=sys.stderr)


def read_existing(path: Path) -> str:
    """Return the text of a file that a report is to replace; empty where there is none."""
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
