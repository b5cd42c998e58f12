"""The report of an experiment, in the terminal and as a page of Markdown."""

from collections.abc import Sequence

import pandas as pd
from rich.console import Console

from lm.analysis.effects import effects
from lm.analysis.orders import orders
from lm.analysis.pace import StepsToBaselineLoss, steps_to_baseline_loss
from lm.analysis.results import Results
from lm.report.costs import cost_notes, costs, made_under
from lm.report.grid import show_grid
from lm.report.notes import axes, changes, notes
from lm.report.orders import ORDERS, order_columns, order_notes, order_rows
from lm.report.sections import EFFECTS, TRAINING, effect_notes, effect_rows, pace_columns, pace_notes, pace_rows
from lm.report.tables import DETAILS, details, escape, markdown_row, markdown_table, summary

WORDS = ("verdict", "health")
"""Left-aligned columns."""

NARROW = 120
"""Terminal width in characters below which training problems are in the column of health alone."""

LONG = 40
"""Longest text on health in the table of a narrow terminal, in characters."""

Section = tuple[str, Sequence[str], Sequence[Sequence[str]], Sequence[str]]
"""Title, column headings, rows and notes."""


def sections(results: Results, paces: Sequence[StepsToBaselineLoss]) -> list[Section]:
    """Return the tables below the first one: effects, orders, pace, costs."""
    tables: list[Section] = []
    if (of_factors := effects(results)) is not None:
        tables.append(("Effects", EFFECTS, effect_rows(results, of_factors), effect_notes(results, of_factors)))
    if (of_orders := orders(results)) is not None:
        tables.append((ORDERS, order_columns(), order_rows(results, of_orders), order_notes(results, of_orders)))
    if paces:
        tables.append((TRAINING, pace_columns(paces), pace_rows(paces), pace_notes(paces)))
    columns, rows = costs(results)
    if len(columns) > 1:
        tables.append(("Costs", columns, rows, cost_notes(results)))
    return tables


def terminal(results: Results, table: pd.DataFrame, console: Console) -> None:
    """Print the tables and their notes; narrow terminals get fewer columns, and long words below."""
    paces, noted = steps_to_baseline_loss(results), list[str]()
    columns, rows, bold = summary(results, table, paces)
    num_columns = len(columns) if console.width >= 170 else 6 if console.width < NARROW else 8
    if console.width < NARROW:
        at = columns.index("verdict")
        rows = [[*row[:at], _briefly(row[at], row[0], results), *row[at + 1 :]] for row in rows]
        rows, noted = _noted(rows, columns.index("health"))
    show(results.manifest["title"], columns[:num_columns], [row[:num_columns] for row in rows], console, bold)
    for line in (*noted, *notes(results, table)):
        console.print(line, highlight=False, markup=False)
    for title, heads, body, below in sections(results, paces):
        console.print()
        show(title, heads, body, console)
        for line in below:
            console.print(line, highlight=False, markup=False)


def _noted(rows: Sequence[Sequence[str]], at: int) -> tuple[list[list[str]], list[str]]:
    """Replace long texts in the column of health by numbers; return the rows and a line for each number."""
    long = list(dict.fromkeys(row[at] for row in rows if len(row[at]) > LONG))
    marks = {text: f"[{number}]" for number, text in enumerate(long, 1)}
    texts = [f"unhealthy {marks[row[at]]}" if row[at] in marks else row[at] for row in rows]
    short = [[*row[:at], text, *row[at + 1 :]] for row, text in zip(rows, texts, strict=True)]
    return short, [f"{mark} {text}" for text, mark in marks.items()]


def _briefly(verdict: str, arm: str, results: Results) -> str:
    """Shorten a verdict by the training problem, which the column of health has."""
    for problem in filter(None, results.health.values()):
        verdict = verdict.replace(f" unhealthy: {problem}", " unhealthy")
    return verdict.replace(f"({arm} unhealthy", "(unhealthy")


def show(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    console: Console,
    bold: Sequence[bool] = (),
) -> None:
    """Print one table: words at the left, numbers at the right."""
    left = (columns[0], *WORDS)
    show_grid(title, columns, rows, console, left, ["bold" if strong else None for strong in bold])


def markdown(results: Results, table: pd.DataFrame, figures: list[str], first: Sequence[str] | None = None) -> str:
    """Format the report as one page of Markdown; `first` replaces the lines of the first table."""
    paces = steps_to_baseline_loss(results)
    shown = _first(*summary(results, table, paces)) if first is None else first
    lines = [f"# {escape(results.manifest['title'])}", "", *shown, "", *listed(notes(results, table))]
    if results.manifest["notes"]:
        lines += [escape(results.manifest["notes"].strip()), ""]
    if len(results.arms) > 1:
        lines += ["## Arms", "", *listed([*changes(results), *axes(results)])]
    for title, heads, body, below in sections(results, paces):
        lines += [f"## {title}", "", *markdown_table(heads, body), "", *listed(below)]
    lines += ["## Made under", "", *listed(made_under(results))]
    lines += ["## Figures", "", *(f"![{name.replace('_', ' ')}]({name}.png)" for name in figures), ""]
    lines += ["## All measurements", "", *markdown_table(DETAILS, details(table)), ""]
    lines += listed(
        [
            "Detectable: the smallest difference that the test would find four times in five, with as many seeds and "
            f"as much noise{_of_text(table)}. table.csv has Student's 95 % intervals of all, bootstrap intervals (BCa) "
            "and unadjusted p."
        ]
    )
    return "\n".join(lines).rstrip("\n") + "\n"


def _of_text(table: pd.DataFrame) -> str:
    return ", over text too where the interval is" if "seeds-and-text" in set(table.interval) else ""


def _first(columns: Sequence[str], rows: Sequence[Sequence[str]], bold: Sequence[bool]) -> list[str]:
    """Format the default first table."""
    lines = [markdown_row(columns), markdown_row(["---"] * len(columns))]
    for row, strong in zip(rows, bold, strict=True):
        text = [escape(cell) for cell in row]
        if strong:
            text[3] = f"**{text[3]}**"
        lines.append(markdown_row(text))
    return lines


def listed(lines: Sequence[str]) -> list[str]:
    """Format lines as a Markdown list with an empty line after it; empty for none."""
    return [*(f"- {escape(line)}" for line in lines), ""] if lines else []
