"""The charts of the page, with their figures and controls."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from lm.analysis.results import Results
from lm.report.study import Study
from lm.report.web import charts, heat, numbers
from lm.report.web.charts import Spec, colour, dash, number
from lm.report.web.elements import Html, joined, tag
from lm.report.web.numbers import Columns, label

MOST_SHOWN = 16
"""Number of arms whose curves are shown initially."""

FEW = 20
"""Largest number of points of a curve with a marker each."""

LENGTHS = "Thin: a sliding window. Dotted: the length that was trained with."
SPREAD = "Mean over seeds, and one standard deviation either way."
EACH = "A point a trial."


class Charts:
    """Specifications and columns of a page's charts, collected while the page is written."""

    def __init__(self, drawn: bool) -> None:
        self.drawn = drawn
        self.specs: dict[str, dict[str, Any]] = {}
        self.columns: dict[str, Columns] = {}

    def add(
        self,
        name: str,
        title: str,
        spec: Spec,
        rows: Mapping[str, Columns],
        field: str = "",
        options: Mapping[str, str] | None = None,
        note: str = "",
        **how: Any,
    ) -> Html:
        """Add a figure with its controls; empty where there are no rows.

        Args:
            name: id of the figure.
            title: title above it.
            spec: Vega-Lite specification whose data are named `rows`.
            rows: columns of each of its data sets by name, `rows` first.
            field: field by which a list of options selects rows.
            options: values of `field` and their labels.
            note: note below the title.
            how: `chosen`, the initial option; `titled`, the axis, `x` or `y`, titled by the chosen option; `log`, True
                for a switch to a logarithmic vertical axis; `arms`, False where arms cannot be switched off.
        """
        if not rows["rows"] or not self.drawn:
            return Html()
        sets = {part: self._share_columns(f"{name}-{part}", columns) for part, columns in rows.items()}
        choices = {"field": field, "arms": how.get("arms", True), "titled": how.get("titled", "")}
        self.specs[name] = {"spec": {"data": {"name": "rows"}, **spec}, "sets": sets, **choices}
        controls = []
        if options:
            chosen = how.get("chosen", "")
            entries = [tag("option", text, value=option, selected=option == chosen) for option, text in options.items()]
            select = tag("select", entries, data_for=name, aria_label=f"{title}: what is drawn")
            controls.append(tag("label", "Show ", select))
        if how.get("log"):
            controls.append(tag("label", tag("input", type="checkbox", data_log=name), " logarithmic"))
        return tag(
            "figure",
            tag("h3", title),
            tag("figcaption", note, class_="hint") if note else "",
            tag("div", controls, class_="controls") if controls else "",
            tag("div", class_="chart", id=f"chart-{name}", role="group", aria_label=title),
        )

    def _share_columns(self, name: str, columns: Columns) -> str:
        """Register columns once for all charts that draw them; return their name."""
        sent_name = next((key for key, sent in self.columns.items() if sent is columns), None)
        self.columns[sent_name or name] = columns
        return sent_name or name


def differences(results: Results, compared: pd.DataFrame, drawing: Charts) -> Html:
    """Build the forest plot."""
    rows, seeds = numbers.difference_data(results, compared)
    options = {name: label(name) for name in numbers.compared_metrics(results, compared)}
    note = (
        "Diamonds: mean differences, paired by seed; filled where a test of healthy arms found one. Bars: 95 % "
        "intervals, of the kind that the table names. Circles: single seeds. Left of the line the arm has less."
    )
    return drawing.add(
        "forest", "Paired differences", charts.forest(results.arms), {"rows": rows, "seeds": seeds}, "metric", options,
        arms=False, note=note,
    )  # fmt: skip


def gallery(results: Results, drawing: Charts, studies: Mapping[str, Study]) -> Html:
    """Build all other charts, and the switches for arms."""
    drawn = [
        _curves(results, drawing),
        tag("div", figures, class_="pair") if any(figures := _heat(results, drawing)) else "",
        tag("div", figures, class_="pair") if any(figures := _small(results, drawing, studies)) else "",
    ]
    return joined(_legend(results), drawn) if any(drawn) else Html()


def _curves(results: Results, drawing: Charts) -> Html:
    rows = {"rows": numbers.curve_data(results)}
    options = _options(rows["rows"], "column", numbers.CURVES)
    note = f"{SPREAD} At most {numbers.points(results)} steps a curve, those that keep its shape."
    first = list(zip(rows["rows"].get("column", ()), rows["rows"].get("arm", ()), strict=True))
    few = bool(first) and first.count(first[0]) <= FEW
    spec = charts.learning_curve(results.arms, _first(options), few)
    return drawing.add("curves", "Learning curves", spec, rows, "column", options, note, titled="y", log=True)


