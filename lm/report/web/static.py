"""A page of tables and pictures in one file without a script, whose policy forbids any network."""

import base64
from collections.abc import Sequence
from pathlib import Path

from lm.report.render import Section, html_section
from lm.report.web.elements import Html, digest, document, joined, tag

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


def static_tables(parts: Sequence[Section], pictures: Sequence[Picture]) -> Html:
    """Format tables, with the pictures after the first of them."""
    sections = [tag("section", tag("h2", part.title), html_section(part)) for part in parts]
    images = [tag("div", _image(*picture), class_="scroll") for picture in pictures]
    if images:
        sections.insert(1, tag("section", tag("h2", "Figures" if len(images) > 1 else "Figure"), images))
    return joined(sections)


def _image(words: str, content: bytes) -> Html:
    return tag("img", src=f"data:image/png;base64,{base64.b64encode(content).decode()}", alt=words, width=900)
