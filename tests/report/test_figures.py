"""Figures draw what the records hold, as PNG and SVG."""

import io
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import StepPatch
from messages import CheckMessage
from PIL import Image
from records import MakeExperiment, inside

from lm.analysis.compare import compare
from lm.analysis.results import load
from lm.report.experiment import ExperimentReport
from lm.report.figures.catalogue import FigureInputs, figures
from lm.report.figures.chart import Panel
from lm.report.figures.comparison import settings
from lm.report.figures.inside import MOMENTS, MOST_MAPS, attention_entropy, log_edges
from lm.report.figures.picture import DOTS_PER_INCH, draw, render, render_all
from lm.store.files import write_atomic

CELLS: dict[str, list[Any]] = {"base": [2.0, 2.4, 2.2], "arm": [1.0, "diverged", 1.5]}
STEPS = np.array([10, 20, 30])
DEPTHS = {"base": 2, "arm": 3}
Change = Callable[[str, int, dict[str, Any]], None]


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    plt.close("all")


def looked_inside(arm: str, seed: int, record: dict[str, Any]) -> None:
    """Gives a record what newer runs hold: a simple function of the arm, the seed and the moment."""
    layers = DEPTHS.get(arm) or int(arm.rpartition("_")[2])
    for time, moment in enumerate(("initial", "final"), 1):
        scale = (seed + 1) * 10.0**-time
        record[moment] = inside(
            gradient_norm={
                "query": [scale * (layer + 1) for layer in range(layers)],
                "mlp_out": [scale * layers**-0.5 / (layers - layer) for layer in range(layers)],
                "head": [1.0],
            },
            entropy=[[(layer + head + seed) / 10 / time for head in range(2)] for layer in range(layers)],
            residual_norm=[scale + layer for layer in range(layers)],
        )


def at_lengths(arm: str, seed: int, record: dict[str, Any]) -> None:
    """Gives a record evaluations at three lengths, of which one is an error for `arm`."""
    found: dict[str, Any] = {
        str(n): {
            "tokens": 512,
            "nll": 2 + seed + 1 / n,
            "sliding_nll": 1.5 + seed + 1 / n,
            "by_position": [seed + 1 / (position + 1) for position in range(n)],
        }
        for n in (8, 16, 64)
    }
    record["evaluations"] = {"lengths": found | ({"64": {"error": "no position 64"}} if arm == "arm" else {})}


def everything(arm: str, seed: int, record: dict[str, Any]) -> None:
    looked_inside(arm, seed, record)
    at_lengths(arm, seed, record)


def picture(folder: Path, name: str) -> Figure:
    """The picture of one figure of an experiment."""
    chart = ExperimentReport.load(folder).figures()[name]()
    assert chart is not None
    return draw(chart)


def drawn_at(line: Line2D) -> np.ndarray:
    """Where the points of a line lie on the vertical axis."""
    return np.asarray(line.get_ydata(), dtype=float)


