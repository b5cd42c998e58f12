"""The tables of an experiment's comparisons as rows of text, and how their cells are written."""

import html
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from lm.analysis.compare import LOST
from lm.analysis.pace import StepsToBaselineLoss, mean_share
from lm.analysis.results import HEADLINE, Results
from lm.analysis.verdict_text import format_seeds
from lm.stats.verdicts import Better
from lm.store.files import escape_cell, escape_formula
from lm.store.metrics import SUMMARY_METRICS, describe

DETAILS = (
    "metric",
    "arm",
    "n",
    "mean ± sd",
    "difference [95 % interval]",
    "Hedges' g [95 % interval]",
    "detectable",
    "adjusted p",
    "verdict",
)

ARROWS: Mapping[Better, str] = {"lower": " ↓", "higher": " ↑", None: ""}
"""Arrow after a quantity's name for the better direction."""


def number(value: float, digits: int) -> str:
    """Format a value with fixed decimals, zero without a sign, NaN as a dash."""
    return "-" if math.isnan(value) else f"{value:z,.{digits}f}"


def as_csv(table: pd.DataFrame) -> str:
    """Return a table as a CSV file: negative zero as zero, texts that a spreadsheet would run marked."""
    numbers = table.select_dtypes("float") + 0.0
    texts = {name: table[name].map(escape_cell) for name in table.select_dtypes(["object", "string"]).columns}
    written = table.assign(**numbers).assign(**texts)
    return written.to_csv(
        index=False, lineterminator="\n", header=[escape_formula(str(name)) for name in table.columns]
    )


def mean_and_sd(row: Any) -> str:
    """Format `mean ± sd` over seeds."""
    digits = describe(row.metric).digits
    spread = "" if math.isnan(row.sd) else f" ± {number(row.sd, digits)}"
    return number(row.mean, digits) + spread


def signed(value: float, low: float, high: float, digits: int) -> str:
    """Format a difference with its interval."""
    if math.isnan(value):
        return "-"
    interval = "" if math.isnan(low) else f" [{_end(low, digits)}, {_end(high, digits)}]"
    return f"{value:+z,.{digits}f}{interval}"


def _end(value: float, digits: int) -> str:
    return f"{value:+z,.{digits}f}".replace("inf", "∞")


def difference(row: Any, labelled: bool = True) -> str:
    """Format the difference with its interval, labelled by kind where several kinds are shown.

    An interval without an end is followed by the plain one, as it says nothing about the noise.
    """
    digits = describe(row.metric).digits
    text = signed(row.difference, row.low, row.high, digits)
    text = f"{text} {row.interval}" if labelled and text.endswith("]") else text
    if (math.isinf(row.low) or math.isinf(row.high)) and math.isfinite(row.plain_low):
        text += f", plain [{_end(row.plain_low, digits)}, {_end(row.plain_high, digits)}]"
    return text


def interval_heading(table: pd.DataFrame) -> tuple[str, bool]:
    """Return the heading of differences, and whether each must name its kind of interval."""
    kinds = list(dict.fromkeys(table[table.difference.notna()].interval))
    kind = f"{kinds[0]} " if len(kinds) == 1 else ""
    return f"difference [{kind}95 % interval]", len(kinds) > 1


def detectable(row: Any) -> str:
    """Format the smallest difference that the test detects with 80 % power."""
    return "none" if math.isinf(row.detectable) else number(row.detectable, describe(row.metric).digits)


def format_detectable(row: Any) -> str:
    """Format the detectable difference, and its limit with any number of seeds where text counts."""
    if row.interval != "seeds-and-text" or math.isinf(row.detectable):
        return detectable(row)
    least = number(row.detectable_floor, describe(row.metric).digits)
    return f"{detectable(row)} over seeds and text ({least} with any number of seeds)"


def adjusted_p(row: Any) -> str:
    """Format the adjusted p that decides, and that of equivalence where there is a margin."""
    parts = []
    if not math.isnan(row.level):
        parts.append(f"p {row.p:z.3g}, needs {row.level:z.3g}")
    elif not math.isnan(row.p_adjusted):
        parts.append(f"{row.p_adjusted:z.3g}")
    elif not math.isnan(row.q):
        parts.append(f"q {row.q:z.3g}")
    if not math.isnan(row.p_equivalent):
        parts.append(f"equivalence {row.p_equivalent:z.3g}")
    return "; ".join(parts) or "-"


