"""The table of a paper: chosen quantities of an experiment, with marks and footnotes.

A star marks a significant difference; a letter refers to a footnote with remarks on the verdict, such as too few seeds
or an unhealthy arm.
"""

import string
from collections.abc import Sequence
from typing import Any

import pandas as pd

from lm.analysis.compare import HEALTHY, NO_RUN, NONE_ENDED
from lm.analysis.results import Records as Results
from lm.analysis.results import quantities
from lm.config.tree import InputError
from lm.report.notes import method
from lm.report.render import Section, TableCell
from lm.report.tables import (
    DIFFERENCE,
    difference,
    format_run_counts,
    format_verdict_cell,
    heading,
    mean_and_sd,
    number,
    several_intervals,
)
from lm.store.metrics import describe, nearest_metric

STAR = "*"
STAR_FOOTNOTE = f"{STAR} Significant, by the test in the notes."
DEFAULT_METRICS = ("perplexity", "accuracy", "ece")
"""Quantities shown beside the judged ones by default."""

PLAIN = ("better", "worse", "higher", "lower", "inconclusive", "baseline", "-", "not judged")
"""Verdicts that need no footnote beside a star or its absence."""


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


def paper_table(results: Results, table: pd.DataFrame, columns: Sequence[str] | None = None) -> Section:
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
    labelled = several_intervals(table[table.metric.isin(judged)])
    heads = [("", "arm"), ("", "n")]
    for name in shown:
        unit = describe(name).unit
        heads.append((heading(name), f"({unit})" if unit else ""))
        heads += [(heading(name), DIFFERENCE)] if name in judged else []
    rows = []
    for arm in results.arms:
        of_arm = {row.metric: row for row in table[table.arm == arm].itertuples()}
        rows.append(_row(of_arm, shown, judged, labelled, footnotes, means=columns is None))
    star = [STAR_FOOTNOTE] if any(cell.marks[:1] == STAR for row in rows for cell in row) else []
    below = [*star, *(f"{mark} {text}" for text, mark in footnotes.marks.items())]
    groups, names = zip(*heads, strict=True)
    manifest = results.manifest
    return Section(manifest["title"], names, rows, method(results, table), below, groups, manifest["name"])


def _row(
    of_arm: dict[str, Any],
    shown: Sequence[str],
    judged: Sequence[str],
    labelled: bool,
    footnotes: _Footnotes,
    means: bool,
) -> list[TableCell]:
    """Return the cells of an arm."""
    first = next(iter(of_arm.values()))
    cells: list[TableCell] = []
    for name in shown:
        row = of_arm[name]
        spread = name in judged or not means
        cells.append(TableCell(mean_and_sd(row) if spread else number(row.mean, describe(name).digits)))
        if name in judged:
            cells.append(TableCell(difference(row, labelled), bool(row.bold), _marks(row, footnotes)))
    noted = any(cell.marks.strip(STAR) for cell in cells)
    problem = str(first.health) if first.health in (NONE_ENDED, NO_RUN) else f"unhealthy: {first.health}"
    mark = footnotes.mark(problem) if first.health != HEALTHY and not noted else ""
    counted = next((of_arm[name] for name in shown if name in judged), first)
    return [TableCell(str(first.arm), marks=mark), TableCell(format_run_counts(counted)), *cells]


def _marks(row: Any, footnotes: _Footnotes) -> str:
    """Return a star for a significant difference, and a letter for a verdict that needs a footnote."""
    verdict = str(row.verdict)
    return (STAR if row.significant else "") + (
        "" if verdict in PLAIN else footnotes.mark(format_verdict_cell(verdict))
    )
