"""The page of a ladder: tables and figure in one file without a script, and links to the rungs' reports."""

from collections.abc import Sequence

from lm.analysis.ladder import LadderResults
from lm.report.render import Section
from lm.report.web.elements import Html, joined, tag
from lm.report.web.page import Body
from lm.report.web.static import Picture, static_page, static_tables

RUNGS = "Reports of the rungs"


def ladder_html(results: LadderResults, parts: Sequence[Section], figure: bytes) -> str:
    """Format the page as one file that needs no network, and whose policy forbids it.

    Args:
        results: results of the ladder.
        parts: tables of the ladder.
        figure: figure as PNG.
    """
    manifest = results.manifest
    links = [
        tag("li", tag("a", rung["name"], href=f"../{rung['experiment']}/report.html")) for rung in manifest["rungs"]
    ]
    return static_page(
        manifest["title"],
        _below(results),
        parts,
        [_picture(figure)],
        first=_notes(results),
        last=tag("section", tag("h2", RUNGS), tag("ul", links)),
    )


def ladder_body(results: LadderResults, parts: Sequence[Section], figure: bytes) -> Body:
    """Format the ladder as a part of a page of several; its rungs' reports are named, not linked."""
    manifest = results.manifest
    named = [tag("li", f"{rung['name']}: ", tag("code", rung["experiment"])) for rung in manifest["rungs"]]
    rungs = tag("section", tag("h2", RUNGS), tag("ul", named))
    return Body(
        manifest["title"], _below(results), joined(_notes(results), static_tables(parts, [_picture(figure)]), rungs)
    )


def _picture(figure: bytes) -> Picture:
    return "loss and gain against compute", figure


def _notes(results: LadderResults) -> Html:
    notes = results.manifest["notes"].strip()
    return tag("p", notes, class_="notes") if notes else Html()


def _below(results: LadderResults) -> str:
    manifest = results.manifest
    arms = len(manifest["arms"])
    return f"{manifest['name']}: {arms} arms on {len(manifest['rungs'])} rungs, baseline {manifest['baseline']}"
