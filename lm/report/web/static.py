"""Pages of tables and pictures of ladders and external runs: one file, no script, and a policy against any network."""

import base64
from collections.abc import Sequence
from pathlib import Path

from lm.analysis.ladder import LadderResults
from lm.report.render import Section, html_section
from lm.report.web.elements import Html, digest, document, joined, tag
from lm.report.web.page import Body

HERE = Path(__file__).parent

Picture = tuple[str, bytes]
"""Alternative text and PNG content of a picture."""


def static_page(
    title: str, below: str, parts: Sequence[Section], pictures: Sequence[Picture], first: str = "", last: str = ""
) -> str:
    """Format the page.

    Args:
        title: title of the page.
        below: a line below it.
        parts: its tables; the pictures stand after the first.
        pictures: pictures of the page.
        first: content before the tables.
        last: content after them.
    """
    body = joined(tag("h1", title), tag("p", below, class_="soft"), first, static_tables(parts, pictures), last)
    style = (HERE / "page.css").read_text(encoding="utf-8")
    policy = f"default-src 'none'; img-src data:; style-src {digest(style)}; base-uri 'none'; form-action 'none'"
    return document(title, style, policy, tag("main", body))


def static_picture(words: str, png: bytes) -> Html:
    """Embed a picture with its alternative text."""
    src = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return tag("div", tag("img", src=src, alt=words, width=900), class_="scroll")


def static_tables(parts: Sequence[Section], pictures: Sequence[Picture]) -> Html:
    """Format tables, with the pictures after the first of them."""
    sections = [tag("section", tag("h2", part.title), html_section(part)) for part in parts]
    images = [static_picture(*picture) for picture in pictures]
    if images:
        sections.insert(1, tag("section", tag("h2", "Figures" if len(images) > 1 else "Figure"), images))
    return joined(sections)


# ladders -------------------------------------------------------------------------------------------------------------

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
