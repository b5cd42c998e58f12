"""Data of figures: panels of series with axes, labels and notes, which two drawers turn into pictures and page charts.

Legend: s seeds, n points.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
from matplotlib.ticker import MaxNLocator

from lm.analysis.results import Records
from lm.store.metrics import describe
from lm.store.record import Record

Numbers = Sequence[float] | np.ndarray
Stroke = Literal["-", "--"]
Getter = Callable[[Record], Any]  # function that reads a value of a record, or None

SPREAD = "Mean over seeds, and one standard deviation either way."


@dataclass(frozen=True)
class Axis:
    """An axis of a panel."""

    label: str  # its title
    field: str = ""  # its name in tooltips; empty for the label
    log: bool = False  # True for a logarithmic scale
    ticks: Sequence[float] = ()  # labelled values; without any the drawer chooses
    names: Sequence[str] = ()  # texts at 0, 1, ... of an axis of names
    limits: tuple[float, float] | None = None  # its ends; None for those of the data
    integers: bool = False  # True where values between whole numbers mean nothing
    hidden: bool = False  # True for an axis without ticks


@dataclass(frozen=True)
class Series:
    """A line, or points, of a panel."""

    label: str  # its text in a legend, or above a panel of its own; empty for none
    x: Numbers  # positions along the axis
    y: Numbers  # values
    low: Numbers = ()  # lower ends of bands or bars; empty for none
    high: Numbers = ()  # upper ends
    member: int | None = None  # index of its name, and so its colour, among those of the chart; None for grey
    # `curve` without markers, `line` with markers where points are few, `points`, `steps` or `bins`, whose `x` has an
    # edge more than `y` has values
    mark: Literal["curve", "line", "points", "steps", "bins"] = "line"
    bars: bool = False  # True to draw low and high as error bars, not as a band
    style: str = ""  # kind of line, such as `sliding window`; a key of the chart's styles
    marker: Literal["o", "*", "x", "s"] = "o"  # shape of its points
    hollow: bool = False  # True for points that are not filled
    shade: float | None = None  # value on the panel's scale of colours, in place of a member
    # more fields of the page's tooltips, a value a point
    tips: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BasePanel:
    """Fields that panels of every kind have."""

    title: str = ""  # text above it in a picture
    option: str = ""  # its name in the page's list of panels; empty for the label of its vertical axis, or its only one
    new_row: bool = False  # True for the first panel of a row in a picture


@dataclass(frozen=True)
class Panel(BasePanel):
    """Series on two axes."""

    x: Axis  # horizontal axis
    y: Axis  # vertical axis
    series: Sequence[Series]  # what is drawn, the last on top
    verticals: Mapping[float, str] = field(default_factory=dict)  # dotted lines by position, with their texts
    horizontal: float | None = None  # height of a dashed line
    texts: Sequence[tuple[float, float, str]] = ()  # texts at positions
    right: str = ""  # label of a right-hand axis that shows the exponential of the values; empty for none
    shades: tuple[str, bool] | None = None  # label of the scale of colours, and whether low values are bright
    split: bool = False  # True for a picture with a panel for each series


@dataclass(frozen=True)
class Heat(BasePanel):
    """A map of values by row and column."""

    x: Axis  # horizontal axis, with a name for each column
    y: Axis  # vertical axis, with a name for each row, the first at the top, or at the bottom with `upward`
    values: np.ndarray  # a value for each row and column; NaN for none
    scale: tuple[str, float, float]  # label and ends of the scale of colours
    log: bool = False  # True for a logarithmic scale of colours
    upward: bool = False  # True where rows count from the bottom


@dataclass(frozen=True)
class Bar:
    """A row of a forest plot: a value with its interval."""

    name: str  # the row's name
    value: float  # the value; NaN for none
    low: float = math.nan  # lower end of the interval; NaN for none
    high: float = math.nan  # its upper end
    bold: bool = False  # True to fill its marker
    tips: Mapping[str, Any] = field(default_factory=dict)  # further fields of the page's tooltips
    texts: Sequence[str] = ()  # lines beside it
    tone: Literal["", "good", "bad"] = ""  # meaning of its colour, `good` or `bad`; empty for neither
    margin: float = math.nan  # distance from zero of two dotted lines; NaN for none


@dataclass(frozen=True)
class Forest(BasePanel):
    """Values with intervals, a row a name, and single points below them."""

    x: Axis  # horizontal axis
    # rows from the top; the page shows what follows a line break, and one without bar or point as a heading
    names: Sequence[str]
    bars: Sequence[Bar]  # values with their intervals, filled where bold
    points: Sequence[Bar] = ()  # single values, drawn small
    zero: bool = True  # True for a line at zero


@dataclass(frozen=True)
class Chart:
    """A figure's data: what both drawers need."""

    title: str  # its heading on the page
    panels: Sequence[Panel | Heat | Forest]  # its panels; the page shows one at a time, and a list to choose from
    names: Sequence[str] = ()  # names that have colours of their own, such as arms
    note: str = ""  # explanation below the heading on the page
    size: tuple[float, float] = (6.4, 4.2)  # width and height of a panel of its picture in inches
    columns: int = 0  # largest number of columns of its picture; 0 for a picture of the first panel alone
    heights: Sequence[float] = ()  # ratios of the rows' heights
    legend_title: str = ""  # title of the picture's legend
    styles: Mapping[str, Stroke] = field(default_factory=dict)  # kinds of lines and their strokes, `-` or `--`
    markers: Mapping[str, str] = field(default_factory=dict)  # meanings of markers
    arms: bool = True  # True where names are arms, which readers of the page can switch off
    log: bool = False  # True for a switch to a logarithmic vertical axis on the page
    wide: bool = False  # True for the page's full width
    apart: bool = False  # True if the page shows all panels, each as a chart


