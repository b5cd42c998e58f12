"""Figures of runs that others trained: the differences with their intervals, and every run."""

import math

import numpy as np
import pandas as pd

from lm.analysis.external.runs import Runs
from lm.report.figures.chart import Axis, Bar, Chart, Forest, Panel, Series, label
from lm.report.figures.picture import RenderedFigures, render_all
from lm.report.tables import ARROWS

ALT = {"differences": "differences to the baseline with their intervals", "runs": "what each run measured"}
"""Alternative text of each figure."""


def draw_runs(runs: Runs, table: pd.DataFrame) -> RenderedFigures:
    """Draw the figures that have data, by name."""
    return render_all([("differences", differences(runs, table)), ("runs", every_run(runs))])


def differences(runs: Runs, table: pd.DataFrame) -> Chart | None:
    """Return a forest plot of each judged quantity: filled where significant, bars for joint intervals."""
    rows = table[table.metric.isin(runs.judged) & table.difference.notna()]
    if rows.empty:
        return None
    title = f"{'Paired' if runs.paired else 'Unpaired'} differences, joint 95 % intervals"
    panels: list[Forest] = []
    for quantity in runs.judged:
        of_quantity = rows[rows.metric == quantity].itertuples()
        bars = [Bar(str(row.arm), row.difference, row.low, row.high, bool(row.bold)) for row in of_quantity]
        x = Axis(f"{axis_label(runs, quantity)}, arm - {runs.arms[0]}")
        panels.append(Forest(x, runs.arms[1:], bars, title="" if panels else title))
    size = (2.4 + 3.6 * len(panels), 1.4 + 0.4 * len(runs.arms))
    return Chart("Differences", panels, size=size, columns=len(panels), legend="none", arms=False)


def every_run(runs: Runs) -> Chart | None:
    """Return each judged quantity of every run that ended well; lines join the runs of a seed."""
    title, panels = "Runs that ended well" + (", a line a seed" if runs.paired else ""), list[Panel]()
    x = Axis("", names=runs.arms, limits=(-0.5, len(runs.arms) - 0.5))
    any_finite = False
    for quantity in runs.judged:
        values = np.array([[runs.value(arm, seed, quantity) for arm in runs.arms] for seed in runs.seeds])
        values[~np.isfinite(values)] = math.nan
        any_finite |= bool(np.isfinite(values).any())
        series = [Series("", range(len(runs.arms)), row, mark="curve") for row in values] if runs.paired else []
        for index in range(len(runs.arms)):
            places = np.full(len(runs.seeds), index)
            series.append(Series("", places, values[:, index], member=index, mark="points"))
        panels.append(Panel(x, Axis(axis_label(runs, quantity)), series, "" if panels else title))
    size = (len(panels) * (2.0 + 0.7 * len(runs.arms)), 4.0)
    return Chart("Runs", panels, runs.arms, size=size, columns=len(panels), legend="none") if any_finite else None


def axis_label(runs: Runs, quantity: str) -> str:
    """Return the axis label of a quantity: name, unit and direction."""
    return label(quantity) + ARROWS[runs.better[quantity]]
