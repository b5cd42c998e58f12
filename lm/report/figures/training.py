"""Figures of training: learning curves, gradient norms over steps, and these by part of the model."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lm.analysis.curve import curve_table
from lm.analysis.pace import CURVES, leads
from lm.analysis.results import Records, curves
from lm.report.figures.catalogue import Figure, FigureInputs
from lm.report.figures.chart import SPREAD, Axis, Chart, Heat, Panel, Series, finite, label

MOST_STEPS = 60  # largest number of steps of a heat map
MOST_SPLIT = 15  # largest number of arms whose differences over training are drawn in panels of their own

DIFFERENCE_NOTE = (
    "Arm minus baseline, mean over the seeds that both have; below the line the arm is ahead. The band covers the "
    "differences at all validations together (95 %, Student's max-t over seeds). The first quarter may leave the panel."
)

THINNED = f"{SPREAD} Of long curves, the steps that keep their shape."


def curve_panel(results: Records, column: str, y: Axis, title: str) -> Panel | None:
    """Return a column of the curves over steps, mean and spread over seeds; None where no run has it."""
    series = []
    for index, arm in enumerate(results.arms):
        frame = curves(results, arm, column)
        if frame.empty:
            continue
        mean, sd = frame.mean(axis=1).to_numpy(), frame.std(axis=1, ddof=1).fillna(0.0).to_numpy()
        tips = {"sd": sd.tolist(), "n": frame.count(axis=1).tolist()}
        label = f"{arm} (n={frame.shape[1]})"
        steps = frame.index.to_numpy()
        series.append(Series(label, steps, mean, mean - sd, mean + sd, index, mark="curve", tips=tips))
    return Panel(Axis("optimiser step", "step"), y, series, title=title) if series else None


def learning_curve(inputs: FigureInputs) -> Chart | None:
    """Return validation loss over steps and training loss; a picture has the first of those that were recorded."""
    losses = {"validation_nll": "validation NLL (nats/token)", "train_loss": "training loss (nats/token)"}
    panels = [curve_panel(inputs.results, name, Axis(text, "mean"), "Learning curve") for name, text in losses.items()]
    return _of_curves(inputs, "Learning curve", panels, wide=True)


def difference_curve(inputs: FigureInputs) -> Chart | None:
    """Return the differences to the baseline over training, with a simultaneous band, beside the losses."""
    results, series = inputs.results, list[Series]()
    for lead in leads(results):
        steps, count = lead.by_seed.index.to_numpy(), lead.by_seed.shape[1]
        band: dict[str, Any] = {"low": lead.low, "high": lead.high} if count > 1 else {}
        tips: dict[str, Sequence[Any]] = {"n": [count] * len(steps)}
        words = lead.words().replace(", the whole band from step", "\nits band from")
        member = results.arms.index(lead.arm)
        series.append(Series(f"{lead.arm}\n{words}", steps, lead.mean, member=member, mark="curve", tips=tips, **band))
    if not series:
        return None
    column = CURVES.get(results.headline, CURVES["nll"])
    losses = curve_panel(results, column, Axis(label(column.removeprefix("validation_")), "mean"), "Losses")
    late = [values[len(line.x) // 4 :] for line in series for values in (line.y, line.low, line.high)]
    numbers = [0.0, *(number for values in late for number in finite(values))]
    margin = 0.05 * (max(numbers) - min(numbers)) or 1.0
    limits = min(numbers) - margin, max(numbers) + margin  # of all after the first quarter of the validations
    y = Axis(f"difference to {results.arms[0]}", "difference", limits=limits)
    x, split = Axis("optimiser step", "step"), len(series) <= MOST_SPLIT
    panel = Panel(x, y, series, option="difference to the baseline", horizontal=0, split=split)
    panels = [panel] if losses is None else [panel, losses]
    return Chart("Difference over training", panels, results.arms, DIFFERENCE_NOTE, (2.9, 2.5), 4, wide=True)


def gradient_norm(inputs: FigureInputs) -> Chart | None:
    """Return the norm of the gradient before clipping over steps."""
    y = Axis("gradient norm before clipping", "mean", log=True)
    return _of_curves(inputs, "Gradient norm", [curve_panel(inputs.results, "gradient_norm", y, "Gradient norm")])


def learning_rate(inputs: FigureInputs) -> Chart | None:
    """Return the learning rate over steps."""
    y = Axis("learning rate", "mean")
    return _of_curves(inputs, "Learning rate", [curve_panel(inputs.results, "learning_rate", y, "Learning rate")])


def _of_curves(inputs: FigureInputs, title: str, panels: Sequence[Panel | None], wide: bool = False) -> Chart | None:
    recorded = [panel for panel in panels if panel is not None]
    if not recorded:
        return None
    names, legend = inputs.results.arms, "mean ± sd over seeds"
    return Chart(title, recorded, names, THINNED, legend_title=legend, log=True, wide=wide)


def gradients_by_step(inputs: FigureInputs) -> Chart | None:
    """Return gradient norms by part of the model and step, averaged over seeds, a map an arm on one scale."""
    results, by_arm = inputs.results, dict[str, dict[tuple[str, int], float]]()
    for arm in results.arms:
        over_seeds: dict[tuple[str, int], list[float]] = {}
        for record in results.of(arm):
            if record["status"] == "ok" and record["id"] not in results.corrupt_curves:
                for part, step, norm in gradients(results.store.history(record["id"])):
                    over_seeds.setdefault((part, step), []).append(norm)
        if over_seeds:
            by_arm[arm] = {at: float(np.mean(norms)) for at, norms in over_seeds.items()}
    if not by_arm:
        return None
    values = [value for norms in by_arm.values() for value in norms.values()]
    scale = ("gradient norm", min(values), max(values))
    panels = []
    for arm, norms in by_arm.items():
        parts, steps = list(dict.fromkeys(part for part, _ in norms)), sorted({step for _, step in norms})
        grid = np.array([[norms.get((part, step), np.nan) for step in steps] for part in parts])
        x = Axis("optimiser step", "step", names=[str(step) for step in steps])
        panels.append(Heat(x, Axis("", "part", names=parts), grid, scale, log=True, title=arm, option=arm))
    note = "Norm before clipping, mean over seeds; maps beside each other have one scale."
    size = (3.4, 1.2 + 0.22 * len(panels[0].y.names))
    return Chart("Gradients by layer and step", panels, (), note, size, 4, arms=False)


def gradients(path: Path) -> list[tuple[str, int, float]]:
    """Read part, step and norm from the file of a curve, at evenly spaced steps."""
    if not path.is_file() or path.suffix != ".csv":
        return []
    with path.open(encoding="utf-8") as file:
        if "gradient_norm/" not in file.readline():
            return []
    frame = curve_table(path, parts=True)
    columns = parts_of(list(frame.columns))
    if not columns:
        return []
    frame = frame[list(columns.values())].set_axis(list(columns), axis=1)
    frame = frame[frame.iloc[:, 0].notna()]
    rows = np.unique(np.linspace(0, max(0, len(frame) - 1), min(MOST_STEPS, len(frame))).astype(int))
    in_order = (
        (part, int(str(step)), float(row[part])) for step, row in frame.iloc[rows].iterrows() for part in columns
    )
    return [(part, step, norm) for part, step, norm in in_order if np.isfinite(norm) and norm > 0]


def parts_of(heads: Sequence[str]) -> dict[str, str]:
    """Return the parts of a model that have gradient columns and others below them, in order, and these columns."""
    names = [name.removeprefix("gradient_norm/") for name in heads if name.startswith("gradient_norm/")]
    above = {name.rpartition(".")[0] for name in names}
    column_of = {}
    for name in names:
        part = name.removesuffix(".all")
        if part in above and (name != part or f"{name}.all" not in names) and not re.search(r"\.all\.", name):
            column_of[part] = f"gradient_norm/{name}"
    return column_of


FIGURES = (
    Figure("learning_curve", 10, learning_curve),
    Figure("difference_curve", 8, difference_curve),
    Figure("gradient_norm", 61, gradient_norm),
    Figure("learning_rate", 70, learning_rate),
    Figure("gradients_by_step", 90, gradients_by_step),
)
