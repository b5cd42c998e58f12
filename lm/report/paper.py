"""Figures for a paper: at one or two columns' width, as PDF and SVG with text as text."""

import io
from collections.abc import Sequence
from typing import Any, Literal

import matplotlib
import seaborn as sns
from matplotlib.figure import Figure

from lm.report.figures.catalogue import FigureInputs, charts
from lm.report.figures.picture import draw

Kind = Literal["pdf", "svg"]

ONE, TWO = "one_column", "two_columns"
WIDTHS = {ONE: 3.35, TWO: 6.9}
"""Widths in inches on common two-column pages."""

LARGEST = 8.5
"""Largest height of a figure in inches."""

WIDEST = 7.5
"""Largest drawn width, in inches, of a figure that fits one column."""

FACES: dict[str, float] = {ONE: 6.5, TWO: 8.0}
"""Font size in points for each width."""

EMBEDDED: dict[str, Any] = {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "lm"}
"""Settings that keep text as text, to be searched, copied and restyled."""

METADATA: dict[Kind, dict[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
"""File metadata without a creation time, so that the same figure gives the same bytes."""


def paper_figures(inputs: FigureInputs, kinds: Sequence[Kind]) -> dict[str, bytes]:
    """Draw every figure that has data, by file name: `NAME_one_column.pdf` and so on.

    A figure with many panels is written only at the width of two columns.
    """
    files: dict[str, bytes] = {}
    for name, chart in charts(inputs).items():
        for width, inches in WIDTHS.items():
            if width == TWO or chart.size[0] <= WIDEST:
                with sns.axes_style("whitegrid"), matplotlib.rc_context(_style(FACES[width])):
                    figure = draw(chart)
                    fit(figure, inches, FACES[width])
                    files |= {f"{name}_{width}.{kind}": _written(figure, kind) for kind in kinds}
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


def _written(figure: Figure, kind: Kind) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format=kind, metadata=METADATA[kind])
    return content.getvalue()
