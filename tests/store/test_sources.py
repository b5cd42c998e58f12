"""Hashes of source code: what changes them, and what does not."""

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from lm.store import sources
from lm.store.sources import EQUIVALENT, canonical, canonical_text, hash_sources, read_sources

CODE = '''
"""A module."""

import math

RATE = 0.5
"""A note."""


class Part:
    """A class."""

    size: int = 3

    def forward(self, x, scale=2.0):
        """Return a number."""
        total: float = 0.0
        for row in x:  # each row
            total += math.sqrt(row) * scale
        halves = [half / 2 for half in x if half > RATE]
        try:
            best = max(halves, key=lambda value: value * self.size)
        except ValueError as error:
            raise RuntimeError(f"{total}") from error

        def added(other):
            return best + other

        return added(total)
'''

SAME = {
    "a local variable": ("total", "amount"),
    "the variable of a loop": ("row", "line"),
    "the variable of a comprehension": ("half", "portion"),
    "the parameter of a lambda": ("value", "entry"),
    "the name of a caught error": ("error", "reason"),
    "a function in a function": ("added", "with_best"),
    "a variable that a closure reads": ("best", "most"),
    "a comment": ("# each row", "# every row"),
    "the docstring of a module": ("A module", "This module"),
    "the docstring of a class": ("A class", "This class"),
    "the docstring of a function": ("Return a number", "Give a number"),
    "a note on an attribute": ("A note", "Another note"),
    "layout": ("total += math.sqrt(row) * scale", "total += (\n                math.sqrt(row) * scale\n            )"),
    "the annotation of a local variable": ("total: float = 0.0", "total = 0.0"),
}
OTHER = {
    "an operator": ("total += ", "total -= "),
    "a comparison": ("half > RATE", "half >= RATE"),
    "a constant": ("half / 2", "half / 3"),
    "an integer for a float": ("total: float = 0.0", "total: float = 0"),
    "a default": ("scale=2.0", "scale=2.5"),
    "a parameter": ("scale", "factor"),
    "an attribute": ("self.size", "self.width"),
    "a field": ("    size: int", "    width: int"),
    "its annotation": ("size: int", "size: float"),
    "a called name": ("max(", "min("),
    "a keyword": ("key=", "default="),
    "a class": ("Part", "Piece"),
    "a method": ("forward", "backward"),
    "a name of the module": ("RATE", "SHARE"),
    "an imported name": ("import math", "import cmath as math"),
    "another variable": ("return added(total)", "return added(best)"),
    "a global in place of a local variable": ("return best + other", "return RATE + other"),
    "a text": ('f"{total}"', 'f"{total} "'),
}


def text_of(code: str) -> str:
    return canonical_text(ast.parse(textwrap.dedent(code)))


@pytest.mark.parametrize("change", SAME)
def test_what_computes_the_same_has_the_same_hash(change: str) -> None:
    assert SAME[change][0] in CODE
    assert text_of(CODE.replace(*SAME[change])) == text_of(CODE)


@pytest.mark.parametrize("change", OTHER)
def test_what_may_compute_something_else_has_another_hash(change: str) -> None:
    assert OTHER[change][0] in CODE
    assert text_of(CODE.replace(*OTHER[change])) != text_of(CODE)


@pytest.mark.parametrize(
    "code",
    [
        "def f():\n    global x\n    x = 1",
        "def f():\n    x = 1\n    def g():\n        nonlocal x\n        x = 2\n    return g",
        "def f():\n    x = 1\n    return locals()",
        "def f():\n    x = 1\n    return eval('x')",
        "def f():\n    x = 1\n    return sys._getframe()",
        "def f():\n    import a as x\n    return x",
        "def f():\n    from a import x\n    return x",
        "def f():\n    class x: pass\n    return x",
        "def f():\n    class A:\n        x = 1\n    return A",
        "def f(**x):\n    return x",
        "def f():\n    return lambda *, x: x",
        "def f():\n    @known\n    def x(): pass\n    return x",
        "def f():\n    return x",
        "x = [1 for _ in y]",
    ],
)
def test_a_name_stays_that_something_may_go_by(code: str) -> None:
    assert text_of(code) != text_of(code.replace("x", "z"))


