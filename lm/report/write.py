"""Everything in an experiment's report, rebuilt from its records, in the terminal and as files."""

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from lm.analysis.answers import Answer
from lm.analysis.compare import compare
from lm.analysis.pace import steps_to_baseline_loss
from lm.analysis.results import Records as Results
from lm.analysis.results import load
from lm.report.claims import answers, claims_section, show_claims
from lm.report.figures.catalogue import FigureInputs, draw_figures
from lm.report.figures.picture import as_files
from lm.report.notes import author_notes, axes, changes, notes
from lm.report.render import Section, escape, markdown_list, markdown_section, print_section
from lm.report.sections import all_sections, cost_notes, factor_sections
from lm.report.study import Study
from lm.report.tables import as_csv, summary
from lm.report.tuning import Rates, rates_of, rates_section, tuning_of, tuning_section
from lm.report.web.gallery import MISSING, library
from lm.report.web.page import Body, body, standalone_page
from lm.store.files import write_atomic

NARROW = 120
"""Terminal width in characters below which long training problems stand below the table."""

LONG = 40
"""Longest text on health in the table of a narrow terminal, in characters."""

FILES = "All metrics: table.csv. Provenance, curves and costs: report.html."


@dataclass(frozen=True)
class ExperimentReport:
    """The content of an experiment's report, computed once for all formats."""

    results: Results
    table: pd.DataFrame
    claims: list[tuple[str, Answer]]
    tuning: tuple[dict[str, Any], Results, dict[str, Study]] | None
    rates: Rates | None = None

    @property
    def damaged(self) -> bool:
        """True if a record, a curve or losses by document were changed since training wrote them."""
        return self.results.harmed

    @property
    def figure_inputs(self) -> FigureInputs:
        """The data that its figures draw."""
        return FigureInputs(self.results, self.table, self.tuning[2] if self.tuning else {}, self.rates)


def load_report(folder: Path) -> ExperimentReport:
    """Load and compare an experiment. Raises InputError where there is none that this version reads."""
    results = load(folder)
    claims = [(results.manifest["name"], answer) for answer in answers(results)]
    return ExperimentReport(results, compare(results), claims, tuning_of(results, folder), rates_of(results, folder))


# the terminal --------------------------------------------------------------------------------------------------------


def show(report: ExperimentReport, console: Console) -> None:
    """Print the tables."""
    terminal(report.results, report.table, console)
    if report.claims:
        show_claims(report.claims, console)
    for section in _tuned_sections(report):
        console.print()
        print_section(section, console)


def terminal(results: Results, table: pd.DataFrame, console: Console) -> None:
    """Print the comparison and its notes; narrow terminals get fewer columns, and long texts below."""
    paces = steps_to_baseline_loss(results)
    first = summary(results, table, paces, notes(results, table))
    num_columns = len(first.columns) if console.width >= 170 else 6 if console.width < NARROW else 8
    rows = [row[:num_columns] for row in first.rows]
    lines: list[str] = []
    if console.width < NARROW:
        rows, lines = _with_marks(rows, list(first.columns).index("health"))
    print_section(
        dataclasses.replace(first, columns=first.columns[:num_columns], rows=rows, notes=[*lines, *first.notes]),
        console,
    )
    for section in all_sections(results, paces):
        console.print()
        print_section(section, console)


def _with_marks(rows: Sequence[Sequence[str]], column: int) -> tuple[list[Sequence[str]], list[str]]:
    """Replace long texts on health by numbers; return the rows and a line for each number."""
    long = list(dict.fromkeys(row[column] for row in rows if len(row[column]) > LONG))
    marks = {text: f"[{number}]" for number, text in enumerate(long, 1)}
    texts = [f"unhealthy {marks[row[column]]}" if row[column] in marks else row[column] for row in rows]
    short = [[*row[:column], text, *row[column + 1 :]] for row, text in zip(rows, texts, strict=True)]
    return [*short], [f"{mark} {text}" for text, mark in marks.items()]


# the files -----------------------------------------------------------------------------------------------------------


def markdown(
    results: Results,
    table: pd.DataFrame,
    figures: Sequence[str],
    first: Section | None = None,
    more: Sequence[Section] = (),
) -> str:
    """Format the report as one page of Markdown.

    Args:
        results: results of the experiment.
        table: comparisons of its arms.
        figures: names of the figures beside the page.
        first: table in place of the usual first one.
        more: further sections, such as claims.
    """
    below = [*notes(results, table), *cost_notes(results), FILES]
    usual = summary(results, table, steps_to_baseline_loss(results)) if first is None else first
    lines = [
        f"# {escape(results.manifest['title'])}",
        "",
        *markdown_section(dataclasses.replace(usual, title="", notes=below)),
    ]
    if text := author_notes(results.manifest):
        lines += [escape(text), ""]
    if len(results.arms) > 1:
        lines += ["## Arms", "", *markdown_list([*changes(results), *axes(results)])]
    for section in (*factor_sections(results), *more):
        lines += markdown_section(section)
    if figures:
        lines += ["## Figures", "", *(f"![{name.replace('_', ' ')}]({name}.png)" for name in figures)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _tuned_sections(report: ExperimentReport) -> list[Section]:
    """Return the sections on tuning and learning rates, where the experiment has them."""
    tables = [tuning_section(report.results, *report.tuning)] if report.tuning else []
    return tables + ([rates_section(report.results, report.rates)] if report.rates else [])


def page_files(
    report: ExperimentReport, first: Section | None = None, every_figure: bool = False
) -> dict[str, str | bytes]:
    """Return table.csv, the figures and table.md by name; `first` replaces the first table."""
    results, figures = report.results, draw_figures(report.figure_inputs, every_figure)
    more = [*([claims_section(report.claims)] if report.claims else []), *_tuned_sections(report)]
    page = markdown(results, report.table, list(figures), first, more)
    return {"table.csv": as_csv(report.table), **as_files(figures), "table.md": page}


def report_html(report: ExperimentReport) -> str:
    """Format the report as one HTML file."""
    return standalone_page(report_body(report))


def report_body(report: ExperimentReport) -> Body:
    """Format the report as a part of a page of several."""
    return body(report.results, report.table, report.claims, report.tuning, report.rates)


def publish(folder: Path, files: Mapping[str, str | bytes], show: Callable[[], None]) -> None:
    """Show a report and write its files in their order, over those of an earlier one."""
    try:
        show()
    finally:  # also if standard output is closed early
        for name, content in files.items():
            write_atomic(folder / name, content)


def write_report(folder: Path, console: Console, into: Path | None = None, every_figure: bool = False) -> Results:
    """Print the table, and write table.csv, the figures, report.html and table.md.

    Args:
        folder: folder of the experiment.
        console: console to print on.
        into: folder for the files instead of `folder`.
        every_figure: True to write all figures, and not the usual three.

    Raises:
        InputError: if there is no experiment that this version can read.
    """
    report, into = load_report(folder), into or folder
    files = {"report.html": report_html(report), **page_files(report, every_figure=every_figure)}
    publish(into, files, lambda: show(report, console))
    if not library():
        print(f"lm: {into / 'report.html'}: {MISSING}", file=sys.stderr)
    return report.results
