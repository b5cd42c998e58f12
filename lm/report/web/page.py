"""The page of an experiment: one file that needs no network, and whose policy forbids it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from lm.analysis.answers import Answer
from lm.analysis.pace import steps_to_baseline_loss
from lm.analysis.results import Results
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
from lm.report.web.elements import Html, data, digest, document, joined, listed, tag
from lm.report.web.gallery import FIRST, MISSING, Charts, gallery, library
from lm.report.web.parts import (
    author_section,
    health_section,
    lost_runs_section,
    provenance_section,
    question_section,
    rerun_section,
    section,
    verdict_section,
)

HERE = Path(__file__).parent
Tuning = tuple[dict[str, Any], Results, dict[str, Study]]


@dataclass(frozen=True)
class Body:
    """Content of a page before it is made a file.

    Args:
        title: its heading.
        below: a line below it.
        shown: the visible content below that.
        data: data for its script, by name; empty without charts and interactive numbers.
    """

    title: str
    below: str
    shown: Html
    data: Mapping[str, Any] = field(default_factory=dict)


def body(
    results: Results,
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
    drawing, notes, paces = Charts(bool(library())), grouped(results, compared), steps_to_baseline_loss(results)
    figures = charts(FigureInputs(results, compared, tuning[2] if tuning else {}, rates)) if drawing.drawn else {}
    parts = [
        section(
            "verdict",
            "Verdict",
            question_section(results),
            verdict_section(results, compared),
            [tag("h3", "How sure"), listed([*notes["method"], *notes["evaluation"]])],
            health_section(results, notes["runs"]),
            author_section(results),
        ),
        section("differences", "Differences to the baseline", drawing.add(FIRST, figures.get(FIRST))),
        section("table", "Comparison", tag("p", NUMBERS, class_="hint"), comparison(results, compared, paces)),
        section("charts", "Charts", gallery(figures, results.arms, drawing)),
        *(
            section(part.title.split()[0].lower(), part.title, html_section(part))
            for part in all_sections(results, paces)
        ),
        section("tuning", "Tuning", html_section(tuning_section(results, *tuning)) if tuning else ""),
        section("rates", RATES_TITLE, html_section(rates_section(results, rates)) if rates else ""),
        section(
            "confounds",
            "What else differs",
            listed([*notes["comparability"], *axes(results)])
            or tag("p", "Nothing was found that differs besides what the arms declare."),
        ),
        section("claims", "Claims", html_section(claims_section(claims)) if claims else ""),
        section("lost", "Lost runs", lost_runs_section(results)),
        section("provenance", "Provenance", provenance_section(results, made_under(results))),
        section("again", "How to run it again", rerun_section(results)),
        section("all", "All measurements", tag("details", tag("summary", ALL), html_section(details(compared)))),
    ]
    data_of = {"report": behind(results, compared), "specs": drawing.specs, "columns": drawing.columns}
    manifest = results.manifest
    below = f"{manifest['name']}: {len(results.arms)} arms, {len(manifest['seeds'])} seeds, baseline {results.arms[0]}"
    return Body(manifest["title"], below, joined(contents(parts, NAMES), parts), data_of)


DRAWN_BY = (
    "Charts: Vega, Vega-Lite and Vega-Embed, copyright University of Washington Interactive Data Lab and contributors, "
    "BSD-3-Clause."
)
ALL = "Every quantity of every arm"
NUMBERS = "Point at a number for its n and interval; press it for the cells behind it and the commands that show them."


NAMES = {
    "verdict": "Verdict", "differences": "Differences", "table": "Table", "charts": "Charts", "costs": "Costs",
    "tuning": "Tuning", "rates": RATES_TITLE, "confounds": "Confounds", "claims": "Claims", "lost": "Lost runs",
    "provenance": "Provenance", "again": "Run it again",
}  # fmt: skip


def contents(parts: Sequence[Html], names: Mapping[str, str]) -> Html:
    """Build links to the sections that exist, with these names."""
    present = [
        name for name in names if any(part.endswith("</section>") and f' id="{name}">' in part for part in parts)
    ]
    return tag("nav", [tag("a", names[name], href=f"#{name}") for name in present], aria_label="sections")


def standalone_page(body: Body) -> str:
    """Format a file with this one page."""
    content = [tag("h1", body.title), tag("p", body.below, class_="soft"), missing_charts_note(), body.shown]
    return page_file(body.title, tag("main", content, charts_credit(), data_report=""), embedded(body))


def missing_charts_note() -> Html:
    """Return a hint on what to install where charts cannot be drawn."""
    return Html() if library() else tag("p", f"No charts: {MISSING}.", class_="warn")


def charts_credit() -> Html:
    """Return the copyright notice of the chart library."""
    return tag("p", DRAWN_BY, class_="hint") if library() else Html()


def embedded(body: Body, prefix: str = "") -> Html:
    """Embed the data of a page, under names that begin with `prefix`."""
    return joined(data(f"{prefix}{name}", value) for name, value in body.data.items())


def page_file(title: str, main: Html, numbers: Html, several: bool = False) -> str:
    """Format the file; its policy allows only its two scripts, by hash, and no network.

    Args:
        title: title of the file.
        main: the visible content.
        numbers: the data for its script.
        several: True for several pages below an overview.
    """
    own, *styles = (
        (HERE / name).read_text(encoding="utf-8") for name in ("page.js", "page.css", *["several.css"] * several)
    )
    script, style, first = library(), style_sheet() + "".join(styles), "overview" if several else "verdict"
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
        tag("script", Html(script)) if script else "",
        tag("script", Html(own)),
    ]
    return document(title, style, policy, inside)
