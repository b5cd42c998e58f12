"""The table of a paper: chosen quantities of an experiment, with marks and footnotes.

A star marks a significant difference; a letter refers to a footnote with remarks on the verdict, such as too few seeds
or an unhealthy arm.
"""

import string
from collections.abc import Sequence
from typing import Any

import pandas as pd

from lm.analysis.compare import HEALTHY, NO_RUN, NONE_ENDED
from lm.analysis.results import Records, quantities
from lm.analysis.verdict_text import display_verdict
from lm.config.tree import InputError, path_name
from lm.config.usual_names import suggest
from lm.report.notes import notes
from lm.report.render import Section, TableCell
from lm.report.tables import (
    AT_ONE_RATE,
    DIFFERENCE,
    difference,
    format_run_counts,
    heading,
    mean_and_sd,
    ranked,
    several_intervals,
)
from lm.report.tuning import at_one_rate_words, rates_of
from lm.store.metrics import describe

STAR = "*"
STAR_FOOTNOTE = f"{STAR} Significant, by the test in the notes."
PLAIN = ("better", "worse", "higher", "lower", "inconclusive", "baseline", "-", "not judged")
"""Verdicts that need no footnote beside a star or its absence."""


Footnotes = dict[str, str]  # letters of the footnotes below a table, by their texts


def _mark(footnotes: Footnotes, text: str) -> str:
    """Return the letter of a footnote, which is added where it is new; after z numbers follow."""
    number = len(footnotes)
    return footnotes.setdefault(text, string.ascii_lowercase[number] if number < 26 else str(number))


def check_columns(results: Records, columns: Sequence[str]) -> None:
    """Raise InputError for a quantity that no run measured, or one named twice."""
    measured = quantities(results)
    for name in columns:
        if name not in measured:
            choices = f"{suggest(name, measured, 'metrics')} Choose from {', '.join(measured)}"
            raise InputError(f"--columns {name}: {results.manifest['name']} has no such quantity.{choices}")
        if list(columns).count(name) > 1:
            raise InputError(f"--columns {name}: is there twice; expected each quantity once")


def paper_table(results: Records, table: pd.DataFrame, columns: Sequence[str] | None = None) -> Section:
    """Build the table of quantities, by default of the judged ones. Raises InputError for one that was not measured."""
    if columns is not None:
        check_columns(results, columns)
    shown = results.judged if columns is None else columns
    footnotes: Footnotes = {}
    judged = [name for name in shown if name in results.judged]
    labelled = several_intervals(table[table.metric.isin(judged)])
    heads = [("", "arm"), ("", "n")]
    for name in shown:
        unit = describe(name).unit
        heads.append((heading(name), f"({unit})" if unit else ""))
        heads += [(heading(name), DIFFERENCE)] if name in judged else []
    rows = []
    for headline in ranked(table, results.headline):
        of_arm = {row.metric: row for row in table[table.arm == headline.arm].itertuples()}
        rows.append(_row(of_arm, shown, judged, labelled, footnotes))
    star = [STAR_FOOTNOTE] if any(cell.marks[:1] == STAR for row in rows for cell in row) else []
    below = [*star, *(f"{mark} {text}" for text, mark in footnotes.items())]
    groups, names = zip(*heads, strict=True)
    manifest, lines = results.manifest, [*_at_one_rate(results), *notes(results, table, of_runs=False)]
    return Section(manifest["title"], names, rows, lines, below, groups, manifest["name"])


def _at_one_rate(results: Records) -> list[str]:
    """Say what arms with learning rates of their own come to at the shared one, in the headline quantity."""
    folder = results.store.out / path_name(results.manifest["name"], "experiment")
    if "rates" not in results.manifest or (rates := rates_of(results, folder)) is None:
        return []
    words = at_one_rate_words(rates.twin, short=True)
    arms = "; ".join(f"{arm} {text}" for arm, text in words.items() if arm != results.manifest["baseline"])
    return [f"{AT_ONE_RATE.capitalize()}, {heading(results.headline)}: {arms}."]


def _row(
    of_arm: dict[str, Any], shown: Sequence[str], judged: Sequence[str], labelled: bool, footnotes: Footnotes
) -> list[TableCell]:
    first = next(iter(of_arm.values()))
    cells: list[TableCell] = []
    for name in shown:
        row = of_arm[name]
        cells.append(TableCell(mean_and_sd(row)))
        if name in judged:
            verdict, star = str(row.verdict), STAR if row.significant else ""
            mark = "" if verdict in PLAIN else _mark(footnotes, display_verdict(verdict, name))
            cells.append(TableCell(difference(row, labelled), bool(row.bold), star + mark))
    noted = any(cell.marks.strip(STAR) for cell in cells)
    problem = str(first.health) if first.health in (NONE_ENDED, NO_RUN) else f"unhealthy: {first.health}"
    mark = _mark(footnotes, problem) if first.health != HEALTHY and not noted else ""
    counted = next((of_arm[name] for name in shown if name in judged), first)
    return [TableCell(str(first.arm), marks=mark), TableCell(format_run_counts(counted)), *cells]
