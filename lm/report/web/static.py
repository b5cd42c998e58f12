"""Pages of tables and pictures of ladders and external runs: one file, no script, and a policy against any network."""

import base64
from collections.abc import Sequence

from lm.analysis.ladder import LadderResults
from lm.report.render import Section, html_section
from lm.report.web.elements import Html, digest, document, joined, read_asset, tag
from lm.report.web.page import Body
from lm.report.web.parts import PageSection, author_notes, contents

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
    sources = [(words, f"data:image/png;base64,{base64.b64encode(png).decode()}") for words, png in pictures]
    images = [tag("div", tag("img", src=src, alt=words, width=900), class_="scroll") for words, src in sources]
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
    return Body(manifest["title"], below, Html(), parts)
