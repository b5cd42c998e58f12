"""Drawer of pictures: charts as Matplotlib figures, these as PNG and SVG, and for papers as PDF and SVG."""

import io
import itertools
import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib import colormaps, style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator
from PIL import Image

from lm.report.figures.chart import Axis, BasePanel, Chart, Forest, Heat, Panel, Series, log_range, log_ticks
from lm.report.figures.palette import COLOURS, LIGHT, MARKERS, SOLID, dash, marker

GRID_STYLE: Any = style.library["seaborn-v0_8-whitegrid"]

RenderedFigures = dict[str, dict[str, bytes]]  # contents of each figure's files, by suffix
FOREST_TICKS = 4  # largest number of steps between the ticks of a forest plot, which has texts beside it

MOST_TICKS, MOST_HEAT_TICKS = 8, 5
"""Largest numbers of labelled ticks of an axis, and of one of a heat map, of which several stand beside each other."""

TONES = {"": "#4d4d4d", "good": "#0072b2", "bad": "#d55e00"}
"""Colours of the rows of a forest plot; both are told apart by people with colour blindness."""

TEXT_WIDTH = 44  # largest number of characters of a line beside a row of a forest plot
LEAST_WIDTH = 4.8  # smallest width of a picture in inches
FEW = 16  # largest number of points of a line with a marker each

MARKER_SIZES = {"x": 7, "*": 13}

LEGEND_ROWS = 3  # rows of a legend for which a figure has room


def draw(chart: Chart) -> Figure:
    """Draw a chart as a figure that pyplot does not know of."""
    chart = _escaped(chart)
    panels: list[Panel | Heat | Forest] = []
    for panel in chart.panels if chart.columns else chart.panels[:1]:
        if isinstance(panel, Panel) and panel.split:
            panels += [replace(panel, series=[series], title=series.label) for series in panel.series]
        else:
            panels.append(panel)
    places = grid_of(panels, chart.columns)
    rows, columns = (max(place) + 1 for place in zip(*places, strict=True))
    width, height = chart.size
    several = 0.8 * (len(panels) > 1)  # room for what panels share
    inches = max(LEAST_WIDTH, width * columns + several), height * rows + several
    figure = Figure(figsize=inches, layout="constrained")
    ratios = {"height_ratios": chart.heights} if chart.heights else {}
    grid = figure.subplots(rows, columns, squeeze=False, gridspec_kw=ratios, sharex=bool(chart.heights))
    for panel, place in zip(panels, places, strict=True):
        small = len(chart.panels) > 3 or getattr(panel, "split", False)
        grid[place].set_title(panel.title, fontsize="small" if small else None)
        if isinstance(panel, Forest):
            _draw_forest(grid[place], panel)
        elif isinstance(panel, Heat):
            _draw_heat(grid[place], panel)
        else:
            _draw_series(grid[place], panel, chart)
    for place in np.ndindex(rows, columns):
        if place not in places:
            grid[place].remove()
    drawn = [grid[place] for place in places]
    for axes in drawn if len(panels) > 3 else ():
        axes.tick_params(which="both", labelsize=7)
    if len(panels) > 1:
        _share_labels(grid, places)
    if isinstance(panels[0], Heat):
        figure.colorbar(drawn[0].images[0], ax=drawn, label=panels[0].scale[0], shrink=0.8)
    _add_legend(figure, chart, panels)
    return figure


