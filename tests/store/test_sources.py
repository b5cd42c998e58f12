"""Hashes of source code: what changes them, and what does not."""

import subprocess
import sys
from pathlib import Path

import pytest

from lm.report.pack import unpack
from lm.store import sources
from lm.store.files import read_json
from lm.store.sources import OF_COMMITS, canonical, hash_sources, read_sources, source_of
from lm.training.provenance import source_hash

REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference"

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
    "a comment": ("# each row", "# every row"),
    "the docstring of a module": ("A module", "This module"),
    "the docstring of a class": ("A class", "This class"),
    "the docstring of a function": ("Return a number", "Give a number"),
    "a note on an attribute": ("A note", "Another note"),
    "layout": ("total += math.sqrt(row) * scale", "total += (\n                math.sqrt(row) * scale\n            )"),
    "the types of a function": ("scale=2.0)", "scale: float = 2.0) -> float"),
}
OTHER = {
    "an operator": ("total += ", "total -= "),
    "a comparison": ("half > RATE", "half >= RATE"),
    "an integer for a float": ("total: float = 0.0", "total: float = 0"),
    "a default": ("scale=2.0", "scale=2.5"),
    "a parameter": ("scale", "factor"),
    "an attribute": ("self.size", "self.width"),
    "a field": ("    size: int", "    width: int"),
    "its annotation": ("size: int", "size: float"),
    "a called name": ("max(", "min("),
    "a keyword": ("key=", "default="),
    "a method": ("forward", "backward"),
    "an imported name": ("import math", "import cmath as math"),
    "another variable": ("return added(total)", "return added(best)"),
    "a text": ('f"{total}"', 'f"{total} "'),
}


def hash_of(code: str) -> str:
    return hash_sources({"a.py": code.encode()})


@pytest.mark.parametrize("change", SAME)
def test_what_computes_the_same_has_the_same_hash(change: str) -> None:
    assert SAME[change][0] in CODE
    assert hash_of(CODE.replace(*SAME[change])) == hash_of(CODE)


@pytest.mark.parametrize("change", OTHER)
def test_what_may_compute_something_else_has_another_hash(change: str) -> None:
    assert OTHER[change][0] in CODE
    assert hash_of(CODE.replace(*OTHER[change])) != hash_of(CODE)


def test_a_hash_is_the_same_for_every_version_of_python() -> None:
    assert hash_of(CODE) == "eb0d0bfc503d857f1509341b3fc9b5f42d7d1a3f8c8163992d4823744828564e"


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


def test_a_record_without_a_source_has_that_of_its_clean_commit() -> None:
    for commit, label in OF_COMMITS.items():
        assert canonical(label) == canonical(source_hash())
        assert source_of({"git": {"commit": commit, "dirty": False}}) == label
        assert source_of({"git": {"commit": commit, "dirty": True}}) is None
        assert source_of({"git": {"commit": commit, "dirty": False}, "source": "own"}) == "own"
    assert source_of({"git": {"commit": None, "dirty": False}, "source": None}) is None


def test_sources_are_compared_without_torch() -> None:
    code = "import sys, lm.store.sources; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


def test_the_quickstart_is_of_code_that_computes_the_same(tmp_path: Path) -> None:
    unpack(REFERENCE / "quickstart.lmpack", tmp_path)
    records = [read_json(path) for path in (tmp_path / "cells").glob("*/record.json")]
    assert {canonical(record["provenance"]["source"]) for record in records} == {canonical(source_hash())}


def test_hidden_files_of_editors_are_no_source(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "a.py").write_text(CODE)
    (tmp_path / "part" / ".#a.py").symlink_to("user@host.1:2")  # as an editor makes beside a file that is changed
    assert read_sources(tmp_path, ("part",)) == {"part/a.py": CODE.encode()}
