"""Everything in an experiment's report, rebuilt from its records."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from lm.analysis.answers import Answer
from lm.analysis.compare import compare
from lm.analysis.results import Results, load
from lm.report.claims import answers, markdown_claims, show_claims
from lm.report.figures.catalogue import FigureInputs, draw_figures
from lm.report.figures.picture import as_files
from lm.report.page import markdown, terminal
from lm.report.rates import Rates, markdown_rates, rates_of, show_rates
from lm.report.study import Study
from lm.report.tables import as_csv
from lm.report.tuning import markdown_tuning, show_tuning, tuning_of
from lm.report.web.gallery import MISSING, library
from lm.report.web.page import Body, body, html
from lm.store.files import write_atomic


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


def page_files(
    report: ExperimentReport, first: Sequence[str] | None = None, every_figure: bool = False
) -> dict[str, str | bytes]:
    """Return table.csv, the figures and table.md by name; `first` replaces the first table."""
    results = report.results
    figures = draw_figures(report.figure_inputs, every_figure)
    of_sections = {name: name if name in figures else None for name in ("tuning", "lr_curve")}
    page = markdown(results, report.table, [name for name in figures if name not in of_sections], first)
    if report.claims:
        page += "\n".join(["", "## Claims", "", *markdown_claims(report.claims), ""])
    if report.tuning:
        page += "\n".join(["", *markdown_tuning(results, *report.tuning, of_sections["tuning"])])
    if report.rates:
        page += "\n".join(["", *markdown_rates(results, report.rates, of_sections["lr_curve"])])
    return {"table.csv": as_csv(report.table), **as_files(figures), "table.md": page}


def report_html(report: ExperimentReport) -> str:
    """Format the report as one HTML file."""
    return html(report.results, report.table, report.claims, report.tuning, report.rates)


def report_body(report: ExperimentReport) -> Body:
    """Format the report as a part of a page of several."""
    return body(report.results, report.table, report.claims, report.tuning, report.rates)


def show(report: ExperimentReport, console: Console) -> None:
    """Print the tables."""
    terminal(report.results, report.table, console)
    if report.claims:
        show_claims(report.claims, console)
    if report.tuning:
        show_tuning(report.results, *report.tuning, console)
    if report.rates:
        show_rates(report.results, report.rates, console)


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write the files of a report in their order, over those of an earlier one."""
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
    try:
        show(report, console)
    finally:  # also if standard output is closed early
        write_files(into, files)
    if not library():
        print(f"lm: {into / 'report.html'}: {MISSING}", file=sys.stderr)
    return report.results
