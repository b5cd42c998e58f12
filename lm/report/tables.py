"""Tables of an experiment's comparisons, and the format of their cells."""

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from lm.analysis.compare import LOST
from lm.analysis.pace import CURVES, Lead, StepsToBaselineLoss, leads, mean_share
from lm.analysis.results import HEADLINE, Records
from lm.analysis.verdict_text import display_verdict
from lm.report.render import Section, TableCell
from lm.stats.verdicts import Better
from lm.store.files import escape_cell, escape_formula
from lm.store.metrics import SUMMARY_METRICS, describe

DIFFERENCE = "difference [95 % CI]"
PACE = "steps vs baseline"
LEAD = "ahead or behind"
"""Headings: the difference to the baseline, the share of its steps to its final loss, and the lead over training."""

EXPLORATORY_Q = re.compile(r" \(exploratory, q=[.\d]+\)$")

UNHEALTHY = " !"  # mark of an arm with a training problem in the first table

P = {"p": "p", "p_adjusted": "p (adjusted)", "q": "q", "level": "level", "p_equivalent": "p (equivalence)"}
DETAILS = ["metric", "arm", "n", "mean ± sd", DIFFERENCE, "Hedges' g [95 % CI]", "detectable", *P.values(), "verdict"]

ARROWS: Mapping[Better, str] = {"lower": " ↓", "higher": " ↑", None: ""}
"""Arrow after a quantity's name for the better direction."""


def number(value: float, digits: int) -> str:
    """Format a value with fixed decimals, zero without a sign, NaN as a dash."""
    return "-" if math.isnan(value) else f"{value:z,.{digits}f}"


def as_csv(table: pd.DataFrame) -> str:
    """Return a table as a CSV file: negative zero as zero, texts that a spreadsheet would run marked."""
    numbers = table.select_dtypes("float") + 0.0
    texts = {name: table[name].map(escape_cell) for name in table.select_dtypes(["object", "string"]).columns}
    header = [escape_formula(str(name)) for name in table.columns]
    return table.assign(**numbers).assign(**texts).to_csv(index=False, lineterminator="\n", header=header)


def mean_and_sd(row: Any) -> str:
    """Format `mean ± sd` over seeds."""
    digits = describe(row.metric).digits
    spread = "" if math.isnan(row.sd) else f" ± {number(row.sd, digits)}"
    return number(row.mean, digits) + spread


def format_mean(values: Iterable[float], digits: int) -> str:
    """Format `mean ± sd` of the finite ones of some values; a dash without any."""
    finite = [value for value in values if math.isfinite(value)]
    spread = f" ± {number(statistics.stdev(finite), digits)}" if len(finite) > 1 else ""
    return f"{number(statistics.fmean(finite), digits)}{spread}" if finite else "-"


def signed(value: float, low: float, high: float, digits: int) -> str:
    """Format a difference with its interval."""
    if math.isnan(value):
        return "-"
    interval = "" if math.isnan(low) else f" [{_end(low, digits)}, {_end(high, digits)}]"
    return f"{value:+z,.{digits}f}{interval}"


def _end(value: float, digits: int) -> str:
    return f"{value:+z,.{digits}f}".replace("inf", "∞")


def difference(row: Any, labelled: bool = True) -> str:
    """Format the difference with its interval, labelled by kind, and with the plain one where it has no end."""
    digits = describe(row.metric).digits
    text = signed(row.difference, row.low, row.high, digits)
    text = f"{text} {row.interval}" if labelled and text.endswith("]") else text
    if (math.isinf(row.low) or math.isinf(row.high)) and math.isfinite(row.plain_low):
        text += f", plain [{_end(row.plain_low, digits)}, {_end(row.plain_high, digits)}]"
    return text


def several_intervals(table: pd.DataFrame) -> bool:
    """Return True if the differences have intervals of several kinds, so that each must name its own."""
    return table[table.difference.notna()].interval.nunique() > 1


def detectable(row: Any) -> str:
    """Format the smallest difference that the test detects with 80 % power."""
    return format_range([row.detectable], describe(row.metric).digits)


def format_range(values: Sequence[float], digits: int) -> str:
    """Format the range of several values, or the one value of all; infinite ones as `none`."""
    return span(*("none" if math.isinf(end) else number(end, digits) for end in (min(values), max(values))))


def span(low: str, high: str) -> str:
    """Format two ends, or the one that both are."""
    return low if low == high else f"{low} to {high}"


def format_run_counts(row: Any) -> str:
    """Format the number of successful runs, and how many were lost or are missing."""
    others = [f"{getattr(row, kind)} {kind}" for kind in (*LOST, "missing") if getattr(row, kind)]
    return ", ".join([str(row.n), *others])


def heading(quantity: str) -> str:
    """Return label and direction of a quantity."""
    meaning = describe(quantity)
    return meaning.label + ARROWS[meaning.better]


def format_steps_ratio(pace: StepsToBaselineLoss | None) -> str:
    """Format the share of the baseline's steps that an arm needs for the baseline's final loss."""
    if pace is None:
        return "-"
    reached = pace.shares.get("steps", [])
    mean = f"{mean_share(reached):z.2f}" if reached else ""
    if not pace.missed:
        return mean
    return f"{mean} ({len(reached)} of {pace.seeds} seeds)" if mean else "not reached"


