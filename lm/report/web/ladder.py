"""The page of a ladder: its tables and its figure in one file without a script, and links to its rungs' reports."""

import base64
from collections.abc import Sequence
from pathlib import Path

from lm.analysis.ladder import LadderResults
from lm.report.web.elements import Html, digest, joined, listed, table, tag

HERE = Path(__file__).parent

Shown = tuple[str, Sequence[str], Sequence[Sequence[str]], Sequence[str]]
"""A title, column headings, rows whose bold cells are elements, and the notes below them."""


def ladder_html(results: LadderResults, parts: Sequence[Shown], figure: bytes) -> str:
    """The page as one file that needs no network, and whose policy forbids it any.

    Args:
        results: of the ladder.
        parts: its tables.
        figure: as PNG.
    """
    manifest = results.manifest
    picture = tag(
        "img",
        src=f"data:image/png;base64,{base64.b64encode(figure).decode()}",
        alt="loss and gain against compute",
        width=900,
    )
    shown = [_part(*part) for part in parts]
    shown.insert(1, tag("section", tag("h2", "Figure"), tag("div", picture, class_="scroll")))
    links = [
        tag("li", tag("a", rung["name"], href=f"../{rung['experiment']}/report.html")) for rung in manifest["rungs"]
    ]
    body = joined(
        tag("h1", manifest["title"]),
        tag("p", _below(results), class_="soft"),
        tag("p", manifest["notes"].strip(), class_="notes") if manifest["notes"].strip() else "",
        shown,
        tag("section", tag("h2", "Reports of the rungs"), tag("ul", links)),
    )
    style = (HERE / "page.css").read_text(encoding="utf-8")
    policy = f"default-src 'none'; img-src data:; style-src {digest(style)}; base-uri 'none'; form-action 'none'"
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", manifest["title"]),
        tag("style", Html(style)),
    ]
    return f"<!DOCTYPE html>\n{tag('html', tag('head', head), tag('body', tag('main', body)), lang='en')}\n"


def _below(results: LadderResults) -> str:
    manifest = results.manifest
    arms = len(manifest["arms"])
    return f"{manifest['name']}: {arms} arms on {len(manifest['rungs'])} rungs, baseline {manifest['baseline']}"


def _part(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> Html:
    return tag("section", tag("h2", title), table(columns, rows) if rows else "", listed(notes))
