"""The sortable table of the page, and the details behind each of its numbers."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lm.analysis.pace import StepsToBaselineLoss, mean_share
from lm.analysis.results import HEADLINE, Records, value
from lm.analysis.tidy import status_of
from lm.analysis.verdict_text import display_verdict
from lm.report import tables
from lm.report.figures.chart import label
from lm.report.tables import DIFFERENCE, PACE, heading
from lm.report.web.elements import Html, joined, tag
from lm.report.web.parts import EXPLORATORY, TERMS
from lm.store.metrics import SUMMARY_METRICS


@dataclass(frozen=True)
class Column:
    """A column: heading, initial visibility, and for each arm text, sort key and quantity."""

    title: str
    shown: bool
    cells: Sequence[tuple[str, float | str, str]]
    bold: Sequence[bool] = ()
    long: bool = False


def all_columns(results: Records, table: pd.DataFrame, paces: Sequence[StepsToBaselineLoss]) -> list[Column]:
    """Return columns for mean and difference of each measured quantity, and verdicts of the judged."""
    first = list(table[table.metric == results.headline].itertuples())
    others = [str(name) for name in dict.fromkeys(table[table.n > 0].metric) if name not in results.judged]
    columns = [Column("n", True, [(tables.format_run_counts(row), row.n, "") for row in first])]
    for name in results.judged:
        columns += _of_quantity(results, table, name)
    columns.append(Column("health", True, [(str(row.health), str(row.health), "") for row in first], long=True))
    if paces:
        by_arm = {pace.arm: pace for pace in paces}
        shares = [by_arm[arm].shares.get("steps", []) if arm in by_arm else [] for arm in results.arms]
        keys = [mean_share(reached) if reached else math.nan for reached in shares]
        texts = [tables.format_steps_ratio(by_arm.get(arm)) for arm in results.arms]
        columns.append(Column(PACE, True, [(*pair, "") for pair in zip(texts, keys, strict=True)], long=True))
    return columns + [column for name in others for column in _of_quantity(results, table, name)]


def _of_quantity(results: Records, table: pd.DataFrame, name: str) -> list[Column]:
    of_it = table[table.metric == name]
    rows, judged, only_judged = list(of_it.itertuples()), name in results.judged, len(results.judged) == 1
    shown = judged or name in (HEADLINE, *SUMMARY_METRICS)
    columns = [Column(heading(name), shown, [(tables.mean_and_sd(row), row.mean, name) for row in rows])]
    if any(row.pairs for row in rows):
        labelled = tables.several_intervals(of_it)
        title = DIFFERENCE if judged and only_judged else f"{heading(name)}, {DIFFERENCE}"
        texts = [(tables.difference(row, labelled), row.difference, name) for row in rows]
        columns.append(Column(title, judged, texts, [bool(row.bold) for row in rows]))
    if judged and len(results.arms) > 1:
        title = "verdict" if only_judged else f"verdict, {heading(name)}"
        texts_and_keys = [(display_verdict(str(row.verdict), name), str(row.verdict), "") for row in rows]
        columns.append(Column(title, True, texts_and_keys, long=True))
    return columns


def comparison(
    results: Records,
    table: pd.DataFrame,
    paces: Sequence[StepsToBaselineLoss],
    at_one_rate: Mapping[str, str] | None = None,
) -> Html:
    """Format the table with its controls; without scripts it shows the default columns.

    `at_one_rate` has what each arm comes to at one shared learning rate, where the table's have rates of their own.
    """
    columns = all_columns(results, table, paces)
    if at_one_rate is not None:
        texts = [at_one_rate[str(row.arm)] for row in table[table.metric == results.headline].itertuples()]
        verdict = next((place for place, column in enumerate(columns) if column.title.startswith("verdict")), 0)
        columns.insert(verdict + 1, Column(tables.AT_ONE_RATE, True, [(text, text, "") for text in texts], long=True))
    boxes = [
        tag("label", tag("input", type="checkbox", data_column=index + 1, checked=column.shown), column.title)
        for index, column in enumerate(columns)
    ]
    chooser = tag("details", tag("summary", "Columns"), tag("div", boxes, class_="chosen"), class_="controls")
    heads = [_head("arm", False, False), *(_head(c.title, not c.shown, c.long) for c in columns)]
    rows = [_row(place, arm, columns) for place, arm in enumerate(results.arms)]
    return filtered(heads, rows, "arm, verdict, ...", "comparison of the arms", chooser)


def filtered(heads: Sequence[Html], rows: Sequence[Html], example: str, what: str, more: Html | str = "") -> Html:
    """Format a table of `what` that sorts, with a field to filter its rows, as by an `example`, and more controls."""
    field = tag("label", "Filter ", tag("input", type="search", id="filter", placeholder=example))
    count = tag("span", id="count", class_="hint", role="status")
    body = tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows), id="comparison")
    box = tag("div", body, class_="scroll tall", tabindex="0", role="region", aria_label=what)
    return joined(tag("div", field, count, class_="controls"), more, box)


def _head(title: str, hidden: bool, long: bool) -> Html:
    term = {"health": "healthy", "verdict": EXPLORATORY}.get(title)
    meaning = f"{term}: {TERMS[term]}" if term else False
    button = tag("button", title, type="button", title=meaning)
    return tag("th", button, scope="col", hidden=hidden, class_="long" if long else False)


def _row(index: int, arm: str, columns: Sequence[Column]) -> Html:
    elements = [tag("th", arm, scope="row", data_v=arm)]
    for column in columns:
        text, key, metric = column.cells[index]
        inside: str = text
        if metric and text != "-":
            bold = "bold" if column.bold and column.bold[index] else False
            inside = tag("button", text, type="button", data_metric=metric, data_arm=index, class_=bold)
        key = "" if isinstance(key, float) and math.isnan(key) else str(key)
        wide = "long" if column.long else False
        elements.append(tag("td", inside, data_v=key, hidden=not column.shown, class_=wide))
    return tag("tr", elements)


def behind(results: Records, table: pd.DataFrame) -> dict[str, Any]:
    """Return the data behind the numbers: table.csv, cells, their values, and trace commands."""
    name, arms, seeds = results.manifest["name"], results.manifest["arms"], results.manifest["seeds"]
    names = [str(metric) for metric in dict.fromkeys(table.metric)]
    records = [[results.records[arm, seed] for seed in seeds] for arm in results.arms]
    numbers = {
        metric: [[_plain(value(record, metric) if record else None) for record in of_arm] for of_arm in records]
        for metric in names
    }
    return {
        "arms": results.arms,
        "seeds": seeds,
        "cells": [[arms[arm]["cells"][str(seed)] for seed in seeds] for arm in results.arms],
        "status": [[status_of(results, arm, seed) for seed in seeds] for arm in results.arms],
        "labels": {metric: label(metric) for metric in names},
        "values": numbers,
        "trace": [shlex.join(["lm", "trace", name, arm]) for arm in results.arms],
        "quoted": {metric: shlex.quote(metric) for metric in names},
        "table": {column: [_plain(entry) for entry in table[column]] for column in table.columns},
    }


def _plain(entry: Any) -> Any:
    """Convert a value to JSON as in table.csv: NaN to None, infinite numbers to text."""
    if hasattr(entry, "item"):
        entry = entry.item()
    if isinstance(entry, float):
        return None if math.isnan(entry) else entry + 0.0 if math.isfinite(entry) else str(entry)
    return entry
