"""Drawer of the page: charts as Vega-Lite specifications and columns of data.

Colours are CSS variables, light and dark, so that a change of theme needs no redraw. Each name has a unique combination
of colour, line style and marker (`palette.py`).

Legend: n points.
"""

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from lm.analysis.compare import HEALTHY
from lm.report.figures.chart import Axis, Bar, Chart, Forest, Heat, Panel, Series, finite, log_range, log_ticks
from lm.report.figures.palette import COLOURS, SHAPES, dash, marker

Spec = dict[str, Any]
Rows = list[dict[str, Any]]  # the data of a layer

MARKERS = {
    "*": "M0,-1L.23,-.31L.95,-.31L.36,.12L.59,.81L0,.38L-.59,.81L-.36,.12L-.95,-.31L-.23,-.31Z",
    "x": "M-.8,-.8L.8,.8M-.8,.8L.8,-.8",
    "s": "square",
}
INK = "currentColor"

ROOM = 12  # padding in pixels between the markers of a scatter plot and the ends of its axis

POINTS, LEAST_POINTS, ALL_POINTS = 240, 60, 6000
"""Points of a line at most and at least, and of all lines of a panel together."""

NARROW = 380  # width in pixels below which a forest plot leaves intervals out of its texts

FEW = 20  # largest number of points of a curve with a marker each

CONFIG: Spec = {
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        **{f"{part}Color": INK for part in ("label", "title", "domain", "tick", "grid")},
        **{"gridOpacity": 0.13, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"},
        **{"labelLimit": 170, "labelOverlap": True, "labelSeparation": 6, "tickCount": 8},
    },
    "legend": {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "titleFontWeight": "normal"},
}


def colour(place: int) -> str:
    """Return the colour of an arm by its index; the baseline's is 0."""
    return f"var(--arm-{place % COLOURS})"


def shape(place: int) -> str:
    """Return its marker."""
    return SHAPES[marker(place)]


def draw(chart: Chart, panel: Panel | Heat | Forest) -> tuple[Spec, dict[str, Rows]]:
    """Return the specification of one panel, and the rows of its data sets by name."""
    drawing = {Forest: _forest, Heat: _heat}.get(type(panel))
    spec, sets = drawing(panel) if drawing else _lines(chart, panel)  # type: ignore[operator,arg-type]
    fixed = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}, "config": CONFIG}
    return {"height": 320, **fixed, **spec}, {name: rows for name, rows in sets.items() if rows}


# lines and points ----------------------------------------------------------------------------------------------------


