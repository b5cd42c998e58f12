"""Runs that others trained, told apart by arm and seed and compared as the cells of an experiment are.

Where no seeds pair them, `lm.stats.unpaired` has the test. What a record would say of order, budgets, code and health
is not there, so that nothing is withheld for it: `UNCHECKED` says so beside every table.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from lm.analysis.compare import columns_of, counted, format_lost_runs
from lm.analysis.external.table import Row, Table, filter_rows, number
from lm.analysis.verdict_text import format_verdict
from lm.config.plain import shown
from lm.config.tree import InputError, nearest
from lm.stats.unpaired import confirm_unpaired, describe_unpaired, measure_unpaired
from lm.stats.verdicts import Better, Comparison, Verdict, confirm, measure, plain
from lm.store.metrics import METRICS

Seed = int | str
Status = Literal["ok", "diverged", "failed", "damaged", "missing"]
Pairing = Literal["auto", "paired", "unpaired"]

# words of trackers for each status of a run
STATUS_ALIASES: dict[Status, tuple[str, ...]] = {
    "ok": ("ok", "finished", "complete", "completed", "success", "succeeded"),
    "diverged": ("diverged",),
    "failed": ("failed", "fail", "crashed", "killed", "pruned", "unfinished", "error"),
    "damaged": ("damaged",),
    "missing": ("missing", "running", "scheduled", "waiting", "pending"),
}

STATUS = {word: status for status, words in STATUS_ALIASES.items() for word in words}
STATUS_COLUMNS = ("status", "state", "State")


@dataclass(frozen=True)
class CompareRequest:
    """Options of a comparison of a table of runs, whose columns `arm` and `seed` tell runs apart."""

    baseline: str
    metrics: tuple[str, ...]  # the quantities that are judged, the first of them the headline
    arm: str = "arm"
    seed: str = "seed"
    higher: tuple[str, ...] = ()  # quantities in which more is better, whatever else is known of them
    default_direction: Better = "lower"  # which way is better in a judged quantity of which nothing is known
    only: tuple[tuple[str, str], ...] = ()  # texts that columns must hold for a row to be taken
    pairing: Pairing = "auto"  # whether runs are paired by seed; `auto` pairs them where seeds match
    margin: float = math.nan  # of the headline, within which arms count as equivalent; NaN for none


@dataclass(frozen=True)
class ExternalRun:
    """Status and values of a run; `source_status` is the source's own word where it did not go well."""

    status: Status
    source_status: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class Runs:
    """Runs of a table by arm, the baseline first, and seed."""

    source: Table
    arms: list[str]
    seeds: list[Seed]
    runs: dict[tuple[str, Seed], ExternalRun]
    judged: list[str]  # the quantities that may have a verdict; they lead those that were `measured`
    measured: list[str]
    better: dict[str, Better]  # which way is better, of each quantity
    assumed: list[str]  # the judged of which that is not known but taken to be so
    paired: bool
    why: str  # the reason where runs are not paired by seed
    margin: float  # of the headline
    notes: list[str]  # what else is to be known of the source

    def value(self, arm: str, seed: Seed, quantity: str) -> float:
        """Return a value of a run; NaN where there is none or it did not go well."""
        run = self.runs.get((arm, seed))
        return run.values.get(quantity, math.nan) if run is not None and run.status == "ok" else math.nan

    def statuses(self, arm: str) -> list[Status]:
        """List the statuses of an arm's runs."""
        return [run.status for (of, _), run in self.runs.items() if of == arm]


