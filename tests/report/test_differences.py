"""The forest plot of paired differences: rows by difference, the best first, with verdicts, health and margins."""

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from messages import CheckMessage
from records import BASE, BETTER, MIXED, MakeExperiment, inside

import lm
from lm.analysis.compare import compare
from lm.analysis.pace import leads
from lm.analysis.results import Records, load
from lm.report.experiment import ExperimentReport
from lm.report.figures import vega
from lm.report.figures.catalogue import FigureInputs
from lm.report.figures.chart import Chart, Forest, Panel
from lm.report.figures.differences import differences, differences_of_several
from lm.report.figures.picture import draw
from lm.report.figures.training import difference_curve

WORSE = [loss + 0.3 + 0.01 * seed for seed, loss in enumerate(BASE)]
CELLS: dict[str, list[Any]] = {
    "base": BASE * 2, "worse": WORSE * 2, "mixed": MIXED * 2, "absent": [None] * 12, "better": BETTER * 2,
}  # fmt: skip
ROWS = ["better", "mixed", "worse", "absent"]


@pytest.fixture(scope="module")
def chart(module_experiment: MakeExperiment) -> Chart:
    """The differences of arms of which one is better, one worse and one not trained, with a margin."""
    chart = differences(ExperimentReport.load(module_experiment(CELLS, margin={"nll": 0.2})).figure_inputs)
    assert chart is not None
    return chart


def forest(chart: Chart) -> Forest:
    panel = chart.panels[0]
    assert isinstance(panel, Forest)
    return panel


def labels(axes: Axes) -> list[str]:
    """Row labels from the top."""
    return [tick.get_text() for tick in axes.get_yticklabels()]


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def diamonds(axes: Axes) -> list[tuple[float, float]]:
    return [(at(line), float(np.asarray(line.get_ydata())[0])) for line in axes.get_lines() if line.get_marker() == "D"]


def at(line: Line2D) -> float:
    """Return where a line begins on the horizontal axis."""
    return float(np.asarray(line.get_xdata())[0])


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_arms_are_sorted_by_difference_with_unknown_ones_last(chart: Chart) -> None:
    panel = forest(chart)
    assert panel.names == ROWS
    expected = [np.mean(np.subtract(values, BASE)) for values in (BETTER, MIXED, WORSE)]
    np.testing.assert_allclose([bar.value for bar in panel.bars][:3], expected, rtol=1e-12)
    (axes,) = draw(chart).axes
    assert labels(axes) == panel.names
    heights = [y for x, y in diamonds(axes) if np.isfinite(x)]
    assert heights == [4, 3, 2], "the best is at the top"


def test_more_is_better_where_a_quantity_says_so(chart: Chart, check_message: CheckMessage) -> None:
    of_accuracy = next(panel for panel in chart.panels if isinstance(panel, Forest) and "accuracy" in panel.option)
    assert of_accuracy.names == ROWS
    check_message(of_accuracy.x.label)
    check_message(forest(chart).x.label)


def test_rows_show_verdict_interval_and_health_beside_reference_lines(
    chart: Chart, check_message: CheckMessage
) -> None:
    (axes,) = draw(chart).axes
    beside = texts(axes)
    assert beside[0].startswith("better\n-0.2650 [")
    assert beside[0].endswith("healthy")
    assert beside[1].startswith("equivalent within 0.2\n+0.0083 [")
    assert beside[2].startswith("worse\n+0.3250 [")
    check_message(beside[3])
    segments = [lines for lines in axes.collections if isinstance(lines, LineCollection)]
    assert {float(segment[0][0]) for lines in segments for segment in lines.get_segments()} == {-0.2, 0.2}
    assert [at(line) for line in axes.get_lines() if np.array_equal(line.get_ydata(), [0, 1])] == [0.0]


def test_an_unhealthy_arm_says_so_and_is_not_filled(experiment: MakeExperiment) -> None:
    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        if arm == "better":
            record |= {"steps": 100, "final": inside({}, [[0.01, 0.01]])}

    inputs = ExperimentReport.load(experiment({"base": BASE, "better": BETTER}, change)).figure_inputs
    chart = differences(inputs)
    assert chart is not None
    (bar,) = forest(chart).bars
    (health,) = compare(inputs.results).query("arm == 'better' and metric == 'nll'").health
    assert bar.texts[0] == "better"
    assert bar.texts[1].endswith(", unhealthy")
    assert bar.tips["health"] == health
    assert (bar.bold, bar.tone) == (False, "")
    (texts,) = vega.draw(chart, chart.panels[0])[1]["texts"]
    assert (texts["brief"], texts["fill"]) == ("better: -0.2650, unhealthy", "currentColor")


def test_narrow_charts_have_brief_text_and_never_say_healthy(chart: Chart) -> None:
    sets = vega.draw(chart, chart.panels[0])[1]
    rows = sets["texts"]
    assert {row["x"] for row in sets["margins"]} == {-0.2, 0.2}
    assert "◇" in chart.note
    assert "│\u00a0margin" in chart.note
    texts, brief, fill = ([row[key] for row in rows] for key in ("text", "brief", "fill"))
    assert texts[0].startswith("better: -0.2650 [")
    assert brief == ["better: -0.2650", "equivalent within 0.2: +0.0083", "worse: +0.3250", texts[3]]
    assert fill == ["var(--good)", "currentColor", "var(--bad)", "currentColor"]
    assert "healthy" not in " ".join(texts)


def test_a_quantity_without_a_direction_has_no_tone(experiment: MakeExperiment) -> None:
    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        record["cost"]["parameters"] = 1000.0 + seed + (arm != "base")

    inputs = ExperimentReport.load(
        experiment({"base": BASE, "better": BETTER}, change, metric="parameters")
    ).figure_inputs
    chart = differences(inputs)
    assert chart is not None
    (bar,) = forest(chart).bars
    assert (bar.texts[0], bar.bold, bar.tone) == ("higher", True, "")


