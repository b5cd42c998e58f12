"""Shared drawing of all figures: colours of arms, lines of means over seeds, legends, ticks.

Legend: s seeds, n points.
"""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from lm.analysis.results import Results
from lm.store.record import Record

Colour = tuple[float, float, float]
Getter = Callable[[Record], Any]
"""Function that reads a value of a record, or None."""

Style = Literal["-", "--"]

ROWS = 3
"""Legend rows that fit below the panels without enlarging a figure."""

MOST_TICKS = 8
"""Largest number of labelled ticks of an axis."""

BEGINNING: Style = "--"
END: Style = "-"
"""Line styles at initialisation and at the end of training."""


def new_figure(rows: int = 1, columns: int = 1, *, figsize: tuple[float, float], **how: Any) -> tuple[Figure, Any]:
    """Create a figure and axes as `pyplot.subplots` does, without registering it with pyplot.

    `figsize` is in inches; `how` is passed to `Figure.subplots`.
    """
    figure = Figure(figsize=figsize, layout="constrained")
    return figure, figure.subplots(rows, columns, **how)


def colours(results: Results) -> dict[str, Colour]:
    """Return a colour for each arm, distinct for the colour-blind, the same in every figure."""
    return dict(zip(results.arms, sns.color_palette("colorblind", len(results.arms)), strict=True))


def stack_seeds(results: Results, arm: str, pick: Getter) -> np.ndarray | None:
    """Stack a value of an arm's successful runs, (s, ...); None where none holds it.

    Values of another shape than the first are left out, as there is no mean over them.
    """
    values = [pick(record) for record in results.of(arm) if record["status"] == "ok"]
    arrays = [np.asarray(value, dtype=float) for value in values if value]
    same_shape = [array for array in arrays if array.shape == arrays[0].shape]
    return np.stack(same_shape) if same_shape else None


def getter(*keys: str) -> Getter:
    """Return a function that reads nested keys of a record; None where a record lacks them."""

    def pick(record: Record) -> Any:
        entry: Any = record
        for key in keys:
            entry = (entry or {}).get(key)
        return entry

    return pick


def line(axes: Axes, x_n: Sequence[float] | np.ndarray, values_sn: np.ndarray, colour: Colour, **how: Any) -> None:
    """Plot the mean over seeds as a line, with a band of one standard deviation."""
    mean_n = values_sn.mean(axis=0)
    how = {"linewidth": 1.5, **({"marker": "o", "markersize": 4} if len(mean_n) <= 12 else {}), **how}
    axes.plot(x_n, mean_n, color=colour, **how)
    if len(values_sn) > 1:
        spread_n = values_sn.std(axis=0, ddof=1)
        axes.fill_between(x_n, mean_n - spread_n, mean_n + spread_n, color=colour, alpha=0.15, linewidth=0)


def ticks_at(axes: Axes, values: Collection[float]) -> None:
    """Set ticks of a logarithmic axis at these values, or at some of them where there are many."""
    few = sorted(values)[:: -(-len(values) // MOST_TICKS)]
    axes.set_xticks(few, [f"{value:z.5g}" for value in few])
    axes.xaxis.set_minor_locator(NullLocator())


def legend(
    figure: Figure, colours_of: dict[str, Colour], styles: dict[str, Style], markers: dict[str, str] | None = None
) -> None:
    """Add a legend of arms, line styles and markers below the panels; the figure grows with its rows."""
    handles = [Line2D([], [], color=colour, label=arm) for arm, colour in colours_of.items()]
    handles += [Line2D([], [], color="grey", linestyle=style, label=label) for label, style in styles.items()]
    handles += [
        Line2D([], [], color="grey", linestyle="", marker=marker, markersize=8, label=label)
        for label, marker in (markers or {}).items()
    ]
    columns = max(1, min(len(handles), int(figure.get_figwidth() / 1.6)))
    figure.set_figheight(figure.get_figheight() + 0.22 * max(0, math.ceil(len(handles) / columns) - ROWS))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize="small")


def panels(count: int, columns: int) -> tuple[int, int]:
    """Return rows and columns of a grid of `count` panels."""
    return math.ceil(count / columns), min(count, columns)
