"""The same arms in several experiments, such as on several texts: a random-effects summary of each."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from scipy import stats

from lm.analysis.results import Records
from lm.report.render import Section, TableCell
from lm.report.tables import signed
from lm.stats.meta import over_experiments
from lm.store.metrics import describe

FEWEST = 3
"""Experiments from which on a summary may be bold: two hardly tell how far a third may be."""
COLUMNS = ("arm", "n", "mean difference [95 % CI]", "tau", "I²", "in another")
NOTES = (
    "Mean of true differences over experiments like these: random effects, of differences with standard errors over "
    "seeds and text. tau: standard deviation of true differences. I²: their share of the variance.",
    "In another: 95 % interval of the true difference in one more such experiment. See docs/verdicts.md.",
    f"Bold: {FEWEST} experiments or more, and the CI excludes 0. A verdict of one experiment speaks of its setting.",
)


def pooled_section(experiments: Sequence[tuple[Records, pd.DataFrame]]) -> Section | None:
    """Build the table of arms that experiments of different names compare with the same baseline, in one quantity."""
    differences: dict[tuple[str, str, str], dict[str, tuple[float, float]]] = {}
    for results, table in experiments:
        baseline, quantity = results.manifest["baseline"], results.headline
        for row in table[(table.metric == quantity) & table.difference.notna()].itertuples():
            if (error := standard_error(row)) > 0:
                by_name = differences.setdefault((str(row.arm), baseline, quantity), {})
                by_name[results.manifest["name"]] = float(row.difference), error
    shared = {key: by_name for key, by_name in differences.items() if len(by_name) > 1}
    if not shared:
        return None
    names = list(dict.fromkeys(name for by_name in shared.values() for name in by_name))
    rows = [_row(*key, by_name) for key, by_name in shared.items()]
    return Section("Over experiments", COLUMNS, rows, [f"Of {', '.join(names)}.", *NOTES])


def standard_error(row: Any) -> float:
    """Return the standard error of a difference over seeds and text, or over seeds; NaN without one."""
    for name in ("se_both", "se_seeds"):
        if math.isfinite(error := getattr(row, name, math.nan)):
            return float(error)
    if row.pairs < 2:
        return math.nan
    return float((row.plain_high - row.plain_low) / 2 / stats.t.ppf(0.975, row.pairs - 1))


def _row(arm: str, baseline: str, quantity: str, by_name: dict[str, tuple[float, float]]) -> list[str]:
    summary, digits = over_experiments(*zip(*by_name.values(), strict=True)), describe(quantity).digits
    bold = len(by_name) >= FEWEST and not summary.low <= 0 <= summary.high
    mean = TableCell(signed(summary.mean, summary.low, summary.high, digits), bold=bold)
    low, high = (f"{end:+z.{digits}f}" for end in (summary.next_low, summary.next_high))
    another = "-" if math.isnan(summary.next_low) else f"{low} to {high}"
    label = f"{arm} - {baseline} ({describe(quantity).label})"
    return [label, str(len(by_name)), mean, f"{summary.tau:z.{digits}f}", f"{summary.i2:z.0%}", another]
