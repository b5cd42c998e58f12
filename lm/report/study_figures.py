"""Figures of a search, each as PNG and SVG."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from lm.report.figures import RenderedFigures, render_all
from lm.report.plotting import new_figure
from lm.report.study import Study
from lm.store.metrics import describe

ABSENT = -0.15
"""Height at which a line of the parallel coordinates crosses the axis of a parameter without a value."""


def label(quantity: str) -> str:
    """Return the label of a quantity with its unit."""
    meaning = describe(quantity)
    return f"{meaning.label} ({meaning.unit})" if meaning.unit else meaning.label


def position(value: Any, described: dict[str, Any]) -> float:
    """Return the position of a value on its parameter's axis, from 0 to 1.

    Log-scaled ranges are measured by logarithm.
    """
    if value is None or pd.isna(value):
        return ABSENT
    if "choices" in described:
        return float(described["choices"].index(value) / max(1, len(described["choices"]) - 1))
    low, high = described["low"], described["high"]
    if described["log"]:
        return math.log(float(value) / low) / math.log(high / low)
    return float((float(value) - low) / (high - low))


def history(study: Study) -> Figure | None:
    """Plot the first objective of each trial in order, and the best so far."""
    quantity, way = next(iter(study.objectives.items()))
    complete = study.complete.sort_values("number")
    if complete.empty or len(study.objectives) > 1:
        return None
    figure, axes = new_figure(figsize=(6.4, 4.2))
    best = complete[quantity].cummin() if way == "lower" else complete[quantity].cummax()
    axes.plot(complete.number, complete[quantity], "o", color="grey", label="trial")
    axes.plot(complete.number, best, drawstyle="steps-post", label="best so far")
    axes.set(xlabel="trial", ylabel=label(quantity), title="Search")
    axes.legend()
    return figure


def slices(study: Study) -> Figure | None:
    """Plot the first objective against each parameter, over the trials that drew it."""
    quantity = next(iter(study.objectives))
    drawn = [name for name in study.space if study.complete[name].notna().any()]
    if not drawn:
        return None
    columns = min(3, len(drawn))
    rows = math.ceil(len(drawn) / columns)
    size = (3.4 * columns + 0.6, 3.0 * rows + 0.4)
    figure, grid = new_figure(rows, columns, figsize=size, squeeze=False, sharey=True)
    for axes, name in zip(grid.flat, drawn, strict=False):
        _slice(axes, study, name, quantity)
    for axes in grid.flat[len(drawn) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel(label(quantity))
    return figure


def _slice(axes: Axes, study: Study, name: str, quantity: str) -> None:
    frame, described = study.complete[study.complete[name].notna()], study.space[name]
    if "choices" in described:
        places = [described["choices"].index(value) for value in frame[name]]
        axes.set_xticks(range(len(described["choices"])), described["choices"], rotation=20, ha="right")
        axes.plot(places, frame[quantity], "o", alpha=0.7)
        axes.set_xlim(-0.5, len(described["choices"]) - 0.5)
    else:
        axes.plot(frame[name].astype(float), frame[quantity], "o", alpha=0.7)
        if described["log"]:
            axes.set_xscale("log")
        axes.set_xlim(*_padded(described))
    axes.set_xlabel(name)


def _padded(described: dict[str, Any]) -> tuple[float, float]:
    low, high = described["low"], described["high"]
    if described["log"]:
        return low * (low / high) ** 0.03, high * (high / low) ** 0.03
    return low - 0.03 * (high - low), high + 0.03 * (high - low)


def parallel_coordinates(study: Study) -> Figure | None:
    """Draw a line for each trial across the axes of all parameters, coloured by the first objective."""
    quantity, way = next(iter(study.objectives.items()))
    complete, names = study.complete, list(study.space)
    if len(complete) < 2 or len(names) < 2:
        return None
    figure, axes = new_figure(figsize=(max(6.4, 1.9 * len(names)), 4.6))
    colours = colormaps["viridis_r" if way == "lower" else "viridis"]
    scale = Normalize(complete[quantity].min(), complete[quantity].max())
    for _, row in complete.sort_values(quantity, ascending=way != "lower").iterrows():
        heights = [position(row[name], study.space[name]) for name in names]
        axes.plot(range(len(names)), heights, color=colours(scale(row[quantity])), alpha=0.8, linewidth=1.2)
    for place, name in enumerate(names):
        axes.axvline(place, color="grey", linewidth=0.8)
        for height, text in ticks(study.space[name], bool(complete[name].isna().any())):
            axes.annotate(text, (place, height), xytext=(3, 0), textcoords="offset points", fontsize=7, va="center")
    axes.set_xticks(range(len(names)), names, rotation=15, ha="right")
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.set_title("Trials across parameters")
    figure.colorbar(ScalarMappable(scale, colours), ax=axes, label=label(quantity))
    return figure


def ticks(described: dict[str, Any], absent: bool) -> list[tuple[float, str]]:
    """Return heights and texts along the axis of a parameter."""
    values = described.get("choices") or [described["low"], described["high"]]
    marks = [(position(v, described), v if isinstance(v, str) else f"{v:zg}") for v in values]
    return [*marks, (ABSENT, "not drawn")] if absent else marks


def pareto(study: Study) -> Figure | None:
    """Plot two objectives against each other, with the Pareto front."""
    if len(study.objectives) != 2 or study.complete.empty:
        return None
    (across, _), (up, _) = reversed(study.objectives.items())
    figure, axes = new_figure(figsize=(6.4, 4.2))
    front = study.best.sort_values(across)
    axes.plot(study.complete[across], study.complete[up], "o", color="grey", label="trial")
    axes.plot(front[across], front[up], "o-", drawstyle="default", label="Pareto front")
    values = study.complete[across].to_numpy(dtype=float)
    if np.all(values > 0) and values.max() > 10 * values.min():
        axes.set_xscale("log")
    axes.set(xlabel=label(across), ylabel=label(up), title="Pareto front")
    axes.legend()
    return figure


FIGURES: dict[str, Callable[[Study], Figure | None]] = {
    "pareto": pareto,
    "history": history,
    "slices": slices,
    "parallel_coordinates": parallel_coordinates,
}


def draw_study(study: Study) -> RenderedFigures:
    """Draw every figure that the trials have data for, by name."""
    return render_all((name, draw(study)) for name, draw in FIGURES.items())
