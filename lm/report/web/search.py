"""The page of a search: best trials, importances, charts, all trials, and lost ones."""

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from lm.report.study import Importance, Study, best_rows, importance_lines, notes, warnings_of
from lm.report.web.charts import INK, Spec, chart, layer, number, tips
from lm.report.web.elements import Html, joined, listed, table, tag
from lm.report.web.gallery import Charts
from lm.report.web.library import library
from lm.report.web.numbers import Columns, columns, label, round5
from lm.report.web.page import Body, contents, standalone_page
from lm.report.web.parts import section

ImportancesOrReason = dict[str, list[Importance]] | str
COLOURS = {"complete": "var(--arm-1)", "pruned": "var(--arm-2)", "failed": "var(--arm-4)", "open": "var(--arm-5)"}
DASHES = {"complete": [1, 0], "pruned": [4, 3], "failed": [1, 3], "open": [8, 3]}
SHAPES = {"complete": "circle", "pruned": "cross", "failed": "triangle-down", "open": "square"}


def search_html(study: Study, importance: ImportancesOrReason) -> str:
    """Format the whole report of a search as one file."""
    return standalone_page(search_body(study, importance))


def search_body(study: Study, importance: ImportancesOrReason) -> Body:
    """Build the content of a search's page.

    Args:
        study: the search.
        importance: importances of its parameters by objective, or why there are none.
    """
    drawing, manifest = Charts(bool(library())), study.manifest
    columns_of_best, best = best_rows(study)
    several = len(study.objectives) > 1
    parts = [
        section(
            "verdict",
            "Verdict",
            tag("p", best_line(study), class_="lead"),
            listed(warnings_of(study), class_="warn"),
            listed(notes(study)),
        ),
        section("best", "Pareto front" if several else "Best trials", table(columns_of_best, best) if best else ""),
        section("importance", "Importance", _importance(importance, drawing), listed(importance_lines(importance))),
        section(
            "charts",
            "Charts",
            _history(study, drawing),
            _front(study, drawing),
            _curves(study, drawing),
            _slices(study, drawing),
        ),
        section("table", "Trials", _trials(study)),
        section("lost", "Lost trials", _lost(study)),
        section("again", "How to run it again", _again(study)),
    ]
    subtitle = f"{manifest['name']}: a search over {', '.join(study.space)}"
    about = tag("p", manifest["notes"].strip(), class_="notes") if manifest["notes"] else ""
    shown = joined(about, contents(parts, NAMES), parts)
    behind = {"arms": list(COLOURS), "table": {"metric": [], "arm": []}, "rows": "trials"}
    data_of = {"report": behind, "specs": drawing.specs, "columns": drawing.columns}
    return Body(manifest["title"], subtitle, shown, data_of)


NAMES = {
    "verdict": "Verdict",
    "best": "Best trials",
    "importance": "Importance",
    "charts": "Charts",
    "table": "Trials",
    "lost": "Lost trials",
    "again": "Run it again",
}


def _text(value: Any) -> str:
    """Format a value of a parameter or an objective; a dash where there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return f"{value:z.5g}" if isinstance(value, float) else str(value)


def _settings_text(study: Study, row: Any) -> str:
    """Format the values of a trial's parameters in a line."""
    return ", ".join(f"{name} {_text(row[name])}" for name in study.space if _text(row[name]) != "-")


def best_line(study: Study) -> str:
    """State the best trial, or the size of the Pareto front, in a sentence."""
    if study.complete.empty:
        return "No trial has been trained to its end yet."
    if len(study.objectives) > 1:
        names = " and ".join(label(name) for name in study.objectives)
        return f"{len(study.best)} trials that no other beats in both {names}."
    (quantity,) = study.objectives
    best = study.best.iloc[0]
    text = f"Trial {best['number']} is the best of {len(study.complete)}: {label(quantity)} {_text(best[quantity])}"
    return f"{text}, at {_settings_text(study, best)}."


# charts --------------------------------------------------------------------------------------------------------------


def _by_state(of: Mapping[str, Any], states: Sequence[str]) -> Spec:
    scale = {"domain": states, "range": [of[state] for state in states]}
    return {"field": "state", "type": "nominal", "scale": scale, "legend": {"title": None, "orient": "top"}}


