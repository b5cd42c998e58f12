"""Figures of pages without scripts: of a ladder, and of runs that others trained."""

import math

import numpy as np
import pandas as pd

from lm.analysis.external.runs import Runs
from lm.analysis.ladder import ArmOf, LadderResults, losses
from lm.report.figures.chart import Axis, Chart, Forest, Panel, Series, label
from lm.report.figures.differences import ROW, WIDTH, difference_bar
from lm.report.tables import ARROWS, compared, heading
from lm.stats.tests import t_interval

NAME = "ladder"
LARGEST = 20.0  # factor beyond which the end of a gain's interval is not drawn
ASIDE = 0.05  # distance of a forecast from its point, as a share of a logarithmic axis; that of an arm is twice as far

COMPUTE = "training FLOPs of a run"


def ladder_chart(results: LadderResults) -> Chart:
    """Return loss and gain against compute."""
    arms = results.names
    of_loss = [series for index, arm in enumerate(arms) for series in _loss(results, arm, index)]
    of_gain: list[Series] = []
    for index, arm in enumerate(arms[1:], 1):
        for line, entries in results.by_ratio:
            entry = next(candidate for candidate in entries if candidate.name == arm)
            labelled = arm if line is results.lines[0] else ""
            of_gain += _gain(results, entry, labelled, index, 1 + 0.04 * (index - len(arms) / 2))
    x, y = Axis(COMPUTE, log=True), Axis(heading(results.manifest["metric"]))
    gain = Axis("compute-equivalent gain", log=True)
    panels = [
        Panel(x, y, of_loss, title="Loss against compute"),
        Panel(x, gain, of_gain, title="Worth in compute, 95 % intervals", horizontal=1.0),
    ]
    main = results.lines[0]
    note = f"Line: law through all rungs{f' at {main.at}' if main.along else ''}; square: forecast of the top one."
    return Chart("Ladder", panels, arms, note, (5.0, 4.4), 2, legend_title=note, arms=False, apart=True)


def _loss(results: LadderResults, arm: str, index: int) -> list[Series]:
    """Return means with intervals, the law through them, and the forecast beside the top rung."""
    x, y, low, high = list[float](), list[float](), list[float](), list[float]()
    for rung, rung_results in zip(results.manifest["rungs"], results.rungs, strict=True):
        values = losses(rung_results, arm)
        finite = values[np.isfinite(values)]
        if len(finite):
            mean = float(finite.mean())
            ends = t_interval(finite.tolist()) if len(finite) > 1 else (mean, mean)
            x.append(rung["compute"][arm])
            for numbers, number in zip((y, low, high), (mean, *ends), strict=True):
                numbers.append(number)
    series = [Series(arm, x, y, low, high, index, mark="points", bars=True)]
    base = results.manifest["baseline"]
    of_arm = (entry.scaling.law for entry in results.arms if entry.name == arm and entry.scaling)
    law = next(of_arm, None) if arm != base else results.law.law if results.law else None
    tops = [results.manifest["rungs"][place]["compute"][arm] for place in results.lines[0].rungs]
    x = [compute for compute in x if compute in tops]  # of the main line, which law and forecast are of
    if law is not None and x:
        compute = np.geomspace(min(x), max(x), 100)
        series.append(Series("", compute, law.loss(compute), member=index, mark="curve"))
    of_top = (entry.scaling.forecast for entry in results.arms if entry.scaling and arm in (entry.name, base))
    forecast = next(of_top, None)
    if forecast is not None and x:
        estimate = forecast.baseline if arm == base else forecast.arm
        aside = (max(x) / min(x)) ** (ASIDE if arm == base else 2 * ASIDE)
        at, interval = [x[-1] * aside], ([estimate.low], [estimate.high])
        series.append(Series("", at, [estimate.value], *interval, index, "points", bars=True, marker="s", hollow=True))
    return series


def _gain(results: LadderResults, entry: ArmOf, labelled: str, index: int, aside: float) -> list[Series]:
    """Return gains with intervals, hollow where the law is extrapolated; distant ends are clipped."""
    gains = {at.rung: at.gain for at in entry.at if at.gain is not None}
    if not gains:
        return []
    compute = {rung["name"]: rung["compute"][entry.name] for rung in results.manifest["rungs"]}
    points, x, y = [], [], []
    for rung, gain in gains.items():
        if np.isfinite(gain.log.value):
            logs = np.clip([gain.log.value, gain.log.low, gain.log.high], *np.log([1 / LARGEST, LARGEST]))
            value, low, high = np.exp(logs).tolist()
            x.append(compute[rung] * aside)
            y.append(value)
            hollow = bool(gain.beyond)
            points.append(Series("", x[-1:], [value], [low], [high], index, "points", bars=True, hollow=hollow))
    return [*points, Series(labelled, x, y, member=index, mark="curve")]


def differences(runs: Runs, table: pd.DataFrame) -> Chart | None:
    """Return a forest plot of each judged quantity: filled where significant, bars for joint intervals."""
    rows = table[table.metric.isin(runs.judged) & table.difference.notna()]
    if rows.empty:
        return None
    title = f"{'Paired' if runs.paired else 'Unpaired'} differences, joint 95 % intervals"
    panels: list[Forest] = []
    for quantity in runs.judged:
        bars = [difference_bar(row, str(row.verdict)) for row in compared(rows, quantity, runs.better[quantity])]
        x = Axis(f"{axis_label(runs, quantity)}, arm - {runs.arms[0]}")
        panels.append(Forest(x, [bar.name for bar in bars], bars, title="" if panels else title))
    return Chart("Differences", panels, (), f"{title}.", (WIDTH, 1.0 + ROW * len(runs.arms)), 1, arms=False)


def every_run(runs: Runs) -> Chart | None:
    """Return each judged quantity of every run that ended well; lines join the runs of a seed."""
    title, panels = "Runs that ended well" + (", a line a seed" if runs.paired else ""), list[Panel]()
    x, finite = Axis("", names=runs.arms, limits=(-0.5, len(runs.arms) - 0.5)), False
    for quantity in runs.judged:
        values = np.array([[runs.value(arm, seed, quantity) for arm in runs.arms] for seed in runs.seeds])
        values[~np.isfinite(values)] = math.nan
        finite |= bool(np.isfinite(values).any())
        series = [Series("", range(len(runs.arms)), row, mark="curve") for row in values] if runs.paired else []
        for index in range(len(runs.arms)):
            places = np.full(len(runs.seeds), index)
            series.append(Series("", places, values[:, index], member=index, mark="points"))
        panels.append(Panel(x, Axis(axis_label(runs, quantity)), series, title="" if panels else title))
    size = (2.0 + 0.7 * len(runs.arms), 4.0)
    return Chart("Runs", panels, runs.arms, f"{title}.", size, len(panels), arms=False) if finite else None


def axis_label(runs: Runs, quantity: str) -> str:
    """Return the axis label of a quantity: name, unit and direction."""
    return label(quantity) + ARROWS[runs.better[quantity]]
