"""Figures of what was tuned: loss over learning rates, and over the parameters of the arms' searches."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from lm.report.figures.chart import SPREAD, Axis, Chart, Figure, FigureInputs, Numbers, Panel, Series, label

BEST, LOST = "the best", "runs that diverged or failed"
"""Meanings of the markers."""


def lr_curve(inputs: FigureInputs) -> Chart | None:
    """Return loss against rate, a line an arm, with best rates and lost runs marked."""
    results, rates = inputs.results, inputs.rates
    if rates is None or not any(np.isfinite(curve.values_rs).any() for curve in rates.curves.values()):
        return None
    series, marked = list[Series](), list[Series]()
    for index, arm in enumerate(results.arms):
        curve = rates.curves[arm]
        finite = np.isfinite(curve.values_rs).all(axis=1)
        x, values = np.array(curve.rates)[finite], curve.values_rs[finite]
        mean, spread = values.mean(axis=1), values.std(axis=1, ddof=1) if values.shape[1] > 1 else np.zeros(len(values))
        tips = {"sd": spread.tolist(), "n": [values.shape[1]] * len(mean)}
        series.append(Series(arm, x, mean, mean - spread, mean + spread, index, tips=tips))
        if curve.best is not None:
            at, height = [curve.rates[curve.best]], [float(curve.values_rs[curve.best].mean())]
            marked.append(Series("", at, height, member=index, mark="points", marker="*"))
        lost_rates = [rate for rate, count in zip(curve.rates, curve.lost_r, strict=True) if count]
        if lost_rates:
            top = curve.untrained if math.isfinite(curve.untrained) else float(np.nanmax(curve.values_rs))
            heights = [top] * len(lost_rates)
            marked.append(Series("", lost_rates, heights, member=index, mark="points", marker="x"))
    ticks = sorted({rate for curve in rates.curves.values() for rate in curve.rates})
    x_axis, y_axis = Axis("optim.lr", log=True, ticks=ticks), Axis(f"{label(rates.grid.headline)}, mean ± sd", "mean")
    panel = Panel(x_axis, y_axis, [*series, *marked], "Learning rates")
    markers = {BEST: "*"} | ({LOST: "x"} if any(mark.marker == "x" for mark in marked) else {})
    note = f"{SPREAD} Stars: the best rates. Crosses: runs that diverged or failed."
    size = (6.4, 4.6)
    return Chart("Learning rates", [panel], results.arms, note, size, legend="below", markers=markers, log=True)


def tuning(inputs: FigureInputs) -> Chart | None:
    """Return loss against each numeric parameter of the arms' searches; None without a complete trial."""
    results, studies = inputs.results, inputs.studies
    if not studies or all(study.complete.empty for study in studies.values()):
        return None
    first = next(iter(studies.values()))
    quantity, panels = next(iter(first.objectives)), []
    for name, described in first.space.items():
        if "choices" in described:
            continue
        trials, envelopes = list[Series](), list[Series]()
        for index, arm in enumerate(results.arms):
            complete = studies[arm].complete.dropna(subset=[name]).sort_values(name)
            if not complete.empty:
                x, y = (complete[column].to_numpy(dtype=float) for column in (name, quantity))
                trials.append(Series("", x, y, member=index, mark="points"))
                envelopes.append(Series(arm, *envelope(x, y, described["log"]), member=index, mark="curve"))
        panels.append(
            Panel(Axis(name, log=described["log"]), Axis(label(quantity)), [*trials, *envelopes], option=name)
        )
    if not panels:
        return None
    size = (4.8 * len(panels) + 1.6, 4.2)
    legend, note = "dots: trials; line: the best so near", "A point a trial; lines: the best of each eighth."
    return Chart(
        "Trials of the searches", panels, results.arms, note, size, len(panels), legend="last", legend_title=legend
    )


def envelope(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray, log: bool) -> tuple[Numbers, Numbers]:
    """Return the lowest trial in each eighth of the range, as other parameters differ between neighbours."""
    place = np.log(x) if log else np.asarray(x, dtype=float)
    frame = pd.DataFrame({"x": x, "y": y, "bin": pd.cut(place, 8, labels=False) if np.ptp(place) else 0})
    lowest = frame.loc[frame.groupby("bin").y.idxmin()]
    return lowest.x.to_numpy(), lowest.y.to_numpy()


FIGURES = (Figure("lr_curve", 20, lr_curve), Figure("tuning", 50, tuning))
