"""The report of a search, rebuilt from its study.json."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from lm.report import study as studies
from lm.report.base import Report
from lm.report.figures.chart import Chart, label
from lm.report.figures.searches import FIGURES, format_settings, importance_chart
from lm.report.notes import author_notes
from lm.report.render import Section, html_section
from lm.report.study import Importance, Study, format_value
from lm.report.web import parts
from lm.report.web.comparison import filtered
from lm.report.web.elements import Html, joined, listed, table, tag
from lm.report.web.gallery import Charts
from lm.report.web.page import Body, PageSection


@dataclass(frozen=True)
class SearchReport(Report):
    """The report of a search, with the importances of its parameters, or why there are none."""

    study: Study
    importance: dict[str, list[Importance]] | str

    kind = ("search", "searches")
    usual = 3

    @classmethod
    def load(cls, folder: Path) -> "SearchReport":
        """Load a search. Raises InputError where there is none that this version reads."""
        study = studies.load_study(folder)
        if len(study.complete) < studies.FEWEST:
            return cls(study, f"{len(study.complete)} complete trials are too few; it takes {studies.FEWEST}.")
        importance = studies.importances(study.complete, list(study.objectives), study.space)
        if isinstance(importance, str):
            return cls(study, importance)
        return cls(replace(study, ranked=tuple(row.name for row in next(iter(importance.values())))), importance)

    @property
    def name(self) -> str:
        """Name of the search."""
        return self.study.manifest["name"]

    def figures(self) -> dict[str, Callable[[], Chart | None]]:
        """Return every figure of a search."""
        return {name: functools.partial(make, self.study) for name, make in FIGURES.items()}

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the trials."""
        return {"trials.csv": self.study.trials}

    def printed(self, width: int, everything: bool) -> list[Section]:
        """Return the best trials with warnings, notes and importances."""
        best = studies.best_section(self.study)
        notes = [*best.notes, *studies.importance_lines(self.importance)]
        return [replace(best, title=self.study.manifest["title"], notes=notes)]

    def sections(self) -> list[Section]:
        """Return the best trials, the importances and the author's notes."""
        manifest, best = self.study.manifest, studies.best_section(self.study)
        shares = Section("Importances", notes=studies.importance_lines(self.importance))
        return [Section(manifest["title"]), best, shares, Section(text=author_notes(manifest))]

    def body(self) -> Body:
        """Return the best trial, charts, and every trial."""
        study, manifest, drawing = self.study, self.study.manifest, Charts()
        shares = None if isinstance(self.importance, str) else importance_chart(self.importance)
        best = studies.best_section(study)
        drawn = joined(drawing.add(name, chart) for name, chart in self.charts())
        importance = joined(drawing.add("importances", shares), listed(studies.importance_lines(self.importance)))
        sections = [
            PageSection("best", best.title, html_section(replace(best, notes=()))),
            PageSection("importance", "Importance", importance),
            PageSection("charts", "Charts", drawn),
            PageSection("table", "Trials", _trials(study)),
            PageSection("notes", "Author's notes", parts.author_notes(manifest)),
            PageSection("lost", "Lost trials", _lost(study), folded=True),
            PageSection("again", "How to run it again", _again(study), folded=True),
        ]
        above = joined(listed(studies.warnings_of(study), class_="warn"), listed(studies.notes(study)))
        below = f"{self.name}: a search over {', '.join(study.shown_space)}"
        numbers = {"arms": [], "table": {"metric": [], "arm": []}, "rows": "trials"}
        return Body(self.name, manifest["title"], below, best_line(study), above, sections, drawing, numbers)


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
    gone = study.trials[study.trials.state.isin(["pruned", "failed"])]
    reported = {trial["number"]: map(int, trial.get("reported") or {}) for trial in study.manifest["study"]}
    rows = []
    for _, row in gone.iterrows():
        why, last = str(row["reason"] or "not recorded"), max(reported[row["number"]], default=None)
        if row["state"] == "pruned":
            why = "stopped by the pruner" + (f" after step {last}" if last is not None else "")
        rows.append([str(row["number"]), str(row["state"]), why, format_settings(study, row)])
    return table(["trial", "state", "why", "at"], rows) if rows else Html()


def _again(study: Study) -> Html:
    name, seed = study.manifest["name"], study.manifest["seeds"][0]
    commands = [(["lm", "ls", "--experiment", name], "the cells of every trial")]
    if not study.complete.empty:
        best = f"{name}/trial_{study.best.iloc[0]['number']}/{seed}"
        commands.append((["lm", "evaluate", best], "the best trial, measured again"))
    return parts.commands_section("In the folder of results:", name, commands)