def ranked(table: pd.DataFrame, metric: str, better: Better = None) -> list[Any]:
    """Sort the rows of one quantity by their difference, the best first; the baseline counts as zero."""
    sign = -1.0 if (better or describe(metric).better) == "higher" else 1.0
    of_metric = table[table.metric == metric]
    differences = of_metric.difference.where(of_metric.verdict != "baseline", 0.0)
    return list(of_metric.loc[(sign * differences).sort_values(kind="stable").index].itertuples())


def compared(table: pd.DataFrame, metric: str, better: Better = None) -> list[Any]:
    """Return the same rows without the baseline's."""
    return [row for row in ranked(table, metric, better) if row.verdict != "baseline"]


AT_ONE_RATE = "at one shared rate"  # column beside the verdicts of arms that have rates of their own


def main_table(
    results: Records, table: pd.DataFrame, short: bool = False, at_one_rate: Mapping[str, str] | None = None
) -> Section:
    """Build the first table: a row an arm, the best first, significant differences in bold; `short` for few columns.

    `at_one_rate` has what each arm comes to at one shared learning rate, where the table's have rates of their own.
    """
    judged = table[table.metric == results.headline]
    labelled, mean, rows = several_intervals(judged), heading(results.headline), []
    for row in ranked(table, results.headline):
        arm = f"{row.arm}{UNHEALTHY if results.health[str(row.arm)] else ''}"
        size, verdict = mean_and_sd(row), verdict_without_problems(results, row)
        if short:
            size, verdict = number(row.mean, describe(row.metric).digits), EXPLORATORY_Q.sub(", exploratory", verdict)
        change = TableCell(difference(row, labelled), bool(row.bold))
        beside = [] if at_one_rate is None else [at_one_rate[str(row.arm)]]
        rows.append([arm, format_run_counts(row), size, change, verdict, *beside])
    columns = ["arm", "n", mean.removeprefix("validation ") if short else mean, DIFFERENCE, "verdict"]
    columns += [] if at_one_rate is None else [AT_ONE_RATE]
    if short and at_one_rate is not None and len({row[1] for row in rows}) == 1:  # the notes say how many seeds
        columns, rows = [columns[0], *columns[2:]], [[row[0], *row[2:]] for row in rows]
    return Section(results.manifest["title"], columns, rows)


def more_metrics(results: Records, table: pd.DataFrame, paces: Sequence[StepsToBaselineLoss] = ()) -> Section:
    """Build the second table: health, pace and lead over training, and the means of other quantities, a row an arm."""
    by_arm, lead_by_arm = {pace.arm: pace for pace in paces}, {lead.arm: lead for lead in leads(results)}
    measured = set(table[table.n > 0].metric)
    others = [name for name in (HEADLINE, *SUMMARY_METRICS) if name != results.headline and name in measured]
    rows = []
    for row in ranked(table, results.headline):
        arm, of_arm = str(row.arm), {r.metric: r for r in table[table.arm == row.arm].itertuples()}
        pace = [] if not paces else ["1" if row.verdict == "baseline" else format_steps_ratio(by_arm.get(arm))]
        at_end = row.difference if results.headline in CURVES else math.nan
        lead = [_lead_in_words(lead_by_arm.get(arm), at_end)] if lead_by_arm else []
        rows.append([arm, str(row.health), *pace, *lead, *(_mean(of_arm, name) for name in others)])
    columns = ["arm", "health", *([PACE] if paces else []), *([LEAD] if lead_by_arm else []), *map(heading, others)]
    return Section("More metrics", columns, rows)


def _lead_in_words(lead: Lead | None, difference: float) -> str:
    """Describe a lead, and whether validations on the way, of part of the text, end otherwise than the `difference`."""
    if lead is None:
        return "-"
    return lead.words() + ", by the batches of validations alone" * bool(lead.mean[-1] * difference < 0)


def verdict_without_problems(results: Records, row: Any) -> str:
    """Format a verdict without the training problems, which the mark of the arm stands for."""
    sides = ((row.arm, results.health[str(row.arm)]), ("baseline", results.health[results.arms[0]]))
    problems = "; ".join(f"{side} unhealthy: {problem}" for side, problem in sides if problem)
    return display_verdict(str(row.verdict).replace(f" ({problems})", ""), str(row.metric))


def _mean(of_arm: Mapping[str, Any], name: str) -> str:
    text = number(of_arm[name].mean, describe(name).digits)
    floor = of_arm.get(f"{name}_floor")
    return text if floor is None or math.isnan(floor.mean) else f"{text} (floor {number(floor.mean, 4)})"


def details(table: pd.DataFrame, headings: Callable[[str], str] = heading) -> Section:
    """Build the table of all measurements: a row an arm and measured quantity, labelled by `headings`."""
    rows = []
    for name in dict.fromkeys(table[table.n > 0].metric):
        unit = describe(name).unit
        label = headings(name) + (f" ({unit})" if unit else "")
        for row in table[table.metric == name].itertuples():
            size = signed(row.effect, row.effect_low, row.effect_high, 2)
            sample = [format_run_counts(row), mean_and_sd(row), difference(row), size, detectable(row)]
            p = ["-" if math.isnan(value) else f"{value:z.3g}" for value in (getattr(row, name) for name in P)]
            rows.append([label, str(row.arm), *sample, *p, display_verdict(str(row.verdict), name)])
    return Section("All measurements", DETAILS, rows)
