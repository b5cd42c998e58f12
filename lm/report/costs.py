"""Costs of each arm relative to the baseline, and the environments of its cells."""

import math

import numpy as np

from lm.analysis.comparability import format_provenance, provenance_diff
from lm.analysis.results import Results, value
from lm.report.tables import number
from lm.stats.tests import t_interval
from lm.store.record import Record

COSTS = {
    "parameters": ("parameters", 0),
    "flops_per_token": ("FLOPs per token", 0),
    "tokens": ("tokens seen", 0),
    "steps": ("steps", 0),
    "train_seconds": ("training seconds", 1),
}
"""Costs that should be equal across arms unless declared: label and decimals."""

NOISY = ("train_seconds",)
ALLOWED = 0.01
"""Largest relative difference of a cost that is not marked."""

MARK = " !"

BY_DESIGN = {"tokens": ("steps",), "flops": ("steps", "tokens"), "seconds": ("steps", "tokens")}
"""Costs that may differ where an experiment equalises something other than steps."""


def cost(record: Record, name: str) -> float:
    """Return one cost of a run; NaN where it did not end well or was not measured."""
    if name != "steps":
        return value(record, name)
    steps = record.get("steps") if record["status"] == "ok" else None
    return math.nan if steps is None else float(steps)


def costs(results: Results) -> tuple[list[str], list[list[str]]]:
    """Return headings, and a row for each arm with mean costs and their deviation from the baseline's."""
    measured = [name for name in COSTS if any(not math.isnan(_mean(results, arm, name)) for arm in results.arms)]
    rows = []
    for arm in results.arms:
        texts = [arm]
        for name in measured:
            off = "" if arm == results.manifest["baseline"] else _off(results, arm, name)
            texts.append(number(_mean(results, arm, name), COSTS[name][1]) + (f" ({off})" if off else ""))
        rows.append(texts)
    return ["arm", *(COSTS[name][0] for name in measured)], rows


def _mean(results: Results, arm: str, name: str) -> float:
    measured = [number for number in (cost(record, name) for record in results.of(arm)) if math.isfinite(number)]
    return float(np.mean(measured)) if measured else math.nan


def relative(results: Results, arm: str, name: str) -> tuple[float, bool]:
    """Return the relative difference of a cost over paired seeds, and whether it is marked as undeclared."""
    pairs = [(cost(own, name), cost(base, name)) for own, base in results.pairs(arm).values()]
    pairs = [(x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]
    total = sum(base for _, base in pairs)
    if not total:
        return math.nan, False
    differences = [own - base for own, base in pairs]
    share = sum(differences) / total
    low, high = t_interval(differences)
    real = name not in NOISY or low > 0 or high < 0
    declared = results.manifest.get("declared", {}).get(arm, [])
    meant = name in declared or name in BY_DESIGN.get(results.manifest.get("equal", "steps"), ())
    return share, real and abs(share) > ALLOWED and not meant


def _off(results: Results, arm: str, name: str) -> str:
    share, marked = relative(results, arm, name)
    if math.isnan(share):
        return ""
    return ("same" if share == 0 else f"{100 * share:+z.1f} %") + (MARK if marked else "")


def cost_notes(results: Results) -> list[str]:
    """Explain the marks of the costs, where there are any."""
    marked_by_arm = {
        arm: marked
        for arm in results.arms[1:]
        if (marked := [label for name, (label, _) in COSTS.items() if relative(results, arm, name)[1]])
    }
    if not marked_by_arm:
        return []
    listed = "; ".join(f"{arm} in {', '.join(marked)}" for arm, marked in marked_by_arm.items())
    return [
        f"! marks a cost more than {100 * ALLOWED:zg} % off the baseline's that the arm does not declare: {listed}. "
        "The difference in the headline may come from there. Training seconds are marked only where their paired 95 % "
        "interval leaves out 0."
    ]


def made_under(results: Results) -> list[str]:
    """List for each arm the environments of its cells and their counts, a line an arm."""
    lines = []
    for arm in results.arms:
        counts: dict[str, int] = {}
        for record in results.of(arm):
            counts[format_provenance(record)] = counts.get(format_provenance(record), 0) + 1
        parts = [f"{count} cell{'s' * (count != 1)} on {words}" for words, count in counts.items()]
        lines.append(f"{arm}: {'; '.join(parts) or 'no cell yet'}")
    return lines


def unlike_pairs(results: Results) -> list[str]:
    """Warn of cells that differ from the baseline's of the same seed in device, precision or packages."""
    lines = []
    for arm in results.arms[1:]:
        seeds_by_field: dict[str, list[int]] = {}
        for seed, (own, base) in results.pairs(arm).items():
            for name in provenance_diff(own, base):
                seeds_by_field.setdefault(name, []).append(seed)
        for name, seeds in seeds_by_field.items():
            listed = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
            lines.append(f"Warning: {arm} and the baseline differ in {name} on {listed}.")
    return lines
