"""All figures of an experiment, and those that a report writes as files.

A file of this package whose `FIGURES` is a tuple of figures adds them; nothing else need name it.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pandas as pd

from lm.analysis.results import Records
from lm.report import figures as package
from lm.report.figures.chart import Chart
from lm.report.study import Study
from lm.report.tuning import Rates


@dataclass(frozen=True)
class FigureInputs:
    """The data of an experiment that its figures draw."""

    results: Records  # results of the experiment
    compared: pd.DataFrame  # comparisons of its arms
    studies: Mapping[str, Study] = field(default_factory=dict)  # searches of its arms by arm, where they were tuned
    rates: Rates | None = None  # its learning-rate curves, where there are any


@dataclass(frozen=True)
class Figure:
    """A figure of every experiment that has data for it."""

    name: str  # name of its files
    rank: int  # place among the figures; a report writes those that come first
    # function that computes its data, or returns None where there are none
    make: Callable[[FigureInputs], Chart | None]


@functools.cache
def figures() -> Mapping[str, Figure]:
    """Return every figure of an experiment by name, in the order of their ranks."""
    names = [info.name for info in pkgutil.iter_modules(package.__path__)]
    declared = [getattr(importlib.import_module(f"{package.__name__}.{name}"), "FIGURES", ()) for name in names]
    all_figures = [figure for of_file in declared if isinstance(of_file, tuple) for figure in of_file]
    by_rank = sorted(all_figures, key=lambda figure: figure.rank)
    return {figure.name: figure for figure in by_rank}