def lines(axes: Axes) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Labelled lines of a plot: x and y."""
    return {
        str(line.get_label()): (np.asarray(line.get_xdata()), np.asarray(line.get_ydata())) for line in axes.get_lines()
    }


def full_report(experiment: MakeExperiment, change: Change) -> ExperimentReport:
    """An experiment whose second arm has another depth."""
    results = load(experiment(CELLS, change))
    results.manifest["arms"]["arm"]["changes"] = {"model.layers": (2, 3)}
    return ExperimentReport(results, compare(results), [])


def test_a_png_looks_as_it_was_drawn(experiment: MakeExperiment) -> None:
    chart = ExperimentReport.load(experiment(CELLS)).figures()["learning_curve"]()
    assert chart is not None
    figure = draw(chart)
    written = Image.open(io.BytesIO(render(figure)["png"]))
    figure.set_dpi(DOTS_PER_INCH)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    drawn, colours = np.asarray(canvas.buffer_rgba(), dtype=float), np.asarray(written.convert("RGB"), dtype=float)
    differences = drawn[..., :3] - colours
    assert written.mode == "P"
    assert np.sqrt((differences**2).mean()) < 2, "of 255, for 256 colours"


@pytest.mark.extra
def test_every_figure_is_rendered_as_png_and_svg(experiment: MakeExperiment) -> None:
    rendered = render_all(full_report(experiment, everything).charts())
    assert set(rendered) == set(figures()) - {"lr_curve", "tuning", "settings", "gradients_by_step", "learning_rate"}
    assert all(files.keys() == {"png", "svg"} for files in rendered.values())
    for files in rendered.values():
        assert files["png"].startswith(b"\x89PNG\r\n\x1a\n")
        assert ElementTree.fromstring(files["svg"].decode()).tag.endswith("svg")
    assert plt.get_fignums() == []


ALWAYS = {"difference_curve", "learning_curve", "gradient_norm", "reliability", "differences", "costs"}
INSIDE = {"gradient_norm_by_layer", "gradient_norm_over_depth", "residual_norm_by_layer", "attention_entropy"}


@pytest.mark.parametrize(
    ("change", "more"),
    [(lambda *_: None, set()), (looked_inside, INSIDE), (at_lengths, {"nll_by_length", "loss_by_position"})],
    ids=["old", "inside", "lengths"],
)
def test_figures_without_data_are_left_out(experiment: MakeExperiment, change: Change, more: set[str]) -> None:
    charts = full_report(experiment, change).charts()
    assert {name for name, chart in charts if chart is not None} == ALWAYS | more
    assert plt.get_fignums() == [], "pyplot, which a notebook shares, knows of none"


@pytest.mark.usefixtures("undrawn")
def test_three_figures_are_written_unless_all_are_requested(experiment: MakeExperiment) -> None:
    written = [
        list(render_all(full_report(experiment, change).charts(), ExperimentReport.usual))
        for change in (everything, lambda *_: None)
    ]
    assert written == [
        ["differences", "nll_by_length", "difference_curve"],
        ["differences", "difference_curve", "learning_curve"],
    ]


def test_curves_are_means_of_successful_seeds_with_deviation_bands(
    experiment: MakeExperiment, check_message: CheckMessage
) -> None:
    (axes,) = picture(folder := experiment(CELLS), "learning_curve").axes
    found = lines(axes)
    assert list(found) == ["base (n=3)", "arm (n=2)"]
    for label, nll in (("base (n=3)", 2.2), ("arm (n=2)", 1.25)):
        np.testing.assert_array_equal(found[label][0], STEPS)
        np.testing.assert_allclose(found[label][1], nll + 10 / STEPS, rtol=1e-12)
    check_message(axes.get_ylabel())
    band = np.asarray(axes.collections[0].get_paths()[0].vertices)
    at_ten, sd = band[band[:, 0] == 10][:, 1], np.std([2.0, 2.4, 2.2], ddof=1)
    np.testing.assert_allclose([at_ten.min(), at_ten.max()], [3.2 - sd, 3.2 + sd], rtol=1e-12)
    (axes,) = picture(folder, "gradient_norm").axes
    assert axes.get_yscale() == "log"
    np.testing.assert_allclose(lines(axes)["arm (n=2)"][1], [1.0, 2.0, 3.0])


def test_without_validation_the_training_loss_is_drawn_and_said_so(
    experiment: MakeExperiment, check_message: CheckMessage
) -> None:
    folder = experiment(CELLS)
    for path in (folder.parent / "cells").glob("*/history.csv"):
        path.write_text(path.read_text().replace("validation_nll", "train_loss"))
    (axes,) = picture(folder, "learning_curve").axes
    check_message(axes.get_ylabel())


def test_reliability_pools_the_tokens_of_all_seeds(experiment: MakeExperiment) -> None:
    def bins(count: list[int], confidence: list[float], accuracy: list[float]) -> dict[str, Any]:
        return {"count": count + [0] * 13, "confidence": confidence + [0.0] * 13, "accuracy": accuracy + [0.0] * 13}

    diagrams = bins([10, 30], [0.1, 0.2], [0.0, 0.5]), bins([30, 10], [0.3, 0.6], [0.4, 0.1])

    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        record["reliability"], record["evaluated"]["tokens"] = diagrams[seed], 40
        record["metrics"] |= ({"accuracy": 0.375, "ece": 0.25}, {"accuracy": 0.325, "ece": 0.2})[seed]

    figure = picture(experiment({"base": [2.0, 2.1]}, change), "reliability")
    diagram, gap, histogram = figure.axes
    x, y = lines(diagram)["base"]
    np.testing.assert_allclose(x, [(10 * 0.1 + 30 * 0.3) / 40, (30 * 0.2 + 10 * 0.6) / 40], rtol=1e-12)
    np.testing.assert_allclose(y, [(10 * 0.0 + 30 * 0.4) / 40, (30 * 0.5 + 10 * 0.1) / 40], rtol=1e-12)
    np.testing.assert_array_equal(lines(gap)["base"][0], x)
    np.testing.assert_allclose(lines(gap)["base"][1], y - x, rtol=1e-12)
    (steps,) = [patch for patch in histogram.patches if isinstance(patch, StepPatch)]
    counts, edges, _ = steps.get_data()
    np.testing.assert_array_equal(counts, [20, 20] + [0] * 13)
    np.testing.assert_allclose(edges, np.arange(16) / 15, rtol=1e-12)


def test_loss_over_a_setting_joins_arms_alike_in_all_else(experiment: MakeExperiment) -> None:
    results = load(experiment({"base": [2.0, 2.2], "wide": [1.5, 1.7], "widest": [1.0, 1.2], "deep": [1.4, 1.4]}))
    changes = {
        "wide": {"model.width": (32, 64)},
        "widest": {"model.width": (32, 128)},
        "deep": {"model.layers": (2, 4)},
    }
    for arm, of_arm in changes.items():
        results.manifest["arms"][arm]["changes"] = of_arm
    chart = settings(FigureInputs(results, compare(results)))
    assert chart is not None
    (panel,) = chart.panels
    assert isinstance(panel, Panel)
    through, *points = panel.series
    assert (panel.x.label, list(through.x)) == ("model.width", [32, 64, 128])
    np.testing.assert_allclose(through.y, [2.1, 1.6, 1.1])
    assert [(series.label, list(series.x)) for series in points] == [
        ("base", [32]), ("wide", [64]), ("widest", [128]), ("deep", [32])
    ]  # fmt: skip


def by_style(axes: Axes) -> dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]:
    """Lines by arm and line style."""
    return {
        (str(line.get_label()), str(line.get_linestyle())): (np.asarray(line.get_xdata()), np.asarray(line.get_ydata()))
        for line in axes.get_lines()
    }


def test_gradient_norms_by_layer_are_means_over_seeds(experiment: MakeExperiment) -> None:
    figure = picture(
        experiment({"base": [2.0, 2.4], "arm": [1.0, "diverged"]}, looked_inside), "gradient_norm_by_layer"
    )
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [f"{kind}, {when}" for when in MOMENTS.values() for kind in ("query", "mlp out")]
    by_kind = {axes.get_title(): lines(axes) for axes in figure.axes}
    handles = [text.get_text() for text in figure.legends[0].get_texts()]
    assert handles == ["base", "arm"], "a head has one norm, and no layers"
    for when, scale in ((MOMENTS["initial"], 0.1), (MOMENTS["final"], 0.01)):
        query, mlp = by_kind[f"query, {when}"], by_kind[f"mlp out, {when}"]
        np.testing.assert_array_equal(query["base"][0], [1, 2])
        np.testing.assert_allclose(query["base"][1], 1.5 * scale * np.array([1, 2]), rtol=1e-12)
        np.testing.assert_allclose(query["arm"][1], scale * np.array([1, 2, 3]), rtol=1e-12)
        np.testing.assert_allclose(mlp["arm"][1], scale * 3**-0.5 / np.array([3, 2, 1]), rtol=1e-12)
    band = np.asarray(figure.axes[0].collections[0].get_paths()[0].vertices)
    at_one, sd = band[band[:, 0] == 1][:, 1], np.std([0.1, 0.2], ddof=1)
    np.testing.assert_allclose([at_one.min(), at_one.max()], [0.15 - sd, 0.15 + sd], rtol=1e-12)


def test_slopes_are_fitted_among_arms_differing_in_depth_alone(
    experiment: MakeExperiment, check_message: CheckMessage
) -> None:
    cells = {f"{kind}_{layers}": [2.0, 2.1] for kind in ("pre", "post") for layers in (2, 4, 8)}

    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        looked_inside(arm, seed, record)
        if arm.startswith("post"):  # no change with depth
            for norms in record["initial"]["gradient_norm"].values():
                norms[:] = [5.0 * (seed + 1)] * len(norms)

    results = load(experiment(cells, change))
    for arm, described in results.manifest["arms"].items():
        kind, layers = arm.split("_")
        described["changes"] = {} if layers == "2" else {"model.layers": (2, int(layers))}
        if kind == "post":
            described["changes"]["model.block"] = ("PreNorm", "PostNorm")
    over_depth = figures()["gradient_norm_over_depth"].make
    chart = over_depth(FigureInputs(results, compare(results)))
    assert chart is not None
    (axes,) = (figure := draw(chart)).axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    check_message(labels)
    drawn = [line for line in axes.get_lines() if np.size(line.get_xdata()) == 3]
    np.testing.assert_array_equal(drawn[0].get_xdata(), [2, 4, 8])
    np.testing.assert_allclose(drawn_at(drawn[0]), 0.15 * np.array([2, 4, 8]) ** -0.5, rtol=1e-12)
    del results.manifest["arms"]["pre_4"], results.manifest["arms"]["pre_8"]
    for depth in (2, 4, 8):
        results.manifest["arms"][f"post_{depth}"]["changes"]["optim.lr"] = (1.0, 1.0 / depth)
    assert over_depth(FigureInputs(results, compare(results))) is None, "no two arms differ in depth alone"


def test_attention_entropy_is_a_map_an_arm_and_moment(experiment: MakeExperiment) -> None:
    figure = picture(experiment({"base": [2.0, 2.4], "arm": [1.0, "diverged"]}, looked_inside), "attention_entropy")
    maps = {axes.get_title(): axes.images[0] for axes in figure.axes if axes.images}
    base, arm, *ends = [np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images]
    assert list(maps) == [f"{arm}\n{when}" for when in MOMENTS.values() for arm in ("base", "arm")]
    np.testing.assert_allclose(base, (np.add.outer(range(2), range(2)) + 0.5) / 10, rtol=1e-12)
    np.testing.assert_allclose(arm, np.add.outer(range(3), range(2)) / 10, rtol=1e-12)
    np.testing.assert_allclose(ends[0], base / 2, rtol=1e-12)
    np.testing.assert_allclose(ends[1], arm / 2, rtol=1e-12)
    assert {image.get_clim() for image in maps.values()} == {(0.0, 1.0)}


def test_the_residual_stream_is_drawn_layer_by_layer(experiment: MakeExperiment) -> None:
    figure = picture(experiment({"base": [2.0, 2.4], "arm": [1.0]}, looked_inside), "residual_norm_by_layer")
    found = by_style(figure.axes[0])
    np.testing.assert_allclose(found["base", "--"][1], [0.15, 1.15], rtol=1e-12)
    np.testing.assert_allclose(found["base", "-"][1], [0.015, 1.015], rtol=1e-12)
    np.testing.assert_allclose(found["arm", "-"][1], [0.01, 1.01, 2.01], rtol=1e-12)


def test_losses_by_length_match_records_and_mark_trained_length(experiment: MakeExperiment) -> None:
    folder = experiment({"base": [2.0, 2.4], "arm": [1.0]}, at_lengths)
    for cell in (folder.parent / "cells").glob("*-0"):
        write_atomic(cell / "config.yaml", "data: {class_path: TextData, init_args: {context: 16}}\n")
    figure = picture(folder, "nll_by_length")
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    drawn = [line for line in axes.get_lines() if np.size(line.get_xdata()) > 1 and line.get_linestyle() != ":"]
    expected = [
        ("-", [8, 16, 64], 2.5),
        ("--", [8, 16, 64], 2.0),
        ("-", [8, 16], 2.0),  # the third length was an error
        ("--", [8, 16], 1.5),
    ]
    for line, (style, lengths, at) in zip(drawn, expected, strict=True):
        assert line.get_linestyle() == style
        np.testing.assert_array_equal(line.get_xdata(), lengths)
        np.testing.assert_allclose(drawn_at(line), at + 1 / np.array(lengths), rtol=1e-12)
    (mark,) = [line for line in axes.get_lines() if line.get_linestyle() == ":"]
    assert np.asarray(mark.get_xdata()).tolist() == [16, 16]
    (perplexity,) = axes.child_axes
    assert perplexity.get_ylabel() == "perplexity"


def test_arms_are_averaged_over_lengths_that_all_runs_have(experiment: MakeExperiment) -> None:
    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        at_lengths(arm, seed, record)
        del record["evaluations"]["lengths"]["64" if seed else "8"]

    figure = picture(experiment({"base": [2.0, 2.4]}, change), "nll_by_length")
    line = figure.axes[0].get_lines()[0]
    np.testing.assert_array_equal(line.get_xdata(), [16])
    np.testing.assert_allclose(drawn_at(line), [2.5 + 1 / 16], rtol=1e-12)


def test_loss_by_position_is_averaged_in_bins_that_widen(experiment: MakeExperiment) -> None:
    figure = picture(experiment({"base": [2.0, 2.4], "arm": [1.0]}, at_lengths), "loss_by_position")
    found = lines(figure.axes[0])
    assert list(found) == ["base (64 tokens)", "arm (16 tokens)"]
    for label, positions, seed in (("base (64 tokens)", 64, 0.5), ("arm (16 tokens)", 16, 0.0)):
        edges, (x, y) = log_edges(positions), found[label]
        loss = seed + 1 / np.arange(1, positions + 1)
        pairs = list(itertools.pairwise(edges))
        np.testing.assert_allclose(y, [loss[a:b].mean() for a, b in pairs], rtol=1e-12)
        np.testing.assert_allclose(x, [np.arange(a + 1, b + 1).mean() for a, b in pairs], rtol=1e-12)


@pytest.mark.parametrize("positions", [2, 3, 16, 100, 1024])
def test_bins_hold_every_position_once_and_widen(positions: int) -> None:
    edges = log_edges(positions)
    assert (edges[0], edges[-1]) == (0, positions)
    assert np.all(np.diff(edges) >= 1)
    assert edges[1] == 1, "the first token has no context, and stands alone"


def test_attention_of_the_first_of_many_arms_is_drawn(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    arms: dict[str, list[Any]] = {f"arm{n:02}": [2.0] for n in range(MOST_MAPS + 2)}

    def looked(arm: str, seed: int, record: dict[str, Any]) -> None:
        record["initial"] = record["final"] = {"entropy": [[0.5, 0.4], [0.3, 0.2]]}

    chart = attention_entropy(ExperimentReport.load(experiment(arms, looked)).figure_inputs)
    assert chart is not None
    check_message(chart.note)
    assert [panel.title.split("\n")[0] for panel in chart.panels] == 2 * [f"arm{n:02}" for n in range(MOST_MAPS)]


@pytest.mark.extra
def test_the_backend_of_a_notebook_stays_as_it_is() -> None:
    code = "import matplotlib; matplotlib.use('svg'); import lm.report.write; print(matplotlib.get_backend())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "svg\n"
