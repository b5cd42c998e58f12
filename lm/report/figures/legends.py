"""Names of the lines of a picture: at their ends where there is room, else in a legend outside the panels."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lm.report.figures.chart import Chart, Panel
from lm.report.figures.palette import COLOURS, LIGHT, MARKERS, dash, marker

LEGEND_ROWS = 3  # legend rows that fit below the panels without enlarging a figure
LINE = 0.17  # height of a line of text in inches
MOST_MOVED = 1.2  # largest distance, in lines of text, between the end of a line and its name


def look(member: int | None) -> dict[str, Any]:
    """Return colour, dashes and marker of a name by its index; grey without one."""
    if member is None:
        return {"color": "grey", "linestyle": "-", "marker": "o"}
    on, *gaps = dash(member)
    stroke = "-" if gaps == [0] else (0, tuple(length / 2 for length in (on, *gaps)))
    return {"color": LIGHT[member % COLOURS], "linestyle": stroke, "marker": MARKERS[marker(member)]}


def add_legends(figure: Figure, chart: Chart, drawn: Sequence[Axes]) -> None:
    """Name the lines of a chart."""
    if chart.legend == "none":
        return
    if chart.legend == "below":
        _add_below(figure, chart)
        return
    named = {"first": drawn[:1], "last": drawn[-1:], "each": drawn}[chart.legend]
    inside = [axes for axes in named if axes.get_legend_handles_labels()[1]]
    if len(drawn) == 1 and inside and _label_ends(figure, drawn[0], chart.panels[0]):
        title, more = drawn[0].get_title(), chart.legend_title
        drawn[0].set_title(f"{title} ({more})" if title and more else title or more)
    elif inside:
        labelled = [axes.get_legend_handles_labels() for axes in inside]
        by_label = {text: handle for pair in labelled for handle, text in zip(*pair, strict=True)}
        figure.set_figwidth(figure.get_figwidth() + 0.5 + 0.08 * max(map(len, by_label)))
        figure.legend(
            by_label.values(), by_label.keys(), title=chart.legend_title or None, loc="outside right upper",
            fontsize="small", title_fontsize="small",
        )  # fmt: skip


def _add_below(figure: Figure, chart: Chart) -> None:
    """Add a legend of names, styles and markers below the panels; the figure grows with its rows."""
    of_panels = (panel.series for panel in chart.panels if isinstance(panel, Panel))
    members = sorted({series.member for of_panel in of_panels for series in of_panel if series.member is not None})
    grey: dict[str, Any] = {"color": "grey"}
    handles = [Line2D([], [], markersize=4, label=chart.names[member], **look(member)) for member in members]
    handles += [Line2D([], [], **grey, linestyle=style, label=text) for text, style in chart.styles.items()]
    for text, of_points in chart.markers.items():
        handles.append(Line2D([], [], linestyle="", marker=of_points, markersize=8, label=text, **grey))
    longest = max((len(str(handle.get_label())) for handle in handles), default=0)
    columns = max(1, min(len(handles), int(figure.get_figwidth() / (0.65 + 0.075 * longest))))
    figure.set_figheight(figure.get_figheight() + 0.22 * max(0, math.ceil(len(handles) / columns) - LEGEND_ROWS))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize="small")


def _label_ends(figure: Figure, axes: Axes, panel: Any) -> bool:
    """Write the names of lines at their right ends; return False where they do not all fit beside these."""
    named = [series for series in panel.series if series.label and series.mark in ("curve", "line") and len(series.x)]
    if panel.right or len(named) < len([series for series in panel.series if series.label]) or not named:
        return False
    ends = np.array([(float(series.x[-1]), float(series.y[-1])) for series in named])
    fractions = axes.transAxes.inverted().transform(axes.transData.transform(ends))
    height = LINE / (0.75 * figure.get_figheight())
    places = spread(fractions[:, 1], height)
    if fractions[:, 0].min() < fractions[:, 0].max() - 0.02 or not np.isfinite(places).all():
        return False
    if np.abs(places - fractions[:, 1]).max() > MOST_MOVED * height or places.max() > 1.05 or places.min() < -0.05:
        return False
    for series, place in zip(named, places, strict=True):
        axes.annotate(
            series.label, (1, place), xytext=(4, 0), xycoords="axes fraction", textcoords="offset points",
            fontsize="small", va="center", color=look(series.member)["color"], annotation_clip=False,
        )  # fmt: skip
    return True


def spread(places: Iterable[float], gap: float) -> np.ndarray:
    """Move places apart until neighbours are at least `gap` apart, each as little as possible (isotonic regression)."""
    places = np.asarray(list(places))
    order = np.argsort(places, kind="stable")
    blocks: list[list[float]] = []  # sum and number of the places, each less its rank's share of gaps
    for rank, place in enumerate(places[order]):
        blocks.append([place - rank * gap, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1] = [blocks[-1][0] + total, blocks[-1][1] + count]
    level = np.concatenate([np.full(int(count), total / count) for total, count in blocks]) if blocks else np.empty(0)
    moved = np.empty_like(places)
    moved[order] = level + gap * np.arange(len(places))
    return moved
