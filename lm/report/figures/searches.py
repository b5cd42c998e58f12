"""Figures of a search."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lm.report.figures.chart import Axis, Bar, Chart, Forest, Panel, Series, label
from lm.report.study import ABSENT, STATES, Importance, Study, format_value, position


def format_settings(study: Study, row: Any) -> str:
    """Format the values of a trial's parameters in a line."""
    texts = {name: format_value(row[name]) for name in study.shown_space}
    return ", ".join(f"{name} {text}" for name, text in texts.items() if text != "-")


def _trials(study: Study, frame: pd.DataFrame, x: Sequence[float], y: str, **how: Any) -> Series:
    """Return a point a trial, whose tooltip has its number and settings."""
    tips = {"trial": frame.number.tolist(), "settings": [format_settings(study, row) for _, row in frame.iterrows()]}
    return Series("trial", x, frame[y].to_numpy(dtype=float), mark="points", tips=tips, **how)


def history(study: Study) -> Chart | None:
    """Return the first objective of each trial in order, and the best so far."""
    quantity, direction = next(iter(study.objectives.items()))
    complete = study.complete.sort_values("number")
    if complete.empty or len(study.objectives) > 1:
        return None
    best = complete[quantity].cummin() if direction == "lower" else complete[quantity].cummax()
    line = Series("best so far", complete.number.to_numpy(), best.to_numpy(dtype=float), member=0, mark="steps")
    x, y = Axis("trial", integers=True), Axis(label(quantity), "value")
    panel = Panel(x, y, [_trials(study, complete, complete.number.tolist(), quantity), line], title="Search")
    note = "Points: trials; line: the best so far."
    return Chart("Search", [panel], [line.label], note, arms=False, log=True)


def slices(study: Study) -> Chart | None:
    """Return the first objective against each parameter, over the trials that drew it."""
    quantity, panels = next(iter(study.objectives)), []
    values = study.complete[quantity]
    margin = 0.05 * float(np.ptp(values)) if len(values) > 1 else 0.0
    y = Axis(label(quantity), "value", limits=(values.min() - margin, values.max() + margin) if margin else None)
    for name, described in study.shown_space.items():
        complete = study.complete[study.complete[name].notna()]
        if complete.empty:
            continue
        choices = [str(choice) for choice in described.get("choices", ())]
        if choices:
            x = Axis(name, names=choices, limits=(-0.5, len(choices) - 0.5))
            places = [described["choices"].index(value) for value in complete[name]]
        else:
            low, high, log = described["low"], described["high"], described["log"]
            ends = (low - 0.03 * (high - low), high + 0.03 * (high - low))
            x = Axis(name, log=log, limits=(low * (low / high) ** 0.03, high * (high / low) ** 0.03) if log else ends)
            places = complete[name].astype(float).tolist()
        points = _trials(study, complete, places, quantity)
        panels.append(Panel(x, y, [points], option=f"Over {name}"))
    if not panels:
        return None
    return Chart("Over each parameter", panels, (), "", (3.4, 3.0), 3, arms=False, log=True, apart=True)


def parallel_coordinates(study: Study) -> Chart | None:
    """Return a line for each trial across the axes of all parameters, coloured by the first objective."""
    quantity, direction = next(iter(study.objectives.items()))
    complete, names = study.complete, list(study.shown_space)
    if len(complete) < 2 or len(names) < 2:
        return None
    lines = []
    for _, row in complete.sort_values(quantity, ascending=direction != "lower").iterrows():
        heights = [position(row[name], study.shown_space[name]) for name in names]
        tips: dict[str, Sequence[Any]] = {"trial": [int(row.number)] * len(names)}
        tips["settings"] = [format_settings(study, row)] * len(names)
        lines.append(Series("", range(len(names)), heights, mark="curve", shade=float(row[quantity]), tips=tips))
    texts = [
        (float(place), height, text)
        for place, name in enumerate(names)
        for height, text in ticks(study.shown_space[name], bool(complete[name].isna().any()))
    ]
    x, y = Axis("", names=names), Axis("", "position", limits=(ABSENT - 0.05, 1.05), hidden=True)
    title, shades = "Trials across parameters", (label(quantity), direction == "lower")
    verticals = {float(place): "" for place in range(len(names))}
    panel = Panel(x, y, lines, title=title, verticals=verticals, texts=texts, shades=shades)
    size = (max(6.4, 1.9 * len(names)), 4.6)
    return Chart(title, [panel], (), "A line a trial.", size, arms=False)


def ticks(described: Mapping[str, Any], absent: bool) -> list[tuple[float, str]]:
    """Return heights and texts along the axis of a parameter."""
    values = described.get("choices") or [described["low"], described["high"]]
    marks = [(position(v, described), v if isinstance(v, str) else f"{v:zg}") for v in values]
    return [*marks, (ABSENT, "not drawn")] if absent else marks


def pareto(study: Study) -> Chart | None:
    """Return two objectives against each other, with the Pareto front."""
    if len(study.objectives) != 2 or study.complete.empty:
        return None
    up, across = study.objectives
    front = study.best.sort_values(across)
    values = study.complete[across].to_numpy(dtype=float)
    log = bool(np.all(values > 0) and values.max() > 10 * values.min())
    x, y = Axis(label(across), "x", log=log), Axis(label(up), "y")
    line = Series("Pareto front", front[across].to_numpy(dtype=float), front[up].to_numpy(dtype=float), member=0)
    panel = Panel(x, y, [_trials(study, study.complete, values.tolist(), up, hollow=True), line], title="Pareto front")
    return Chart("Pareto front", [panel], [line.label], "On the line: no other trial beats it in both.", arms=False)


def tuning_curves(study: Study) -> Chart | None:
    """Return the values that trials reported on their way, a line a trial."""
    states = {int(row["number"]): str(row["state"]) for _, row in study.trials.iterrows()}
    present = [state for state in STATES if state in states.values()]
    series: list[Series] = []
    for trial in study.manifest["study"]:
        reported = sorted((int(step), value) for step, value in (trial.get("reported") or {}).items())
        if reported:
            steps = [step for step, _ in reported]
            values = [math.nan if value is None else value for _, value in reported]
            tips = {"trial": [trial["number"]] * len(steps)}
            index = present.index(states[trial["number"]])
            first = index not in {line.member for line in series}
            series.append(Series(present[index] if first else "", steps, values, member=index, tips=tips))
    if not series:
        return None
    y = Axis(label(next(iter(study.objectives))), "value")
    panel = Panel(Axis("optimiser step", "step"), y, series, title="Tuning curves")
    return Chart("Tuning curves", [panel], present, "A line a trial.", arms=False, log=True)


def importance_chart(importances: Mapping[str, list[Importance]]) -> Chart | None:
    """Return each parameter's share of the variance of each objective, with its interval."""
    panels, x = list[Forest](), Axis("share of the variance")
    for quantity, entries in importances.items():
        bars = [Bar(entry.name, entry.share, entry.low, entry.high, bold=True) for entry in entries]
        panels.append(Forest(x, [bar.name for bar in bars], bars, zero=False, option=label(quantity)))
    note = "Points: shares; bars: 95 % bootstrap intervals over trials."
    return Chart("Shares of the variance", panels, note=note, arms=False) if panels else None


FIGURES: dict[str, Callable[[Study], Chart | None]] = {
    make.__name__: make for make in (pareto, history, slices, parallel_coordinates, tuning_curves)
}
"""Figures of a search by name; a report writes the first of those that have data."""
