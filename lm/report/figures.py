"""Figures of an experiment, each as PNG and SVG."""

import io
from collections.abc import Callable, Iterable

import matplotlib
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from lm.analysis.results import Results, curves
from lm.report.inside import (
    attention_entropy,
    gradient_norm_by_layer,
    gradient_norm_over_depth,
    residual_norm_by_layer,
)
from lm.report.lengths import loss_by_position, nll_by_length
from lm.report.plotting import colours, new_figure

RenderedFigures = dict[str, dict[str, bytes]]
"""Contents of each figure's files, by suffix."""

Draw = Callable[[Results, Axes], bool]
"""Function that draws on axes and returns True if there was anything to draw."""


def _curve(results: Results, axes: Axes, column: str) -> bool:
    drawn = False
    for arm, colour in colours(results).items():
        frame = curves(results, arm, column)
        if frame.empty:
            continue
        mean, spread = frame.mean(axis=1), frame.std(axis=1, ddof=1).fillna(0.0)
        axes.plot(mean.index, mean, color=colour, label=f"{arm} (n={frame.shape[1]})", linewidth=1.5)
        axes.fill_between(mean.index, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)
        drawn = True
    axes.set_xlabel("optimiser step")
    if drawn:
        axes.legend(title="mean ± sd over seeds")
    return drawn


def learning_curve(results: Results, axes: Axes) -> bool:
    """Plot validation loss over steps, or training loss where no run validated during training."""
    axes.set_title("Learning curve")
    axes.set_ylabel("validation NLL (nats/token)")
    if _curve(results, axes, "validation_nll"):
        return True
    axes.set_ylabel("training loss (nats/token)")
    return _curve(results, axes, "train_loss")


def gradient_norm(results: Results, axes: Axes) -> bool:
    """Plot the norm of the gradient before clipping over steps."""
    axes.set_ylabel("gradient norm before clipping")
    axes.set_title("Gradient norm")
    axes.set_yscale("log")
    return _curve(results, axes, "gradient_norm")


def reliability(results: Results) -> Figure | None:
    """Plot accuracy against confidence, their gap, and the tokens in each bin, pooled over seeds.

    Bins with under 0.1 % of the tokens are drawn in the last panel only.
    """
    ratios = {"height_ratios": [3.2, 1.2, 1.2]}
    figure, panels = new_figure(3, 1, figsize=(6.4, 7.4), sharex=True, gridspec_kw=ratios)
    diagram, gap, histogram = panels
    drawn, bins = False, 15
    diagram.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--", label="perfectly calibrated")
    gap.axhline(0, color="grey", linewidth=1, linestyle="--")
    for arm, colour in colours(results).items():
        diagrams = [bins_of_run for record in results.of(arm) if (bins_of_run := record["reliability"])]
        if not diagrams:
            continue
        count = np.array([d["count"] for d in diagrams], dtype=float)
        pooled, bins = count.sum(axis=0), count.shape[1]
        shown = pooled > 1e-3 * pooled.sum()
        confidence = _pooled([d["confidence"] for d in diagrams], count)[shown]
        accuracy = _pooled([d["accuracy"] for d in diagrams], count)[shown]
        diagram.plot(confidence, accuracy, color=colour, marker="o", markersize=4, label=arm)
        gap.plot(confidence, accuracy - confidence, color=colour, marker="o", markersize=4, label=arm)
        histogram.stairs(pooled / len(diagrams), np.linspace(0, 1, bins + 1), color=colour, label=arm, baseline=None)
        drawn = True
    if not drawn:
        return None
    diagram.set(ylabel="accuracy", title=f"Reliability, {bins} bins", xlim=(0, 1), ylim=(0, 1))
    gap.set(ylabel="accuracy\n- confidence")
    histogram.set(ylabel="tokens a bin,\nmean over seeds", yscale="log", xlabel="confidence")
    diagram.legend()
    return figure


def _pooled(means: list[list[float]], count: np.ndarray) -> np.ndarray:
    """Return per-bin means over all diagrams, weighted by the tokens in the bin."""
    sums = (count * np.array(means)).sum(axis=0)
    return sums / np.maximum(1, count.sum(axis=0))


def single_panel(draw_on: Draw) -> Callable[[Results], Figure | None]:
    """Wrap a function that draws on axes into one that returns a figure of one panel."""

    def make(results: Results) -> Figure | None:
        figure, axes = new_figure(figsize=(6.4, 4.2))
        if draw_on(results, axes):
            return figure
        return None

    return make


FIGURES: dict[str, Callable[[Results], Figure | None]] = {
    "learning_curve": single_panel(learning_curve),
    "gradient_norm": single_panel(gradient_norm),
    "gradient_norm_by_layer": gradient_norm_by_layer,
    "gradient_norm_over_depth": gradient_norm_over_depth,
    "residual_norm_by_layer": residual_norm_by_layer,
    "attention_entropy": attention_entropy,
    "reliability": reliability,
    "nll_by_length": nll_by_length,
    "loss_by_position": loss_by_position,
}


def draw_figures(results: Results) -> RenderedFigures:
    """Draw every figure that the records have data for, by name."""
    return render_all((name, make(results)) for name, make in FIGURES.items())


def render_all(figures: Iterable[tuple[str, Figure | None]]) -> RenderedFigures:
    """Render figures by name, skipping those that are None; each is drawn only when reached."""
    files: RenderedFigures = {}
    with sns.axes_style("whitegrid"), matplotlib.rc_context({"svg.hashsalt": "lm"}):
        for name, figure in figures:
            if figure is not None:
                files[name] = render(figure)
    return files


def render(figure: Figure) -> dict[str, bytes]:
    """Render a figure as PNG and SVG; the same figure gives the same bytes.

    The layout is computed once, which takes as long as drawing. `savefig` would draw once more for it beforehand; a
    canvas computes it while drawing.
    """
    figure.set_dpi(150)
    png, svg = io.BytesIO(), io.BytesIO()
    FigureCanvasAgg(figure).print_png(png)
    figure.set_layout_engine("none")
    FigureCanvasSVG(figure).print_svg(svg, metadata={"Date": None})
    return {"png": png.getvalue(), "svg": svg.getvalue()}


def as_files(figures: RenderedFigures) -> dict[str, bytes]:
    """Map file names such as `learning_curve.png` to contents."""
    return {f"{name}.{suffix}": content for name, files in figures.items() for suffix, content in files.items()}