def gather(table: Table, request: CompareRequest) -> Runs:
    """Group the runs of a table by arm and seed. Raises InputError for missing columns, arms, numbers, or doubles."""
    table = filter_rows(table, request.only)
    arm = table.column(request.arm, "--arm-column")
    seed = table.find(request.seed)
    if seed is None and request.pairing != "unpaired":
        seed = table.column(request.seed, "--seed-column")
    columns = {name: table.column(name, "--metric") for name in request.metrics}
    columns |= {table.short(name): name for name in _others(table, [arm, seed, *columns.values()])}
    if arm in columns.values() or seed in columns.values():
        both = f"{request.arm} and {request.seed}"
        raise InputError(f"{table.path}: --metric: {both} tell runs apart and measure nothing")
    runs, strange = _read_runs(table, arm, seed, columns, request)
    arms = list(dict.fromkeys(name for name, _ in runs))
    if request.baseline not in arms:
        near, where = nearest(request.baseline, arms), f"{table.path}: --baseline {shown(request.baseline)}"
        raise InputError(f"{where}: no such arm.{near} It has {', '.join(arms)}")
    if len(arms) == 1:
        raise InputError(f"{table.path}: has the arm {arms[0]} alone; expected others beside it")
    arms = [request.baseline, *(name for name in arms if name != request.baseline)]
    seeds = sorted({key for _, key in runs}, key=lambda seed: (isinstance(seed, str), seed))
    why = _why_unpaired(runs, arms, request.pairing, seed is None)
    if why and not math.isnan(request.margin):
        raise InputError("--margin: equivalence is tested on pairs of runs, and these are unpaired; leave it out")
    directions = {name: _better(table, name, column) for name, column in columns.items()}
    directions |= dict.fromkeys(request.higher, "higher")
    assumed = [name for name in request.metrics if directions[name] is None and name not in METRICS]
    better = directions | dict.fromkeys(assumed, request.default_direction)
    judged, measured, notes = list(request.metrics), list(columns), [*table.notes, *strange]
    return Runs(table, arms, seeds, runs, judged, measured, better, assumed, not why, why, request.margin, notes)


def _read_runs(
    table: Table, arm: str, seed: str | None, columns: Mapping[str, str], request: CompareRequest
) -> tuple[dict[tuple[str, Seed], ExternalRun], list[str]]:
    """Read the run of each row, with a note on a column of statuses that is not understood. Raises InputError."""
    states, strange = _states(table)
    runs: dict[tuple[str, Seed], ExternalRun] = {}
    for index, row in enumerate(table.rows):
        named = next((row[name] for name in ("run", "run_name", "Name", "name", "number") if name in row), None)
        place = f"row {index + 2}" if named is None else f"run {named}"  # the headings are the first line
        name = row.get(arm)
        if name is None or (seed is not None and seed not in row):
            lacks = request.arm if name is None else request.seed
            raise InputError(f"{table.path}: {place} has no {lacks}; --only COLUMN=TEXT takes some rows")
        key: tuple[str, Seed] = name, index
        if seed is not None:  # as a whole number where it is one, `0.0` among them
            value = number(row[seed])
            whole = value is not None and math.isfinite(value) and value == int(value)
            key = name, int(value) if value is not None and whole else row[seed]
        if key in runs:
            hint = f"again in {place}; expected each arm and seed once, and --only COLUMN=TEXT takes some rows"
            raise InputError(f"{table.path}: arm {shown(name)} seed {key[1]} is there twice, {hint}")
        runs[key] = _run(row, columns, request.metrics[0], states, f"{table.path}: {place}")
    return runs, strange


def _others(table: Table, used: Sequence[str | None]) -> list[str]:
    """List the other columns of numbers that are not the same in every run."""
    columns = []
    for name in table.columns:
        if name in used or name.startswith("_") or (table.metrics and not name.startswith(table.metrics)):
            continue
        texts = {row[name] for row in table.rows if name in row}
        if all(number(text) is not None for text in texts) and (len(texts) > 1 or table.metrics):
            columns.append(name)
    return columns


def _run(row: Row, columns: Mapping[str, str], headline: str, states: str | None, where: str) -> ExternalRun:
    values: dict[str, float] = {}
    for name, column in columns.items():
        if column in row:
            measured = number(row[column])
            if measured is None:
                raise InputError(f"{where}: {name}: expected a number, found {shown(row[column])}")
            values[name] = measured
    text = row.get(states or "", "")
    status = STATUS.get(text.lower(), "ok")
    if status != "ok":
        return ExternalRun(status, text if text.lower() != status else "", values)
    if math.isfinite(values.get(headline, math.nan)):
        return ExternalRun("ok", "", values)
    return ExternalRun("diverged", f"{headline} is {values.get(headline, 'blank')}", values)


