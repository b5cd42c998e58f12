"""Reports of one folder or several, experiments, ladders and searches, in the requested formats."""

import dataclasses
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from lm.analysis.effects import orders
from lm.analysis.ladder import FILE
from lm.analysis.results import on_texts
from lm.analysis.tidy import cells
from lm.config.tree import InputError, nearest
from lm.report.base import Files, Report
from lm.report.claims import common_claims_section
from lm.report.experiment import ExperimentReport
from lm.report.figures.differences import differences_of_several
from lm.report.figures.picture import METADATA, Kind, paper_figures
from lm.report.ladder import LadderReport
from lm.report.notes import notes
from lm.report.paper_table import paper_table
from lm.report.render import Section, html_section, latex, latex_figure, markdown_page, print_section
from lm.report.search import SearchReport
from lm.report.tables import as_csv
from lm.report.web import gallery
from lm.report.web.elements import joined, tag
from lm.report.web.page import overview, page
from lm.store.files import write_atomic
from lm.store.user_cache import forget, remember


def load_report(folder: Path) -> Report:
    """Load the experiment, ladder or search in a folder. Raises InputError where it cannot be read."""
    if os.path.isfile(folder / "study.json"):
        return SearchReport.load(folder)
    return LadderReport.load(folder) if os.path.isfile(folder / FILE) else ExperimentReport.load(folder)


PAGE, HTML = "md", "html"
FORMATS = (PAGE, HTML, "latex", "csv", "pdf", "svg")  # a page includes table.csv and the default figures
DEFAULT_FORMATS = (PAGE, "latex", "csv")  # default formats of a report of several experiments
FOREST_PDF = "differences_one_column.pdf"  # the forest plot as wide as a column, which `figure.tex` includes


@dataclasses.dataclass(frozen=True)
class ReportRequest:
    """The formats and columns requested for a report."""

    formats: tuple[str, ...] = (PAGE, HTML)  # some of `FORMATS`
    columns: tuple[str, ...] | None = None  # the quantities of its first table; None for the default ones
    every_figure: bool = False  # True for all figures beside the page of Markdown


def parse_request(formats: str | None, columns: str | None, several: bool, figures: str = "usual") -> ReportRequest:
    """Parse the options of a command line. Raises InputError."""
    names: tuple[str, ...] = DEFAULT_FORMATS if several else (PAGE, HTML) if columns is None else (PAGE,)
    if formats is not None:
        names = tuple(dict.fromkeys(name.strip() for name in formats.split(",")))
    for name in names:
        if name not in FORMATS:
            choices = f"{nearest(name, FORMATS)} Choose from {', '.join(FORMATS)}"
            raise InputError(f"--format {name}: no such format.{choices}")
    quantities = None if columns is None else tuple(name.strip() for name in columns.split(","))
    return ReportRequest(names, quantities, figures == "all")


def report_files(reports: Sequence[Report], request: ReportRequest) -> Files:
    """Return the files of a report by name; the page of Markdown, where there is one, comes last.

    Raises InputError if an experiment lacks a column, two have one name, or a format takes experiments alone.
    """
    if request.formats == (HTML,) and request.columns is None:
        return {"report.html": page_of(reports)}
    experiments = [report for report in reports if isinstance(report, ExperimentReport)]
    if other := next((report for report in reports if report not in experiments), None):
        if len(reports) > 1 or request.columns is not None or {*request.formats} - {PAGE, HTML}:
            raise InputError(
                f"{other.name}: is a {other.kind[0]}, which has the formats {PAGE} and {HTML}, and a part in an HTML "
                "page of several; other formats and --columns take experiments"
            )
        return {"report.html": page_of(reports), **other.files(request.every_figure)}
    names = [report.name for report in experiments]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"two experiments are called {twice[0]}; a report of several tells them apart by their names")
    tables = [paper_table(report.results, report.table, request.columns) for report in experiments]
    files = _figures(experiments, request)
    if HTML in request.formats:
        files["report.html"] = page_of(reports)
    if "latex" in request.formats:
        files["table.tex"] = latex([*tables, *_in_common(reports)])
    if "csv" in request.formats:
        frames = [cells(report.results) for report in experiments]
        files["cells.csv"] = as_csv(pd.concat(frames, ignore_index=True))
    return files | (_md(experiments, tables, request) if PAGE in request.formats else {})


def _md(reports: Sequence[ExperimentReport], tables: Sequence[Section], request: ReportRequest) -> Files:
    if len(reports) == 1:
        report = reports[0] if request.columns is None else dataclasses.replace(reports[0], first=tables[0])
        return report.files(request.every_figure)
    pairs = zip(reports, tables, strict=True)
    sections = [dataclasses.replace(table, notes=notes(report.results, report.table)) for report, table in pairs]
    sections += _in_common(reports)
    return {"table.md": markdown_page([Section(_title(reports, f"{len(reports)} experiments")), *sections])}


def _title(reports: Sequence[Report], listed: str) -> str:
    """Return the title of a report of several: that of the file which crosses its arms with several texts, if one."""
    experiments = [report for report in reports if isinstance(report, ExperimentReport)]
    crossed = on_texts([report.results.manifest for report in experiments])
    if crossed is None or len(experiments) < len(reports):
        return f"Report of {listed}"
    return f"{crossed.title} Report on {len(crossed.texts)} texts: {', '.join(crossed.texts)}"


