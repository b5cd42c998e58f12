"""Vega-Lite specifications of the page's charts, without their data.

Colours are CSS variables of page.css, light and dark, so that a change of theme needs no redraw. Each arm has a unique
combination of colour, line style and marker.
"""

from collections.abc import Sequence
from typing import Any

Spec = dict[str, Any]

COLOURS = 8
DASHES = ([1, 0], [8, 3], [2, 2], [8, 3, 2, 3], [14, 4])
SHAPES = (
    "circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "triangle-right", "triangle-left",
)  # fmt: skip
INK = "currentColor"
TEXTS = ("arm", "verdict", "text", "way")

ROOM = 12
"""Padding in pixels between the markers of a scatter plot and the ends of its axis."""

AXIS: Spec = {
    **{f"{part}Color": INK for part in ("label", "title", "domain", "tick", "grid")},
    **{"gridOpacity": 0.13, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelLimit": 170},
    **{"labelOverlap": True, "labelSeparation": 6, "tickCount": 8},
}
CONFIG: Spec = {
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": AXIS,
    "legend": {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "titleFontWeight": "normal"},
}


def colour(place: int) -> str:
    """Return the colour of an arm by its index; the baseline's is 0."""
    return f"var(--arm-{place % COLOURS})"


def dash(place: int) -> list[int]:
    """Return its line style; solid for the baseline."""
    return DASHES[(place + place // COLOURS) % len(DASHES)]


def shape(place: int) -> str:
    """Return its marker."""
    return SHAPES[(place + place // COLOURS) % len(SHAPES)]


def arms(names: Sequence[str], of: Any, legend: Spec | None = None) -> Spec:
    """Return the channel that distinguishes arms by colour, dash or shape: `of` is one of these functions."""
    scale = {"domain": list(names), "range": [of(place) for place in range(len(names))]}
    return {"field": "arm", "type": "nominal", "scale": scale, "legend": legend}


def number(field: str, title: str = "", log: bool = False, **more: Any) -> Spec:
    """Return a channel of numbers; its axis need not begin at zero."""
    scale = {"type": "log", "nice": False} if log else {"zero": False}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, **more}


def tips(*fields: str) -> list[Spec]:
    """Return the fields of a point's tooltip."""
    return [
        {"field": field, "title": field} | ({"type": "quantitative", "format": ".5~g"} if field not in TEXTS else {})
        for field in fields
    ]


def chart(**spec: Any) -> Spec:
    """Return a chart as wide as its container."""
    return {
        "width": "container",
        "height": 320,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": CONFIG,
        **spec,
    }


def layer(mark: str, encoding: Spec, data: Spec | None = None, **how: Any) -> Spec:
    """Return one layer of a chart, with its own data where given."""
    return {**({"data": data} if data else {}), "mark": {"type": mark, **how}, "encoding": encoding}


def dots(encoding: Spec, always: bool) -> Spec:
    """Return points with tooltips; where there are many they show only under the pointer."""
    hover = {"name": "hover", "select": {"type": "point", "on": "pointerover", "clear": "pointerout"}}
    shown = {"condition": {"param": "hover", "empty": False, "value": 1}, "value": 1 if always else 0}
    return {**layer("point", {**encoding, "opacity": shown}, filled=True, size=60), "params": [hover]}


def forest(names: Sequence[str]) -> Spec:
    """Return a forest plot: paired differences with intervals, and single seeds below them."""
    title, tooltip = "difference to the baseline", tips("arm", "text", "verdict", "n")
    x, low = number("difference", title), number("low", title)
    fill = {"condition": {"test": "datum.bold", "value": INK}, "value": "var(--page)"}
    zero = {"x": {"datum": 0}, "y": {"value": 0}, "y2": {"value": "height"}}
    seeds = {"x": x, "tooltip": tips("arm", "seed", "difference")}
    below: Spec = {"yOffset": 9, "strokeWidth": 1.5, "size": 40}
    mean: Spec = {"stroke": INK, "size": 110, "opacity": 1}
    return chart(
        height=(34 if len(names) <= 12 else 26) * max(1, len(names) - 1),
        encoding={"y": {"field": "arm", "type": "nominal", "title": None, "scale": {"domain": list(names[1:])}}},
        layer=[
            layer("rule", zero, {"values": [{}]}, color=INK, strokeDash=[4, 3]),
            layer("rule", {"x": low, "x2": {"field": "high"}, "tooltip": tooltip}, color=INK, strokeWidth=2),
            layer("point", seeds, {"name": "seeds"}, color="var(--seed)", **below),
            layer("point", {"x": x, "fill": fill, "tooltip": tooltip}, shape="diamond", **mean),
        ],
    )


def learning_curve(names: Sequence[str], y_title: str, few: bool = False) -> Spec:
    """Return means over seeds with bands, and with markers where a curve has few points."""
    y, by_colour = number("mean", y_title), {"color": arms(names, colour)}
    points = {"y": y, **by_colour, "shape": arms(names, shape), "tooltip": tips("arm", "step", "mean", "sd", "n")}
    return chart(
        height=360,
        encoding={"x": number("step", "optimiser step")},
        layer=[
            layer("area", {"y": {**y, "field": "low"}, "y2": {"field": "high"}, **by_colour}, opacity=0.16),
            layer("line", {"y": y, **by_colour, "strokeDash": arms(names, dash)}, strokeWidth=2),
            dots(points, few),
        ],
    )


def gradients(norms: Sequence[float], steps: Sequence[int], parts: Sequence[str]) -> Spec:
    """Return a heat map of norms by part of the model and step; one scale for all arms.

    Args:
        norms: norms of all arms.
        steps: their optimiser steps.
        parts: their parts of the model.
    """
    scale = {"type": "log", "scheme": "viridis", "domain": [min(norms), max(norms)]}
    distinct_steps = sorted(set(steps))
    ticks = distinct_steps[:: -(-len(distinct_steps) // 6)]
    legend = {"title": "norm", "format": ".1~e", "orient": "bottom", "gradientLength": 220, "direction": "horizontal"}
    x = {"field": "step", "type": "ordinal", "title": "optimiser step"}
    return chart(
        height=22 * len(set(parts)),
        mark={"type": "rect"},
        encoding={
            "x": {**x, "axis": {"values": ticks, "labelAngle": 0}},
            "y": {"field": "part", "type": "nominal", "title": None, "sort": {"field": "place"}},
            "color": {"field": "norm", "type": "quantitative", "scale": scale, "legend": legend},
            "tooltip": [{"field": "part"}, *tips("step", "norm", "n")],
        },
    )


def lines(names: Sequence[str], x: Spec, y: Spec, *fields: str, way: bool = False) -> Spec:
    """Return a line with markers for each arm; with `way`, a second thin line a kind."""
    both = {"x": x, "y": y, "color": arms(names, colour), "detail": [{"field": "way"}] if way else []}
    thin = {"strokeWidth": {"condition": {"test": "datum.way == 'sliding window'", "value": 1}, "value": 2}}
    points = {**both, "shape": arms(names, shape), "tooltip": tips("arm", *fields)}
    return chart(
        layer=[
            layer("line", {**both, "strokeDash": arms(names, dash), **(thin if way else {})}),
            layer("point", points, filled=True, size=55, opacity=1),
        ],
    )


def by_length(names: Sequence[str], x: Spec, y: Spec) -> Spec:
    """Return the loss over context lengths, with a labelled dotted line at each trained length."""
    spec = lines(names, x, y, "way", "length", "nll", way=True)
    trained, at = {"name": "trained"}, {"x": x}
    text = {**at, "y": {"value": 4}, "text": {"field": "text", "type": "nominal"}}
    marks = [
        layer("rule", at, trained, color=INK, strokeDash=[2, 3]),
        layer("text", text, trained, color=INK, align="left", dx=4, baseline="top", fontSize=12),
    ]
    return {**spec, "layer": [*marks, *spec["layer"]]}


def reliability(names: Sequence[str]) -> Spec:
    """Return accuracy over confidence, with the diagonal of perfect calibration."""
    x, y = ({**number(name, name), "scale": {"domain": [0, 1]}} for name in ("confidence", "accuracy"))
    spec = lines(names, x, y, "confidence", "accuracy", "share")
    ends = {"values": [{"confidence": 0, "accuracy": 0}, {"confidence": 1, "accuracy": 1}]}
    diagonal = layer("line", {"x": x, "y": y}, ends, color=INK, strokeDash=[4, 3], opacity=0.6)
    return {**spec, "layer": [diagonal, *spec["layer"]]}


def scatter(names: Sequence[str], x: Spec, y_title: str, along: bool = False) -> Spec:
    """Return a point an arm with its spread; `along` joins arms that are alike in all else."""
    x = {**x, "scale": {**x["scale"], "padding": ROOM}}
    y, by_colour = number("mean", y_title), {"color": arms(names, colour)}
    point = {"x": x, "y": y, **by_colour, "shape": arms(names, shape), "tooltip": tips("arm", "x", "mean", "sd", "n")}
    through = layer("line", {"x": x, "y": y, "detail": {"field": "line"}}, color=INK, strokeWidth=1, opacity=0.5)
    spread = {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, **by_colour}
    layers = [layer("rule", spread, strokeWidth=1.5), layer("point", point, filled=True, size=100, opacity=1)]
    return chart(layer=[*([through] if along else []), *layers])


def trials(names: Sequence[str], x_title: str, y_title: str) -> Spec:
    """Return a scatter plot with a point for each trial."""
    encoding = {
        "x": number("x", x_title, log=True),
        "y": number("y", y_title),
        "color": arms(names, colour),
        "shape": arms(names, shape),
        "tooltip": tips("arm", "x", "y"),
    }
    return chart(**layer("point", encoding, filled=True, size=55, opacity=0.8))
