"""The report of a ladder, and several ladders in one table."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lm.analysis.ladder import LadderResults, load_ladder
from lm.analysis.verdict_text import display_verdict
from lm.report.base import Report
from lm.report.figures.chart import Chart
from lm.report.figures.static_pages import NAME, ladder_chart
from lm.report.ladder import (
    brief_ladder_notes,
    digits,
    exp,
    forecast_rows,
    gain_margin,
    ladder_answer,
    ladder_sections,
    times,
    trend_table,
    trend_text,
    worth_table,
)
from lm.report.notes import author_notes
from lm.report.render import Section
from lm.report.tables import as_csv, signed
from lm.report.web import parts
from lm.report.web.elements import listed
from lm.report.web.gallery import Charts
from lm.report.web.page import Body, PageSection, as_page_section


@dataclass(frozen=True)
class LadderReport(Report):
    """The report of a ladder."""

    results: LadderResults

    kind = ("ladder", "ladders")

    @classmethod
    def load(cls, folder: Path) -> "LadderReport":
        """Load a ladder. Raises InputError where there is none that this version reads."""
        return cls(load_ladder(folder))

    @property
    def name(self) -> str:
        """Name of the ladder."""
        return self.results.manifest["name"]

    @property
    def damaged(self) -> bool:
        """True if a record or a curve is damaged."""
        return self.results.damaged

    def charts(self) -> Iterator[tuple[str, Chart | None]]:
        """Yield its figure."""
        yield NAME, ladder_chart(self.results)

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the arms by rung, and the trends."""
        return {"table.csv": worth_table(self.results), "trends.csv": trend_table(self.results)}

    def printed(self, width: int, everything: bool) -> list[Section]:
        """Return the arms by rung and their trends with a few lines of notes, or all tables with all their notes."""
        first, *others = ladder_sections(self.results)
        notes = first.notes if everything else brief_ladder_notes(self.results)
        title, text = self.results.manifest["title"], ladder_answer(self.results)
        first = dataclasses.replace(first, title=title, text=text, notes=notes)
        return [first, *(others if everything else [dataclasses.replace(s, notes=()) for s in others[:1]])]

    def sections(self) -> list[Section]:
        """Return the tables, and the experiments of the rungs."""
        first, *others = ladder_sections(self.results)
        manifest = self.results.manifest
        rungs = Section("Reports of the rungs", notes=self._rungs())
        first = dataclasses.replace(first, title=manifest["title"])
        return [first, Section(text=author_notes(manifest)), *others, rungs]

    def body(self) -> Body:
        """Return the answer, the chart and the tables."""
        manifest, drawing = self.results.manifest, Charts()
        drawn = drawing.add(NAME, ladder_chart(self.results))
        sections = [
            PageSection("figure", "Figure", drawn),
            *(as_page_section(section, folded=False) for section in ladder_sections(self.results)),
            PageSection("notes", "Author's notes", parts.author_notes(manifest)),
            PageSection("reports", "Reports of the rungs", listed(self._rungs()), folded=True),
        ]
        arms, rungs = len(manifest["arms"]), len(manifest["rungs"])
        below = f"{self.name}: {arms} arms on {rungs} rungs, baseline {manifest['baseline']}"
        answer = ladder_answer(self.results)
        return Body(self.name, manifest["title"], below, answer, listed(()), sections, drawing, lines=self._lines())

    def _rungs(self) -> list[str]:
        return [f"{rung['name']}: {rung['experiment']}" for rung in self.results.manifest["rungs"]]

    def _lines(self) -> list[str]:
        """Say what each arm comes to on the top rung."""
        manifest = self.results.manifest
        top, lines = manifest["rungs"][-1]["name"], []
        for arm in self.results.arms:
            if arm.scaling is None or arm.at[-1].rung != top:
                lines.append(f"{arm.name}: no pair to compare{arm.lost_runs.get(top, '')}")
                continue
            at, of = arm.at[-1], arm.scaling.differences[-1]
            size = signed(of.value, of.low, of.high, digits(self.results))
            words = [
                display_verdict(at.verdict, manifest["metric"]),
                size,
                f"{at.pairs} pairs",
                *filter(None, [at.ill]),
            ]
            lines.append(f"{arm.name}: {', '.join(words)}")
        return lines


# several ladders -----------------------------------------------------------------------------------------------------
NOTES = [
    "Gains in compute by rung: the compute that the baseline needs for the arm's loss, by its law, over the arm's own. "
    "Their intervals, the differences and the verdicts of each rung are in the ladder's own report.",
    "The forecast is that of the top rung's difference by the rungs below it. It holds under the law alone.",
    "°: no curve of learning rates at that size has the arm's rate, or the baseline's, as its best one with a worse "
    "one on each side. The gain may be the rate's, and no trend over such a rung has a verdict.",
]

UNSURE = " °"  # mark of a gain at a rung where a rate is not bracketed; the notes explain it


def _rungs(ladders: Sequence[LadderResults]) -> list[str]:
    """Return the names of all rungs, in the order of the ladder that has the most."""
    longest_first = sorted(ladders, key=lambda ladder: -len(ladder.rungs))
    return list(dict.fromkeys(rung["name"] for ladder in longest_first for rung in ladder.manifest["rungs"]))


def overview_section(ladders: Sequence[LadderResults], title: str = "") -> Section:
    """Build the table of all ladders: a row an arm, its gain at each rung and its trends over compute."""
    rows: list[list[str]] = []
    for ladder in ladders:
        base = ladder.manifest["baseline"]
        forecasts = {row[0]: row[3] for row in forecast_rows(ladder)}
        for arm in ladder.arms:
            gains = {}
            for at, gain in zip(arm.at, (arm.scaling and arm.scaling.gains) or (), strict=False):  # none without a law
                text = "below the law's floor" if gain.beyond == "floor" else times(exp(gain.log.value))
                gains[at.rung] = text + (UNSURE if at.not_bracketed else "")
            cells = [gains.get(rung, "-") for rung in _rungs(ladders)]
            trends = ["no pair to compare"] * 2
            if arm.scaling is not None:
                of_gain, difference = arm.scaling.of_gain, arm.scaling.of_difference
                trends = [trend_text(of_gain, gain_margin(of_gain), arm)]
                trends.append(trend_text(difference, f"{difference.margin:z.3g}", arm))
            forecast = forecasts.get(f"{arm.name} - {base}", "-")
            rows.append([ladder.manifest["name"], f"{arm.name}, {base}", *cells, *trends, forecast])
    columns = ["ladder", "arm, against", *_rungs(ladders)]
    columns += ["gain with more compute", "difference with more compute", "forecast"]
    return Section(title, columns, rows, NOTES)


def csv_worth(ladders: Sequence[LadderResults]) -> str:
    """Join the tables of all ladders as CSV, with a row for each ladder, rung and arm."""
    tables = [worth_table(ladder).assign(ladder=ladder.manifest["name"]) for ladder in ladders]
    table = pd.concat(tables, ignore_index=True)
    return as_csv(table[["ladder", *(name for name in table.columns if name != "ladder")]])
