"""HTML elements from untrusted text: all that is not made here is escaped."""

import base64
import hashlib
import html
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

EMPTY = ("input", "meta", "line", "path", "img")  # elements without an end tag
SENTENCE = 40  # length in characters from which a text gets a wide column, also on a phone


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *content: str | Iterable[str], **attributes: str | bool | int) -> Html:
    """Build an element; text in it that is no `Html`, and values of attributes, are escaped.

    Args:
        name: name of the element.
        content: text, elements, or iterables of these.
        attributes: `class_` is `class`, `data_x` is `data-x`; True is an attribute without a value, False is none.

    >>> tag("b", "1 < 2", title='"')
    '<b title="&quot;">1 &lt; 2</b>'
    """
    names = {key: key.removesuffix("_").replace("_", "-") for key in attributes}
    written = [
        f" {names[key]}" if value is True else f' {names[key]}="{html.escape(str(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not False
    ]
    opened = f"<{name}{''.join(written)}>"
    return Html(opened if name in EMPTY else f"{opened}{joined(*content)}</{name}>")


def joined(*content: str | Iterable[str]) -> Html:
    """Join texts and elements."""
    parts = []
    for item in content:
        text = item if isinstance(item, str) else joined(*item)
        parts.append(text if isinstance(text, Html) else html.escape(text, quote=True))
    return Html("".join(parts))


def listed(lines: Sequence[str], **attributes: str) -> Html:
    """Format lines as a list; empty for none."""
    return tag("ul", [tag("li", line) for line in lines], **attributes) if lines else Html()


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    """Format a table of any text in a box that scrolls sideways; first cells are row headings."""
    head = tag("tr", [tag("th", column, scope="col") for column in columns])
    body = []
    for first, *others in rows:
        long = [len(text) > SENTENCE and not isinstance(text, Html) for text in others]
        cells = [tag("td", text, class_="long" if wide else False) for text, wide in zip(others, long, strict=True)]
        body.append(tag("tr", tag("th", first, scope="row"), cells))
    inside = tag("table", tag("thead", head), tag("tbody", body))
    return tag("div", inside, class_="scroll", tabindex="0", role="region", aria_label="table")


def nested(content: Html, before: str) -> Html:
    """Prefix all ids and links to them, and lower headings by a level, to combine several pages.

    Text is never mistaken for an element or an attribute: `tag` has escaped its `<`, `>` and quotes.

    >>> nested(tag("section", tag("h2", "<h2>", id="all"), tag("a", ' id="up"', href="#all")), "e1-")
    '<section><h3 id="e1-all">&lt;h2&gt;</h3><a href="#e1-all"> id=&quot;up&quot;</a></section>'
    """
    deeper = re.sub(r"<(/?)h([1-5])(?=[ >])", lambda match: f"<{match[1]}h{int(match[2]) + 1}", content)
    return Html(re.sub(r' (id="|href="#)(?=\w)', rf" \g<1>{before}", deeper))


def data(name: str, value: Any) -> Html:
    """Embed JSON for a script. NaN is refused."""
    return packed(name, json.dumps(value, allow_nan=False, separators=(",", ":")))


def packed(name: str, text: str) -> Html:
    """Embed a text for a script, compressed: page.js unpacks it, and no browser runs it or finds an element in it."""
    content = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    return tag("script", content, type="application/zlib", id=name)


def digest(text: str) -> str:
    """Return the hash by which a policy allows one script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def read_asset(name: str) -> str:
    """Read a style or a script that lies beside this file."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def document(title: str, style: str, policy: str, body: str | Iterable[str]) -> str:
    """Format an HTML file whose policy, where it has one, precedes all that it governs."""
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy) if policy else "",
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Html(style)),
    ]
    return f"<!DOCTYPE html>\n{tag('html', tag('head', head), tag('body', body), lang='en')}\n"
