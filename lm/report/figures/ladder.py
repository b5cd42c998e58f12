"""The figure of a ladder: loss against compute with its laws and the forecast, and gains against compute."""

import numpy as np

from lm.analysis.ladder import LadderResults, losses
from lm.report.figures.chart import Axis, Chart, Panel, Series
from lm.report.figures.picture import RenderedFigures, render_all
from lm.report.ladder import shown_arms
from lm.report.tables import heading
from lm.stats.scaling import Law
from lm.stats.tests import t_interval

NAME = "ladder"
LARGEST = 20.0
"""Factor beyond which the end of a gain's interval is not drawn."""

COMPUTE = "training FLOPs of a run"


def draw_ladder(results: LadderResults) -> RenderedFigures:
    """Draw and render the figure, by name."""
    return render_all([(NAME, ladder_chart(results))])


def ladder_chart(results: LadderResults) -> Chart:
    """Return loss and gain against compute."""
    arms = shown_arms(results)
    of_loss = [series for index, arm in enumerate(arms) for series in _loss(results, arm, index)]
    of_gain: list[Series] = []
    for index, arm in enumerate(arms[1:], 1):
        of_gain += _gain(results, arm, index, 1 + 0.04 * (index - len(arms) / 2))
    x, y = Axis(COMPUTE, log=True), Axis(heading(results.manifest["metric"]))
    gain = Axis("compute-equivalent gain", log=True)
    panels = [
        Panel(x, y, of_loss, "Loss against compute"),
        Panel(x, gain, of_gain, "Worth in compute, 95 % intervals", horizontal=1.0),
    ]
    legend = "line: law through all rungs\nsquare: forecast of the top one"
    return Chart("Ladder", panels, arms, size=(10.0, 4.4), columns=2, legend="each", legend_title=legend)


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
    law, base = _law(results, arm), results.manifest["baseline"]
    if law is not None and x:
        compute = np.geomspace(min(x), max(x), 100)
        series.append(Series("", compute, law.loss(compute), member=index, mark="curve"))
    of_arm = (entry.scaling.forecast for entry in results.arms if entry.scaling and arm in (entry.name, base))
    forecast = next(of_arm, None)
    if forecast is not None and x:
        estimate = forecast.baseline if arm == base else forecast.arm
        at, value = [x[-1] * (1.12 if arm == base else 1.2)], [estimate.value]
        square = Series(
            "", at, value, [estimate.low], [estimate.high], index, "points", bars=True, marker="s", hollow=True
        )
        series.append(square)
    return series


def _law(results: LadderResults, arm: str) -> Law | None:
    if arm == results.manifest["baseline"]:
        return results.law.law if results.law else None
    return next((entry.scaling.law for entry in results.arms if entry.name == arm and entry.scaling), None)


def _gain(results: LadderResults, arm: str, index: int, aside: float) -> list[Series]:
    """Return gains with intervals, hollow where the law is extrapolated; distant ends are clipped."""
    entry = next(candidate for candidate in results.arms if candidate.name == arm)
    if entry.scaling is None or entry.scaling.gains is None:
        return []
    compute = {rung["name"]: rung["compute"][arm] for rung in results.manifest["rungs"]}
    points, x, y = [], [], []
    for at, gain in zip(entry.at, entry.scaling.gains, strict=True):
        if np.isfinite(gain.log.value):
            logs = np.clip([gain.log.value, gain.log.low, gain.log.high], *np.log([1 / LARGEST, LARGEST]))
            value, low, high = np.exp(logs).tolist()
            x.append(compute[at.rung] * aside)
            y.append(value)
            hollow = bool(gain.beyond)
            points.append(Series("", x[-1:], [value], [low], [high], index, "points", bars=True, hollow=hollow))
    return [*points, Series(arm, x, y, member=index, mark="curve")]
