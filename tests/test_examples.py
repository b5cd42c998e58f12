"""The examples in docstrings are what the functions give."""

import doctest
import importlib

import pytest
from conftest import ROOT

SOURCES = sorted([*(ROOT / "lm").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")])
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in SOURCES
    if ">>> " in path.read_text(encoding="utf-8")
]
SLOW = ("lm.api.results", "lm.api.training")
"""Modules with an example that trains something, or reads results."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in MODULES]
)
def test_examples_give_what_they_say(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.attempted > 0
    assert results.failed == 0
