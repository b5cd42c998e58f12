"""Looks of names: colours that people with colour blindness tell apart, unique looks, ticks, and names that fit."""

import itertools
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from lm.report.figures.chart import Axis, BasePanel, Chart, Panel, Series, log_ticks
from lm.report.figures.palette import COLOURS, DARK, LIGHT
from lm.report.figures.picture import draw, format_tick, grid_of

BLINDNESS: dict[str, Any] = {
    "none": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
"""What is seen of linear RGB (Machado, Oliveira and Fernandes 2009, complete blindness)."""

CONES = np.array(
    [[0.41222, 0.53633, 0.05145], [0.21190, 0.68070, 0.10740], [0.08830, 0.28172, 0.62998]]
)  # fmt: skip
OKLAB = np.array(
    [[0.21045, 0.79362, -0.00407], [1.97800, -2.42859, 0.45059], [0.02590, 0.78277, -0.80868]]
)  # fmt: skip


def oklab(colours: tuple[str, ...], kind: str) -> np.ndarray:
    """Perceptual coordinates of colours as seen with a kind of colour blindness (Ottosson 2020)."""
    rgb = np.array([[int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)] for colour in colours])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(linear @ np.transpose(BLINDNESS[kind]), 0, 1)
    return np.cbrt(seen @ CONES.T) @ OKLAB.T


@pytest.mark.parametrize("kind", BLINDNESS)
@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_stay_distinct_with_colour_blindness(colours: tuple[str, ...], kind: str) -> None:
    assert len(colours) == COLOURS == 12
    pairs = itertools.combinations(zip(colours, oklab(colours, kind), strict=True), 2)
    distances = {(a, b): float(np.linalg.norm(x - y)) for (a, x), (b, y) in pairs}
    assert min(distances.values()) > 0.07, min(distances, key=lambda pair: distances[pair])


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ((0.9, 3.2), [1, 1.5, 2, 3]),
        ((0.95, 1.6), [1, 1.1, 1.25, 1.5]),
        ((1e-4, 1), [1e-4, 1e-3, 1e-2, 0.1, 1]),
        ((3e-4, 1e-2), [3e-4, 1e-3, 3e-3, 1e-2]),
        ((1.62, 1.70), [1.62, 1.64, 1.66, 1.68, 1.7]),
        ((2.0, 2.0), [2]),
        ((0.0, 1.0), []),
    ],
)
def test_logarithmic_ticks_are_round_and_several(ends: tuple[float, float], expected: list[float]) -> None:
    assert log_ticks(*ends) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("ratio", [1.01, 1.2, 2, 7, 30, 1e3, 1e7, 1e20])
@pytest.mark.parametrize("low", [3e-9, 0.7, 12.0, 4e13])
def test_any_logarithmic_range_has_a_few_ticks_inside(low: float, ratio: float) -> None:
    ticks = log_ticks(low, low * ratio)
    assert 2 <= len(ticks) <= 8
    assert ticks == sorted(ticks)
    assert ticks[0] >= low * (1 - 1e-9)
    assert ticks[-1] <= low * ratio * (1 + 1e-9)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1"), (0.5, "0.5"), (1.25, "1.25"), (0.001, "0.001"), (1e6, "$10^{6}$"), (3e-5, "$3\\times10^{-5}$")],
)
def test_ticks_are_plain_numbers_near_one(value: float, text: str) -> None:
    assert format_tick(value) == text


def lines(ends: list[float]) -> Figure:
    """A picture of lines that end at these heights of an axis from 0 to 1."""
    names = [f"arm {index}" for index in range(len(ends))]
    series = [Series(names[index], [0, 1], [0.5, end], member=index, mark="curve") for index, end in enumerate(ends)]
    panel = Panel(Axis("x"), Axis("y", limits=(0, 1)), series, title="Lines")
    return draw(Chart("Lines", [panel], names, legend_title="mean"))


def test_names_stand_in_a_legend_below() -> None:
    figure = lines([0.1, 0.5, 0.9])
    (axes,), (legend,) = figure.axes, figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["arm 0", "arm 1", "arm 2"]
    assert legend.get_title().get_text() == "mean"
    figure.draw_without_rendering()
    assert legend.get_window_extent().y1 <= axes.get_window_extent().y0


@pytest.mark.parametrize(
    ("count", "columns", "grid"),
    [(7, 6, (2, 4)), (7, 3, (2, 4)), (6, 3, (2, 3)), (13, 4, (3, 5)), (1, 4, (1, 1)), (3, 1, (3, 1))],
)
def test_no_panel_stands_alone_in_a_row(count: int, columns: int, grid: tuple[int, int]) -> None:
    places = grid_of([BasePanel()] * count, columns)
    assert tuple(max(place) + 1 for place in zip(*places, strict=True)) == grid
    assert len(set(places)) == count
    again = grid_of([BasePanel(), BasePanel(new_row=True), BasePanel()], 3)
    assert again == [(0, 0), (1, 0), (1, 1)]
