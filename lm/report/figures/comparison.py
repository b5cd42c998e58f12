"""Figures that compare arms: loss over costs, settings and tuned parameters, reliability."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from lm.analysis.results import Records, value
from lm.report.figures.catalogue import Figure, FigureInputs
from lm.report.figures.chart import (
    SPREAD,
    Axis,
    Chart,
    Numbers,
    Panel,
    Series,
    finite,
    label,
    mean_of_arm,
    mean_over_seeds,
)
from lm.store.validation import is_number

COSTS = {
    "parameters": "parameters",
    "train_seconds": "training seconds",
    "tokens": "training tokens",
    "flops": "training FLOPs",
    "peak_memory": "peak memory (MiB)",
    "energy": "energy (J)",
}

CALIBRATED = "perfectly calibrated"


def costs(inputs: FigureInputs) -> Chart | None:
    """Return each arm's headline over each measured cost."""
    results, panels = inputs.results, []
    y = Axis(label(results.headline), "mean")
    for name, text in COSTS.items():
        series = []
        for index, arm in enumerate(results.arms):
            runs = [record for record in results.of(arm) if record["status"] == "ok"]
            factors = ("flops_per_token", "tokens") if name == "flops" else (name,)
            cost = finite(math.prod(value(record, factor) for factor in factors) for record in runs)
            loss = finite(value(record, results.headline) for record in runs)
            if cost and loss:
                series.append(mean_of_arm(arm, float(np.mean(cost)), loss, index))
        if series:
            panels.append(Panel(Axis(text), y, series, option=text))
    return _scatters(results, "Loss against cost", panels, SPREAD)


def settings(inputs: FigureInputs) -> Chart | None:
    """Return the headline over each number in which at least three arms differ."""
    results, panels = inputs.results, []
    changes: dict[str, Any] = {arm: results.manifest["arms"][arm]["changes"] for arm in results.arms}
    defaults = {path: pair[0] for of_arm in changes.values() for path, pair in of_arm.items() if is_number(pair[0])}
    loss_axis = Axis(label(results.headline), "mean")
    for path, default in defaults.items():
        at = {arm: of_arm[path][1] if path in of_arm else default for arm, of_arm in changes.items()}
        if len({number for number in at.values() if is_number(number)}) < 3:
            continue
        series: list[Series] = []
        alike: dict[str, list[tuple[float, float]]] = {}
        for index, arm in enumerate(results.arms):
            loss = finite(value(record, results.headline) for record in results.of(arm))
            if loss and is_number(at[arm]):
                rest = {name: pair for name, pair in changes[arm].items() if name != path}
                others = ", ".join(f"{name.rpartition('.')[2]} {pair[1]}" for name, pair in rest.items())
                alike.setdefault(others, []).append((float(at[arm]), float(np.mean(loss))))
                series.append(mean_of_arm(arm, float(at[arm]), loss, index))
        joined = [sorted(points) for points in alike.values() if len(points) > 1]
        through = [Series("", [x for x, _ in points], [y for _, y in points], mark="curve") for points in joined]
        panels.append(Panel(Axis(path), loss_axis, [*through, *series], option=path))
    return _scatters(results, "Loss over what was varied", panels, f"{SPREAD} Lines join arms alike in all else.")


def _scatters(results: Records, title: str, panels: list[Panel], note: str) -> Chart | None:
    return Chart(title, panels, results.arms, note, (3.2, 2.8), 3, log=True) if panels else None


BEST, LOST = "the best", "runs that diverged or failed"  # meanings of the markers