def _lines(chart: Chart, panel: Panel) -> tuple[Spec, dict[str, Rows]]:
    groups: dict[tuple[Any, ...], list[tuple[int, Series]]] = {}
    for index, series in enumerate(panel.series):
        look = (series.member is not None, series.mark == "points", series.mark in ("steps", "bins"))
        groups.setdefault((*look, series.marker, series.hollow, series.bars), []).append((index, series))
    ends = {which: log_range(panel, which) for which in ("x", "y")}
    x, y = _axis(panel.x, "x", ends["x"]), _axis(panel.y, "y", ends["y"])
    if not any(series.mark in ("curve", "line") for series in panel.series) and not panel.x.names:
        x["scale"] = {"padding": ROOM, **x["scale"]}
    layers, sets = _behind(panel, x, y)
    width = max(1, len({series.label for series in panel.series if series.member is not None}))
    most = max(LEAST_POINTS, min(POINTS, ALL_POINTS // width))
    for number, group in enumerate(groups.values()):
        name = f"set{number}"
        sets[name] = [row for index, series in group for row in _rows(panel, series, index, most)]
        if sets[name]:
            few = max(len(series.x) for _, series in group) <= FEW
            layers += _layers(chart, panel, group[0][1], few, {"x": x, "y": y}, name, _merged(sets[name]))
    return {"layer": layers, "height": 360 if chart.wide else 320}, sets


def _rows(panel: Panel, series: Series, index: int, most: int) -> Iterable[dict[str, Any]]:
    """Return a row for each finite point; of long lines those that keep the shape."""
    x_n = np.asarray(series.x if series.mark != "bins" else series.x[:-1])
    y_n = np.asarray(series.y, dtype=float)
    drawable = np.isfinite(y_n) & ((y_n > 0) if panel.y.log else True) & ((x_n > 0) if panel.x.log else True)
    places = np.flatnonzero(drawable)
    if series.mark in ("curve", "line"):
        places = places[downsample_lttb(x_n[places].astype(float), y_n[places], most)]
    least = float(y_n[drawable].min()) if panel.y.log and drawable.any() and not series.bars else -math.inf
    shared = {"series": index, "arm": series.member, "style": series.style or None, "shade": round5(series.shade)}
    shared = {key: entry for key, entry in shared.items() if entry is not None}
    for place in places.tolist():
        at, value = x_n[place].item(), float(y_n[place])
        row = {**shared, "x": _at(panel.x, at), "y": round5(value)}
        if len(series.low):
            ends = (float(side[place]) for side in (series.low, series.high))
            row |= zip(("low", "high"), (round5(max(end, least) if end == end else value) for end in ends), strict=True)
        yield row | {name: _plain(entries[place]) for name, entries in series.tips.items()}


def _layers(
    chart: Chart, panel: Panel, series: Series, few: bool, at: Spec, name: str, row: Mapping[str, Any]
) -> list[Spec]:
    """Return the layers of one data set: bands or bars, lines, and points with tooltips."""
    both, dashed = {**at, "detail": {"field": "series"}}, {}
    if series.member is not None:
        both["color"] = _named(chart, colour)
        dashed["strokeDash"] = _named(chart, dash)
    elif series.shade is not None and panel.shades:
        title, bright = panel.shades
        scale = {"scheme": "viridis", "reverse": bright, "zero": False}
        both["color"] = {"field": "shade", "type": "quantitative", "scale": scale, "legend": {"title": title}}
    else:
        both["color"] = {"value": INK}
        dashed["strokeDash"] = {"value": [4, 3] if chart.styles.get(series.style) == "--" else [1, 0]}
    thin = [style for style, stroke in chart.styles.items() if stroke == "--"] if "style" in row else []
    width = {"condition": {"test": f"datum.style == {thin[0]!r}", "value": 1}, "value": 2} if thin else {"value": 2}
    fields = {"x": panel.x.field or _in_a_line(panel.x.label), "y": panel.y.field or "value"}
    names = {"arm": "arm" if chart.arms else ""} if "arm" in row and chart.names else {}
    plain = {key: key for key in row if key not in ("series", "arm", "x", "y", "low", "high", "shade")}
    tooltip = [_tip(key, title or "name", row[key]) for key, title in (names | fields | plain).items() if key in row]
    points = {**both, "tooltip": tooltip}
    if series.member is not None and series.marker == "o":
        points["shape"] = _named(chart, shape)
    layers, data = [], {"name": name}
    clip = {"clip": True} if panel.y.limits else {}
    if "low" in row:
        ends = {**both, "y": {**at["y"], "field": "low"}, "y2": {"field": "high"}}
        how: Spec = {"strokeWidth": 1.5} if series.bars else {"opacity": 0.16}
        layers.append(layer("rule" if series.bars else "area", ends, data, **how, **clip))
    if series.mark != "points":
        stroke = clip | ({"interpolate": "step-after"} if series.mark in ("steps", "bins") else {})
        layers.append(layer("line", {**both, **dashed, "strokeWidth": width}, data, **stroke))
        visible = int(few and series.member is not None and series.mark in ("curve", "line"))  # others have a tooltip
        return [*layers, layer("point", points, data, filled=not series.hollow, size=50, opacity=visible)]
    special = {"shape": MARKERS[series.marker]} if series.marker in MARKERS else {}
    stroked = series.hollow or series.marker == "x"
    size = {"*": 220, "x": 90}.get(series.marker, 60)
    return [*layers, layer("point", points, data, filled=not stroked, size=size, opacity=0.85, **special)]


def _behind(panel: Panel, x: Spec, y: Spec) -> tuple[list[Spec], dict[str, Rows]]:
    layers: list[Spec] = []
    sets: dict[str, Rows] = {}
    if panel.horizontal is not None:
        height = {"y": {**{key: entry for key, entry in y.items() if key != "field"}, "datum": panel.horizontal}}
        layers.append(layer("rule", height, {"values": [{}]}, color=INK, strokeDash=[4, 3]))
    if panel.verticals:
        sets["verticals"] = [{"x": _at(panel.x, position), "text": text} for position, text in panel.verticals.items()]
        text = {"x": x, "y": {"value": 4}, "text": {"field": "text", "type": "nominal"}}
        layers.append(layer("rule", {"x": x}, {"name": "verticals"}, color=INK, strokeDash=[2, 3]))
        how: Spec = {"align": "left", "dx": 4, "baseline": "top", "fontSize": 12}
        layers.append(layer("text", text, {"name": "verticals"}, color=INK, **how))
    if panel.texts:
        sets["texts"] = [{"x": _at(panel.x, at), "y": round5(height), "text": text} for at, height, text in panel.texts]
        text = {"x": x, "y": y, "text": {"field": "text", "type": "nominal"}}
        layers.append(layer("text", text, {"name": "texts"}, color=INK, align="left", dx=4, fontSize=11))
    return layers, sets


def _at(axis: Axis, position: float) -> Any:
    """Return a position as the page's data have it: a name on an axis of names."""
    return axis.names[int(position)] if axis.names else _plain(position)


def _axis(axis: Axis, channel: str, ends: tuple[float, float] | None = None) -> Spec:
    """Return a channel of numbers, whose axis need not begin at zero, or of names; `ends` are those of a log scale."""
    if axis.hidden:
        limits = {"domain": list(axis.limits)} if axis.limits else {}
        return {"field": channel, "type": "quantitative", "title": None, "scale": limits, "axis": None}
    if axis.names:
        named = {"title": _in_a_line(axis.label) or None, "sort": None, "scale": {"domain": list(axis.names)}}
        return {"field": channel, "type": "nominal", **named, "axis": {"labelAngle": 0}}
    scale: Spec = {"type": "log", "nice": False} if axis.log else {"zero": False}
    if axis.limits:
        scale |= {"domain": [round5(end) for end in axis.limits], "nice": False}
    values = sorted(axis.ticks) or (log_ticks(*ends) if ends else [])
    ticks: Spec = {"axis": {"values": values}} if values else {}
    ticks |= {"axis": {"values": values, "labelExpr": "format(datum.value, '.4~g')"}} if values and axis.log else {}
    ticks = {"axis": {"tickMinStep": 1, "format": "d"}} if axis.integers and not ticks else ticks
    return {"field": channel, "type": "quantitative", "title": _in_a_line(axis.label), "scale": scale, **ticks}


def _in_a_line(label: str) -> str:
    """Join the lines of a label; Vega refuses a title with a line break."""
    return " ".join(label.split())


def _named(chart: Chart, of: Any) -> Spec:
    """Return the channel that distinguishes names by colour, dash or shape: `of` is one of these functions."""
    scale = {"domain": list(chart.names), "range": [of(place) for place in range(len(chart.names))]}
    legend = None if chart.arms else {"title": None, "orient": "top"}
    return {"field": "arm", "type": "nominal", "scale": scale, "legend": legend}


def layer(mark: str, encoding: Spec, data: Spec, **how: Any) -> Spec:
    """Return one layer of a chart with its data."""
    return {"data": data, "mark": {"type": mark, **how}, "encoding": encoding}


def _tip(field: str, title: str, entry: Any) -> Spec:
    form = {"type": "quantitative", "format": ".5~g"} if isinstance(entry, int | float) and field != "arm" else {}
    return {"field": field, "title": title, **form}


# other panels --------------------------------------------------------------------------------------------------------


def _heat(panel: Heat) -> tuple[Spec, dict[str, Rows]]:
    rows = [
        {"x": column, "y": row, "value": round5(value)}
        for row, values in zip(panel.y.names, panel.values, strict=True)
        for column, value in zip(panel.x.names, values, strict=True)
        if math.isfinite(value)
    ]
    title, low, high = panel.scale
    scale: Spec = {"scheme": "viridis", "domain": [low, high]} | ({"type": "log"} if panel.log else {})
    legend = {"title": title, "orient": "bottom", "gradientLength": 220, "direction": "horizontal"}
    legend |= {"format": ".1~e"} if panel.log else {}
    ticks = list(panel.x.names)[:: -(-len(panel.x.names) // 6)]
    up = list(panel.y.names)[::-1] if panel.upward else list(panel.y.names)
    y = {"field": "y", "type": "nominal", "title": _in_a_line(panel.y.label) or None, "sort": up}
    x = {"field": "x", "type": "nominal", "sort": list(panel.x.names), "title": _in_a_line(panel.x.label)}
    tooltip = [{"field": name, "title": axis.field} for name, axis in (("y", panel.y), ("x", panel.x))]
    encoding = {
        "x": {**x, "axis": {"values": ticks, "labelAngle": 0}},
        "y": y,
        "color": {"field": "value", "type": "quantitative", "scale": scale, "legend": legend},
        "tooltip": [*tooltip, _tip("value", title, 0.0)],
    }
    rect = {"mark": {"type": "rect"}, "encoding": encoding, "data": {"name": "set0"}}
    return {"height": 22 * len(panel.y.names), **rect}, {"set0": rows}


def _forest(panel: Forest) -> tuple[Spec, dict[str, Rows]]:
    """Draw values with their intervals, texts above and single values below them."""
    x, names = _axis(panel.x, "x") | {"title": panel.x.label.split("\n")}, list(panel.names)
    x["scale"] = {"padding": ROOM, **x["scale"]}
    sets = {
        "set0": [_bar_row(bar) for bar in panel.bars],
        "points": [_bar_row(point) for point in panel.points],
        "texts": [_texts(bar) for bar in panel.bars if bar.texts],
        "margins": [{"name": bar.name, "x": x} for bar in panel.bars for x in finite((-bar.margin, bar.margin))],
    }
    titles = {"name": panel.x.field or "name", "x": _in_a_line(panel.x.label), "low": "low", "high": "high"}
    mean, single = (
        [_tip(key, titles.get(key, key), entry) for key, entry in _merged(sets[name]).items() if key not in HIDDEN]
        for name in ("set0", "points")
    )
    colours = {name: {"field": name, "type": "nominal", "scale": None, "legend": None} for name in ("stroke", "fill")}
    zero = {"x": {"datum": 0}, "y": {"value": 0}, "y2": {"value": "height"}}
    below: Spec = {"yOffset": 9, "strokeWidth": 1.5, "size": 40, "color": "var(--seed)"}
    diamond: Spec = {"shape": "diamond", "size": 110, "opacity": 1}
    low, data = {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "tooltip": mean}, {"name": "set0"}
    height = 46 if sets["texts"] else 34 if len(names) <= 12 else 26
    layers = [layer("rule", zero, {"values": [{}]}, color=INK, strokeDash=[4, 3])] if panel.zero else []
    if sets["margins"]:
        across: Spec = {"orient": "vertical", "size": height, "thickness": 1, "color": "var(--soft)"}
        layers.append(layer("tick", {"x": x}, {"name": "margins"}, **across))
    layers.append(layer("rule", {**low, "stroke": colours["stroke"]}, data, strokeWidth=2))
    layers += [layer("point", {"x": x, "tooltip": single}, {"name": "points"}, **below)] if panel.points else []
    layers.append(layer("point", {"x": x, **colours, "tooltip": mean}, data, **diamond))
    if sets["texts"]:
        limit = {"limit": {"expr": "width - 8"}}
        above: Spec = {"align": "left", "dx": 4, "dy": -13, "fontSize": 12, **limit}
        brief = {"condition": {"test": f"width < {NARROW}", "field": "brief", "type": "nominal"}}
        text = {"x": {"value": 0}, "text": {**brief, "field": "text", "type": "nominal"}, "fill": colours["fill"]}
        for halo in ({"stroke": "var(--page)", "strokeWidth": 4}, {}):
            layers.append(layer("text", text, {"name": "texts"}, **above, **halo))
    axis: Spec = {"labelLimit": {"expr": "min(260, containerSize()[0] * 0.3)"}}
    if any("\n" in name for name in names):
        heading = {"test": "indexof(datum.value, '\\n') < 0", "value": "bold"}
        axis |= {"labelExpr": "slice(datum.value, lastindexof(datum.value, '\\n') + 1)"}
        axis |= {"labelFontWeight": {"condition": heading, "value": "normal"}}
    y = {"field": "name", "type": "nominal", "title": None, "sort": None, "scale": {"domain": names}, "axis": axis}
    return {"height": height * max(1, len(names)), "encoding": {"y": y}, "layer": layers}, sets


HIDDEN = ("bold", "stroke", "fill")  # fields of a bar that no tooltip shows


def _texts(bar: Bar) -> dict[str, Any]:
    """Return the line above a row, and a brief one without the interval, which the bar shows too."""
    text = ": ".join(bar.texts).removesuffix(f", {HEALTHY}")
    word = "" if "unhealthy" in text else text.partition(",")[0].partition(":")[0]
    tone = {"better": "var(--good)", "worse": "var(--bad)"}.get(word, INK)
    return {"name": bar.name, "text": text, "brief": re.sub(r"(,? plain)? \[[^]]*\]", "", text), "fill": tone}


def _bar_row(bar: Bar) -> dict[str, Any]:
    row = {"name": bar.name, "x": round5(bar.value), "low": round5(bar.low), "high": round5(bar.high)}
    row = {key: entry for key, entry in row.items() if entry is not None}
    stroke = f"var(--{bar.tone})" if bar.tone else INK
    drawn = {"stroke": stroke, "fill": stroke if bar.bold else "var(--page)"} if "low" in row else {}
    return row | drawn | dict(bar.tips)


def round5(number: Any) -> float | None:
    """Round a number to five digits; None for one that JSON cannot hold."""
    return None if number is None or not math.isfinite(number) else float(f"{number:z.5g}")


def _plain(entry: Any) -> Any:
    """Convert an entry to JSON: whole numbers and texts as they are, others to five digits."""
    entry = entry.item() if hasattr(entry, "item") else entry
    return round5(entry) if isinstance(entry, float) else entry


def _merged(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {field: entry for row in rows for field, entry in row.items()}


def downsample_lttb(x_n: np.ndarray, y_n: np.ndarray, count: int) -> np.ndarray:
    """Return `count` indices that keep the shape of a curve: largest-triangle-three-buckets (Steinarsson 2013, 4.2)."""
    if len(x_n) <= count:
        return np.arange(len(x_n))
    edges = np.linspace(1, len(x_n) - 1, count - 1).astype(int)
    chosen = [0]
    for (start, end), (_, after) in itertools.pairwise([*itertools.pairwise(edges), (0, len(x_n))]):
        x, y, last = x_n[end:after].mean(), y_n[end:after].mean(), chosen[-1]
        area = np.abs((x_n[last] - x) * (y_n[start:end] - y_n[last]) - (x_n[last] - x_n[start:end]) * (y - y_n[last]))
        chosen.append(start + int(np.argmax(area)))
    return np.array([*chosen, len(x_n) - 1])
