"""Forest plots of the paired differences to the baseline, of one experiment or several."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pandas as pd

from lm.analysis.compare import HEALTHY, NO_RUN, NONE_ENDED
from lm.analysis.results import HEADLINE, value
from lm.report.figures.catalogue import Figure, FigureInputs
from lm.report.figures.chart import Axis, Bar, Chart, Forest, label
from lm.report.tables import EXPLORATORY_Q, compared, difference, verdict_without_problems
from lm.store.metrics import SUMMARY_METRICS, describe

SIDES = {"lower": "left is better", "higher": "right is better", None: "left is less"}
"""Meaning of the sides of the line at zero, by the better direction of the quantity."""

MARKS = (
    *("◆ mean over seeds, confirmed by a test", "◇ exploratory, or no difference found", "━ 95 % interval"),
    *("○ one seed", "┆ zero", "│ margin: a difference between these lines counts as none"),
)
"""Key of the marks on the page; the last is left out without margins."""

WIDTH, ROW = 7.2, 0.48  # width of a picture, and height of a row, in inches


def differences(inputs: FigureInputs) -> Chart | None:
    """Return the paired differences of each arm, the best first, a panel a quantity, the headline first."""
    results, table = inputs.results, inputs.compared
    names = dict.fromkeys((*results.judged, HEADLINE, *SUMMARY_METRICS))
    panels = [_panel(name, {"": inputs}, f"difference to {results.arms[0]}") for name in names if _has(table, name)]
    return _chart(panels)


def differences_of_several(experiments: Sequence[FigureInputs | None]) -> Chart | None:
    """Return the headline differences of experiments, numbered by source, a panel a headline; None is a source."""
    by_headline: dict[str, dict[str, FigureInputs]] = {}
    for number, inputs in enumerate(experiments, 1):
        if inputs is None:
            continue
        headline = inputs.results.headline
        heading = f"{number}. {inputs.results.manifest['name']}"  # names may be equal
        if _has(inputs.compared, headline):
            by_headline.setdefault(headline, {})[heading] = inputs
    return _chart([_panel(name, of_name, "difference to the baseline") for name, of_name in by_headline.items()])


def _has(table: pd.DataFrame, metric: str) -> bool:
    return bool(((table.metric == metric) & (table.pairs > 0)).any())


def _chart(panels: Sequence[Forest]) -> Chart | None:
    """Return a chart whose picture has the first panel alone."""
    if not panels:
        return None
    size = (WIDTH, 1.2 + ROW * len(panels[0].names))
    title = "Paired differences"
    margins = any(math.isfinite(bar.margin) for panel in panels for bar in panel.bars)
    note = "\u2003".join(mark.replace(" ", "\u00a0", 1) for mark in MARKS if margins or "margin" not in mark)
    return Chart(title, panels, note=note, size=size, arms=False, wide=True)


def _panel(metric: str, by_heading: Mapping[str, FigureInputs], of: str) -> Forest:
    """Return the rows of one quantity, those of each experiment below its heading; an empty one has no row."""
    better, bars, points, names = describe(metric).better, list[Bar](), list[Bar](), list[str]()
    for heading, inputs in by_heading.items():
        results, prefix = inputs.results, f"{heading}\n" if heading else ""
        rows = compared(inputs.compared, metric)
        verdicts = [EXPLORATORY_Q.sub(", exploratory", verdict_without_problems(results, row)) for row in rows]
        of_arms = [difference_bar(row, verdict) for row, verdict in zip(rows, verdicts, strict=True)]
        names += [heading] * bool(heading) + [prefix + bar.name for bar in of_arms]
        bars += [replace(bar, name=prefix + bar.name) for bar in of_arms]
        for bar in of_arms:
            for seed, pair in results.pairs(bar.name).items():
                gap = value(pair[0], metric) - value(pair[1], metric)
                points += [Bar(prefix + bar.name, gap, tips={"seed": seed})] if math.isfinite(gap) else []
    x = Axis(f"{label(metric)}, {of}\n{SIDES[better]}", "arm")
    return Forest(x, names, bars, points, option=label(metric))


def difference_bar(row: Any, verdict: str) -> Bar:
    """Return a row of a forest plot from a row of comparisons and its short verdict; the latter is `-` for none."""
    health = str(getattr(row, "health", ""))
    tips = {"difference": difference(row), "verdict": str(row.verdict), "n": int(row.pairs or row.n)}
    tips |= {"health": health} if health else {}
    size = "" if math.isnan(row.difference) else difference(row, labelled=False)
    brief = ("", HEALTHY, NO_RUN, NONE_ENDED)  # the reason for another stands below the table
    in_a_word = health if health in brief else "unhealthy"
    texts = ["" if verdict == "-" else verdict, ", ".join(filter(None, [size, in_a_word]))]
    tones: dict[str, Literal["", "good", "bad"]] = {"better": "good", "worse": "bad"}
    tone = tones.get(re.split(r"\W", str(row.verdict))[0], "") if row.bold else ""
    numbers = row.difference, row.low, row.high
    return Bar(str(row.arm), *numbers, bool(row.bold), tips, [*filter(None, texts)], tone, row.margin)


FIGURES = (Figure("differences", 5, differences),)