def test_names_of_arms_are_no_formulas(chart: Chart) -> None:
    bar = replace(forest(chart).bars[0], name="$a_$")
    figure = draw(replace(chart, panels=[replace(forest(chart), names=["$a_$"], bars=[bar], points=[])]))
    figure.draw_without_rendering()
    assert labels(figure.axes[0]) == [r"\$a_\$"]


def test_without_a_margin_the_key_names_none(experiment: MakeExperiment) -> None:
    plain = differences(ExperimentReport.load(experiment({"base": BASE, "better": BETTER})).figure_inputs)
    assert plain is not None
    assert "margin" not in plain.note


def test_labels_of_small_differences_have_room(experiment: MakeExperiment) -> None:
    close = [loss + 0.005 + 0.001 * seed for seed, loss in enumerate(BASE)]
    chart = differences(
        ExperimentReport.load(experiment({"base": BASE, "close": close}, margin={"nll": 0.02})).figure_inputs
    )
    assert chart is not None
    figure = draw(chart)
    FigureCanvasAgg(figure).draw()
    axes, low, high = figure.axes[0], *figure.axes[0].get_xlim()
    labels = [tick.label1 for tick in axes.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
    boxes = [label.get_window_extent() for label in labels if label.get_text()]
    assert len(boxes) >= 3
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_ends_that_are_cut_off_have_arrowheads(experiment: MakeExperiment) -> None:
    chart = differences(ExperimentReport.load(experiment({"base": BASE[:3], "better": BETTER[:3]})).figure_inputs)
    assert chart is not None
    (axes,) = draw(chart).axes
    markers = {str(line.get_marker()): at(line) for line in axes.get_lines()}
    assert markers["<"] < -0.2
    assert markers[">"] > 0.2


def test_rows_of_several_experiments_are_grouped(experiment: MakeExperiment) -> None:
    inputs = ExperimentReport.load(experiment(CELLS)).figure_inputs
    of_other = dataclasses.replace(inputs.results, manifest={**inputs.results.manifest, "metric": "accuracy"})
    other = FigureInputs(of_other, compare(of_other))
    chart = differences_of_several([inputs, other, inputs, None])
    assert chart is not None
    of_nll, of_accuracy = (panel for panel in chart.panels if isinstance(panel, Forest))
    assert [name for name in of_nll.names if "\n" not in name] == ["1. demo", "3. demo"]
    assert [name for name in of_accuracy.names if "\n" not in name] == ["2. demo"]
    spec, sets = vega.draw(chart, of_nll)
    assert spec["encoding"]["y"]["scale"]["domain"] == list(of_nll.names)
    assert {row["name"] for row in sets["set0"]} == {name for name in of_nll.names if "\n" in name}


@pytest.mark.parametrize("cells", [{"base": BASE}, {"base": BASE, "lost": ["failed"] * 6}])
def test_there_is_no_figure_without_a_pair(experiment: MakeExperiment, cells: dict[str, list[Any]]) -> None:
    inputs = ExperimentReport.load(experiment(cells)).figure_inputs
    assert differences(inputs) is None
    assert differences_of_several([inputs]) is None


def test_the_public_figure_is_the_picture_of_the_judged_metric(experiment: Callable[..., Any]) -> None:
    (axes,) = lm.figure(lm.load(experiment(CELLS)), "differences").axes
    assert labels(axes) == ROWS


# over training -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results(module_experiment: MakeExperiment) -> Records:
    return load(module_experiment(CELLS))


@pytest.fixture(scope="module")
def over_training(results: Records) -> Chart:
    chart = difference_curve(FigureInputs(results, compare(results)))
    assert chart is not None
    return chart


def test_the_difference_over_training_has_the_band_of_the_arm(over_training: Chart, results: Records) -> None:
    panel = over_training.panels[0]
    assert isinstance(panel, Panel)
    of_arms = {lead.arm: lead for lead in leads(results)}
    assert [series.label.partition("\n")[0] for series in panel.series] == ["worse", "mixed", "better"]
    for series in panel.series:
        lead = of_arms[series.label.partition("\n")[0]]
        np.testing.assert_array_equal(series.y, lead.mean)
        np.testing.assert_array_equal(series.low, lead.low)
        np.testing.assert_array_equal(series.high, lead.high)
    low, high = panel.y.limits or (np.nan, np.nan)
    assert low < min(float(np.min(lead.low)) for lead in of_arms.values())
    assert high > max(0.0, *(float(np.max(lead.high)) for lead in of_arms.values()))


def test_pictures_have_a_panel_per_arm_and_losses_last(over_training: Chart, check_message: CheckMessage) -> None:
    figure = draw(over_training)
    titles = [axes.get_title().split("\n") for axes in figure.axes]
    assert [title[0] for title in titles] == ["worse", "mixed", "better", "Losses"]
    check_message(titles[0][1:])
    check_message([axes.get_ylabel() for axes in figure.axes])
    spec, _ = vega.draw(over_training, over_training.panels[0])
    assert len(over_training.panels) == 2, "the page has all arms in one panel"
    assert spec["layer"][1]["mark"]["clip"]


def test_a_single_seed_has_a_difference_without_a_band(experiment: MakeExperiment) -> None:
    chart = difference_curve(ExperimentReport.load(experiment({"base": [2.0], "arm": [1.9]})).figure_inputs)
    assert chart is not None
    (series,) = chart.panels[0].series  # type: ignore[union-attr]
    assert len(series.low) == 0
