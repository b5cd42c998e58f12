"""The report of an experiment, rebuilt from its records."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lm.analysis.answers import Answer
from lm.analysis.compare import compare
from lm.analysis.pace import StepsToBaselineLoss, steps_to_baseline_loss
from lm.analysis.results import Records, load
from lm.report.answer import answer
from lm.report.base import Report
from lm.report.claims import claims_section
from lm.report.figures import catalogue
from lm.report.figures.chart import Chart
from lm.report.notes import author_notes, axes, brief_notes, changes, grouped, notes
from lm.report.render import Section, fits, html_section
from lm.report.sections import all_sections, made_under
from lm.report.tables import UNHEALTHY, details, main_table, more_metrics
from lm.report.tuning import (
    Rates,
    Tuning,
    at_one_rate_words,
    claims_of,
    open_between,
    rates_of,
    rates_section,
    tuning_of,
    tuning_section,
)
from lm.report.web import parts
from lm.report.web.comparison import behind, comparison
from lm.report.web.elements import joined, listed, tag
from lm.report.web.gallery import FIRST, Charts, gallery
from lm.report.web.page import Body, PageSection, as_page_section

FILES = "All measurements: table.csv. Curves, provenance and every chart: report.html."
HEALTH = f"{UNHEALTHY.strip()} A training problem: see the column of health below."
NUMBERS = "Point at a number for its n and interval; press it for the cells behind it and the commands that show them."


@dataclass(frozen=True)
class ExperimentReport(Report):
    """The report of an experiment, with `first` in place of the first table of its page of Markdown."""

    results: Records
    table: pd.DataFrame
    claims: list[tuple[str, Answer]]
    tuning: Tuning | None = None
    rates: Rates | None = None
    first: Section | None = None

    kind = ("experiment", "experiments")
    usual = 3

    @classmethod
    def load(cls, folder: Path) -> "ExperimentReport":
        """Load and compare an experiment. Raises InputError where there is none that this version reads."""
        results = load(folder)
        rates = rates_of(results, folder)
        claims = [(results.manifest["name"], answer) for answer in claims_of(results, rates)]
        return cls(results, compare(results), claims, tuning_of(results, folder), rates)

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self.results.manifest["name"]

    @property
    def beside(self) -> bool:
        """True if other folders are read too: of tuning, of learning rates, of smaller budgets."""
        return bool(self.tuning or self.rates or self.results.manifest.get("budgets"))

    @property
    def damaged(self) -> bool:
        """True if a record, a curve or losses by document were changed since training wrote them."""
        return self.results.harmed

    @functools.cached_property
    def paces(self) -> list[StepsToBaselineLoss]:
        """The steps that each arm needs for the baseline's final loss."""
        return steps_to_baseline_loss(self.results)

    @property
    def between(self) -> list[str]:
        """A note on verdicts that may not hold at learning rates between those that were tried, if there are any."""
        return open_between(self.results, self.rates, self.table) if self.rates else []

    @property
    def figure_inputs(self) -> catalogue.FigureInputs:
        """The data that its figures draw."""
        return catalogue.FigureInputs(self.results, self.table, self.tuning[2] if self.tuning else {}, self.rates)

    def figures(self) -> dict[str, Callable[[], Chart | None]]:
        """Return every figure of an experiment."""
        inputs = self.figure_inputs
        return {name: functools.partial(figure.make, inputs) for name, figure in catalogue.figures().items()}

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the comparisons of every quantity."""
        return {"table.csv": self.table}

    def main_table(self, short: bool = False) -> Section:
        """Return the first table; of arms at learning rates of their own with the verdicts at the shared one beside."""
        return main_table(self.results, self.table, short, self._at_one_rate(short))

    def _at_one_rate(self, short: bool = False) -> dict[str, str] | None:
        if self.rates is None or "rates" not in self.results.manifest:
            return None
        return at_one_rate_words(self.rates.twin, short)

    def printed(self, width: int, everything: bool) -> list[Section]:
        """Return the first table with a few lines of notes, or all tables with all their notes."""
        first = self.main_table()
        if not everything:
            if not fits(first.columns, first.rows, width):
                first = self.main_table(short=True)
            lines = brief_notes(self.results, self.table, [answer for _, answer in self.claims])
            return [dataclasses.replace(first, notes=[*lines, *self.between])]
        first = dataclasses.replace(first, notes=[*notes(self.results, self.table), *self.between])
        more = more_metrics(self.results, self.table, self.paces)
        return [first, more, *all_sections(self.results, self.paces), *self._last(width)]

    def sections(self) -> list[Section]:
        """Return the first table with all notes, and all others."""
        results, paces = self.results, self.paces
        below = [*notes(results, self.table), *self.between, *([HEALTH] if any(results.health.values()) else []), FILES]
        first = dataclasses.replace(self.first or self.main_table(), notes=below)
        sections = [dataclasses.replace(first, title=results.manifest["title"])]
        sections.append(Section(text=author_notes(results.manifest)))
        if self.first is None:
            sections.append(more_metrics(results, self.table, paces))
        if len(results.arms) > 1:
            sections.append(Section("Arms", notes=[*changes(results), *axes(results)]))
        return [*sections, *all_sections(results, ()), *self._last()]  # More metrics has the steps in a word

    def _last(self, width: int | None = None) -> list[Section]:
        """Return the sections on claims, tuning and learning rates, where the experiment has them."""
        sections = [claims_section(self.claims, width=width)] if self.claims else []
        sections += [tuning_section(self.results, *self.tuning)] if self.tuning else []
        return sections + ([rates_section(self.results, self.rates)] if self.rates else [])

    def body(self) -> Body:
        """Return the answer, the forest plot, and a section for each part of the report."""
        results, compared, manifest = self.results, self.table, self.results.manifest
        drawing, lines = Charts(), grouped(results, compared)
        figures = {name: chart for name, chart in self.charts() if chart} if drawing.drawn else {}
        drawn, cards = drawing.add(FIRST, figures.pop(FIRST, None)), parts.cards(results, compared, results.judged)
        if drawn:  # the chart says of the headline what its cards do
            cards = joined(parts.cards(results, compared, results.judged[1:]), tag("noscript", cards))
        method = listed([*lines["method"], *self.between, *lines["evaluation"]])
        sure = joined(parts.question_section(results), method, parts.health_section(results, lines["runs"]))
        confounds = [*lines["comparability"], *axes(results)] or ["Nothing else differs, as far as the records show."]
        numbers = joined(
            tag("p", NUMBERS, class_="hint"), comparison(results, compared, self.paces, self._at_one_rate())
        )
        sections = [
            PageSection("table", "Comparison", numbers),
            PageSection("sure", "How sure", sure),
            PageSection("notes", "Author's notes", parts.author_notes(manifest)),
            PageSection("charts", "Charts", gallery(figures, results.arms, drawing)),
            *(
                as_page_section(part, part.title != "Claims")
                for part in [*all_sections(results, self.paces), *self._last()]
            ),
            PageSection("confounds", "What else differs", listed(confounds), folded=True),
            PageSection("lost", "Lost runs", parts.lost_runs_section(results), folded=True),
            PageSection("provenance", "Provenance", parts.provenance_section(results, made_under(results)), True),
            PageSection("again", "How to run it again", parts.rerun_section(results), folded=True),
            PageSection("all", "All measurements", html_section(details(compared)), folded=True),
        ]
        above = joined(tag("div", drawn, id="differences"), cards, parts.terms(compared))
        arms, seeds = len(results.arms), len(manifest["seeds"])
        below = f"{self.name}: {arms} arms, {seeds} seeds, baseline {results.arms[0]}"
        head = self.name, manifest["title"], below, answer(results, compared)
        return Body(*head, above, sections, drawing, behind(results, compared))
