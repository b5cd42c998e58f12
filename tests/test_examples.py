"""The examples in docstrings are what the functions give."""

import doctest
import importlib

import pytest
from conftest import ROOT

MODULES = (
    "lm.report.figures.chart",
    "lm.analysis.verdict_text",
    "lm.api.results",
    "lm.api.training",
    "lm.analysis.rates",
    "benchmarks.ratios",
    "benchmarks.show",
    "lm.analysis.external.table",
    "lm.execution.machine",
    "lm.report.notes",
    "lm.report.web.elements",
    "lm.store.redaction",
    "lm.store.files",
    "lm.training.schedule",
    "lm.metrics.cost",
    "lm.metrics.gradients",
    "lm.metrics.tokens",
)


SLOW = ("lm.api.results", "lm.api.training")
"""Modules with an example that trains something, or reads results."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in MODULES]
)
def test_examples_give_what_they_say(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert found.attempted > 0
    assert found.failed == 0


def test_every_module_with_an_example_is_run() -> None:
    sources = [*(ROOT / "lm").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    with_examples = [path for path in sources if ">>> " in path.read_text(encoding="utf-8")]
    assert {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in with_examples} == set(MODULES)