def _small(results: Results, drawing: Charts, studies: Mapping[str, Study]) -> list[Html]:
    """Build the half-width charts, laid out two per row."""
    arms, y, nll = results.arms, label(results.headline), number("nll", "validation NLL (nats/token)")
    data = {"reliability": numbers.reliability_data(results), "costs": numbers.cost_data(results)}
    data["lengths"], data["positions"] = numbers.length_data(results)
    data["numbers"], data["trials"] = numbers.setting_data(results), numbers.trial_data(results, studies)
    rows = {name: {"rows": columns} for name, columns in data.items()}
    rows["lengths"]["trained"] = numbers.trained_length_data(results)
    varied, tried = _options(data["numbers"], "path"), _options(data["trials"], "path")
    costs = _options(data["costs"], "cost", numbers.COSTS)
    pooled = "Bins pooled over seeds; those with under 0.1 % of the tokens are left out."
    measured = sorted(set(data["lengths"].get("length", ())))
    tokens = number("length", "tokens of context", log=True, axis={"values": measured})
    position = number("position", "position", log=True)
    lengths = charts.by_length(arms, tokens, nll)
    by_position = charts.lines(arms, position, nll, "position", "nll")
    over = charts.scatter(arms, number("x", _first(varied)), y, along=True)
    against = charts.scatter(arms, number("x", _first(costs)), y)
    alike = f"{SPREAD} Lines join arms alike in all else."
    trials = charts.trials(arms, _first(tried), y)
    return [
        drawing.add("costs", "Loss against cost", against, rows["costs"], "cost", costs, SPREAD, titled="x", log=True),
        drawing.add("reliability", "Reliability", charts.reliability(arms), rows["reliability"], note=pooled),
        drawing.add("lengths", "Other lengths of context", lengths, rows["lengths"], note=LENGTHS),
        drawing.add("positions", "Loss by position", by_position, rows["positions"], note="In the longest blocks."),
        drawing.add(
            "numbers", "Loss over what was varied", over, rows["numbers"], "path", varied, alike, titled="x", log=True
        ),
        drawing.add("trials", "Trials of the searches", trials, rows["trials"], "path", tried, EACH, titled="x"),
    ]


def _options(rows: Columns, field: str, names: Mapping[str, str] | None = None) -> dict[str, str]:
    """Map the values of a field of the rows, in order, to their labels."""
    return {value: (names or {}).get(value, value) for value in dict.fromkeys(rows.get(field, ()))}


def _first(options: Mapping[str, str]) -> str:
    """Return the label of the option that is shown initially."""
    return next(iter(options.values()), "")


def _heat(results: Results, drawing: Charts) -> list[Html]:
    """Build two heat maps on one scale: the baseline's, and that of an arm."""
    rows = heat.gradient_data(results)
    arms = {str(place): results.arms[place] for place in dict.fromkeys(rows.get("arm", ()))}
    if not arms:
        return []
    spec = charts.gradients(rows["norm"], rows["step"], rows["part"])
    note = "Norm before clipping, mean over seeds; maps beside each other have one scale."
    names = {"gradients": "Gradients by layer and step", "gradients-2": "The same of another arm"}
    return [
        drawing.add(name, title, spec, {"rows": rows}, "arm", arms, note, chosen=chosen, arms=False)
        for (name, title), chosen in zip(names.items(), arms, strict=False)
    ]


def _legend(results: Results) -> Html:
    """Build the list of arms with their lines and switches."""
    boxes = []
    for place, arm in enumerate(results.arms):
        pattern = " ".join(map(str, dash(place))) if place else "none"
        line = tag("line", x1=1, x2=33, y1=7, y2=7, stroke=colour(place), stroke_dasharray=pattern)
        key = tag("svg", line, class_="swatch", viewBox="0 0 34 14", aria_hidden="true")
        box = tag("input", type="checkbox", data_shown=place, checked=place < MOST_SHOWN)
        boxes.append(tag("label", box, key, tag("span", arm)))
    switches = [tag("button", text, type="button", data_all=name) for name, text in (("all", "All"), ("none", "None"))]
    return tag(
        "fieldset",
        tag("legend", "Arms in the charts"),
        tag("div", boxes, class_="chosen"),
        tag("div", switches, class_="controls"),
    )
