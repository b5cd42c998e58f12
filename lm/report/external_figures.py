"""Figures of runs that others trained: the differences with their intervals, and every run."""

import math

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from lm.analysis.external.runs import Runs
from lm.report.figures import RenderedFigures, render_all
from lm.report.plotting import new_figure
from lm.report.tables import ARROWS
from lm.store.metrics import describe

ALT = {"differences": "differences to the baseline with their intervals", "runs": "what each run measured"}
"""Alternative text of each figure."""


def draw_runs(runs: Runs, table: pd.DataFrame) -> RenderedFigures:
    """Draw the figures that have data, by name."""
    return render_all([("differences", differences(runs, table)), ("runs", every_run(runs))])


def differences(runs: Runs, table: pd.DataFrame) -> Figure | None:
    """Draw a forest plot of each judged quantity: filled where significant, bars for joint intervals."""
    rows = table[table.metric.isin(runs.judged) & table.difference.notna()]
    if rows.empty:
        return None
    width = len(runs.judged)
    figure, panels = new_figure(1, width, figsize=(2.4 + 3.6 * width, 1.4 + 0.4 * len(runs.arms)), squeeze=False)
    for axes, quantity in zip(panels[0], runs.judged, strict=True):
        axes.axvline(0.0, color="grey", linewidth=1, linestyle="--")
        reach = np.abs(rows[rows.metric == quantity][["difference", "low", "high"]].to_numpy(dtype=float))
        far = float(reach[np.isfinite(reach)].max(initial=0.0)) or 1.0
        for row in rows[rows.metric == quantity].itertuples():
            place = len(runs.arms) - runs.arms.index(str(row.arm))
            low, high = (max(-2 * far, min(2 * far, end)) for end in (row.low, row.high))
            if not math.isnan(low):
                axes.plot([low, high], [place, place], color="C0", linewidth=1.5)
            axes.plot(row.difference, place, "D", color="C0", mfc="C0" if row.bold else "white", markersize=6)
        axes.set(yticks=range(1, len(runs.arms)), yticklabels=runs.arms[:0:-1], ylim=(0.4, len(runs.arms) - 0.4))
        axes.set_xlabel(f"{named(runs, quantity)}, arm - {runs.arms[0]}")
    panels[0][0].set_title(f"{'Paired' if runs.paired else 'Unpaired'} differences, joint 95 % intervals")
    return figure


def every_run(runs: Runs) -> Figure | None:
    """Plot each judged quantity of every run that ended well; lines join the runs of a seed."""
    width, arms = len(runs.judged), len(runs.arms)
    palette = sns.color_palette("colorblind", arms)
    figure, panels = new_figure(1, width, figsize=(width * (2.0 + 0.7 * arms), 4.0), squeeze=False)
    any_finite = False
    for axes, quantity in zip(panels[0], runs.judged, strict=True):
        values = np.array([[runs.value(arm, seed, quantity) for arm in runs.arms] for seed in runs.seeds])
        values[~np.isfinite(values)] = math.nan
        any_finite |= bool(np.isfinite(values).any())
        if runs.paired:
            axes.plot(range(arms), values.T, color="grey", linewidth=0.6, alpha=0.6)
        for column, colour in enumerate(palette):
            axes.plot(np.full(len(runs.seeds), column), values[:, column], "o", color=colour, markersize=4)
        axes.set(xticks=range(arms), xlim=(-0.5, arms - 0.5), ylabel=named(runs, quantity))
        axes.set_xticklabels(runs.arms, rotation=30 if arms > 3 else 0, ha="right" if arms > 3 else "center")
    panels[0][0].set_title("Runs that ended well" + (", a line a seed" if runs.paired else ""))
    return figure if any_finite else None


def named(runs: Runs, quantity: str) -> str:
    """Return the axis label of a quantity: name, unit and direction."""
    meaning = describe(quantity)
    return meaning.label + (f" ({meaning.unit})" if meaning.unit else "") + ARROWS[runs.better[quantity]]
