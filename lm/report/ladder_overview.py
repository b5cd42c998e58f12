"""Several ladders in one table: the gain of each arm at every rung, and its trend over compute."""

from collections.abc import Sequence

import pandas as pd
from rich.console import Console

from lm.analysis.ladder import ArmOf, LadderResults
from lm.report.ladder import Rows, exp, forecast_rows, times, trend_text
from lm.report.ladder_csv import worth_table
from lm.report.page import listed, show
from lm.report.tables import as_csv, markdown_table

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


def columns(ladders: Sequence[LadderResults]) -> list[str]:
    """Return the headings."""
    return [
        "ladder",
        "arm, against",
        *_rungs(ladders),
        "gain with more compute",
        "difference with more compute",
        "forecast",
    ]


def rows(ladders: Sequence[LadderResults]) -> Rows:
    """Return a row for each arm of each ladder."""
    table_rows: Rows = []
    for ladder in ladders:
        base = ladder.manifest["baseline"]
        forecasts = {row[0]: row[3] for row in forecast_rows(ladder)}
        for arm in ladder.arms:
            gains = _gains(arm)
            cells = [gains.get(rung, "-") for rung in _rungs(ladders)]
            trends = ["no pair to compare"] * 2
            if arm.scaling is not None:
                gain, difference = arm.scaling.of_gain, arm.scaling.of_difference
                trends = [trend_text(gain, f"a factor of {exp(gain.margin):z.3g}", arm)]
                trends.append(trend_text(difference, f"{difference.margin:z.3g}", arm))
            of = f"{arm.name}, {base}"
            table_rows.append(
                [ladder.manifest["name"], of, *cells, *trends, forecasts.get(f"{arm.name} - {base}", "-")]
            )
    return table_rows


def _gains(arm: ArmOf) -> dict[str, str]:
    """Return the gain at each rung that has one."""
    if arm.scaling is None or not arm.scaling.gains:
        return {}
    gains = {}
    for at, gain in zip(arm.at, arm.scaling.gains, strict=True):
        text = "below the law's floor" if gain.beyond == "floor" else times(exp(gain.log.value))
        gains[at.rung] = text + (UNSURE if at.not_bracketed else "")
    return gains


def show_worth(ladders: Sequence[LadderResults], console: Console, title: str) -> None:
    """Print the table and its notes."""
    console.print()
    show(title, columns(ladders), rows(ladders), console)
    for line in NOTES:
        console.print(line, highlight=False, markup=False)


def markdown_worth(ladders: Sequence[LadderResults]) -> list[str]:
    """Format the table and its notes as lines of Markdown."""
    return [*markdown_table(columns(ladders), rows(ladders)), "", *listed(NOTES)]


def csv_worth(ladders: Sequence[LadderResults]) -> str:
    """Join the tables of all ladders as CSV, with a row for each ladder, rung and arm."""
    tables = [worth_table(ladder).assign(ladder=ladder.manifest["name"]) for ladder in ladders]
    table = pd.concat(tables, ignore_index=True)
    return as_csv(table[["ladder", *(name for name in table.columns if name != "ladder")]])
