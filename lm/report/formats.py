"""Reports of one source or several, experiments, ladders and searches, in the requested formats."""

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console

from lm.analysis.ladder import FILE, LadderResults, load_ladder
from lm.analysis.tidy import cells
from lm.analysis.verdict_text import display_verdict
from lm.config.tree import InputError, nearest
from lm.report.answer import answer
from lm.report.figures.catalogue import charts
from lm.report.figures.differences import differences_of_several
from lm.report.figures.picture import METADATA, Kind, paper_figures
from lm.report.ladder import digits, ladder_answer
from lm.report.ladder_page import ladder_report_body as body_of_ladder
from lm.report.ladder_page import show_ladder
from lm.report.notes import notes
from lm.report.paper_table import paper_table
from lm.report.render import Section, latex, latex_figure, markdown_section
from lm.report.search import load_ranked
from lm.report.study import Study, importance_lines, terminal
from lm.report.tables import as_csv, signed
from lm.report.web.page import OverviewEntry, overview_html
from lm.report.web.search import ImportancesOrReason, best_line, search_body
from lm.report.write import ExperimentReport, load_report, page_files, publish, report_body, report_html, show

Files = dict[str, str | bytes]


# what a report is of ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class StudySource:
    """A search with the importances of its parameters, or why there are none."""

    study: Study
    importance: ImportancesOrReason


ReportSource = ExperimentReport | LadderResults | StudySource

KINDS: dict[type, tuple[str, str]] = {
    ExperimentReport: ("experiment", "experiments"),
    LadderResults: ("ladder", "ladders"),
    StudySource: ("search", "searches"),
}


def load_source(folder: Path) -> ReportSource:
    """Load the experiment, ladder or search in a folder. Raises InputError where it cannot be read."""
    if os.path.isfile(folder / "study.json"):
        return StudySource(*load_ranked(folder))
    return load_ladder(folder) if os.path.isfile(folder / FILE) else load_report(folder)


# the request ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ReportRequest:
    """The formats and columns requested for a report."""

    formats: tuple[str, ...]  # some of `FORMATS`
    columns: tuple[str, ...] | None = None  # the quantities of its first table; None for the default ones
    every_figure: bool = False  # True for all figures beside the page of Markdown


def parse_request(formats: str | None, columns: str | None, several: bool, figures: str = "usual") -> ReportRequest:
    """Parse the options of a command line; one experiment defaults to the page. Raises InputError."""
    names: tuple[str, ...] = DEFAULT_FORMATS if several else (PAGE,)
    if formats is not None:
        names = tuple(dict.fromkeys(name.strip() for name in formats.split(",")))
    for name in names:
        if name not in FORMATS:
            choices = f"{nearest(name, list(FORMATS))} Choose from {', '.join(FORMATS)}"
            raise InputError(f"--format {name}: no such format.{choices}")
    quantities = None if columns is None else tuple(name.strip() for name in columns.split(","))
    return ReportRequest(names, quantities, figures == "all")


def report_files(sources: Sequence[ReportSource], request: ReportRequest) -> Files:
    """Return the files of a report by name; the page, where there is one, comes last.

    The HTML page alone may include ladders and searches, and distinguishes reports of equal names. Raises InputError if
    an experiment did not measure a column, two experiments have the same name, or a source is no experiment.
    """
    if len(sources) > 1 and request.formats == (HTML,) and request.columns is None:
        return {"report.html": overview_page(sources)}
    reports = [report for report in sources if isinstance(report, ExperimentReport)]
    if len(reports) < len(sources):
        raise InputError(f"a ladder or a search has no part in a report of several but with --format {HTML}")
    names = [report.results.manifest["name"] for report in reports]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"two experiments are called {twice[0]}; a report of several tells them apart by their names")
    tables = [paper_table(report.results, report.table, request.columns) for report in reports]
    files: Files = {}
    for make in dict.fromkeys(FORMATS[name] for name in sorted(request.formats, key=lambda name: name == PAGE)):
        files |= make(reports, tables, request)  # of both kinds of figures the same
    return files


# the formats ---------------------------------------------------------------------------------------------------------


def _md(reports: Sequence[ExperimentReport], tables: Sequence[Section], request: ReportRequest) -> Files:
    if len(reports) == 1:
        return page_files(reports[0], None if request.columns is None else tables[0], request.every_figure)
    lines = [f"# Report of {len(reports)} experiments", ""]
    for report, table in zip(reports, tables, strict=True):
        lines += markdown_section(dataclasses.replace(table, notes=notes(report.results, report.table)))
    return {"table.md": "\n".join(lines).rstrip("\n") + "\n"}


