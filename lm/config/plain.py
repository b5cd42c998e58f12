"""Plain values: null, booleans, numbers, text, lists and mappings, read from YAML and shown in messages.

YAML allows more than settings need, and aliases let a few characters stand for more values than memory holds. All that
is refused here, before anything is built.
"""

import math
from collections.abc import Mapping
from typing import Any

import yaml

LONGEST_SHOWN = 80
LONGEST_NUMBER = 100  # characters; Python's time to read a number is quadratic in them

MOST_NODES = 20_000  # values in a YAML text; those of an alias count each time it is used
DEEPEST = 50  # levels of a value


def clipped(text: str, most: int) -> str:
    """Return a text on one line, escaped and shortened in the middle to about `most` characters."""
    if len(text) > most:
        text = f"{text[: most // 2]} ... {text[-most // 4 :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(value: object) -> str:
    """Format a value for a message: as Python writes it, shortened."""
    return clipped(repr(value), LONGEST_SHOWN)


class _Loader(yaml.SafeLoader):
    """The safe loader for plain settings: null, booleans, numbers, text, lists and mappings of text to these.

    A key is its own text, and may stand once in a mapping; YAML itself would silently keep the last. Dates are text.
    """

    composed = 0  # nodes so far

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.composed += 1
        if self.composed > 2 * MOST_NODES:  # the rest would take a minute
            raise yaml.YAMLError(_TOO_LARGE)
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        names = set[str]()
        for index, (key, value) in enumerate(node.value):
            if not isinstance(key, yaml.ScalarNode):
                raise _refusal("a key must be text", key)
            if key.value in names:
                raise _refusal(f"key {shown(key.value)} given twice", key)
            names.add(key.value)
            if key.tag.startswith(_TAG) and key.tag != f"{_TAG}merge":
                node.value[index] = yaml.ScalarNode(f"{_TAG}str", key.value, key.start_mark, key.end_mark), value
        return node

    def get_single_node(self) -> yaml.Node | None:
        root = super().get_single_node()
        queue, count = [(root, 0)], 0
        while queue:  # aliases are followed, before anything is built
            node, depth = queue.pop()
            count += 1
            if count > MOST_NODES or depth > DEEPEST:
                raise yaml.YAMLError(_TOO_LARGE)
            inner = node.value if isinstance(node, yaml.CollectionNode) else []
            queue += [(child[1] if isinstance(child, tuple) else child, depth + 1) for child in inner]
        return root

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag in (f"{_TAG}int", f"{_TAG}float") and len(node.value) > LONGEST_NUMBER:
            raise _refusal(f"a number of {len(node.value)} characters, expected {LONGEST_NUMBER} at most", node)
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
            raise _refusal(f"{shown(node.value)} is no {node.tag.rpartition(':')[2]}", node) from None


_TOO_LARGE = f"more than {MOST_NODES} values, those behind aliases counted, or nested more than {DEEPEST} deep"
_KINDS = ("null", "bool", "int", "float", "str", "seq", "map")
_TAG = "tag:yaml.org,2002:"
_makers = yaml.SafeLoader.yaml_constructors.items()
_Loader.yaml_constructors = {tag: make for tag, make in _makers if tag is None or tag.removeprefix(_TAG) in _KINDS}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_TAG}timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _refusal(problem: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def parse_yaml(text: str) -> Any:
    """Read a YAML text; raise YAMLError if it is no YAML, or too large."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except RecursionError:
        raise yaml.YAMLError(_TOO_LARGE) from None
    except (ValueError, OverflowError) as error:  # of the scanner, such as a character beyond the last
        raise yaml.YAMLError(str(error)) from None


def find_unusable(value: Any, where: str = "") -> str:
    """Return where and why JSON or UTF-8 cannot hold a value, or an empty string; `where` is a prefix of the place."""
    inner: list[tuple[Any, str]] = []
    if isinstance(value, Mapping):
        inner = [part for key, item in value.items() for part in ((key, where), (item, f"{where}.{key}".lstrip(".")))]
    elif isinstance(value, list | tuple):
        inner = [(item, f"{where}[{index}]") for index, item in enumerate(value)]
    problem = ""
    if isinstance(value, float) and not math.isfinite(value):
        problem = f"expected a finite number, found {value}"
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        problem = f"expected a number of 64 bits, found one of {value.bit_length()}"
    elif isinstance(value, str) and not is_text(value):
        problem = f"expected text that UTF-8 can hold, found {shown(value)}"
    if problem:
        return f"{where}: {problem}" if where else problem
    return next(filter(None, (find_unusable(*part) for part in inner)), "")


def is_text(text: str) -> bool:
    """Return True if UTF-8 can hold a text, which is not so for half of a surrogate pair."""
    return text.encode(errors="ignore").decode() == text