@pytest.mark.parametrize(
    ("code", "other"),
    [
        ("def f():\n    a = b = 1\n    return a", "def f():\n    a = b = 1\n    return b"),
        ("def f(a):\n    return [a for a in a]", "def f(a):\n    return [a for b in a]"),
        (
            "def f():\n    x = 1\n    class A:\n        x = 2\n        def g(self): return x",
            "def f():\n    y = 1\n    class A:\n        x = 2\n        def g(self): return x",
        ),
        (
            "def f():\n    x = 1\n    class A:\n        x = 2\n        class B: y = x",
            "def f():\n    z = 1\n    class A:\n        x = 2\n        class B: y = x",
        ),
        ("def f():\n    if [y := 1 for _ in a]: return y", "def f():\n    if [z := 1 for _ in a]: return y"),
        (
            "def f(p):\n    match p:\n        case [a, *b]: return a",
            "def f(p):\n    match p:\n        case [a, *b]: return b",
        ),
        ("def f(x): pass", "def f(*x): pass"),
        ("def f(x): pass", "def f(*, x): pass"),
        ("def f(x, /): pass", "def f(x): pass"),
        ("def f(x, y=1): pass", "def f(x=1, y=1): pass"),
        ("f('')", "f()"),
        ("x = 1", "x = True"),
        ("x = '#1'", "def f(): a = 1"),
    ],
)
def test_other_bindings_are_other_code(code: str, other: str) -> None:
    assert text_of(code) != text_of(other)


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("def f(p):\n    match p:\n        case {'k': a, **b} if a: return b\n        case [*c]: return c", "abc"),
        ("def f(p):\n    if (a := p) and [b := c for c in a]: return b", "abc"),
        ("def f(p):\n    with p as (a, *b): del a\n    return {c: d for c, d in b}", "abcd"),
        ("def f():\n    class A:\n        def g(self):\n            a = 1\n            return lambda b=a: b", "ab"),
        ("def f(n):\n    a: int\n    for a in n: pass\n    return [b for c in a for b in c if b]", "abc"),
        ("class C:\n    xs = [a for a in range(3)]\n    ys = lambda self, b: b", "ab"),
    ],
)
def test_every_way_to_bind_a_variable_is_known(code: str, names: str) -> None:
    class Renamed(ast.NodeTransformer):
        def generic_visit(self, node: ast.AST) -> ast.AST:
            for field in ("id", "arg", "name", "rest"):
                if (value := getattr(node, field, None)) in [*names]:
                    setattr(node, field, f"renamed_{value}")
            return super().generic_visit(node)

    renamed = Renamed().visit(ast.parse(code))
    assert "renamed_a" in ast.unparse(renamed)
    assert canonical_text(renamed) == text_of(code)


def test_a_hash_is_the_same_for_every_version_of_python() -> None:
    assert hash_sources({"a.py": CODE.encode()}) == "a4ab6676b89b49b8541a70a419079a17b36d656959b3a5cf1d2ded40cff3fffd"


def test_paths_count_and_invalid_python_is_hashed_raw() -> None:
    assert hash_sources({"a.py": b"x = 1"}) != hash_sources({"b.py": b"x = 1"})
    assert hash_sources({"a.py": b"x = ("}) != hash_sources({"a.py": b"x = (  "})


def test_files_are_read_in_the_order_of_their_paths(tmp_path: Path) -> None:
    for name in ("b/z.py", "b/a.py", "a/b.py", "c/no.py", "a/no.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert list(read_sources(tmp_path, ("b", "a")).items()) == [
        (name, name.encode()) for name in ("a/b.py", "b/a.py", "b/z.py")
    ]


def test_sources_known_to_compute_the_same_have_one_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "EQUIVALENT", (frozenset({"a", "b"}), frozenset({"c", "d"})))
    assert canonical("a") == canonical("b")
    assert canonical("c") == canonical("d") != canonical("a")
    assert canonical("e") == "e"


def test_the_table_of_equal_sources_holds_each_hash_once() -> None:
    hashes = [one for same in EQUIVALENT for one in same]
    assert len(hashes) == len(set(hashes))
    assert all(len(one) == 64 and set(one) <= set("0123456789abcdef") for one in hashes)


def test_sources_are_compared_without_torch() -> None:
    code = "import sys, lm.store.sources; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
