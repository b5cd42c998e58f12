"""No text of a picture covers another, and no legend covers a panel, with few arms and with many."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from ladders import make_ladder, usual
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from records import MakeExperiment, inside
from searches import LR, make_search, trial

from lm.analysis.compare import compare
from lm.analysis.ladder import load_ladder
from lm.analysis.results import load
from lm.report.experiment import ExperimentReport
from lm.report.figures import picture
from lm.report.figures.picture import draw
from lm.report.figures.searches import importance_chart
from lm.report.figures.static_pages import ladder_chart
from lm.report.search import SearchReport
from lm.store.files import write_atomic

SEEDS, STEPS, LENGTHS = 3, range(50, 1001, 50), (8, 32, 128)
TOUCH = 2.0
"""Pixels by which the boxes of two texts may overlap: they are higher and wider than the ink."""

ABSENT = {"lr_curve", "tuning", "gradient_norm_over_depth"}
"""Figures of searches and of arms that differ in depth alone."""


def measured(arm: str, seed: int, record: dict[str, Any]) -> None:
    """Gives a record what every figure needs: a simple function of the arm and the seed."""
    place = int(arm.partition("_")[2])
    layers, heads = range(4), range(4)
    for moment, scale in (("initial", 1.0), ("final", 0.3)):
        record[moment] = inside(
            gradient_norm={
                kind: [scale * (1 + 0.05 * place + 0.1 * layer + 0.02 * seed) for layer in layers]
                for kind in ("query", "key", "value", "attention_output", "norm", "mlp_in", "mlp_out")
            },
            entropy=[[min(1.0, 0.2 + 0.1 * layer + 0.1 * head) for head in heads] for layer in layers],
            residual_norm=[1.0 + 0.1 * place + layer for layer in layers],
        )
    nll = record["metrics"]["nll"]
    record["evaluations"]["lengths"] = {
        str(length): {
            "tokens": 512, "nll": nll + 1 / length, "sliding_nll": nll,
            "by_position": [nll + 1 / (position + 1) for position in range(length)],
        }
        for length in LENGTHS
    }  # fmt: skip


def made_up(experiment: MakeExperiment, arms: int) -> ExperimentReport:
    """The report of arms that end at nearly the same loss, with curves, maps and a varied setting."""
    cells = {f"arm_{arm}": [2.0 + 0.01 * arm + 0.02 * seed for seed in range(SEEDS)] for arm in range(arms)}
    results = load(experiment(cells, measured, margin={"nll": 0.05}))
    for place, arm in enumerate(results.arms):
        results.manifest["arms"][arm]["changes"] = {"model.width": (32, 32 + 8 * place)} if place else {}
        for seed, record in enumerate(results.of(arm)):
            write_curve(results.store.history(record["id"]), place, seed)
    return ExperimentReport(results, compare(results), [])


def write_curve(path: Path, place: int, seed: int) -> None:
    heads = "step,validation_nll,gradient_norm,learning_rate,gradient_norm/blocks.0,gradient_norm/blocks.0.query\n"
    rows = []
    for step in STEPS:
        loss, norm = 2 + 100 / step + 0.01 * place + 0.02 * seed + 0.003 * (place - 3) * step / 1000, 0.5 + 50 / step
        rows.append(f"{step},{loss},{norm},{step / 1e6},{norm},{norm / 2}\n")
    write_atomic(path, heads + "".join(rows))


def labels_beyond_view(axes: Any) -> Iterator[Text]:
    """Yield the labels of ticks outside the view, which Matplotlib keeps and does not draw."""
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        margin = 1e-9 * (high - low)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            if not low - margin <= tick.get_loc() <= high + margin:
                yield from (tick.label1, tick.label2)


def boxes(figure: Figure) -> Iterator[tuple[Text, Bbox]]:
    """Yield each visible text of a drawn figure with its place in pixels."""
    unseen = {id(label) for axes in figure.findobj(Axes) for label in labels_beyond_view(axes)}
    for text in figure.findobj(Text):
        if isinstance(text, Text) and id(text) not in unseen and text.get_visible() and text.get_text().strip():
            box = text.get_window_extent()
            if np.isfinite(box.extents).all() and box.width > 0 and figure.bbox.overlaps(box):
                yield text, box


def overlaps(one: Bbox, other: Bbox) -> bool:
    common = Bbox.intersection(one, other)
    return common is not None and common.width > TOUCH and common.height > TOUCH


def are_parallel(one: Text, box: Bbox, other: Text, other_box: Bbox) -> bool:
    """Return True for turned names of ticks whose lines are further apart than they are high, though boxes overlap."""
    angle = np.deg2rad(one.get_rotation())
    if angle in (0.0, np.pi / 2) or one.get_rotation() != other.get_rotation():
        return False
    sine, cosine = np.sin(angle), np.cos(angle)
    height = (box.height * cosine - box.width * sine) / (cosine**2 - sine**2)
    return bool(abs((box.x1 - other_box.x1) * sine - (box.y1 - other_box.y1) * cosine) > height - TOUCH)


@pytest.mark.extra
@pytest.mark.parametrize("arms", [2, 7, 12])
def test_texts_and_legends_cover_nothing(arms: int, experiment: MakeExperiment) -> None:
    drawable = {name: chart for name, chart in made_up(experiment, arms).charts() if chart}
    assert len(drawable) >= 13
    covered = {name: covering for name, chart in drawable.items() if (covering := coverings(draw(chart)))}
    assert covered == {}


@pytest.mark.extra
@pytest.mark.parametrize("arms", [*(pytest.param(arms, marks=pytest.mark.extra) for arms in (2, 7)), 12])
def test_texts_of_a_ladder_cover_nothing(arms: int, tmp_path: Path) -> None:
    names = ["base", *(f"arm_with_a_name_{number}" for number in range(1, arms))]

    def outcome(arm: str, place: int, seed: int) -> float:
        return usual(arm, place, seed) - 0.01 * names.index(arm)

    results = load_ladder(make_ladder(tmp_path, outcome, arms=names))
    assert coverings(draw(ladder_chart(results))) == []


@pytest.mark.extra
@pytest.mark.parametrize("parameters", [2, 7, 12])
@pytest.mark.parametrize("objectives", [1, 2])
def test_texts_of_a_search_cover_nothing(parameters: int, objectives: int, tmp_path: Path) -> None:
    search = made_up_search(tmp_path, parameters, objectives)
    assert isinstance(search.importance, dict)
    drawable = dict(search.charts()) | {"importances": importance_chart(search.importance)}
    drawn = {name: coverings(draw(chart)) for name, chart in drawable.items() if chart is not None}
    assert len(drawn) == 5
    assert {name: covering for name, covering in drawn.items() if covering} == {}


def made_up_search(folder: Path, parameters: int, objectives: int) -> SearchReport:
    """A search of 24 trials over parameters of every kind with long names, some of them pruned."""
    kinds: list[dict[str, Any]] = [
        LR,
        {"choices": ["PostNorm", "PreNorm", "SandwichNorm"]},
        {"low": 16, "high": 96, "log": False, "step": 16, "int": True},
    ]
    draws = (lambda x: 1e-4 * 1000**x, lambda x: kinds[1]["choices"][int(3 * x)], lambda x: 16 * (1 + int(6 * x)))
    names = [f"model.block.part_{number}.setting" for number in range(parameters)]
    generator, trials = np.random.default_rng(0), list[dict[str, Any]]()
    for number in range(24):
        spots = generator.uniform(size=parameters).tolist()
        values, pruned = [2.0 + sum(spots), 0.5 + spots[0]][:objectives], number % 8 == 7
        params = {name: draws[at % 3](spot) for at, (name, spot) in enumerate(zip(names, spots, strict=True))}
        one = trial(number, None if pruned else values, "pruned" if pruned else "complete", **params)
        trials.append(one | {"reported": {str(step): 2.0 + 1.0 / step + sum(spots) for step in (50, 100, 150)}})
    space, ways = {name: kinds[at % 3] for at, name in enumerate(names)}, {"nll": "lower", "accuracy": "higher"}
    make_search(folder, trials, space, objectives=dict(list(ways.items())[:objectives]))
    return SearchReport.load(folder)


@pytest.mark.extra
@pytest.mark.parametrize(
    "width", [pytest.param(name, marks=pytest.mark.extra) if name == "two_columns" else name for name in picture.WIDTHS]
)
def test_texts_and_legends_cover_nothing_on_paper(width: str, experiment: MakeExperiment) -> None:
    covered = {}
    for name, chart in made_up(experiment, 7).charts():
        with matplotlib.rc_context(picture._style(picture.FACES[width])):
            if chart and ((figure := draw(chart)).get_figwidth() <= picture.WIDEST or width == picture.TWO):
                picture.fit(figure, picture.WIDTHS[width], picture.FACES[width])
                covered[name] = coverings(figure)
    assert {name: covering for name, covering in covered.items() if covering} == {}


def coverings(figure: Figure) -> list[tuple[str, str]]:
    """Texts of a figure that cover each other, and panels that a legend covers."""
    FigureCanvasAgg(figure).draw()
    covered = [
        (one.get_text(), other.get_text())
        for (one, box), (other, other_box) in itertools.combinations(boxes(figure), 2)
        if overlaps(box, other_box) and not are_parallel(one, box, other, other_box)
    ]
    for legend, axes in itertools.product(figure.legends, figure.axes):
        if overlaps(legend.get_window_extent(), axes.get_window_extent()):
            covered.append(("legend", axes.get_title()))
    return [*covered, *(("legend inside", axes.get_title()) for axes in figure.axes if axes.get_legend() is not None)]
