"""The page of an experiment: one file that needs no network, and whose policy forbids it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from lm.analysis.answers import Answer
from lm.analysis.pace import steps_to_baseline_loss
from lm.analysis.results import Records
from lm.report.answer import answer
from lm.report.claims import claims_section
from lm.report.figures.catalogue import FigureInputs, charts
from lm.report.figures.palette import style_sheet
from lm.report.notes import axes, grouped
from lm.report.render import html_section
from lm.report.sections import all_sections, made_under
from lm.report.study import Study
from lm.report.tables import details
from lm.report.tuning import RATES_TITLE, Rates, rates_section, tuning_section
from lm.report.web.comparison import behind, comparison
from lm.report.web.elements import Html, data, digest, document, joined, listed, packed, read_asset, tag
from lm.report.web.gallery import FIRST, MISSING, Charts, gallery, library
from lm.report.web.parts import (
    PageSection,
    author_notes,
    cards,
    contents,
    health_section,
    lost_runs_section,
    provenance_section,
    question_section,
    rerun_section,
    sections,
)

Tuning = tuple[dict[str, Any], Records, dict[str, Study]]


@dataclass(frozen=True)
class Body:
    """Content of a page before it is made a file.

    Args:
        title: its heading.
        below: a line below it.
        first: what stands above the sections.
        parts: its sections.
        data: data for its script, by name; empty without charts and interactive numbers.
    """

    title: str
    below: str
    first: Html
    parts: Sequence[PageSection]
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shown(self) -> Html:
        """The visible content below the title."""
        return joined(self.first, sections(self.parts))


def body(
    results: Records,
    compared: pd.DataFrame,
    claims: Sequence[tuple[str, Answer]] = (),
    tuning: Tuning | None = None,
    rates: Rates | None = None,
) -> Body:
    """Build the content of an experiment's page.

    Args:
        results: results of the experiment.
        compared: comparisons of its arms.
        claims: the answers to its claims, each with the experiment's name.
        tuning: results of tuning, where there are any.
        rates: the learning-rate curves, where there are any.
    """
    drawing, notes, paces = new_charts(), grouped(results, compared), steps_to_baseline_loss(results)
    figures = charts(FigureInputs(results, compared, tuning[2] if tuning else {}, rates)) if drawing.drawn else {}
    drawn = tag("div", drawing.add(FIRST, figures.get(FIRST)), id="differences")
    text = tag("p", answer(results, compared), class_="answer")
    first = tag("section", text, drawn, cards(results, compared), id="verdict")
    method = listed([*notes["method"], *notes["evaluation"]])
    sure = joined(question_section(results), method, health_section(results, notes["runs"]))
    confounds = [*notes["comparability"], *axes(results)] or ["Nothing else differs, as far as the records show."]
    numbers = comparison(results, compared, paces)
    tuned = html_section(tuning_section(results, *tuning)) if tuning else Html()
    of_rates = html_section(rates_section(results, rates)) if rates else Html()
    parts = [
        PageSection("table", "Comparison", joined(tag("p", NUMBERS, class_="hint"), numbers)),
        PageSection("sure", "How sure", sure),
        PageSection("notes", "Author's notes", author_notes(results.manifest)),
        PageSection("charts", "Charts", gallery(figures, results.arms, drawing)),
        PageSection("claims", "Claims", html_section(claims_section(claims)) if claims else Html()),
        *(
            PageSection(part.title.split()[0].lower(), part.title, html_section(part), folded=True)
            for part in all_sections(results, paces)
        ),
        PageSection("tuning", "Tuning", tuned, folded=True),
        PageSection("rates", RATES_TITLE, of_rates, folded=True),
        PageSection("confounds", "What else differs", listed(confounds), folded=True),
        PageSection("lost", "Lost runs", lost_runs_section(results), folded=True),
        PageSection("provenance", "Provenance", provenance_section(results, made_under(results)), folded=True),
        PageSection("again", "How to run it again", rerun_section(results), folded=True),
        PageSection("all", "All measurements", html_section(details(compared)), folded=True),
    ]
    data_of = {"report": behind(results, compared), "specs": drawing.specs, "columns": drawing.columns}
    manifest = results.manifest
    below = f"{manifest['name']}: {len(results.arms)} arms, {len(manifest['seeds'])} seeds, baseline {results.arms[0]}"
    return Body(manifest["title"], below, first, parts, data_of)


DRAWN_BY = (
    "Charts: Vega, Vega-Lite and Vega-Embed, copyright University of Washington Interactive Data Lab and contributors, "
    "BSD-3-Clause."
)
TOO_OLD = "Charts, sorting and filters need JavaScript and a browser of 2023 or later."
NUMBERS = "Point at a number for its n and interval; press it for the cells behind it and the commands that show them."


def standalone_page(body: Body) -> str:
    """Format a file with this one page."""
    head = tag("header", tag("h1", body.title), tag("p", body.below, class_="soft"), charts_notes())
    shown = tag("div", body.shown, charts_credit())
    main = tag("main", head, contents(body.parts), shown, class_="page", data_report="")
    return page_file(body.title, main, embedded(body.data), "verdict")


def new_charts() -> Charts:
    """Return an empty collection of charts, which stays empty where the library that draws is not installed."""
    return Charts(bool(library()))


def charts_notes() -> Html:
    """Return a hint on what to install where charts cannot be drawn, and one that old browsers show."""
    note = Html() if library() else tag("p", f"No charts: {MISSING}.", class_="warn")
    return joined(note, tag("p", TOO_OLD, id="old", class_="warn", hidden=True), tag("noscript", tag("p", TOO_OLD)))


def charts_credit() -> Html:
    """Return the copyright notice of the chart library."""
    return tag("p", DRAWN_BY, class_="hint") if library() else Html()


def embedded(data_of: Mapping[str, Any], prefix: str = "") -> Html:
    """Embed the data of a page, under names that begin with `prefix`."""
    return joined(data(f"{prefix}{name}", value) for name, value in data_of.items())


def page_file(title: str, main: Html, numbers: Html, first: str) -> str:
    """Format the file; its policy allows only its two scripts, by hash, and no network.

    Args:
        title: title of the file.
        main: the visible content.
        numbers: the data for its script.
        first: id of the section that the first link leads to.
    """
    own, style, script = read_asset("page.js"), style_sheet() + read_asset("page.css"), library()
    allowed = " ".join(digest(text) for text in (script, own) if text)
    pictures = "img-src data:; " if "<img " in main else ""  # written by `tag`: the `<` of text is escaped
    policy = (
        f"default-src 'none'; {pictures}script-src {allowed}; style-src {digest(style)}; base-uri 'none'; "
        "form-action 'none'"
    )
    inside = [
        tag("a", f"To the {first}", href=f"#{first}", class_="skip"),
        main,
        tag("div", id="tip", role="tooltip", hidden=True),
        tag("dialog", id="panel", aria_label="behind a number"),
        numbers,
        packed("library", script) if script else "",
        tag("script", Html(own)),
    ]
    return document(title, style, policy, inside)