def log_range(panel: Panel, which: Literal["x", "y"]) -> tuple[float, float] | None:
    """Return the ends of a panel's logarithmic axis, from its limits or its data; None for another axis."""
    axis = panel.x if which == "x" else panel.y
    if not axis.log:
        return None
    values = []
    for series in panel.series:
        values += finite([*series.x] if which == "x" else [*series.y, *series.low, *series.high])
    values += [panel.horizontal] if which == "y" and panel.horizontal is not None else []
    positive = [number for number in values if number > 0]
    return axis.limits or ((min(positive), max(positive)) if positive else None)


def label(quantity: str) -> str:
    """Return the label of a quantity with its unit."""
    meaning = describe(quantity)
    return f"{meaning.label} ({meaning.unit})" if meaning.unit else meaning.label


def finite(numbers: Iterable[float]) -> list[float]:
    """Return the finite ones of some numbers."""
    return [number for number in numbers if math.isfinite(number)]


def getter(*keys: str) -> Getter:
    """Return a function that reads nested keys of a record; None where a record lacks them."""
    return lambda record: functools.reduce(lambda entry, key: (entry or {}).get(key), keys, cast(Any, record))


def stack_seeds(results: Records, arm: str, pick: Getter) -> np.ndarray | None:
    """Stack a value of an arm's successful runs that has one shape, (s, ...); None where none holds it."""
    values = [pick(record) for record in results.of(arm) if record["status"] == "ok"]
    arrays = [np.asarray(value, dtype=float) for value in values if value]
    same_shape = [array for array in arrays if array.shape == arrays[0].shape]
    return np.stack(same_shape) if same_shape else None


def mean_over_seeds(label: str, x: Numbers, values_sn: np.ndarray, member: int | None, **how: Any) -> Series:
    """Return the mean over seeds with a band of one standard deviation; none of a single seed."""
    mean_n, count = values_sn.mean(axis=0), len(values_sn)
    sd_n = values_sn.std(axis=0, ddof=1) if count > 1 else np.zeros_like(mean_n)
    band: dict[str, Any] = {"low": mean_n - sd_n, "high": mean_n + sd_n} if count > 1 else {}
    tips: dict[str, Sequence[Any]] = {"sd": sd_n.tolist(), "n": [count] * len(mean_n)}
    return Series(label, x, mean_n, member=member, tips=tips, **band, **how)


def mean_of_arm(label: str, x: float, values: Sequence[float], member: int) -> Series:
    """Return a point at the mean of an arm's runs, with bars of one standard deviation."""
    return mean_over_seeds(label, [x], np.array(values)[:, None], member, mark="points", bars=True)


MANTISSAS = (
    (1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.1, 1.25, 1.5, 2, 3, 4, 5, 6, 8),
    (1, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9),
)  # fmt: skip
"""Multiples of powers of ten that have a label, from wide ranges to narrow ones."""

FEWEST, MOST = 4, 8  # numbers of labelled ticks


def log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers from `low` to `high` that lie well apart on a logarithmic axis.

    >>> log_ticks(0.9, 3.2)
    [1.0, 1.5, 2.0, 3.0]
    >>> log_ticks(1e-4, 1.0)
    [0.0001, 0.001, 0.01, 0.1, 1.0]
    """
    if not (0 < low < high and math.isfinite(high)):
        return [low] if low == high else []
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for mantissas in MANTISSAS:
        ticks = [float(f"{m}e{power}") for power in powers for m in mantissas]
        inside = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
        if len(inside) >= FEWEST:
            return inside[:: math.ceil(len(inside) / MOST)]
    linear = MaxNLocator(FEWEST, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)  # a narrow range is nearly linear
    return [round(float(tick), 12) for tick in linear if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
