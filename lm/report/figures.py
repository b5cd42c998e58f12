"""Figures of an experiment, each as PNG and SVG."""

import io
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lm.analysis import Results, curves
from lm.results import write_atomic

Draw = Callable[[Results, Axes], bool]
"""Draws on axes; says whether there was anything to draw."""


def colours(results: Results) -> dict[str, tuple[float, float, float]]:
    """One colour an arm, told apart by the colour-blind too; the same in every figure."""
    return dict(zip(results.arms, sns.color_palette("colorblind", len(results.arms)), strict=True))


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
    """Validation loss over steps, or training loss where no run validated on its way."""
    axes.set_title("Learning curve")
    axes.set_ylabel("validation NLL (nats/token)")
    if _curve(results, axes, "validation_nll"):
        return True
    axes.set_ylabel("training loss (nats/token)")
    return _curve(results, axes, "train_loss")


def gradient_norm(results: Results, axes: Axes) -> bool:
    """Norm of the gradient before clipping, over steps."""
    axes.set_ylabel("gradient norm before clipping")
    axes.set_title("Gradient norm")
    axes.set_yscale("log")
    return _curve(results, axes, "gradient_norm")


def reliability(results: Results, axes: Axes) -> bool:
    """Accuracy against confidence, bins pooled over seeds; bins with under 0.1 % of the tokens are left out."""
    drawn = False
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--", label="perfectly calibrated")
    for arm, colour in colours(results).items():
        diagrams = [record["reliability"] for record in results.of(arm) if record.get("reliability")]
        if not diagrams:
            continue
        count = np.array([d["count"] for d in diagrams], dtype=float)
        pooled = count.sum(axis=0)
        shown = pooled > 1e-3 * pooled.sum()
        confidence, accuracy = (_pooled(diagrams, name, count)[shown] for name in ("confidence", "accuracy"))
        axes.plot(confidence, accuracy, color=colour, marker="o", markersize=4, label=arm)
        drawn = True
    axes.set(xlabel="confidence", ylabel="accuracy", title="Reliability, 15 bins", xlim=(0, 1), ylim=(0, 1))
    axes.legend()
    return drawn


def _pooled(diagrams: list[dict[str, list[float]]], name: str, count: np.ndarray) -> np.ndarray:
    """Per-bin means over all diagrams together, weighted by the tokens in the bin."""
    sums = (count * np.array([diagram[name] for diagram in diagrams])).sum(axis=0)
    return sums / np.maximum(1, count.sum(axis=0))


FIGURES: dict[str, Draw] = {
    "learning_curve": learning_curve,
    "gradient_norm": gradient_norm,
    "reliability": reliability,
}


def draw(results: Results, folder: Path) -> list[str]:
    """Writes every figure that the records give something for, and returns the names."""
    written = []
    with sns.axes_style("whitegrid"), plt.rc_context({"svg.hashsalt": "lm"}):
        for name, draw_on in FIGURES.items():
            figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
            if draw_on(results, axes):
                _save(figure, folder / name)
                written.append(name)
            plt.close(figure)
    return written


def _save(figure: Figure, path: Path) -> None:
    for suffix, metadata in (("png", {}), ("svg", {"Date": None})):
        content = io.BytesIO()
        figure.savefig(content, format=suffix, dpi=150, metadata=metadata)
        write_atomic(path.with_suffix(f".{suffix}"), content.getvalue())
