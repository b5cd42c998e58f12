"""HTML from text that nobody vouches for: what is not made here is escaped."""

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Sequence
from typing import Any

EMPTY = ("input", "meta", "line", "path", "img")
"""Elements without an end."""

SENTENCE = 40
"""Characters from which a text is one, and is not to stand as a column of single words on a phone."""


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *content: str | Iterable[str], **attributes: str | bool | int) -> Html:
    """An element; text in it that is no `Html` is escaped, as are the values of attributes.

    Args:
        name: of the element.
        content: text, elements, or iterables of these.
        attributes: `class_` is `class`, `data_x` is `data-x`; True is an attribute without a value, False is none.

    >>> tag("b", "1 < 2", title='"')
    '<b title="&quot;">1 &lt; 2</b>'
    """
    names = {key: key.removesuffix("_").replace("_", "-") for key in attributes}
    said = [
        f" {names[key]}" if value is True else f' {names[key]}="{html.escape(str(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not False
    ]
    opened = f"<{name}{''.join(said)}>"
    return Html(opened if name in EMPTY else f"{opened}{joined(*content)}</{name}>")


def joined(*content: str | Iterable[str]) -> Html:
    """Texts and elements one after another."""
    return Html("".join(_escaped(one) if isinstance(one, str) else joined(*one) for one in content))


def _escaped(text: str) -> str:
    return text if isinstance(text, Html) else html.escape(text, quote=True)


def listed(lines: Sequence[str], **attributes: str) -> Html:
    """Lines as a list; nothing for none."""
    return tag("ul", [tag("li", line) for line in lines], **attributes) if lines else Html()


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    """A table of any text, the first cell of each row its heading, in a box that scrolls sideways."""
    head = tag("tr", [tag("th", column, scope="col") for column in columns])
    body = [tag("tr", tag("th", row[0], scope="row"), [_cell(text) for text in row[1:]]) for row in rows]
    inside = tag("table", tag("thead", head), tag("tbody", body))
    return tag("div", inside, class_="scroll", tabindex="0", role="region", aria_label="table")


def _cell(text: str) -> Html:
    """A cell, with room for a sentence where it holds one."""
    return tag("td", text, class_="long" if len(text) > SENTENCE and not isinstance(text, Html) else False)


def data(name: str, value: Any) -> Html:
    """JSON for a script to read, in which no text can end the element. NaN is refused."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return tag("script", Html(text), type="application/json", id=name)


def digest(text: str) -> str:
    """How a policy names the one script or style that may run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def document(title: str, style: str, policy: str, body: str | Iterable[str]) -> str:
    """A file of HTML whose policy stands before all that it governs."""
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Html(style)),
    ]
    return f"<!DOCTYPE html>\n{tag('html', tag('head', head), tag('body', body), lang='en')}\n"