def _states(table: Table) -> tuple[str | None, list[str]]:
    """Find the column of statuses, and a note on one whose values are not understood."""
    for name in STATUS_COLUMNS:
        texts = {row[name].lower() for row in table.rows if name in row}
        if texts and texts <= STATUS.keys():
            return name, []
        if texts & STATUS.keys():
            why = f"is not read, for it says {', '.join(sorted(texts - STATUS.keys()))}"
            return None, [f"the column {name} {why}; runs with a number count as ended well"]
    return None, []


def _better(table: Table, name: str, column: str) -> Better:
    """Return the better direction of a quantity: from the source, or from lm's own metrics."""
    if column in table.better:
        return table.better[column]
    parts = re.split(r"[/._-]", name)
    endings = ["_".join(parts[first:]) for first in range(len(parts))]
    return next((METRICS[ending].better for ending in endings if ending in METRICS), None)


def _why_unpaired(
    runs: Mapping[tuple[str, Seed], ExternalRun], arms: Sequence[str], pairing: Pairing, seedless: bool
) -> str:
    """Return why runs are not paired by seed; empty if they are, as where one arm has all seeds of the others."""
    if pairing == "unpaired":
        return "there are no seeds" if seedless else "as was asked for"
    of = {arm: {seed for name, seed in runs if name == arm} for arm in arms}
    if pairing == "paired":
        apart = [arm for arm in arms[1:] if not of[arm] & of[arms[0]]]
        if apart:
            raise InputError(f"--paired: {apart[0]} shares no seed with {arms[0]}; expected seeds that both have")
        return ""
    return "" if set.union(*of.values()) in of.values() else "seeds do not match"


UNCHECKED = (
    "Cannot be checked: the order of the data (whether runs of a seed saw the same batches), budgets (steps, tokens, "
    "FLOPs, parameters), code, packages and devices, and the health of the runs. Verdicts take the file at its word."
)

UNEQUAL_SPREADS = 2.0  # ratio of spreads of two groups beyond which no test holds where noise is skewed


def compare_runs(runs: Runs) -> pd.DataFrame:
    """Build the table of comparisons of external runs, as `lm.analysis.compare.compare` does, with `design`."""
    judged, base = _judged(runs), runs.arms[0]
    rows: list[dict[str, Any]] = []
    for quantity, arm in itertools.product(runs.measured, runs.arms):
        of_arm, of_base = values(runs, arm, quantity), values(runs, base, quantity)
        comparison = Comparison([], verdict=Verdict("baseline"))
        if arm != base:
            plainly = plain(differences(runs, arm, quantity)) if runs.paired else describe_unpaired(of_arm, of_base)
            comparison = judged.get((arm, quantity), plainly)
        statuses = [str(status) for status in runs.statuses(arm)]
        present = [status for status in statuses if status != "missing"]  # an unpaired run, only where it says so
        row: dict[str, Any] = {
            "arm": arm,
            "metric": quantity,
            "family": "baseline" if arm == base else "confirmatory",
            **counted(of_arm, present, len(runs.seeds) if runs.paired else len(statuses)),
            "margin": runs.margin if quantity == runs.judged[0] else math.nan,
            **columns_of(comparison),
        }
        row["verdict"] = format_verdict(comparison.verdict)
        if (arm, quantity) in judged and not (runs.paired and row["pairs"] == len(runs.seeds)):
            on = f"on {row['pairs']} of {len(runs.seeds)} seeds" if runs.paired and row["pairs"] else ""
            of_baseline = [*map(str, runs.statuses(base))]
            if not runs.paired and len(of_arm) + len(of_base) < (statuses + of_baseline).count("ok"):
                on = f"on {len(of_arm)} of {len(statuses)} runs against {len(of_base)} of {len(of_baseline)}"
            row["verdict"] += format_lost_runs(on, statuses, of_baseline)
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