def _escaped(node: Any) -> Any:
    """Return a chart, or a part of one, with no text that Matplotlib would take for a formula."""
    if isinstance(node, str):
        return node.replace("$", r"\$")
    if isinstance(node, dict):
        return {_escaped(key): _escaped(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return type(node)(map(_escaped, node))
    if not hasattr(node, "__dataclass_fields__"):
        return node
    return replace(node, **{key: _escaped(value) for key, value in vars(node).items()})


def grid_of(panels: Sequence[BasePanel], most: int) -> list[tuple[int, int]]:
    """Return row and column of each panel of a grid, at most about `most` wide, with no panel alone in a row."""
    starts = [index for index, panel in enumerate(panels) if panel.new_row or not index]
    places: list[tuple[int, int]] = []
    for start, end in itertools.pairwise([*starts, len(panels)]):
        count, row = end - start, max((row for row, _ in places), default=-1) + 1
        rows = math.ceil(count / max(1, most))
        columns = math.ceil(count / rows)
        columns += rows > 1 < columns and count - columns * (rows - 1) == 1
        places += [(row + index // columns, index % columns) for index in range(count)]
    return places


def _draw_series(axes: Axes, panel: Panel, chart: Chart) -> None:
    for position, text in panel.verticals.items():
        axes.axvline(position, color="black", linewidth=1, linestyle=":")
        axes.annotate(
            text, (position, 1), xytext=(3, -3), xycoords=("data", "axes fraction"), textcoords="offset points",
            fontsize="small", va="top",
        )  # fmt: skip
    if panel.horizontal is not None:
        axes.axhline(panel.horizontal, color="grey", linewidth=1, linestyle="--")
    shades = [series.shade for series in panel.series if series.shade is not None]
    scale = ScalarMappable(Normalize(min(shades), max(shades)) if shades else None)
    if panel.shades:
        scale.set_cmap(colormaps["viridis_r" if panel.shades[1] else "viridis"])
    for series in panel.series:
        how = look(series.member) | ({"linestyle": chart.styles[series.style]} if series.style in chart.styles else {})
        how |= {} if series.shade is None else {"color": scale.to_rgba(np.array([series.shade]))[0]}
        _draw_one(axes, series, how, len(chart.names) > SOLID)
    if panel.shades:
        axes.figure.colorbar(scale, ax=axes, label=panel.shades[0])
    for x, y, text in panel.texts:
        axes.annotate(text, (x, y), xytext=(3, 0), textcoords="offset points", fontsize=7, va="center")
    _set_axis(axes, panel.x, "x", log_range(panel, "x"))
    _set_axis(axes, panel.y, "y", log_range(panel, "y"))
    if panel.right:
        axes.secondary_yaxis("right", functions=(np.exp, perplexity_to_nll)).set_ylabel(panel.right)


def _draw_one(axes: Axes, series: Series, how: dict[str, Any], many: bool) -> None:
    """Draw one series; curves have markers at every point where these are few, else only beside many others."""
    how |= {"label": series.label or None}
    marker = how.pop("marker") if series.marker == "o" else series.marker
    size: dict[str, Any] = {"marker": marker, "markersize": MARKER_SIZES.get(marker, 4)}
    size |= {"markerfacecolor": "none"} if series.hollow else {}
    how.pop("marker", None)
    if series.mark == "bins":
        axes.stairs(series.y, series.x, baseline=None, **how)
        return
    if series.bars and len(series.low):
        x, y, low, high = (np.asarray(values, dtype=float) for values in (series.x, series.y, series.low, series.high))
        how |= {"linestyle": ""} if series.mark == "points" else {}
        axes.errorbar(x, y, np.maximum(0, [y - low, high - y]), capsize=3, **how, **size)
        return
    if series.mark == "points":
        axes.plot(series.x, series.y, alpha=1 if series.marker != "o" else 0.8, **how | {"linestyle": ""}, **size)
        return
    named = series.member is not None and series.mark != "steps"
    if len(series.x) <= FEW and (series.mark == "line" or named):
        how |= size
    elif many and named:
        how |= size | {"markevery": (0.02 + 0.02 * (series.member or 0) % 0.14, 0.14)}
    how |= {"drawstyle": "steps-post"} if series.mark == "steps" else {}
    axes.plot(series.x, series.y, linewidth=1.2 if series.member is None else 1.5, **how)
    if len(series.low):
        axes.fill_between(series.x, series.low, series.high, color=how["color"], alpha=0.18, linewidth=0)


def _draw_heat(axes: Axes, panel: Heat) -> None:
    """Draw a map of values; only some rows and columns have labels where there are many."""
    _, low, high = panel.scale
    norm = LogNorm(low, high) if panel.log else Normalize(low, high)
    origin: Any = "lower" if panel.upward else "upper"
    axes.imshow(panel.values, norm=norm, cmap="viridis", origin=origin, aspect="auto")
    for which, axis in (("x", panel.x), ("y", panel.y)):
        step = 1 if which == "y" and not panel.upward else max(1, -(-len(axis.names) // MOST_HEAT_TICKS))
        places = list(range(0, len(axis.names), step))
        axes.set(**{f"{which}ticks": places, f"{which}ticklabels": [axis.names[place] for place in places]})
        axes.set(**{f"{which}label": axis.label})
    axes.grid(visible=False)


def _draw_forest(axes: Axes, panel: Forest) -> None:
    """Draw diamonds, intervals up to twice the largest number, points below them, and texts beside them."""
    heights = {name: len(panel.names) - index for index, name in enumerate(panel.names)}
    ends = np.abs([[bar.value, bar.low, bar.high] for bar in panel.bars])
    far = 2 * (float(ends[np.isfinite(ends)].max(initial=0.0)) or 1.0)
    if panel.zero:
        axes.axvline(0.0, color="grey", linewidth=1, linestyle="--")
    for point in panel.points:
        axes.plot(point.value, heights[point.name] - 0.25, "o", color="grey", mfc="none", markersize=4)
    for bar in panel.bars:
        height, colour = heights[bar.name], TONES[bar.tone]
        if not math.isnan(bar.low):
            axes.plot([max(-far, bar.low), min(far, bar.high)], [height, height], color=colour, linewidth=1.5)
            cut_off = [(-far, "<")] * (bar.low < -far) + [(far, ">")] * (bar.high > far)
            for end, marker in cut_off:
                axes.plot(end, height, marker, color=colour, markersize=6)
        axes.plot(bar.value, height, "D", color=colour, mfc=colour if bar.bold else "white", markersize=6)
        margin = [bar.margin, -bar.margin] if math.isfinite(bar.margin) else []
        axes.vlines(margin, height - 0.5, height + 0.5, color="grey", linewidth=1, linestyle=":")
        lines = [line for text in bar.texts for line in textwrap.wrap(text, TEXT_WIDTH)]
        axes.annotate(
            "\n".join(lines), (1, height), xytext=(8, 0), xycoords=("axes fraction", "data"),
            textcoords="offset points", fontsize="small", va="center", annotation_clip=False,
        )  # fmt: skip
    axes.set(yticks=list(heights.values()), yticklabels=panel.names, ylim=(0.4, len(heights) + 0.6))
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(FOREST_TICKS))
    axes.set_xlabel(panel.x.label)


def _set_axis(axes: Axes, axis: Axis, which: str, ends: tuple[float, float] | None) -> None:
    """Set label, scale, ends and ticks of an axis; `ends` are those of the data on a logarithmic one."""
    of_axes = axes.xaxis if which == "x" else axes.yaxis
    axes.set(**{f"{which}label": axis.label, f"{which}scale": "log" if axis.log else "linear"})
    if axis.limits:
        axes.set(**{f"{which}lim": axis.limits})
    if axis.hidden:
        of_axes.set_ticks([])
        axes.grid(visible=False)
    elif ticks := axis.ticks or (log_ticks(*ends) if ends else []):
        few = sorted(ticks)[:: -(-len(ticks) // MOST_TICKS)]
        of_axes.set_ticks(few, [format_tick(value) for value in few])
        of_axes.set_minor_locator(NullLocator())
    elif axis.names:
        turned: dict[str, Any] = {"rotation": 20, "ha": "right"} if len(axis.names) > 3 and which == "x" else {}
        of_axes.set_ticks(range(len(axis.names)), axis.names, **turned)
    elif axis.integers:
        of_axes.set_major_locator(MaxNLocator(integer=True))


def format_tick(value: float) -> str:
    """Format a tick as a plain number near one, 1.2 and not 1.2 x 10^0, and far from it with a power of ten."""
    if 1e-3 <= value < 1e5:
        return f"{value:z.5g}"
    power = math.floor(math.log10(value) + 1e-9)
    factor = f"{value / 10.0**power:z.3g}"
    return f"$10^{{{power}}}$" if factor == "1" else f"${factor}\\times10^{{{power}}}$"


def perplexity_to_nll(perplexity: Any) -> Any:
    """Return the logarithm, safe at 0, which axes without limits may request."""
    return np.log(np.maximum(perplexity, np.finfo(float).tiny))


def _share_labels(grid: Any, places: Sequence[tuple[int, int]]) -> None:
    """Write a label that neighbours share once, at the left and at the bottom."""
    x_labels, y_labels = ({at: label(grid[at]) for at in places} for label in (Axes.get_xlabel, Axes.get_ylabel))
    for row, column in places:
        if x_labels[row, column] == x_labels.get((row + 1, column)):
            grid[row, column].set_xlabel("")
        if y_labels[row, column] == y_labels.get((row, column - 1)):
            grid[row, column].set_ylabel("")


# names of lines -------------------------------------------------------------------------------------------------------


def look(member: int | None) -> dict[str, Any]:
    """Return colour, dashes and marker of a name by its index; grey without one."""
    if member is None:
        return {"color": "grey", "linestyle": "-", "marker": "o"}
    on, *gaps = dash(member)
    stroke = "-" if gaps == [0] else (0, tuple(length / 2 for length in (on, *gaps)))
    return {"color": LIGHT[member % COLOURS], "linestyle": stroke, "marker": MARKERS[marker(member)]}


def _add_legend(figure: Figure, chart: Chart, panels: Sequence[Any]) -> None:
    """Name lines in a legend below the panels, with which the figure grows."""
    series = [line for panel in panels if isinstance(panel, Panel) for line in panel.series if line.member is not None]
    names = {line.member or 0: chart.names[line.member or 0] for line in series}
    names |= {line.member or 0: line.label for line in reversed(series) if line.label and len(panels) == 1}
    grey: dict[str, Any] = {"color": "grey"}
    handles = [Line2D([], [], markersize=4, label=text, **look(member)) for member, text in sorted(names.items())]
    handles += [Line2D([], [], **grey, linestyle=style, label=text) for text, style in chart.styles.items()]
    for text, of_points in chart.markers.items():
        handles.append(Line2D([], [], linestyle="", marker=of_points, markersize=8, label=text, **grey))
    if handles:
        longest = max(len(str(handle.get_label())) for handle in handles)
        columns = max(1, min(len(handles), int(figure.get_figwidth() / (0.65 + 0.075 * longest))))
        figure.set_figheight(figure.get_figheight() + 0.22 * max(0, math.ceil(len(handles) / columns) - LEGEND_ROWS))
        how: Any = {"title": chart.legend_title or None, "fontsize": "small", "title_fontsize": "small"}
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, **how)


# files ---------------------------------------------------------------------------------------------------------------


DOTS_PER_INCH = 150


def render_all(charts: Iterable[tuple[str, Chart | None]], most: int | None = None) -> RenderedFigures:
    """Render charts by name up to `most`, skipping those that are None; each is computed only when reached."""
    present = ((name, chart) for name, chart in charts if chart is not None)
    with matplotlib.rc_context({**GRID_STYLE, "svg.hashsalt": "lm"}):
        return {name: render(draw(chart)) for name, chart in itertools.islice(present, most)}


def render(figure: Figure) -> dict[str, bytes]:
    """Render a figure as PNG and SVG, the same bytes each time; unlike `savefig` it computes the layout once."""
    png, svg = render_png(figure), io.BytesIO()
    figure.set_layout_engine("none")
    FigureCanvasSVG(figure).print_svg(svg, metadata={"Date": None})
    return {"png": png, "svg": svg.getvalue()}


def render_png(figure: Figure, dots_per_inch: int = DOTS_PER_INCH) -> bytes:
    """Render a figure as PNG with 256 colours, a third of the bytes of all; the same bytes each time."""
    figure.set_dpi(dots_per_inch)
    canvas, png = FigureCanvasAgg(figure), io.BytesIO()
    canvas.draw()
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    picture.save(png, "PNG", optimize=True, dpi=(dots_per_inch, dots_per_inch))
    return png.getvalue()


# papers --------------------------------------------------------------------------------------------------------------

Kind = Literal["pdf", "svg"]

ONE, TWO = "one_column", "two_columns"
WIDTHS = {ONE: 3.35, TWO: 6.9}  # widths in inches on common two-column pages
LARGEST = 8.5  # largest height of a figure in inches
WIDEST = 7.5  # largest drawn width, in inches, of a figure that fits one column
FACES: dict[str, float] = {ONE: 6.5, TWO: 8.0}  # font size in points for each width

EMBEDDED: dict[str, Any] = {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "lm"}
"""Settings that keep text as text, to be searched, copied and restyled."""

METADATA: dict[Kind, dict[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
"""File metadata without a creation time, so that the same figure gives the same bytes."""


def paper_figures(charts: Iterable[tuple[str, Chart | None]], kinds: Sequence[Kind]) -> dict[str, bytes]:
    """Draw charts for a paper, by file name: `NAME_one_column.pdf` and so on; none of many panels in one column."""
    files: dict[str, bytes] = {}
    for name, chart in charts:
        for width, inches in WIDTHS.items():
            with matplotlib.rc_context({**GRID_STYLE, **_style(FACES[width])}):
                figure = None if chart is None else draw(chart)
                if figure is not None and (width == TWO or figure.get_figwidth() <= WIDEST):
                    fit(figure, inches, FACES[width])
                    for kind in kinds:
                        content = io.BytesIO()
                        figure.savefig(content, format=kind, metadata=METADATA[kind])
                        files[f"{name}_{width}.{kind}"] = content.getvalue()
    return files


def _style(points: float) -> Any:  # of keys that Matplotlib's types list one by one
    thin = {"lines.linewidth": 1.0, "lines.markersize": 3, "axes.linewidth": 0.6, "grid.linewidth": 0.5}
    small = dict.fromkeys(("legend.fontsize", "xtick.labelsize", "ytick.labelsize"), points - 0.5)
    return {"font.size": points, "axes.labelsize": points, "axes.titlesize": points + 0.5, **small, **thin, **EMBEDDED}


def fit(figure: Figure, inches: float, points: float) -> None:
    """Resize a figure to a width, with a height that leaves panels room for text of fixed size."""
    width, height = figure.get_size_inches()
    scale = inches / width
    figure.set_size_inches(inches, min(LARGEST, height * max(scale, min(1.0, scale**0.6))))
    for text in figure.findobj(matplotlib.text.Text):
        text.set_fontsize(min(text.get_fontsize(), points + 0.5))