def _all_cells(reports: Sequence[ExperimentReport]) -> pd.DataFrame:
    return pd.concat([cells(report.results) for report in reports], ignore_index=True)


def _figures(reports: Sequence[ExperimentReport], tables: Sequence[Section], request: ReportRequest) -> Files:
    """Return the figures for a paper; of several experiments, file names begin with the experiment."""
    kinds: list[Kind] = [kind for kind in METADATA if kind in request.formats]
    files: Files = {}
    for report in reports:
        manifest = report.results.manifest
        prefix = f"{manifest['name']}_" if len(reports) > 1 else ""
        figures = paper_figures(charts(report.figure_inputs), kinds)
        files |= {f"{prefix}{name}": content for name, content in figures.items()}
        if FOREST_PDF in figures and "latex" in request.formats:
            caption = f"{manifest['title']} Paired differences to {manifest['baseline']}, 95 % intervals."
            files[f"{prefix}figure.tex"] = latex_figure(f"{prefix}{FOREST_PDF}", manifest["name"], caption)
    return files


PAGE, HTML = "md", "html"

FOREST_PDF = "differences_one_column.pdf"
"""The forest plot as wide as a column, which `figure.tex` includes."""

FORMATS: Mapping[str, Callable[[Sequence[ExperimentReport], Sequence[Section], ReportRequest], Files]] = {
    PAGE: _md,
    HTML: lambda reports, *_: {"report.html": report_html(reports[0]) if len(reports) == 1 else overview_page(reports)},
    "latex": lambda _reports, tables, _request: {"table.tex": latex(tables)},
    "csv": lambda reports, *_: {"cells.csv": as_csv(_all_cells(reports))},
    "pdf": _figures,
    "svg": _figures,
}
"""Functions that make the files of each format; the page includes table.csv and the default figures."""

DEFAULT_FORMATS = (PAGE, "latex", "csv")
"""Default formats of a report of several experiments."""


# several reports on one page -----------------------------------------------------------------------------------------


def overview_page(sources: Sequence[ReportSource]) -> str:
    """Format the page, in the order of the sources."""
    counts = Counter(map(type, sources))
    counted = [f"{counts[kind]} {names[counts[kind] > 1]}" for kind, names in KINDS.items() if counts[kind]]
    listed = " and ".join(filter(None, [", ".join(counted[:-1]), counted[-1]]))
    inputs = [source.figure_inputs if isinstance(source, ExperimentReport) else None for source in sources]
    chart = differences_of_several(inputs)
    return overview_html(f"Report of {listed}", [_entry(source) for source in sources], chart)


def _entry(source: ReportSource) -> OverviewEntry:
    """Return the entry of a report; a ladder lists its arms at the top rung."""
    if isinstance(source, StudySource):
        name, body = source.study.manifest["name"], search_body(source.study, source.importance)
        return OverviewEntry(name, best_line(source.study), body)
    if isinstance(source, ExperimentReport):
        name, body = source.results.manifest["name"], report_body(source)
        return OverviewEntry(name, answer(source.results, source.table), body)
    top, metric, lines = source.manifest["rungs"][-1]["name"], source.manifest["metric"], []
    for arm in source.arms:
        if arm.scaling is None or arm.at[-1].rung != top:
            lines.append(f"{arm.name}: no pair to compare{arm.lost_runs.get(top, '')}")
            continue
        at, of = arm.at[-1], arm.scaling.differences[-1]
        size = signed(of.value, of.low, of.high, digits(source))
        words = [display_verdict(at.verdict, metric), size, f"{at.pairs} pairs", *filter(None, [at.ill])]
        lines.append(f"{arm.name}: {', '.join(words)}")
    return OverviewEntry(source.manifest["name"], ladder_answer(source), body_of_ladder(source), lines)


# the report ----------------------------------------------------------------------------------------------------------


def write_formats(
    folders: Sequence[Path], into: Path, request: ReportRequest, console: Console, everything: bool = False
) -> bool:
    """Print the tables of experiments and write their report; return True if data are damaged. Raises InputError."""
    sources = [load_source(folder) for folder in folders]

    def print_all() -> None:
        for source in sources:
            if isinstance(source, StudySource):
                terminal(source.study, importance_lines(source.importance), console)
            elif isinstance(source, LadderResults):
                show_ladder(source, console, everything)
            else:
                show(source, console, everything)

    publish(into, report_files(sources, request), print_all)
    return any(not isinstance(source, StudySource) and source.damaged for source in sources)
