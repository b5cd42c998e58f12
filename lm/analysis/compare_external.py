"""Runs that others trained, compared as the cells of an experiment are: the same tests, intervals and words.

Where no seeds pair them, `lm.stats.unpaired` has the test. What a record would say of order, budgets, code and health
is not there, so that nothing is withheld for it: `UNCHECKED` says so beside every table.
"""

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd

from lm.analysis.compare import columns_of, counted, format_lost_runs
from lm.analysis.external.runs import Runs
from lm.analysis.verdict_text import format_verdict
from lm.stats.unpaired import confirm_unpaired, describe_unpaired, measure_unpaired
from lm.stats.verdicts import Comparison, Verdict, confirm, measure, plain

UNCHECKED = (
    "Cannot be checked: the order of the data (whether runs of a seed saw the same batches), budgets (steps, tokens, "
    "FLOPs, parameters), code, packages and devices, and the health of the runs. Verdicts take the file at its word."
)

UNEQUAL_SPREADS = 2.0
"""Ratio of spreads of two groups beyond which no test holds where noise is skewed."""


def compare_runs(runs: Runs) -> pd.DataFrame:
    """Build the table of comparisons of external runs: a row for each quantity and arm.

    The columns are those of `lm.analysis.compare.compare`, and `design`.

    All arms but the baseline are confirmatory: their comparisons in the judged quantities are one family.
    """
    judged, base = _judged(runs), runs.arms[0]
    rows: list[dict[str, Any]] = []
    for quantity, arm in itertools.product(runs.measured, runs.arms):
        comparison = judged.get((arm, quantity)) or _described(runs, arm, quantity)
        statuses = [str(status) for status in runs.statuses(arm)]
        present = [status for status in statuses if status != "missing"]  # an unpaired run, only where it says so
        row: dict[str, Any] = {
            "arm": arm,
            "metric": quantity,
            "family": "baseline" if arm == base else "confirmatory",
            **counted(values(runs, arm, quantity), present, len(runs.seeds) if runs.paired else len(statuses)),
            "margin": runs.margin if quantity == runs.judged[0] else math.nan,
            **columns_of(comparison),
        }
        row["verdict"] = format_verdict(comparison.verdict)
        if (arm, quantity) in judged and not (runs.paired and row["pairs"] == len(runs.seeds)):
            on = f"on {row['pairs']} of {len(runs.seeds)} seeds" if runs.paired and row["pairs"] else ""
            row["verdict"] += format_lost_runs(on, statuses, [*map(str, runs.statuses(base))])
            row["verdict"] += "" if runs.paired else f" (unpaired: {runs.why})"
        rows.append({**row, "design": "paired" if runs.paired else "unpaired", "bold": row["significant"]})
    return pd.DataFrame(rows)


def differences(runs: Runs, arm: str, quantity: str) -> list[float]:
    """Return arm minus baseline for each seed on which both have a number, in the order of the seeds."""
    base = runs.arms[0]
    differences_of_seeds = [runs.value(arm, seed, quantity) - runs.value(base, seed, quantity) for seed in runs.seeds]
    return [difference for difference in differences_of_seeds if math.isfinite(difference)]


def values(runs: Runs, arm: str, quantity: str) -> list[float]:
    """Return the values of an arm's finished runs, in the order of the seeds."""
    measured = [runs.value(arm, seed, quantity) for seed in runs.seeds]
    return [number for number in measured if math.isfinite(number)]


def arms_of_unequal_spread(runs: Runs, quantity: str) -> list[str]:
    """Return the arms whose runs spread far more or far less than the baseline's."""
    base, unequal = values(runs, runs.arms[0], quantity), []
    for arm in runs.arms[1:]:
        arm_values = values(runs, arm, quantity)
        if min(len(arm_values), len(base)) < 2:
            continue
        smaller, larger = sorted(float(np.std(group, ddof=1)) for group in (arm_values, base))
        if larger > UNEQUAL_SPREADS * smaller:
            unequal.append(arm)
    return unequal


def _judged(runs: Runs) -> dict[tuple[str, str], Comparison]:
    """Compare each arm with the baseline in each judged quantity, tested within its family."""
    keys = [(arm, quantity) for quantity in runs.judged for arm in runs.arms[1:]]
    if runs.paired:
        margins = {runs.judged[0]: runs.margin}
        family = [
            measure(differences(runs, arm, quantity), runs.better[quantity], margins.get(quantity, math.nan))
            for arm, quantity in keys
        ]
        confirm(family)
        return dict(zip(keys, family, strict=True))
    apart = [
        measure_unpaired(values(runs, arm, quantity), values(runs, runs.arms[0], quantity), runs.better[quantity])
        for arm, quantity in keys
    ]
    confirm_unpaired(apart)
    return dict(zip(keys, apart, strict=True))


def _described(runs: Runs, arm: str, quantity: str) -> Comparison:
    """Compare an arm in a quantity that is not judged; the baseline's comparison is empty."""
    if arm == runs.arms[0]:
        return Comparison([], verdict=Verdict("baseline"))
    if runs.paired:
        return plain(differences(runs, arm, quantity))
    return describe_unpaired(values(runs, arm, quantity), values(runs, runs.arms[0], quantity))
