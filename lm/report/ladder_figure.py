"""The figure of a ladder: loss against compute with its laws and the forecast, and gains against compute."""

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterSciNotation

from lm.analysis.ladder import LadderResults, losses
from lm.report.figures import RenderedFigures, render_all
from lm.report.ladder import shown_arms
from lm.report.plotting import Colour, new_figure
from lm.report.tables import heading
from lm.stats.scaling import Law
from lm.stats.tests import t_interval

NAME = "ladder"
LARGEST = 20.0
"""Factor beyond which the end of a gain's interval is not drawn."""


class Factor(LogFormatterSciNotation):
    """A tick of a logarithmic axis as a plain number, 1.2 and not 1.2 x 10^0, where that axis has a label."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:zg}" if super().__call__(x, pos) else ""


def draw_ladder(results: LadderResults) -> RenderedFigures:
    """Draw and render the figure, by name."""
    return render_all([(NAME, figure(results))])


def figure(results: LadderResults) -> Figure:
    """Draw loss and gain against compute."""
    whole, (left, right) = new_figure(1, 2, figsize=(10.0, 4.4))
    arms = shown_arms(results)
    colours = dict(zip(arms, sns.color_palette("colorblind", len(arms)), strict=True))
    for arm in arms:
        _loss(left, results, arm, colours[arm])
    left.set(xscale="log", xlabel="training FLOPs of a run", ylabel=heading(results.manifest["metric"]))
    left.set_title("Loss against compute")
    left.legend(title="line: law through all rungs\nsquare: forecast of the top one", fontsize="small")
    right.axhline(1.0, color="grey", linewidth=1, linestyle="--")
    for place, arm in enumerate(arms[1:]):
        _gain(right, results, arm, colours[arm], 1 + 0.04 * (place - (len(arms) - 2) / 2))
    right.set(xscale="log", yscale="log", xlabel="training FLOPs of a run", ylabel="compute-equivalent gain")
    right.yaxis.set_major_formatter(Factor())
    right.yaxis.set_minor_formatter(Factor())
    right.set_title("Worth in compute, 95 % intervals")
    return whole


def _loss(axes: Axes, results: LadderResults, arm: str, colour: Colour) -> None:
    """Plot means with intervals, the law through them, and the forecast beside the top rung."""
    x, y, low, high = [], [], [], []
    for rung, rung_results in zip(results.manifest["rungs"], results.rungs, strict=True):
        values = losses(rung_results, arm)
        finite = values[np.isfinite(values)]
        if len(finite):
            ends = t_interval(finite.tolist())
            x.append(rung["compute"][arm])
            y.append(float(finite.mean()))
            low.append(y[-1] - ends[0] if len(finite) > 1 else 0.0)
            high.append(ends[1] - y[-1] if len(finite) > 1 else 0.0)
    axes.errorbar(x, y, [low, high], fmt="o", color=colour, markersize=4, capsize=2, label=arm)
    law = _law(results, arm)
    if law is not None and x:
        compute = np.geomspace(min(x), max(x), 100)
        axes.plot(compute, law.loss(compute), color=colour, linewidth=1.2)
    base = _base(results)
    forecast = next(
        (other.scaling.forecast for other in results.arms if other.scaling and arm in (other.name, base)), None
    )
    if forecast is not None and x:
        estimate = forecast.baseline if arm == base else forecast.arm
        at = x[-1] * (1.12 if arm == base else 1.2)
        ends_of = [[max(0.0, estimate.value - estimate.low)], [max(0.0, estimate.high - estimate.value)]]
        axes.errorbar([at], [estimate.value], ends_of, fmt="s", mfc="none", color=colour, capsize=3, markersize=6)


def _base(results: LadderResults) -> str:
    return results.manifest["baseline"]


def _law(results: LadderResults, arm: str) -> Law | None:
    if arm == _base(results):
        return results.law.law if results.law else None
    return next((entry.scaling.law for entry in results.arms if entry.name == arm and entry.scaling), None)


def _gain(axes: Axes, results: LadderResults, arm: str, colour: Colour, aside: float) -> None:
    """Plot gains with intervals, hollow where the law is extrapolated; distant ends are clipped."""
    entry = next(candidate for candidate in results.arms if candidate.name == arm)
    if entry.scaling is None or entry.scaling.gains is None:
        return
    compute = {rung["name"]: rung["compute"][arm] for rung in results.manifest["rungs"]}
    x, y = [], []
    for at, gain in zip(entry.at, entry.scaling.gains, strict=True):
        if not np.isfinite(gain.log.value):
            continue
        value, low, high = np.exp(
            np.clip([gain.log.value, gain.log.low, gain.log.high], *np.log([1 / LARGEST, LARGEST]))
        )
        fill = "none" if gain.beyond else colour
        place = compute[at.rung] * aside
        axes.errorbar([place], [value], [[value - low], [high - value]], fmt="o", mfc=fill, color=colour, capsize=3)
        x.append(place)
        y.append(value)
    axes.plot(x, y, color=colour, linewidth=1.0, alpha=0.6, label=arm)
    axes.legend(fontsize="small")
