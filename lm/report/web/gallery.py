"""The charts of the page, with their headings and controls, and the script that draws them."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from lm.report.figures.chart import Chart
from lm.report.figures.palette import dash
from lm.report.figures.vega import Rows, colour, draw
from lm.report.web.elements import Html, tag
from lm.store.user_cache import remember

MISSING = "charts need vl-convert-python, which is not installed here: pip install vl-convert-python"

SNIPPET = "window.vegaEmbed = vegaEmbed;"  # entry point of the bundle; the bundler leaves out what it does not need
MOST_SHOWN = 16  # number of arms whose curves are shown initially
FIRST = "differences"  # the figure that stands in a section of its own, before all others


@functools.cache
def library() -> str:
    """Return the script, which defines `vegaEmbed`; empty where the package is not installed."""
    try:
        import vl_convert
    except ImportError:
        return ""
    return str(remember("charts", SNIPPET, lambda: vl_convert.javascript_bundle(SNIPPET)))  # takes two seconds


class Charts:
    """Specifications and data of a page's charts, collected while it is written; none without the library."""

    def __init__(self) -> None:
        self.drawn = bool(library())
        self.specs: dict[str, dict[str, Any]] = {}
        self.rows: dict[str, Rows] = {}

    def add(self, name: str, chart: Chart | None) -> Html:
        """Add a chart with its controls; empty where there is none."""
        if chart is None or not self.drawn:
            return Html()
        if chart.apart:
            parts = [
                self._figure(f"{name}-{index}", dataclasses.replace(chart, panels=[panel]))
                for index, panel in enumerate(chart.panels)
            ]
            return tag("div", parts, class_="pair")
        return self._figure(name, chart)

    def _figure(self, name: str, chart: Chart) -> Html:
        """Add one chart, with a list to choose from where it has several panels."""
        panels = {}
        for index, panel in enumerate(chart.panels):
            spec, sets = draw(chart, panel)
            names = {part: f"{name}-{index}-{part}" for part in sets}
            self.rows |= {names[part]: rows for part, rows in sets.items()}
            panels[str(index)] = {"spec": spec, "sets": names}
        self.specs[name] = {"panels": panels, "arms": chart.arms}
        self.specs[name] |= {} if chart.arms else {"names": list(chart.names)}
        controls, title = [], (chart.panels[0].option or chart.panels[0].title) if chart.apart else chart.title
        if len(chart.panels) > 1:
            labels = [panel.option or getattr(panel, "y", panel.x).label.replace("\n", " ") for panel in chart.panels]
            options = [tag("option", text, value=at) for at, text in enumerate(labels)]
            select = tag("select", options, data_for=name, aria_label=f"{chart.title}: what is drawn")
            controls.append(tag("label", "Show ", select))
        if chart.log:
            controls.append(tag("label", tag("input", type="checkbox", data_log=name), " logarithmic"))
        return tag(
            "figure",
            tag("h3", title),
            tag("figcaption", chart.note, class_="hint") if chart.note else "",
            tag("div", controls, class_="controls") if controls else "",
            tag("div", class_="chart", id=f"chart-{name}", role="group", aria_label=title),
        )


def gallery(charts: Mapping[str, Chart], arms: Sequence[str], drawing: Charts) -> Html:
    """Build all charts: wide ones, then two a row."""
    wide = [drawing.add(name, chart) for name, chart in charts.items() if chart.wide]
    narrow = [drawing.add(name, chart) for name, chart in charts.items() if not chart.wide]
    if not any([*wide, *narrow]):
        return Html()
    drawn = tag("div", wide, tag("div", narrow, class_="pair") if any(narrow) else "")
    return tag("div", _legend(arms), drawn, class_="gallery")


def _legend(arms: Sequence[str]) -> Html:
    boxes = []
    for place, arm in enumerate(arms):
        pattern = " ".join(map(str, dash(place))) if place else "none"
        line = tag("line", x1=1, x2=33, y1=7, y2=7, stroke=colour(place), stroke_dasharray=pattern)
        key = tag("svg", line, class_="swatch", viewBox="0 0 34 14", aria_hidden="true")
        box = tag("input", type="checkbox", data_shown=place, checked=place < MOST_SHOWN)
        boxes.append(tag("label", box, key, tag("span", arm)))
    switches = [tag("button", text, type="button", data_all=name) for name, text in (("all", "All"), ("none", "None"))]
    lists = tag("div", boxes, class_="chosen"), tag("div", switches, class_="controls")
    return tag("fieldset", tag("legend", "Arms in the charts"), *lists)
