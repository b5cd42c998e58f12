"""A page of HTML as a browser reads it, for the tests that look into one."""

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser
from typing import Any

from lm.report.web.elements import EMPTY


class Page(HTMLParser):
    """A page: its elements with their attributes, and the text of each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]

    def told(self) -> str:
        return "\n".join(text for tag, text in self.texts if tag not in ("script", "style"))

    def unpacked(self, name: str) -> str:
        """Return a text that the page holds for its script."""
        scripts = [text for tag, text in self.texts if tag == "script"]
        place = [attributes.get("id") for attributes in self.of("script")].index(name)
        return zlib.decompress(base64.b64decode(scripts[place])).decode()

    def json(self, name: str) -> Any:
        return json.loads(self.unpacked(name))

    def ids(self) -> list[str]:
        return [str(attributes["id"]) for _, attributes in self.found if "id" in attributes]

    def require_safe(self) -> None:
        """All that may run or style is named by its hash, nothing is loaded, and links lead to what is there."""
        assert self.open == []
        (policy,) = [one["content"] for one in self.of("meta") if one.get("http-equiv") == "Content-Security-Policy"]
        assert policy is not None
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
        assert "unsafe" not in policy
        for kind in ("script", "style"):
            bodies = re.findall(rf"<{kind}>(.*?)</{kind}>", self.text, re.DOTALL)
            if kind == "script" and "library" in self.ids():
                bodies.insert(0, self.unpacked("library"))
            digests = [base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() for body in bodies]
            assert rules[f"{kind}-src"].split() == [f"'sha256-{digest}'" for digest in digests]
        for name, attributes in self.found:
            assert name not in ("link", "iframe", "object", "embed", "base", "form")
            assert "src" not in attributes, name
            assert "style" not in attributes, name
            assert not [key for key in attributes if key.startswith("on")], name
            assert (attributes.get("href") or "#").startswith("#")
        assert len(set(self.ids())) == len(self.ids())
        links = [str(attributes["href"]).removeprefix("#") for _, attributes in self.found if "href" in attributes]
        assert set(links) <= {*self.ids()}
