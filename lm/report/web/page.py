"""The page of an experiment, of tables and pictures, or of several reports: one file that needs no network."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from lm.analysis.answers import Answer
from lm.analysis.ladder import LadderResults
from lm.analysis.pace import steps_to_baseline_loss
from lm.analysis.results import Records
from lm.report.answer import answer
from lm.report.claims import claims_section
from lm.report.figures.catalogue import FigureInputs, charts
from lm.report.figures.chart import Chart
from lm.report.figures.palette import style_sheet
from lm.report.ladder import ladder_answer
from lm.report.notes import axes, grouped
from lm.report.render import Section, html_section
from lm.report.sections import all_sections, made_under
from lm.report.study import Study
from lm.report.tables import details
from lm.report.tuning import RATES_TITLE, Rates, rates_section, tuning_section
from lm.report.web.comparison import behind, comparison
from lm.report.web.elements import Html, data, digest, document, joined, listed, nested, packed, read_asset, tag
from lm.report.web.gallery import FIRST, MISSING, Charts, gallery, library
from lm.report.web.parts import (
    PageSection,
    author_notes,
    cards,
    contents,
    explained,
    health_section,
    lost_runs_section,
    provenance_section,
    question_section,
    rerun_section,
    sections,
    terms,
)

Tuning = tuple[dict[str, Any], Records, dict[str, Study]]


@dataclass(frozen=True)
class Body:
    """Content of a page before it is made a file."""

    title: str  # its heading
    below: str  # a line below it
    first: Html  # what stands above the sections
    parts: Sequence[PageSection]  # its sections
    # data for its script, by name; empty without charts and interactive numbers
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
    """Build the content of an experiment's page."""
    drawing, notes, paces = new_charts(), grouped(results, compared), steps_to_baseline_loss(results)
    figures = charts(FigureInputs(results, compared, tuning[2] if tuning else {}, rates)) if drawing.drawn else {}
    drawn, in_words = drawing.add(FIRST, figures.get(FIRST)), cards(results, compared, results.judged)
    if drawn:  # the chart says of the headline what its cards do
        in_words = joined(cards(results, compared, results.judged[1:]), tag("noscript", in_words))
    drawn = tag("div", drawn, id="differences")
    first = answer_section(answer(results, compared), drawn, in_words, terms(compared))
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


def answer_section(answer: str, *below: Html) -> Html:
    """Format the answer sentence, and what stands below it before the sections."""
    return tag("section", tag("p", explained(answer), class_="answer"), *below, id="verdict")


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


# without scripts ------------------------------------------------------------------------------------------------------

MOST_PIXELS = 900  # width at which a picture is shown unless its own is less
Picture = tuple[str, bytes]  # alternative text and PNG content of a picture


def static_page(body: Body) -> str:
    """Format a page that needs no script, as one file whose policy forbids any network."""
    style = read_asset("page.css")
    policy = f"default-src 'none'; img-src data:; style-src {digest(style)}; base-uri 'none'; form-action 'none'"
    head = tag("header", tag("h1", body.title), tag("p", body.below, class_="soft"))
    main = tag("main", head, contents(body.parts), tag("div", body.shown), class_="page")
    return document(body.title, style, policy, main)


def static_parts(tables: Sequence[Section], pictures: Sequence[Picture]) -> list[PageSection]:
    """Format tables as sections, below the pictures."""
    parts = [PageSection(f"part-{index}", part.title, html_section(part)) for index, part in enumerate(tables)]
    images = []
    for words, png in pictures:
        src, own = f"data:image/png;base64,{base64.b64encode(png).decode()}", int.from_bytes(png[16:20])
        image = tag("img", src=src, alt=words, width=min(own or MOST_PIXELS, MOST_PIXELS))
        images.append(tag("div", image, class_="scroll"))
    if images:
        parts.insert(0, PageSection("figures", "Figures" if len(images) > 1 else "Figure", joined(images)))
    return parts


def ladder_body(results: LadderResults, tables: Sequence[Section], figure: bytes, linked: bool = False) -> Body:
    """Format the ladder as a part of a page of several; its rungs' reports are named, or linked from its own folder."""
    manifest = results.manifest
    rungs = [
        tag("li", tag("a", rung["name"], href=f"../{rung['experiment']}/report.html"))
        if linked
        else tag("li", f"{rung['name']}: ", tag("code", rung["experiment"]))
        for rung in manifest["rungs"]
    ]
    parts = [
        *static_parts(tables, [("loss and gain against compute", figure)]),
        PageSection("notes", "Author's notes", author_notes(manifest)),
        PageSection("rungs", "Reports of the rungs", tag("ul", rungs), folded=True),
    ]
    below = f"{manifest['name']}: {len(manifest['arms'])} arms on {len(rungs)} rungs, baseline {manifest['baseline']}"
    return Body(manifest["title"], below, answer_section(ladder_answer(results)), parts)


# several reports -----------------------------------------------------------------------------------------------------

ALL = "all-"  # prefix of the ids of the chart of all differences


@dataclass(frozen=True)
class OverviewEntry:
    """A report beside others on a page."""

    name: str  # name in the list of reports
    answer: str  # what it came to, in a sentence
    body: Body  # content of its own page
    lines: Sequence[str] = ()  # what it came to for each arm, where no chart shows that


def overview_html(title: str, entries: Sequence[OverviewEntry], differences: Chart | None) -> str:
    """Format the file. Reports are distinguished by their position, whatever they are called."""
    numbered, drawing = list(enumerate(entries, 1)), new_charts()
    chart = nested(tag("div", drawing.add(FIRST, differences), id="differences"), ALL)
    answers = []
    for number, entry in numbered:
        link, below = tag("a", entry.body.title, href=f"#e{number}"), tag("p", entry.body.below, class_="hint")
        answers.append(tag("li", link, tag("p", entry.answer), listed(entry.lines), below))
    listed_answers = tag("ol", answers, class_="answers")
    overview = tag("section", tag("h2", "Overview"), chart, listed_answers, id="overview", data_report=ALL)
    links = [tag("a", f"{number}. {entry.name}", href=f"#e{number}") for number, entry in numbered]
    charts = any(entry.body.data for entry in entries)
    main = tag(
        "main",
        tag("header", tag("h1", title), charts_notes() if charts else ""),
        tag("nav", tag("a", "Overview", href="#overview"), links, class_="contents", aria_label="reports"),
        tag("div", overview, [_report(*entry) for entry in numbered], charts_credit() if charts else ""),
        class_="page",
    )
    numbers = [embedded(entry.body.data, f"e{number}-") for number, entry in numbered]
    drawn = {"report": {}, "specs": drawing.specs, "columns": drawing.columns}
    return page_file(title, main, joined(embedded(drawn, ALL), numbers), "overview")


def _report(number: int, entry: OverviewEntry) -> Html:
    """Format a report below one heading, which folds it."""
    inside = [tag("p", entry.body.below, class_="soft"), contents(entry.body.parts), entry.body.shown]
    heading, prefix = tag("summary", tag("h2", f"{number}. {entry.body.title}")), f"e{number}-"
    attributes: dict[str, str | bool] = {"class_": "report", "id": f"e{number}", "open": True}
    attributes["data_report"] = prefix if entry.body.data else False
    return tag("details", heading, nested(joined(inside), prefix), **attributes)
