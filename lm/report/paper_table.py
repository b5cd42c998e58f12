"""The table of a paper: chosen quantities of an experiment as one frame of text, with its marks and footnotes.

Markdown and LaTeX are made of the same frame. A star marks a significant difference; a letter refers to a footnote with
remarks on the verdict, such as too few seeds or an unhealthy arm.
"""

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lm.analysis.compare import HEALTHY, NO_RUN, NONE_ENDED
from lm.analysis.results import Results, quantities
from lm.config.tree import InputError
from lm.report.notes import method
from lm.report.tables import (
    difference,
    escape,
    format_run_counts,
    heading,
    interval_heading,
    markdown_row,
    markdown_table,
    mean_and_sd,
    number,
)
from lm.store.metrics import AT_LENGTH, METRICS, describe, nearest_metric

STAR = "*"
STAR_FOOTNOTE = f"{STAR} A test found this difference, as the notes say."
DEFAULT_METRICS = ("perplexity", "accuracy", "ece")
"""Quantities shown beside the judged ones by default."""

UNITS = {quantity.unit for quantity in (*METRICS.values(), *AT_LENGTH.values()) if quantity.unit}
PLAIN = ("better", "worse", "higher", "lower", "inconclusive", "baseline", "-", "not judged")
"""Verdicts that need no footnote beside a star or its absence."""


@dataclass(frozen=True)
class PaperTable:
    """A table that can be written in any format.

    Args:
        name: name of the experiment.
        title: title of the table.
        frame: text without marks, a row an arm; columns are pairs of a quantity and a unit or statistic.
        marks: of the same shape, the marks that follow each text, a character each.
        bold: of the same shape, True for a significant difference between healthy arms.
        footnotes: meanings of the marks, each beginning with its mark.
        notes: notes on how to read the table.
    """

    name: str
    title: str
    frame: pd.DataFrame
    marks: pd.DataFrame
    bold: pd.DataFrame
    footnotes: list[str]
    notes: list[str]


class _Footnotes:
    """Letters for the footnotes below a table; equal texts share a letter."""

    def __init__(self) -> None:
        self.marks: dict[str, str] = {}

    def mark(self, text: str) -> str:
        return self.marks.setdefault(text, _letter(len(self.marks)))


def _letter(index: int) -> str:
    """Return a to z, then aa, ab and so on."""
    letters = string.ascii_lowercase
    return (_letter(index // 26 - 1) if index >= 26 else "") + letters[index % 26]


def check_columns(results: Results, columns: Sequence[str]) -> None:
    """Raise InputError for a quantity that no run measured, or one named twice."""
    measured = quantities(results)
    for name in columns:
        if name not in measured:
            raise InputError(
                f"--columns {name}: {results.manifest['name']} has no such quantity.{nearest_metric(name, measured)} "
                f"Choose from {', '.join(measured)}"
            )
        if list(columns).count(name) > 1:
            raise InputError(f"--columns {name}: is there twice; expected each quantity once")


def paper_table(results: Results, table: pd.DataFrame, columns: Sequence[str] | None = None) -> PaperTable:
    """Build the table of chosen quantities: judged ones with differences, others with mean and sd.

    Args:
        results: results of the experiment.
        table: its comparisons (`lm.analysis.compare.compare`).
        columns: names of quantities in order; by default the judged ones, and the means of `DEFAULT_METRICS`.

    Raises:
        InputError: if a quantity was not measured.
    """
    if columns is not None:
        check_columns(results, columns)
    measured = set(table[table.n > 0].metric)
    others = [name for name in DEFAULT_METRICS if name in measured and name not in results.judged]
    shown = columns if columns is not None else [*results.judged, *others]
    footnotes = _Footnotes()
    judged = [name for name in shown if name in results.judged]
    kind, labelled = interval_heading(table[table.metric.isin(judged)])
    rows = []
    for arm in results.arms:
        of_arm = {row.metric: row for row in table[table.arm == arm].itertuples()}
        rows.append(_row(of_arm, shown, judged, (kind, labelled), footnotes, means=columns is None))
    heads = list(rows[0])
    index = pd.MultiIndex.from_tuples(heads)
    parts = [[[row[head][part] for head in heads] for row in rows] for part in range(3)]
    texts, marks, bold = (pd.DataFrame(part, columns=index) for part in parts)
    star = [STAR_FOOTNOTE] if marks.map(lambda mark: mark[:1] == STAR).any(axis=None) else []
    below = [*star, *(f"{mark} {text}" for text, mark in footnotes.marks.items())]
    return PaperTable(
        results.manifest["name"], results.manifest["title"], texts, marks, bold, below, method(results, table)
    )


_Cell = tuple[str, str, bool]
"""Text, marks, and True if bold."""


def _row(
    of_arm: dict[str, Any],
    shown: Sequence[str],
    judged: Sequence[str],
    interval: tuple[str, bool],
    footnotes: _Footnotes,
    means: bool,
) -> dict[tuple[str, str], _Cell]:
    """Return the cells of an arm by their headings."""
    first = next(iter(of_arm.values()))
    row_cells: dict[tuple[str, str], _Cell] = {}
    for name in shown:
        row, top = of_arm[name], heading(name)
        text = mean_and_sd(row) if name in judged or not means else number(row.mean, describe(name).digits)
        row_cells[top, describe(name).unit] = text, "", False
        if name in judged:
            row_cells[top, interval[0]] = difference(row, interval[1]), _marks(row, footnotes), bool(row.bold)
    noted = any(marks.strip(STAR) for _, marks, _ in row_cells.values())
    unwell = str(first.health) if first.health in (NONE_ENDED, NO_RUN) else f"unhealthy: {first.health}"
    mark = footnotes.mark(unwell) if first.health != HEALTHY and not noted else ""
    counted = next((of_arm[name] for name in shown if name in judged), first)
    return {("", "arm"): (str(first.arm), mark, False), ("", "n"): (format_run_counts(counted), "", False), **row_cells}


def _marks(row: Any, footnotes: _Footnotes) -> str:
    """Return a star for a significant difference, and a letter for a verdict that needs a footnote."""
    verdict = str(row.verdict)
    return (STAR if row.significant else "") + ("" if verdict in PLAIN else footnotes.mark(verdict))


def markdown_paper_table(table: PaperTable) -> list[str]:
    """Format the table and its footnotes as lines of Markdown, without the notes."""
    heads = [" ".join(part for part in (top, _in_brackets(below)) if part) for top, below in table.frame.columns]
    lines = markdown_table(heads, [])
    for texts, marks, bold in zip(table.frame.to_numpy(), table.marks.to_numpy(), table.bold.to_numpy(), strict=True):
        cells_of = [_markdown_cell(*cell) for cell in zip(texts, marks, bold, strict=True)]
        lines.append(markdown_row(cells_of))
    return [*lines, *(["", *(f"- {escape(line)}" for line in table.footnotes)] if table.footnotes else [])]


def _in_brackets(below: str) -> str:
    """Put a unit in brackets; return words unchanged."""
    return f"({below})" if below in UNITS else below


def _markdown_cell(text: str, marks: str, bold: bool) -> str:
    escaped = escape(text)
    raised = f"<sup>{escape(marks)}</sup>" if marks else ""
    return (f"**{escaped}**" if bold else escaped) + raised
