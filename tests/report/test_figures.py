"""Figures draw what the records hold, as PNG and SVG."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lm.analysis import load
from lm.report.figures import FIGURES, colours, draw, gradient_norm, learning_curve, reliability

MakeExperiment = Callable[..., Path]
CELLS: dict[str, list[Any]] = {"base": [2.0, 2.4, 2.2], "arm": [1.0, "diverged", 1.5]}
STEPS = np.array([10, 20, 30])


@pytest.fixture
def axes() -> Axes:
    return Figure().add_subplot()


def lines(axes: Axes) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Labelled lines of a plot: x and y."""
    return {
        str(line.get_label()): (np.asarray(line.get_xdata()), np.asarray(line.get_ydata())) for line in axes.get_lines()
    }


def test_every_figure_is_written_as_png_and_svg(experiment: MakeExperiment) -> None:
    folder = experiment(CELLS)
    assert draw(load(folder), folder) == list(FIGURES)
    for name in FIGURES:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        assert ElementTree.parse(folder / f"{name}.svg").getroot().tag.endswith("svg")
    assert plt.get_fignums() == []


def test_a_curve_is_the_mean_over_the_seeds_that_went_well(experiment: MakeExperiment, axes: Axes) -> None:
    assert learning_curve(load(experiment(CELLS)), axes)
    found = lines(axes)
    assert list(found) == ["base (n=3)", "arm (n=2)"]
    for label, nll in (("base (n=3)", 2.2), ("arm (n=2)", 1.25)):
        np.testing.assert_array_equal(found[label][0], STEPS)
        np.testing.assert_allclose(found[label][1], nll + 10 / STEPS, rtol=1e-12)
    assert axes.get_ylabel() == "validation NLL (nats/token)"


def test_the_band_is_one_standard_deviation_either_way(experiment: MakeExperiment, axes: Axes) -> None:
    learning_curve(load(experiment(CELLS)), axes)
    band = axes.collections[0].get_paths()[0].vertices
    at_ten = band[band[:, 0] == 10][:, 1]
    sd = np.std([2.0, 2.4, 2.2], ddof=1)
    np.testing.assert_allclose([at_ten.min(), at_ten.max()], [3.2 - sd, 3.2 + sd], rtol=1e-12)


def test_without_validation_the_training_loss_is_drawn_and_said_so(experiment: MakeExperiment, axes: Axes) -> None:
    folder = experiment(CELLS)
    for path in (folder.parent / "cells").glob("*/history.csv"):
        path.write_text(path.read_text().replace("validation_nll", "train_loss"))
    assert learning_curve(load(folder), axes)
    assert axes.get_ylabel() == "training loss (nats/token)"


def test_gradient_norms_are_drawn_on_a_log_scale(experiment: MakeExperiment, axes: Axes) -> None:
    assert gradient_norm(load(experiment(CELLS)), axes)
    assert axes.get_yscale() == "log"
    np.testing.assert_allclose(lines(axes)["arm (n=2)"][1], [1.0, 2.0, 3.0])


def test_reliability_pools_the_tokens_of_all_seeds(experiment: MakeExperiment, axes: Axes) -> None:
    diagrams = {
        0: {
            "count": [10, 30, 0] + [0] * 12,
            "confidence": [0.1, 0.2, 0.0] + [0.0] * 12,
            "accuracy": [0.0, 0.5, 0.0] + [0.0] * 12,
        },
        1: {
            "count": [30, 10, 0] + [0] * 12,
            "confidence": [0.3, 0.6, 0.0] + [0.0] * 12,
            "accuracy": [0.4, 0.1, 0.0] + [0.0] * 12,
        },
    }

    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        record["reliability"] = diagrams[seed]

    assert reliability(load(experiment({"base": [2.0, 2.1]}, change)), axes)
    x, y = lines(axes)["base"]
    np.testing.assert_allclose(x, [(10 * 0.1 + 30 * 0.3) / 40, (30 * 0.2 + 10 * 0.6) / 40], rtol=1e-12)
    np.testing.assert_allclose(y, [(10 * 0.0 + 30 * 0.4) / 40, (30 * 0.5 + 10 * 0.1) / 40], rtol=1e-12)


def test_what_nothing_was_recorded_for_is_not_written(experiment: MakeExperiment) -> None:
    folder = experiment({"base": ["diverged", None], "arm": ["failed", None]})
    assert draw(load(folder), folder) == []
    assert [path.name for path in folder.iterdir()] == ["experiment.json"]


def test_an_arm_has_one_colour_of_its_own(experiment: MakeExperiment) -> None:
    found = colours(load(experiment({f"arm{i}": [2.0] for i in range(8)})))
    assert len(set(found.values())) == 8
    assert list(found) == [f"arm{i}" for i in range(8)]