def lr_curve(inputs: FigureInputs) -> Chart | None:
    """Return loss against rate, a line an arm, with best rates and lost runs marked."""
    results, rates = inputs.results, inputs.rates
    if rates is None or not any(np.isfinite(curve.values_rs).any() for curve in rates.curves.values()):
        return None
    series, marked = list[Series](), list[Series]()
    for index, arm in enumerate(results.arms):
        curve = rates.curves[arm]
        finite = np.isfinite(curve.values_rs).all(axis=1)
        series.append(mean_over_seeds(arm, np.array(curve.rates)[finite], curve.values_rs[finite].T, index))
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
    panel = Panel(x_axis, y_axis, [*series, *marked], title="Learning rates")
    markers = {BEST: "*"} | ({LOST: "x"} if any(mark.marker == "x" for mark in marked) else {})
    note = f"{SPREAD} Stars: the best rates. Crosses: runs that diverged or failed."
    return Chart("Learning rates", [panel], results.arms, note, (6.4, 4.6), markers=markers, log=True)


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
        x_axis = Axis(name, log=described["log"])
        panels.append(Panel(x_axis, Axis(label(quantity)), [*trials, *envelopes], option=name))
    if not panels:
        return None
    legend, note = "dots: trials; line: the best so near", "A point a trial; lines: the best of each eighth."
    return Chart("Trials of the searches", panels, results.arms, note, (4.8, 4.2), 3, legend_title=legend)


def envelope(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray, log: bool) -> tuple[Numbers, Numbers]:
    """Return the lowest trial in each eighth of the range, as other parameters differ between neighbours."""
    place = np.log(x) if log else np.asarray(x, dtype=float)
    frame = pd.DataFrame({"x": x, "y": y, "bin": pd.cut(place, 8, labels=False) if np.ptp(place) else 0})
    lowest = frame.loc[frame.groupby("bin").y.idxmin()]
    return lowest.x.to_numpy(), lowest.y.to_numpy()


def reliability(inputs: FigureInputs) -> Chart | None:
    """Return accuracy against confidence, their gap, and the tokens in each bin, pooled over seeds."""
    results, bins = inputs.results, 15
    diagonal = Series(CALIBRATED, [0, 1], [0, 1], mark="curve", style=CALIBRATED)
    of_diagram, of_gap, of_tokens = [diagonal], list[Series](), list[Series]()
    for index, arm in enumerate(results.arms):
        diagrams = [diagram for record in results.of(arm) if (diagram := record["reliability"])]
        diagrams = [diagram for diagram in diagrams if len(diagram["count"]) == len(diagrams[0]["count"])]
        if not diagrams:
            continue
        frames = [pd.DataFrame(diagram)[["count", "confidence", "accuracy"]] for diagram in diagrams]
        count = sum(frame["count"] for frame in frames)
        frame = sum(frame.mul(frame["count"], axis=0) for frame in frames).div(count.clip(1), axis=0)
        bins, share = len(frame), count / count.sum()
        per_seed = (count / len(diagrams)).to_numpy(dtype=float)
        of_tokens.append(Series(arm, np.linspace(0, 1, bins + 1), per_seed, member=index, mark="bins"))
        frame, tips = frame[share > 1e-3], {"share": share[share > 1e-3].tolist()}
        x, gap = frame.confidence.to_numpy(), (frame.accuracy - frame.confidence).to_numpy()
        of_diagram.append(Series(arm, x, frame.accuracy.to_numpy(), member=index, tips=tips))
        of_gap.append(Series(arm, x, gap, member=index, tips=tips))
    if not of_gap:
        return None
    x_axis = Axis("confidence", limits=(0, 1))
    y_axis = Axis("accuracy", "accuracy", limits=(0, 1))
    panels = [
        Panel(x_axis, y_axis, of_diagram, title=f"Reliability, {bins} bins"),
        Panel(x_axis, Axis("accuracy\n- confidence", "gap"), of_gap, option="accuracy - confidence", horizontal=0),
        Panel(x_axis, Axis("tokens a bin,\nmean over seeds", "tokens", log=True), of_tokens, option="tokens a bin"),
    ]
    note = "Bins pooled over seeds; those with under 0.1 % of the tokens are left out."
    return Chart("Reliability", panels, results.arms, note, (6.4, 2.2), 1, (3.2, 1.2, 1.2), styles={CALIBRATED: "--"})


FIGURES = (
    Figure("lr_curve", 6, lr_curve),
    Figure("tuning", 9, tuning),
    Figure("reliability", 60, reliability),
    Figure("costs", 64, costs),
    Figure("settings", 66, settings),
)
