"""The report of a ladder, in the terminal and as files: two pages, table.csv, trends.csv, the figure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from lm.analysis.ladder import LadderResults, load_ladder
from lm.report.figures.picture import as_files
from lm.report.figures.static_pages import NAME, draw_ladder
from lm.report.ladder import (
    FORECASTS,
    TRENDS,
    Rows,
    forecast_notes,
    forecast_rows,
    law_notes,
    rung_columns,
    rung_rows,
    trend_notes,
    trend_rows,
    worth_columns,
    worth_notes,
    worth_rows,
)
from lm.report.ladder_csv import trend_table, worth_table
from lm.report.page import listed, show
from lm.report.tables import as_csv, escape, markdown_row
from lm.report.web.elements import tag
from lm.report.web.ladder import ladder_body, ladder_html
from lm.report.web.page import Body
from lm.report.web.static import StaticSection
from lm.report.write import write_files


@dataclass(frozen=True)
class LadderSection:
    """A table with its heading and notes.

    `bold` marks rows; `strong` is the column that is bold in them.
    """

    title: str
    columns: Sequence[str]
    rows: Rows
    notes: list[str]
    bold: Sequence[bool] = ()
    strong: int = 0


def ladder_sections(results: LadderResults) -> list[LadderSection]:
    """Return the tables of a ladder, the first without a heading of its own."""
    worth, of_worth = worth_rows(results)
    trends, of_trends = trend_rows(results)
    sections = [LadderSection("", worth_columns(results), worth, worth_notes(results), of_worth, 3)]
    sections.append(LadderSection("With more compute", TRENDS, trends, trend_notes(results), of_trends, 2))
    if (forecasts := forecast_rows(results)) or forecast_notes(results):
        sections.append(LadderSection("Forecast", FORECASTS, forecasts, forecast_notes(results)))
    sections.append(LadderSection("Rungs", rung_columns(results), rung_rows(results), law_notes(results)))
    return sections


def show_ladder(results: LadderResults, console: Console) -> None:
    """Print the tables and their notes."""
    for index, part in enumerate(ladder_sections(results)):
        if index:
            console.print()
        if part.rows:
            show(part.title or results.manifest["title"], part.columns, part.rows, console, part.bold)
        for line in part.notes:
            console.print(line, highlight=False, markup=False)


def markdown_ladder(results: LadderResults) -> str:
    """Format the report as one page of Markdown."""
    lines = [f"# {escape(results.manifest['title'])}", ""]
    for part in ladder_sections(results):
        if part.title:
            lines += [f"## {part.title}", ""]
        if part.rows:
            lines += [markdown_row(part.columns), markdown_row(["---"] * len(part.columns))]
            for place, row in enumerate(part.rows):
                lines.append(markdown_row(_bold(part, place, [escape(cell) for cell in row])))
            lines.append("")
        lines += listed(part.notes)
        if not part.title and results.manifest["notes"]:
            lines += [escape(results.manifest["notes"].strip()), ""]
    own = [f"{rung['name']}: `{rung['experiment']}`" for rung in results.manifest["rungs"]]
    lines += ["## Reports of the rungs", "", *(f"- {line}" for line in own), ""]
    lines += ["## Figures", "", f"![loss and gain against compute]({NAME}.png)"]
    return "\n".join(lines).rstrip("\n") + "\n"


def _bold(part: LadderSection, place: int, row: list[str]) -> list[str]:
    """Mark the bold cell of a row: a rung's difference, or a slope."""
    strong = bool(part.bold) and part.bold[place]
    return [f"**{cell}**" if strong and at == part.strong else cell for at, cell in enumerate(row)]


def ladder_report_html(results: LadderResults, figure: bytes) -> str:
    """Format the report as one HTML file."""
    return ladder_html(results, _static_sections(results), figure)


def ladder_report_body(results: LadderResults) -> Body:
    """Format the report as a part of a page of several."""
    return ladder_body(results, _static_sections(results), draw_ladder(results)[NAME]["png"])


def _static_sections(results: LadderResults) -> list[StaticSection]:
    """Convert the tables for HTML, with bold cells as elements."""
    shown: list[StaticSection] = []
    for part in ladder_sections(results):
        rows = [
            [tag("strong", cell) if bold and at == part.strong else cell for at, cell in enumerate(row)]
            for row, bold in zip(part.rows, part.bold or [False] * len(part.rows), strict=True)
        ]
        shown.append((part.title or "What the arms are worth", part.columns, rows, part.notes))
    return shown


def ladder_files(results: LadderResults) -> dict[str, str | bytes]:
    """Return the files of the report by name; the page comes last."""
    drawn = draw_ladder(results)
    return {
        "report.html": ladder_report_html(results, drawn[NAME]["png"]),
        "table.csv": as_csv(worth_table(results)),
        "trends.csv": as_csv(trend_table(results)),
        **as_files(drawn),
        "table.md": markdown_ladder(results),
    }


def write_ladder_report(folder: Path, console: Console, into: Path | None = None) -> LadderResults:
    """Print the tables of a ladder, and write its files.

    Args:
        folder: folder of the ladder.
        console: console to print on.
        into: folder for the files instead of `folder`.

    Raises:
        InputError: if there is no ladder that this version can read.
    """
    results, into = load_ladder(folder), into or folder
    files = ladder_files(results)
    try:
        show_ladder(results, console)
    finally:  # also if standard output is closed early
        write_files(into, files)
    return results
