"""The ratios of a run of the benchmarks as one figure: a dot for each median with its quartiles, on a log scale."""

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.ratios import Spread
from benchmarks.rows import Result, Row
from lm.report.figures.picture import render_png

SMALLEST, LARGEST = 1e-9, 1e9
"""Ratios beyond these are no measurements of anything, and nothing beside them could be told apart."""

HEIGHT, HEAD = 0.17, 0.62
"""Inches of a row, and of a panel beside its rows."""

DOTS_PER_INCH = 110


def drawn(result: Result) -> bytes | None:
    """The figure as PNG, a panel a case; None where no row has a ratio. The same result gives the same bytes."""
    cases = {name: found for name, case in result["cases"].items() if (found := compared(case["rows"]))}
    if not cases:
        return None
    sizes = [HEIGHT * (len(rows) + len({one["group"] for one in rows})) + HEAD for rows in cases.values()]
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(11, sum(sizes)), layout="constrained")
        panels = figure.subplots(len(cases), 1, squeeze=False, height_ratios=sizes)[:, 0]
        for axes, (name, rows) in zip(panels, cases.items(), strict=True):
            _panel(axes, name, rows)
    return render_png(figure, DOTS_PER_INCH)


def compared(rows: list[Row]) -> list[Row]:
    """Those that are compared with something else than themselves, and can be drawn."""
    return [one for one in rows if one["way"] != one["to"] and _drawable(one["ratio"])]


def _drawable(ratio: Spread | None) -> bool:
    return ratio is not None and SMALLEST < ratio["low"] <= ratio["median"] <= ratio["high"] < LARGEST


def _panel(axes: Axes, name: str, rows: list[Row]) -> None:
    """Draws a case: its groups one below the other, each under its own line."""
    colour = sns.color_palette("colorblind")[0]
    labels: list[str] = []
    group = None
    for one in rows:
        if one["group"] != group:
            group = one["group"]
            head = f"{group}; over {one['to']}"
            across = axes.get_yaxis_transform()
            axes.text(
                0.005, len(labels), head, fontsize=7, weight="bold", va="center", transform=across, parse_math=False
            )
            labels.append("")
        ratio = one["ratio"]
        assert ratio is not None
        place = len(labels)
        axes.plot([ratio["low"], ratio["high"]], [place, place], color=colour, linewidth=2, alpha=0.5)
        axes.plot([ratio["median"]], [place], color=colour, marker="o", markersize=4, linestyle="none")
        labels.append(one["way"])
    axes.axvline(1.0, color="grey", linewidth=1, linestyle="--")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:zg}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="both", labelsize=8)
    axes.set_yticks(range(len(labels)), labels, fontsize=7, parse_math=False)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_title(name, loc="left", fontsize=10, parse_math=False)
    axes.set_xlabel("times what it is compared with; dot: median of paired ratios, line: their quartiles", fontsize=8)
    axes.grid(visible=False, axis="y")