def _importance(importance: ImportancesOrReason, drawing: Charts) -> Html:
    if isinstance(importance, str):
        return Html()
    rows = columns(
        {
            "metric": quantity,
            "name": entry.name,
            "share": round5(entry.share),
            "low": round5(entry.low),
            "high": round5(entry.high),
        }
        for quantity, entries in importance.items()
        for entry in entries
    )
    x, count = number("share", "share of the variance"), max(map(len, importance.values()))
    tooltip = tips("share", "low", "high")
    spec = chart(
        height=30 * count,
        encoding={"y": {"field": "name", "type": "nominal", "title": None, "sort": None, "axis": {"labelLimit": 260}}},
        layer=[
            layer(
                "rule",
                {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "tooltip": tooltip},
                color=INK,
                strokeWidth=2,
            ),
            layer("point", {"x": x, "tooltip": tooltip}, filled=True, size=90, color="var(--arm-1)", opacity=1),
        ],
    )
    options = {name: label(name) for name in importance}
    note = "Points: shares; bars: 95 % bootstrap intervals over trials."
    return drawing.add(
        "importances", "Shares of the variance", spec, {"rows": rows}, "metric", options, note, arms=False
    )


def _history(study: Study, drawing: Charts) -> Html:
    if len(study.objectives) > 1:
        return Html()
    (quantity, way), complete = next(iter(study.objectives.items())), study.complete.sort_values("number")
    best = complete[quantity].cummin() if way == "lower" else complete[quantity].cummax()
    rows = columns(
        {
            "trial": int(row["number"]),
            "value": round5(row[quantity]),
            "best": round5(at),
            "text": _settings_text(study, row),
        }
        for (_, row), at in zip(complete.iterrows(), best, strict=True)
    )
    x, y = number("trial", "trial", axis={"tickMinStep": 1, "format": "d"}), number("value", label(quantity))
    spec = chart(
        layer=[
            layer("line", {"x": x, "y": {**y, "field": "best"}}, interpolate="step-after", color=INK),
            layer(
                "point",
                {"x": x, "y": y, "tooltip": tips("trial", "value", "text")},
                filled=True,
                size=55,
                color="var(--arm-1)",
            ),
        ],
    )
    return drawing.add(
        "history", "Search", spec, {"rows": rows}, note="Points: trials; line: the best so far.", arms=False, log=True
    )


def _front(study: Study, drawing: Charts) -> Html:
    if len(study.objectives) != 2:
        return Html()
    up, across = study.objectives
    on_front = set(study.best.number)
    rows = columns(
        {
            "trial": int(row["number"]),
            "x": round5(row[across]),
            "y": round5(row[up]),
            "front": row["number"] in on_front,
            "text": _settings_text(study, row),
        }
        for _, row in study.complete.sort_values(across).iterrows()
    )
    x, y = number("x", label(across)), number("y", label(up))
    fill = {"condition": {"test": "datum.front", "value": INK}, "value": "var(--page)"}
    point = {"x": x, "y": y, "fill": fill, "tooltip": tips("trial", "x", "y", "text")}
    spec = chart(**layer("point", point, stroke=INK, size=80, opacity=1))
    note = "Filled: no other trial beats it in both."
    return drawing.add("front", "Pareto front", spec, {"rows": rows}, note=note, arms=False)


def _curves(study: Study, drawing: Charts) -> Html:
    """Plot the intermediate values that trials reported."""
    states = {int(row["number"]): str(row["state"]) for _, row in study.trials.iterrows()}
    rows: Columns = columns(
        {"trial": trial["number"], "state": states[trial["number"]], "step": int(step), "value": round5(value)}
        for trial in study.manifest["study"]
        for step, value in sorted((trial.get("reported") or {}).items(), key=lambda pair: int(pair[0]))
    )
    present = [state for state in COLOURS if state in set(rows.get("state", ()))]
    both = {
        "x": number("step", "optimiser step"),
        "y": number("value", label(next(iter(study.objectives)))),
        "detail": {"field": "trial"},
        "color": _by_state(COLOURS, present),
    }
    point = {**both, "shape": _by_state(SHAPES, present), "tooltip": tips("trial", "step", "value")}
    spec = chart(
        layer=[
            layer("line", {**both, "strokeDash": _by_state(DASHES, present)}, strokeWidth=1.2),
            layer("point", point, filled=True, size=30),
        ],
    )
    return drawing.add("tuning", "Tuning curves", spec, {"rows": rows}, note="A line a trial.", arms=False, log=True)


