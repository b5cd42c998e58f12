"""Learning-rate curves of an experiment: best rates, sensitivity, and arms compared at their best rates."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lm.analysis.rates import RateCurve, rate_curve, sensitivity_difference
from lm.analysis.results import Results, load
from lm.config.tree import InputError
from lm.report.render import Section
from lm.report.tables import DIFFERENCE, number, signed
from lm.report.tuning import compared
from lm.store.files import read_json
from lm.store.formats import RATES
from lm.store.metrics import describe

DESCRIBED = "lr_curve.json"
TITLE = "Learning rates"
COLUMNS = (
    "arm",
    "shared rate",
    "best rate",
    "mean ± sd there",
    DIFFERENCE,
    "verdict",
    "sensitivity",
    "difference in it [95 % CI]",
)


@dataclass(frozen=True)
class Rates:
    """The learning-rate curves of an experiment.

    Args:
        shared: learning rate of each arm in the table.
        curves: learning-rate curve of each arm.
        grid: results of the runs behind the curves.
        twin: results of all arms, each at its best rate.
    """

    shared: dict[str, float]
    curves: dict[str, RateCurve]
    grid: Results
    twin: Results


def rates_of(results: Results, folder: Path) -> Rates | None:
    """Load the curves of an experiment; None where it has none, or training is incomplete.

    Raises:
        InputError: if a file is damaged.
    """
    path, twin = folder / DESCRIBED, folder.parent / f"{folder.name}.tuned"
    if not path.is_file() or not (twin / "experiment.json").is_file():
        return None
    described = RATES.read(read_json(path), path)
    try:
        of_arms: dict[str, Any] = {arm: described["arms"][arm] for arm in results.arms}
        names = {arm: {float(rate): str(name) for rate, name in of["names"].items()} for arm, of in of_arms.items()}
        shared = {arm: float(of["shared"]) for arm, of in of_arms.items()}
        grid = load(folder.parent / f"{folder.name}.lr_curve")
        curves = {arm: rate_curve(grid, of_arm) for arm, of_arm in names.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: is damaged ({type(error).__name__}); run `lm ablate` again") from None
    return Rates(shared, curves, grid, load(twin))


def rows(results: Results, rates: Rates) -> list[list[str]]:
    """Format the table, a row an arm."""
    digits, table_rows = describe("nll").digits, []
    base, twin = rates.curves[results.arms[0]], compared(rates.twin)
    for arm in results.arms:
        curve = rates.curves[arm]
        comparison = list(twin[arm])
        comparison[2] += _edges_suffix(results, rates, arm)
        best = "none" if curve.best is None else f"{curve.rates[curve.best]:z.3g}"
        other = "" if curve is base else signed(*sensitivity_difference(curve, base), digits)
        table_rows.append([arm, f"{rates.shared[arm]:z.3g}", best, *comparison, _sensitivity(curve, digits), other])
    return table_rows


def _sensitivity(curve: RateCurve, digits: int) -> str:
    finite = curve.sensitivity_s[np.isfinite(curve.sensitivity_s)]
    if not len(finite):
        return "-"
    spread = f" ± {number(float(finite.std(ddof=1)), digits)}" if len(finite) > 1 else ""
    return f"{number(float(finite.mean()), digits)}{spread}"


def _edges_suffix(results: Results, rates: Rates, arm: str) -> str:
    """Format the best rates that lie at an end of the grid, to follow a verdict."""
    baseline = results.arms[0]
    sides = {"its": arm} if arm == baseline else {"its": arm, "the baseline's": baseline}
    edges = [
        f"{whose} rate at the {end} end of the grid" for whose, of in sides.items() if (end := rates.curves[of].edge)
    ]
    return f" ({', '.join(edges)})" if edges else ""


def notes(results: Results, rates: Rates) -> list[str]:
    """Explain the curves, and warn of best rates at an end of the grid and of lost runs."""
    first, seeds = next(iter(rates.curves.values())), rates.grid.manifest["seeds"]
    lines = [
        f"Every arm was trained at {len(first.rates)} rates from {first.rates[0]:z.3g} to {first.rates[-1]:z.3g} on "
        f"seeds {', '.join(map(str, seeds))}. The best rate is that of the best mean, of rates at which every seed "
        "ended well; each arm was trained with its own on the seeds of the table, none of which chose it.",
        "Sensitivity: the mean over the rates, drawn evenly in their logarithm, of the loss, or of ln(vocabulary) "
        "where that is less, minus the best loss (Wortsman et al. 2023), in nats; its difference is paired by seed, "
        "the interval Student's. A run that diverged counts with ln(vocabulary).",
    ]
    for arm, curve in rates.curves.items():
        if curve.edge:
            which = "lowest" if curve.edge == "low" else "highest"
            lines.append(f"{arm}: the best rate is the {which} of the grid: widen it, or the best may be missed.")
        if any(curve.lost_r):
            lost_runs = [
                f"{count} at {rate:z.3g}" for rate, count in zip(curve.rates, curve.lost_r, strict=True) if count
            ]
            lines.append(f"{arm}: runs that diverged or failed: {', '.join(lost_runs)}.")
    return lines


def rates_section(results: Results, rates: Rates) -> Section:
    """Build the table of best rates, of arms compared at these, and of their sensitivity."""
    return Section(TITLE, COLUMNS, rows(results, rates), notes(results, rates))
