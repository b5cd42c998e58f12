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
from lm.analysis.results import Records, load
from lm.report.claims import answers, claims_section, show_claims
from lm.report.figures.catalogue import FigureInputs, draw_figures
from lm.report.figures.picture import as_files
from lm.report.notes import author_notes, axes, brief_notes, changes, notes
from lm.report.render import Section, escape, fits, markdown_list, markdown_section, print_section
from lm.report.sections import all_sections
from lm.report.study import Study
from lm.report.tables import UNHEALTHY, as_csv, main_table, more_metrics
from lm.report.tuning import Rates, rates_of, rates_section, tuning_of, tuning_section
from lm.report.web.gallery import MISSING, library
from lm.report.web.page import Body, body, standalone_page
from lm.store.files import write_atomic

FILES = "All measurements: table.csv. Curves, provenance and every chart: report.html."
HEALTH = f"{UNHEALTHY.strip()} A training problem: see the column of health below."


@dataclass(frozen=True)
class ExperimentReport:
    """The content of an experiment's report, computed once for all formats."""

    results: Records
    table: pd.DataFrame
    claims: list[tuple[str, Answer]]
    tuning: tuple[dict[str, Any], Records, dict[str, Study]] | None
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


def show(report: ExperimentReport, console: Console, everything: bool = False) -> None:
    """Print the first table with a few lines of notes below it, or all tables with all their notes."""
    results, table = report.results, report.table
    if not everything:
        first = main_table(results, table)
        if not fits(first.columns, first.rows, console.width):
            first = main_table(results, table, short=True)
        print_section(first, console)
        for line in brief_notes(results, table, [answer for _, answer in report.claims]):
            console.print(line, highlight=False, markup=False, no_wrap=True, overflow="ellipsis")
        return
    paces = steps_to_baseline_loss(results)
    first = dataclasses.replace(main_table(results, table), notes=notes(results, table))
    for section in (first, more_metrics(results, table, paces), *all_sections(results, paces)):
        print_section(section, console)
        console.print()
    if report.claims:
        show_claims(report.claims, console)
    for section in _tuned_sections(report):
        console.print()
        print_section(section, console)


# the files -----------------------------------------------------------------------------------------------------------


def markdown(
    results: Records,
    table: pd.DataFrame,
    figures: Sequence[str],
    first: Section | None = None,
    more: Sequence[Section] = (),
) -> str:
    """Format the report as one page of Markdown, with `first` in place of its first table, and `more` sections."""
    paces = steps_to_baseline_loss(results)
    below = [*notes(results, table), *([HEALTH] if any(results.health.values()) else []), FILES]
    usual = main_table(results, table) if first is None else first
    section = dataclasses.replace(usual, title="", notes=below)
    lines = [f"# {escape(results.manifest['title'])}", "", *markdown_section(section)]
    if text := author_notes(results.manifest):
        lines += [escape(text), ""]
    if first is None:
        lines += markdown_section(more_metrics(results, table, paces))
    if len(results.arms) > 1:
        lines += ["## Arms", "", *markdown_list([*changes(results), *axes(results)])]
    for section in (*all_sections(results, ()), *more):  # More metrics has the steps in a word
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
    more = ([claims_section(report.claims)] if report.claims else []) + _tuned_sections(report)
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


def pointer(folder: Path) -> str:
    """Return the line that says where the rest of a report is."""
    return f"report: {folder / 'report.html'} (table.md beside it: all metrics and notes)"


def write_report(
    folder: Path, console: Console, into: Path | None = None, every_figure: bool = False, everything: bool = False
) -> Records:
    """Print the table, and write table.csv, the figures, report.html and table.md.

    Args:
        folder: folder of the experiment.
        console: console to print on.
        into: folder for the files instead of `folder`.
        every_figure: True to write all figures, and not the usual four.
        everything: True to print all tables, and not the first alone.

    Raises:
        InputError: if there is no experiment that this version can read.
    """
    report, into = load_report(folder), into or folder
    files = {"report.html": report_html(report), **page_files(report, every_figure=every_figure)}
    publish(into, files, lambda: show(report, console, everything))
    if not library():
        print(f"lm: {into / 'report.html'}: {MISSING}", file=sys.stderr)
    return report.results