def _in_common(reports: Sequence[Report]) -> list[Section]:
    """Return the summaries of arms and of claims that several experiments have in common, if there are any."""
    experiments = [report for report in reports if isinstance(report, ExperimentReport)]
    if len(experiments) < 2:
        return []
    from lm.report.pooled import pooled_section  # takes a second to import

    of_arms = pooled_section([(report.results, report.table) for report in experiments])
    manifests = {report.name: report.results.manifest for report in experiments}
    of_claims = common_claims_section([named for report in experiments for named in report.claims], manifests)
    return [section for section in (of_arms, of_claims) if section is not None]


def page_of(reports: Sequence[Report]) -> str:
    """Format the page of one report, or of several in their order."""
    if len(reports) == 1:
        return page(reports[0].body())
    counts = Counter(report.kind for report in reports)
    counted = [f"{counts[kind]} {kind[counts[kind] > 1]}" for kind in sorted(counts)]
    listed = " and ".join(filter(None, [", ".join(counted[:-1]), counted[-1]]))
    inputs = [report.figure_inputs if isinstance(report, ExperimentReport) else None for report in reports]
    drawing = gallery.Charts()
    chart = drawing.add(gallery.FIRST, differences_of_several(inputs))
    summary = joined(tag("section", [tag("h3", part.title), html_section(part)]) for part in _in_common(reports))
    return overview(_title(reports, listed), [report.body() for report in reports], drawing, joined([chart, summary]))


def _figures(reports: Sequence[ExperimentReport], request: ReportRequest) -> Files:
    """Return the figures for a paper; of several experiments, file names begin with the experiment."""
    kinds: list[Kind] = [kind for kind in METADATA if kind in request.formats]
    files: Files = {}
    for report in reports if kinds else ():
        manifest, prefix = report.results.manifest, f"{report.name}_" if len(reports) > 1 else ""
        figures = paper_figures(report.charts(), kinds)
        files |= {f"{prefix}{name}": content for name, content in figures.items()}
        if FOREST_PDF in figures and "latex" in request.formats:
            caption = f"{manifest['title']} Paired differences to {manifest['baseline']}, 95 % intervals."
            files[f"{prefix}figure.tex"] = latex_figure(f"{prefix}{FOREST_PDF}", report.name, caption)
    return files


def publish(reports: Sequence[Report], files: Files, into: Path, console: Console, everything: bool = False) -> None:
    """Print reports and write their files in order, over those of an earlier one."""
    try:
        for report in reports:
            report.show(console, everything)
        for section in _in_common(reports):
            console.print()
            print_section(section, console)
    finally:  # also if standard output is closed early
        for name, content in files.items():
            write_atomic(into / name, content)
    if "report.html" in files and not gallery.library():
        print(f"lm: {into / 'report.html'}: {gallery.MISSING}", file=sys.stderr)


def write_reports(
    folders: Sequence[Path], into: Path, request: ReportRequest, console: Console, everything: bool = False
) -> list[Report]:
    """Print the tables of folders, the first alone or everything, and write their report. Raises InputError."""
    reports = [load_report(folder) for folder in folders]
    publish(reports, report_files(reports, request), into, console, everything)
    return reports


def write_summary(folders: Sequence[Path], into: Path, console: Console) -> None:
    """Write the report of several folders and print what they have in common. Raises InputError."""
    reports = [load_report(folder) for folder in folders]
    publish([], report_files(reports, ReportRequest()), into, console)
    for section in _in_common(reports):
        console.print()
        print_section(section, console)


def write_report(folder: Path, console: Console, into: Path | None = None, everything: bool = False) -> Report:
    """Print and write the report of one folder. Raises InputError where it cannot be read."""
    (report,) = write_reports([folder], into or folder, ReportRequest(), console, everything)
    return report


def update_report(folder: Path, console: Console) -> Report:
    """Print the report of a folder, and write it unless this code wrote its files from the cells as they are.

    Raises InputError where the folder cannot be read.
    """
    report = load_report(folder)
    if not isinstance(report, ExperimentReport) or report.beside or orders(report.results):
        publish([report], report_files([report], ReportRequest()), folder, console)  # it reads other folders too
        return report
    outputs, store = list[Path](), report.results.store
    cells = sorted({cell for arm in report.results.manifest["arms"].values() for cell in arm["cells"].values()})
    inputs = [path for cell in cells if store.directory(cell).is_dir() for path in store.directory(cell).iterdir()]

    def write() -> list[Any]:
        files = report_files([report], ReportRequest())
        publish([report], files, folder, console)
        outputs[:] = [folder / name for name in files]
        return _sizes_and_times(outputs)

    question = [str(folder.resolve()), report.results.manifest, _sizes_and_times(inputs)]
    written = remember("report", question, write)
    if not outputs:
        if written == _sizes_and_times([Path(path) for path, *_ in written]):
            report.show(console)
        else:
            forget("report", question)
            remember("report", question, write)
    return report


def _sizes_and_times(paths: Sequence[Path]) -> list[Any]:
    """Return path, size and time of the last change of files, in nanoseconds; of those that are not there the path."""
    states = list[Any]()
    for path in sorted(paths):
        try:
            state = path.stat()
        except OSError:
            states.append([str(path)])
        else:
            states.append([str(path), state.st_size, state.st_mtime_ns])
    return states


def pointer(folder: Path) -> str:
    """Return the line that says where the rest of a report is."""
    return f"report: {folder / 'report.html'} (table.md beside it: all metrics and notes)"
