"""Compare a new report with the one on disk, and write it unless it lacks something that the old one has.

Compared are the sections and figures of the page, and the columns, rows, entries and run counts of its CSV file.
"""

import csv
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
    """List the columns, rows, entries and runs that one CSV file holds and another lacks."""
    try:
        old, new = (_by_key(unmarked_rows(text) or [[]]) for text in (before, after))
    except csv.Error:  # no CSV: what is there is no report
        return []
    columns = dict.fromkeys(column for row in new.values() for column in row)
    missing = [f"the column {c!r} of {name}" for c in next(iter(old.values()), {}) if new and c not in columns]
    if missing_rows := [" ".join(key) for key in old if key not in new]:
        more = f" and {len(missing_rows) - 1} more" if len(missing_rows) > 1 else ""
        missing.append(f"the row {missing_rows[0]!r}{more} of {name}")
    entries, fewer_runs = Counter[str](), 0
    for key in old.keys() & new.keys():
        row = new[key]
        entries.update(c for c, text in old[key].items() if text not in NOTHING and row.get(c, text) in NOTHING)
        runs = [int(count) for count in (row.get("n", ""), old[key].get("n", "")) if count.isdigit()]
        fewer_runs += len(runs) == 2 and runs[0] < runs[1]
    for column, count in sorted(entries.items()):
        missing.append(f"{count} {'entries' if count > 1 else 'entry'} of {column!r} of {name}")
    return missing + ([f"runs behind {fewer_runs} row{'s' * (fewer_runs > 1)} of {name}"] if fewer_runs else [])


def _by_key(rows: Sequence[Sequence[str]]) -> dict[tuple[str, ...], dict[str, str]]:
    """Return the rows below the headings by as many first cells as make them unique."""
    heads, *body = rows
    lengths = range(1, len(heads))
    width = next((n for n in lengths if len({tuple(row[:n]) for row in body}) == len(body)), len(heads))
    return {tuple(row[:width]): dict(zip(heads, row, strict=False)) for row in body}


def explain_missing(results: Results) -> str:
    """State which records and curves of an experiment are missing or damaged."""
    cells = {cell for arm in results.manifest["arms"].values() for cell in arm["cells"].values()}
    ended_well = {r["id"] for r in results.records.values() if r is not None and r["status"] == "ok"}
    counts = {
        "the records of {} cells are missing": sum(not results.store.finished(cell) for cell in cells),
        "the curves of {} cells are missing": sum(not results.store.history(cell).is_file() for cell in ended_well),
    }
    reasons = [text.format(f"{count} of {len(cells)}") for text, count in counts.items() if count]
    damaged = len(results.corrupt_records) + len(results.corrupt_documents)
    damaged += sum(results.store.history(cell).is_file() for cell in results.corrupt_curves)
    reasons += [f"{damaged} damaged"] if damaged else []
    return "; ".join(reasons) or "none of its records and curves is missing: another version may have written it"


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
