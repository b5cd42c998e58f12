"""The page of a search: best trials, importances, charts, all trials, and lost ones."""

import shlex

import pandas as pd

from lm.report.figures.chart import label
from lm.report.figures.searches import FIGURES, format_settings, importance_chart
from lm.report.study import Importance, Study, best_rows, format_value, importance_lines, notes, warnings_of
from lm.report.web.comparison import filtered
from lm.report.web.elements import Html, joined, listed, table, tag
from lm.report.web.page import Body, new_charts, standalone_page
from lm.report.web.parts import PageSection, author_notes

ImportancesOrReason = dict[str, list[Importance]] | str


def search_html(study: Study, importance: ImportancesOrReason) -> str:
    """Format the whole report of a search as one file."""
    return standalone_page(search_body(study, importance))


def search_body(study: Study, importance: ImportancesOrReason) -> Body:
    """Build the content of a search's page."""
    drawing, manifest = new_charts(), study.manifest
    columns_of_best, best = best_rows(study)
    shares = None if isinstance(importance, str) else importance_chart(importance)
    answer, warnings = tag("p", best_line(study), class_="answer"), listed(warnings_of(study), class_="warn")
    first = tag("section", answer, warnings, listed(notes(study)), id="verdict")
    drawn = [drawing.add(name, make(study)) for name, make in FIGURES.items()]
    drawn_shares = drawing.add("importances", shares)
    title = "Pareto front" if len(study.objectives) > 1 else "Best trials"
    parts = [
        PageSection("best", title, table(columns_of_best, best) if best else Html()),
        PageSection("importance", "Importance", joined(drawn_shares, listed(importance_lines(importance)))),
        PageSection("charts", "Charts", joined(drawn)),
        PageSection("table", "Trials", _trials(study)),
        PageSection("notes", "Author's notes", author_notes(manifest)),
        PageSection("lost", "Lost trials", _lost(study), folded=True),
        PageSection("again", "How to run it again", _again(study), folded=True),
    ]
    subtitle = f"{manifest['name']}: a search over {', '.join(study.shown_space)}"
    behind = {"arms": [], "table": {"metric": [], "arm": []}, "rows": "trials"}
    data_of = {"report": behind, "specs": drawing.specs, "columns": drawing.columns}
    return Body(manifest["title"], subtitle, first, parts, data_of)


def best_line(study: Study) -> str:
    """State the best trial, or the size of the Pareto front, in a sentence."""
    if study.complete.empty:
        return "No trial has been trained to its end yet."
    if len(study.objectives) > 1:
        names = " and ".join(label(name) for name in study.objectives)
        return f"{len(study.best)} trials that no other beats in both {names}."
    (quantity,) = study.objectives
    best = study.best.iloc[0]
    value = f"{label(quantity)} {format_value(best[quantity])}"
    text = f"Trial {best['number']} is the best of {len(study.complete)}: {value}"
    return f"{text}, at {format_settings(study, best)}."


def _trials(study: Study) -> Html:
    """Format a table of every trial, to sort and to filter."""
    names = ["number", "state", *study.objectives, *study.shown_space, "seconds"]
    titles = {"number": "trial", **{name: label(name) for name in study.objectives}}
    heads = [tag("th", tag("button", titles.get(name, name), type="button"), scope="col") for name in names]
    rows = []
    for _, row in study.trials.iterrows():
        texts = {name: format_value(row[name]) for name in names}
        keys = {name: "" if text == "-" else str(row[name]) for name, text in texts.items()}
        cells = [tag("th" if name == "number" else "td", texts[name], data_v=keys[name]) for name in names]
        rows.append(tag("tr", cells))
    return filtered(heads, rows, "pruned, a value, ...", "all trials")


def _lost(study: Study) -> Html:
    """Format a table of the pruned and failed trials, with the reason."""
    gone = study.trials[study.trials.state.isin(["pruned", "failed"])]
    rows = [
        [str(row["number"]), str(row["state"]), _why(study, row), format_settings(study, row)]
        for _, row in gone.iterrows()
    ]
    return table(["trial", "state", "why", "at"], rows) if rows else Html()


def _why(study: Study, row: pd.Series) -> str:
    if row["state"] == "failed":
        return str(row["reason"] or "not recorded")
    trial = next(trial for trial in study.manifest["study"] if trial["number"] == row["number"])
    last = max(map(int, trial.get("reported") or {}), default=None)
    return "stopped by the pruner" + (f" after step {last}" if last is not None else "")


def _again(study: Study) -> Html:
    name, seed = study.manifest["name"], study.manifest["seeds"][0]
    commands = [
        (["lm", "report", name], "this report, made again from study.json"),
        (["lm", "ls", "--experiment", name], "the cells of every trial"),
        (["lm", "pack", name], "everything but the weights as one file"),
    ]
    if not study.complete.empty:
        best = f"{name}/trial_{study.best.iloc[0]['number']}/{seed}"
        commands.insert(1, (["lm", "evaluate", best], "the best trial, measured again"))
    rows = [[shlex.join(words), purpose] for words, purpose in commands]
    return joined(tag("p", "In the folder of results:"), table(["command", "shows"], rows))
