"""The report of a ladder, in the terminal and as files, and several ladders in one table."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.text import Text

from lm.analysis.ladder import LadderResults, load_ladder
from lm.report.figures.picture import as_files
from lm.report.figures.static_pages import NAME, draw_ladder
from lm.report.ladder import (
    brief_ladder_notes,
    exp,
    forecast_rows,
    gain_margin,
    ladder_answer,
    ladder_sections,
    times,
    trend_table,
    trend_text,
    worth_table,
)
from lm.report.notes import author_notes
from lm.report.render import Section, escape, markdown_section, print_section
from lm.report.tables import as_csv
from lm.report.web.page import Body, ladder_body, static_page
from lm.report.write import publish


def show_ladder(results: LadderResults, console: Console, everything: bool = False) -> None:
    """Print the arms by rung and their trends with a few lines of notes, or all tables with all their notes."""
    first, *others = ladder_sections(results)
    console.print(Text(ladder_answer(results), style="bold"))
    notes = first.notes if everything else brief_ladder_notes(results)
    print_section(dataclasses.replace(first, title=results.manifest["title"], notes=notes), console)
    for section in others if everything else [dataclasses.replace(section, notes=()) for section in others[:1]]:
        console.print()
        print_section(section, console)


def markdown_ladder(results: LadderResults) -> str:
    """Format the report as one page of Markdown."""
    first, *others = ladder_sections(results)
    lines = [f"# {escape(results.manifest['title'])}", "", *markdown_section(dataclasses.replace(first, title=""))]
    if text := author_notes(results.manifest):
        lines += [escape(text), ""]
    for section in others:
        lines += markdown_section(section)
    rungs = [f"- {rung['name']}: `{rung['experiment']}`" for rung in results.manifest["rungs"]]
    lines += ["## Reports of the rungs", "", *rungs, ""]
    lines += ["## Figures", "", f"![loss and gain against compute]({NAME}.png)"]
    return "\n".join(lines).rstrip("\n") + "\n"


def ladder_report_body(results: LadderResults) -> Body:
    """Format the report as a part of a page of several."""
    return ladder_body(results, ladder_sections(results), draw_ladder(results)[NAME]["png"])


def ladder_files(results: LadderResults) -> dict[str, str | bytes]:
    """Return the files of the report by name; the page comes last."""
    figures = draw_ladder(results)
    return {
        "report.html": static_page(ladder_body(results, ladder_sections(results), figures[NAME]["png"], linked=True)),
        "table.csv": as_csv(worth_table(results)),
        "trends.csv": as_csv(trend_table(results)),
        **as_files(figures),
        "table.md": markdown_ladder(results),
    }


def write_ladder_report(
    folder: Path, console: Console, into: Path | None = None, everything: bool = False
) -> LadderResults:
    """Print the first tables of a ladder or everything, and write its files. Raises InputError where unreadable."""
    results, into = load_ladder(folder), into or folder
    publish(into, ladder_files(results), lambda: show_ladder(results, console, everything))
    return results


# several ladders -----------------------------------------------------------------------------------------------------

NOTES = [
    "Gains in compute by rung: the compute that the baseline needs for the arm's loss, by its law, over the arm's own. "
    "Their intervals, the differences and the verdicts of each rung are in the ladder's own report.",
    "The forecast is that of the top rung's difference by the rungs below it. It holds under the law alone.",
    "°: no curve of learning rates at that size has the arm's rate, or the baseline's, as its best one with a worse "
    "one on each side. The gain may be the rate's, and no trend over such a rung has a verdict.",
]

UNSURE = " °"
"""Mark of a gain at a rung where a rate is not bracketed; the notes explain it."""


def _rungs(ladders: Sequence[LadderResults]) -> list[str]:
    """Return the names of all rungs, in the order of the ladder that has the most."""
    longest_first = sorted(ladders, key=lambda ladder: -len(ladder.rungs))
    return list(dict.fromkeys(rung["name"] for ladder in longest_first for rung in ladder.manifest["rungs"]))


def overview_section(ladders: Sequence[LadderResults], title: str = "") -> Section:
    """Build the table of all ladders: a row an arm, its gain at each rung and its trends over compute."""
    rows: list[list[str]] = []
    for ladder in ladders:
        base = ladder.manifest["baseline"]
        forecasts = {row[0]: row[3] for row in forecast_rows(ladder)}
        for arm in ladder.arms:
            gains = {}
            for at, gain in zip(arm.at, (arm.scaling and arm.scaling.gains) or (), strict=False):  # none without a law
                text = "below the law's floor" if gain.beyond == "floor" else times(exp(gain.log.value))
                gains[at.rung] = text + (UNSURE if at.not_bracketed else "")
            cells = [gains.get(rung, "-") for rung in _rungs(ladders)]
            trends = ["no pair to compare"] * 2
            if arm.scaling is not None:
                of_gain, difference = arm.scaling.of_gain, arm.scaling.of_difference
                trends = [trend_text(of_gain, gain_margin(of_gain), arm)]
                trends.append(trend_text(difference, f"{difference.margin:z.3g}", arm))
            forecast = forecasts.get(f"{arm.name} - {base}", "-")
            rows.append([ladder.manifest["name"], f"{arm.name}, {base}", *cells, *trends, forecast])
    columns = ["ladder", "arm, against", *_rungs(ladders)]
    columns += ["gain with more compute", "difference with more compute", "forecast"]
    return Section(title, columns, rows, NOTES)


def csv_worth(ladders: Sequence[LadderResults]) -> str:
    """Join the tables of all ladders as CSV, with a row for each ladder, rung and arm."""
    tables = [worth_table(ladder).assign(ladder=ladder.manifest["name"]) for ladder in ladders]
    table = pd.concat(tables, ignore_index=True)
    return as_csv(table[["ladder", *(name for name in table.columns if name != "ladder")]])