def format_run_counts(row: Any) -> str:
    """Format the number of successful runs, and how many were lost or are missing."""
    others = [f"{getattr(row, kind)} {kind}" for kind in (*LOST, "missing") if getattr(row, kind)]
    return ", ".join([str(row.n), *others])


def heading(quantity: str) -> str:
    """Return label and direction of a quantity."""
    meaning = describe(quantity)
    return meaning.label + ARROWS[meaning.better]


def format_steps_ratio(pace: StepsToBaselineLoss | None) -> str:
    """Format the share of the baseline's steps that an arm needs."""
    if pace is None:
        return "-"
    reached = pace.shares.get("steps", [])
    mean = f"{mean_share(reached):z.2f}" if reached else ""
    if not pace.missed:
        return mean
    missed = f"not reached on {len(pace.missed)} of {format_seeds(pace.seeds)}"
    return f"{missed}; on the others {mean}" if mean else missed


def summary(
    results: Results, table: pd.DataFrame, paces: Sequence[StepsToBaselineLoss] = ()
) -> tuple[list[str], list[list[str]], list[bool]]:
    """Return headings, rows of text, and whether each row is bold for a significant difference of healthy arms.

    With `paces`, a column has the share of the baseline's steps that an arm needs for its loss.
    """
    heads, labelled = interval_heading(table[table.metric == results.headline])
    measured, by_arm = set(table[table.n > 0].metric), {pace.arm: pace for pace in paces}
    others = [name for name in (HEADLINE, *SUMMARY_METRICS) if name != results.headline and name in measured]
    columns = ["arm", "n", heading(results.headline), heads, "verdict", "health"]
    columns += (["steps to the baseline's loss"] if paces else []) + [heading(name) for name in others]
    rows, bold = [], []
    for row in table[table.metric == results.headline].itertuples():
        of_arm = {r.metric: r for r in table[table.arm == row.arm].itertuples()}
        text = [str(row.arm), format_run_counts(row), mean_and_sd(row), difference(row, labelled), str(row.verdict)]
        text.append(str(row.health))
        if paces:
            text.append("1" if row.verdict == "baseline" else format_steps_ratio(by_arm.get(str(row.arm))))
        rows.append(text + [_mean(of_arm, name) for name in others])
        bold.append(bool(row.bold))
    return columns, rows, bold


def _mean(of_arm: Mapping[str, Any], name: str) -> str:
    """Format the mean of a quantity; an ECE with that of a perfectly calibrated model."""
    text = number(of_arm[name].mean, describe(name).digits)
    floor = of_arm.get(f"{name}_floor")
    return text if floor is None or math.isnan(floor.mean) else f"{text} (floor {number(floor.mean, 4)})"


def details(table: pd.DataFrame, headings: Callable[[str], str] = heading) -> list[list[str]]:
    """Return a row for each arm and measured quantity, labelled by `headings`."""
    rows = []
    for name in dict.fromkeys(table[table.n > 0].metric):
        unit = describe(name).unit
        label = headings(name) + (f" ({unit})" if unit else "")
        for row in table[table.metric == name].itertuples():
            size = signed(row.effect, row.effect_low, row.effect_high, 2)
            rows.append(
                [
                    label,
                    str(row.arm),
                    format_run_counts(row),
                    mean_and_sd(row),
                    difference(row),
                    size,
                    detectable(row),
                    adjusted_p(row),
                    str(row.verdict),
                ]
            )
    return rows


def escape(text: str) -> str:
    """Escape `text` so that Markdown shows it letter for letter, HTML included."""
    return html.escape(re.sub(r"([\\`*_\[\]|~])", r"\\\1", text), quote=False).replace("\n", " ")


def markdown_row(texts: Sequence[str]) -> str:
    """Format one line of a Markdown table."""
    return "| " + " | ".join(texts) + " |"


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format the lines of a Markdown table of any text."""
    body = [markdown_row([escape(cell) for cell in row]) for row in rows]
    return [markdown_row(columns), markdown_row(["---"] * len(columns)), *body]