def _slices(study: Study, drawing: Charts) -> Html:
    """Plot the first objective over each parameter, over the trials that drew it."""
    quantity, figures = next(iter(study.objectives)), []
    for index, (name, described) in enumerate(study.space.items()):
        drawn = study.complete[study.complete[name].notna()]
        rows = columns(
            {
                "trial": int(row["number"]),
                "x": row[name] if "choices" in described else round5(row[name]),
                "y": round5(row[quantity]),
                "text": _settings_text(study, row),
            }
            for _, row in drawn.iterrows()
        )
        x: Spec = {"field": "x", "type": "nominal", "title": name, "axis": {"labelAngle": 0}}
        if "choices" not in described:
            x = number("x", name, log=bool(described["log"]))
        point = {"x": x, "y": number("y", label(quantity)), "tooltip": tips("trial", "y", "text")}
        spec = chart(height=260, **layer("point", point, filled=True, size=55, color="var(--arm-1)", opacity=0.8))
        figures.append(drawing.add(f"slice-{index}", f"Over {name}", spec, {"rows": rows}, arms=False, log=True))
    return tag("div", figures, class_="pair") if any(figures) else Html()


# tables --------------------------------------------------------------------------------------------------------------


def _trials(study: Study) -> Html:
    """Format a table of every trial, to sort and to filter."""
    names = ["number", "state", *study.objectives, *study.space, "seconds"]
    titles = {"number": "trial", **{name: label(name) for name in study.objectives}}
    heads = [tag("th", tag("button", titles.get(name, name), type="button"), scope="col") for name in names]
    rows = []
    for _, row in study.trials.iterrows():
        cells = [
            tag("th" if name == "number" else "td", text, data_v="" if text == "-" else str(row[name]))
            for name in names
            for text in [_text(row[name])]
        ]
        rows.append(tag("tr", cells))
    body = tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows), id="comparison")
    field = tag("input", type="search", id="filter", placeholder="pruned, a value, ...")
    count = tag("span", id="count", class_="hint", role="status")
    controls = tag("div", tag("label", "Filter ", field), count, class_="controls")
    return joined(
        controls, tag("div", body, class_="scroll tall", tabindex="0", role="region", aria_label="all trials")
    )


def _lost(study: Study) -> Html:
    """Format a table of the pruned and failed trials, with the reason."""
    gone = study.trials[study.trials.state.isin(["pruned", "failed"])]
    rows = [
        [str(row["number"]), str(row["state"]), _why(study, row), _settings_text(study, row)]
        for _, row in gone.iterrows()
    ]
    return table(["trial", "state", "why", "at"], rows) if rows else Html()


def _why(study: Study, row: pd.Series) -> str:
    if row["state"] == "failed":
        return str(row["reason"] or "not recorded")
    reported = next(
        trial.get("reported") or {} for trial in study.manifest["study"] if trial["number"] == row["number"]
    )
    last = max(map(int, reported), default=None)
    return "stopped by the pruner" + (f" after step {last}" if last is not None else "")


def _again(study: Study) -> Html:
    name, seed = study.manifest["name"], study.manifest["seeds"][0]
    looks = [
        (["lm", "report", name], "this report, made again from study.json"),
        (["lm", "ls", "--experiment", name], "the cells of every trial"),
        (["lm", "pack", name], "everything but the weights as one file"),
    ]
    if not study.complete.empty:
        best = f"{name}/trial_{study.best.iloc[0]['number']}/{seed}"
        looks.insert(1, (["lm", "evaluate", best], "the best trial, measured again"))
    rows = [[shlex.join(words), what] for words, what in looks]
    return joined(tag("p", "In the folder of results:"), table(["command", "shows"], rows))
