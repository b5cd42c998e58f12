"""A page of one report or of several: one file that needs no network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lm.report.figures.palette import style_sheet
from lm.report.render import Section, html_section
from lm.report.web import gallery
from lm.report.web.elements import Html, data, digest, document, joined, listed, nested, packed, read_asset, tag
from lm.report.web.gallery import Charts
from lm.report.web.parts import explained

DRAWN_BY = (
    "Charts: Vega, Vega-Lite and Vega-Embed, copyright University of Washington Interactive Data Lab and contributors, "
    "BSD-3-Clause."
)
TOO_OLD = "Charts, sorting and filters need JavaScript and a browser of 2023 or later."


@dataclass(frozen=True)
class PageSection:
    """A section of a page; one without content is left out."""

    name: str  # its id
    title: str  # its heading, and its link in the table of contents
    content: Html  # what stands below the heading
    folded: bool = False  # True to show the heading alone at first


def as_page_section(section: Section, folded: bool = True) -> PageSection:
    """Format a section, whose id is the first word of its title."""
    return PageSection(section.title.split()[0].lower(), section.title, html_section(section), folded)


@dataclass(frozen=True)
class Body:
    """Content of a page before it is made a file."""

    name: str  # name of what it is of
    title: str  # its heading
    below: str  # a line below it
    answer: str  # what it comes to, in a sentence
    above: Html  # what stands between the answer and the sections
    parts: Sequence[PageSection]  # its sections
    drawing: Charts  # its charts
    numbers: Mapping[str, Any] = field(default_factory=dict)  # data of its interactive table
    lines: Sequence[str] = ()  # what it comes to for each arm, where no chart shows that

    @property
    def contents(self) -> Html:
        """The table of contents."""
        links = [tag("a", part.title, href=f"#{part.name}") for part in self.parts if part.content]
        return tag("nav", links, class_="contents", aria_label="sections")

    @property
    def shown(self) -> Html:
        """The answer, and sections that fold."""
        first = tag("section", tag("p", explained(self.answer), class_="answer"), self.above, id="verdict")
        present = [part for part in self.parts if part.content]
        folds = [tag("details", tag("summary", tag("h2", p.title)), p.content, open=not p.folded) for p in present]
        return joined(first, (tag("section", f, id=p.name) for f, p in zip(folds, present, strict=True)))


def page(body: Body) -> str:
    """Format a file with this one page."""
    head = [tag("h1", body.title), tag("p", body.below, class_="soft")]
    numbers = _embedded(body.drawing, body.numbers)
    return _file(body.title, head, body.contents, body.shown, numbers, "verdict", data_report="")


def _embedded(drawing: Charts, numbers: Mapping[str, Any], prefix: str = "") -> Html:
    of_script = {"report": numbers, "specs": drawing.specs, "rows": drawing.rows}
    return joined(data(f"{prefix}{name}", value) for name, value in of_script.items())


def _file(title: str, head: Sequence[Html], contents: Html, shown: Html, numbers: Html, first: str, **main: str) -> str:
    """Format the file; its policy allows only its two scripts, by hash, and no network."""
    own, style, script = read_asset("page.js"), style_sheet() + read_asset("page.css"), gallery.library()
    allowed = " ".join(digest(text) for text in (script, own) if text)
    policy = f"default-src 'none'; script-src {allowed}; style-src {digest(style)}; base-uri 'none'; form-action 'none'"
    missing = "" if script else tag("p", f"No charts: {gallery.MISSING}.", class_="warn")
    credit = tag("p", DRAWN_BY, class_="hint") if script else ""
    notes = tag("p", TOO_OLD, id="old", class_="warn", hidden=True), tag("noscript", tag("p", TOO_OLD))
    inside = [
        tag("a", f"To the {first}", href=f"#{first}", class_="skip"),
        tag("main", tag("header", head, missing, notes), contents, tag("div", shown, credit), class_="page", **main),
        tag("div", id="tip", role="tooltip", hidden=True),
        tag("dialog", id="panel", aria_label="behind a number"),
        numbers,
        packed("library", script) if script else "",
        tag("script", Html(own)),
    ]
    return document(title, style, policy, inside)


ALL = "all-"  # prefix of the ids of the chart of all differences


def overview(title: str, bodies: Sequence[Body], drawing: Charts, chart: Html) -> str:
    """Format a file of several reports, which are distinguished by their position, below a chart over all of them."""
    answers, links = [], [tag("a", "Overview", href="#overview")]
    numbers, reports = [_embedded(drawing, {}, ALL)], []
    for number, body in enumerate(bodies, 1):
        prefix, link = f"e{number}-", tag("a", body.title, href=f"#e{number}")
        below = tag("p", body.below, class_="hint")
        answers.append(tag("li", link, tag("p", body.answer), listed(body.lines), below))
        links.append(tag("a", f"{number}. {body.name}", href=f"#e{number}"))
        numbers.append(_embedded(body.drawing, body.numbers, prefix))
        inside = nested(joined(tag("p", body.below, class_="soft"), body.contents, body.shown), prefix)
        heading = tag("summary", tag("h2", f"{number}. {body.title}"))
        reports.append(tag("details", heading, inside, class_="report", id=f"e{number}", data_report=prefix, open=True))
    drawn = nested(tag("div", chart, id="differences"), ALL)
    above = tag("h2", "Overview"), drawn, tag("ol", answers, class_="answers")
    first = tag("section", above, id="overview", data_report=ALL)
    contents = tag("nav", links, class_="contents", aria_label="reports")
    return _file(title, [tag("h1", title)], contents, joined(first, reports), joined(numbers), "overview")
