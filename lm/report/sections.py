"""Sections below the first table: effects of factors, sources of variance, steps to a loss, costs, environments."""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from lm.analysis.budgets import AtBudget, over_budget, verdict_over_budget
from lm.analysis.comparability import format_provenance, provenance_diff
from lm.analysis.effects import Effects, Orders, effects, orders
from lm.analysis.pace import UNITS, StepsToBaselineLoss, leads, mean_share
from lm.analysis.results import Records, value
from lm.analysis.verdict_text import format_seeds, list_seeds
from lm.report.render import Section, TableCell
from lm.report.tables import LEAD, heading, number, signed
from lm.stats.tests import t_interval
from lm.store.metrics import describe
from lm.store.record import Record


def all_sections(results: Records, paces: Sequence[StepsToBaselineLoss]) -> list[Section]:
    """Return the tables below the first one: effects and variances, then what belongs to training."""
    tables = []
    if (of_factors := effects(results)) is not None:
        tables.append(effects_section(results, of_factors))
    if (of_orders := orders(results)) is not None:
        tables.append(orders_section(results, of_orders))
    if of_budgets := over_budget(results):
        tables.append(budget_section(results, of_budgets))
    if paces:
        tables.append(pace_section(results, paces))
    costs = cost_section(results)
    return tables + ([costs] if len(costs.columns) > 1 else [])


def pace_section(results: Records, paces: Sequence[StepsToBaselineLoss]) -> Section:
    """Build the table of the share of the baseline's training that each arm needs for its final loss."""
    units = [unit for unit in UNITS if unit == "steps" or any(unit in pace.shares for pace in paces)]
    rows, words = [], {lead.arm: lead.words() for lead in leads(results)}
    for pace in paces:
        reached = f"{pace.seeds - len(pace.missed)} of {format_seeds(pace.seeds)}"
        partly = f" (on {reached})" if pace.missed else ""
        means = []
        for shares in (pace.shares.get(unit, []) for unit in units):
            low, high = t_interval(shares)
            interval = f" [{low:z.3f}, {high:z.3f}]" if len(shares) > 1 else ""
            means.append(f"{mean_share(shares):z.3f}{interval}{partly}" if shares else "-")
        by_seed = ", ".join(f"{share:z.2f}" for share in pace.shares.get("steps", [])) or "-"
        missed = f"on {len(pace.missed)} of {format_seeds(pace.seeds)}" if pace.missed else "-"
        rows.append([pace.arm, *means, by_seed, missed, words.get(pace.arm, "-")])
    notes = [
        "Share of the baseline's training after which an arm has the baseline's final validation loss, by seed; below "
        "1 the arm is faster. Interpolated on the learning curves. Rather too high: a run planned to be that short "
        "would have lowered its learning rate sooner. Student's CIs; no verdict.",
        "Ahead or behind: the sign of the mean difference in validation loss, from the step after which it no longer "
        "changes. The band (95 %, over seeds) covers the differences at all validations together.",
    ]
    if any(pace.missed and pace.shares for pace in paces):
        notes.append("An arm that misses the loss on some seeds looks too good here: the mean is over the others.")
    columns = ["arm", *(f"{unit} [95 % CI]" for unit in units), "steps by seed", "not reached", LEAD]
    return Section("Training to the baseline's loss", columns, rows, notes)


def effects_section(results: Records, of_factors: Effects) -> Section:
    """Build the table of effects: contrast in the headline's unit, F test and q."""
    digits = describe(results.headline).digits
    rows = []
    for effect in of_factors.effects:
        means = ", ".join(f"{level} {number(mean, digits)}" for level, mean in effect.means.items())
        size = signed(effect.estimate, effect.low, effect.high, digits)
        test = [f"{effect.f:z.2f} ({effect.freedom[0]}, {effect.freedom[1]})", f"{effect.q:z.2g}"]
        contrast = f"means {means}" if effect.means else effect.contrast
        rows.append([effect.name, contrast, size, *test, ", ".join(effect.aliases) or "-"])
    notes = [
        f"Effects on {heading(results.headline)}, exploratory: least squares over {of_factors.cells} runs with a mean "
        "for each seed, factors and pairs of factors; q by Benjamini and Hochberg over all effects, for other seeds, "
        "not other text. An interaction is how much more the first factor does at the second level of the other than "
        "at its first. Intervals and F tests assume normal noise of one size in all runs; no verdict."
    ]
    if of_factors.left_out:
        notes.append(f"Not estimable, or the same as an effect above: {', '.join(of_factors.left_out)}.")
    return Section("Effects", ("effect", "contrast", "estimate [95 % CI]", "F", "q", "shared with"), rows, notes)


CAUSES = ("initial values", "order of the data", "neither alone")


def orders_section(results: Records, of_orders: Mapping[str, Orders]) -> Section:
    """Build the table of variance by source, of the baseline and of differences; no rows of too few runs."""
    rows, notes, digits = list[list[str]](), list[str](), describe(results.headline).digits
    (baseline, of_baseline), *others = of_orders.items()
    quantity = heading(results.headline).rstrip(" ↓↑")
    named = [(baseline, of_baseline), *((f"{arm} - {baseline}", grid) for arm, grid in others)]
    for label, grid in named:
        if grid.parts is None:
            continue
        variances = (grid.parts.first, grid.parts.second, grid.parts.rest)
        for cause, variance, (share, low, high) in zip(CAUSES, variances, grid.parts.shares, strict=True):
            text = "-" if math.isnan(share) else f"{share:z.2f} [{low:z.2f}, {high:z.2f}]"
            rows.append([label, cause, number(math.sqrt(variance), digits), text])
    for label, grid in named[1:]:
        if grid.parts is not None:
            now, more, other = (number(grid.error(*times), digits) for times in ((1, 1), (2, 1), (1, 2)))
            helps = "more initial values help" if grid.error(2, 1) < grid.error(1, 2) else "more orders help"
            verdict = "both help alike" if more == other else f"{helps} more"
            notes.append(
                f"{label}: mean {number(float(grid.values_ij.mean()), digits)}, standard error {now}; with twice the "
                f"initial values {more}, with twice the orders {other}: at the same cost {verdict}."
            )
    notes += [
        f"{quantity} with {len(of_baseline.seeds)} seeds of the initial values (and of dropout), each in "
        f"{of_baseline.orders} orders of the data: two crossed random effects, by the method of moments.",
        "Neither alone: what a seed does in one order and not in another, and whatever else varies. The intervals "
        "(generalised, Weerahandi 1993) assume normal effects; no verdict.",
    ]
    for label, grid in named:
        if grid.left_out:
            notes.append(
                f"{label}: left out, for not every order ended well or was trained: {list_seeds(grid.left_out)}."
            )
        if grid.parts is None:
            notes.append(
                f"{label}: too few runs ended well to share out their variance: it takes two seeds in two orders."
            )
    columns = ("of", "cause", "standard deviation", "share of the variance [95 % CI]")
    return Section("Initial values and order of the data", columns, rows, notes)


def budget_section(results: Records, of_arms: Mapping[str, list[AtBudget]]) -> Section:
    """Build the table of differences over the budget: a row an arm, a column a share of the training."""
    digits, shares = describe(results.headline).digits, [at.percent for at in next(iter(of_arms.values()))]
    rows, problems = [], []
    for arm, of_arm in of_arms.items():
        cells = [
            TableCell(signed(at.comparison.mean, at.comparison.low, at.comparison.high, digits), bool(at.direction))
            for at in of_arm
        ]
        rows.append([arm, *cells, verdict_over_budget(of_arm)])
        problems += [f"{arm} at {at.percent} %: {at.unfit}." for at in of_arm if at.unfit]
    tests = len(of_arms) * len(shares)
    notes = [
        f"Difference to {results.arms[0]} in {heading(results.headline).rstrip(' ↓↑')}, after shares of the training: "
        "each is a training whose schedule ends with it. Rates are those of the whole training.",
        f"All {tests} intervals hold together at 95 %; bold: the tests, 5 % over all of them (Bonferroni), find it.",
        *problems,
    ]
    return Section("Over the budget", ("arm", *(f"{percent} %" for percent in shares), "verdict"), rows, notes)


COSTS = {
    "parameters": ("parameters", 0),
    "flops_per_token": ("FLOPs per token", 0),
    "tokens": ("tokens seen", 0),
    "steps": ("steps", 0),
    "train_seconds": ("training seconds", 1),
}
"""Costs that should be equal across arms unless declared: label and decimals."""

NOISY = ("train_seconds",)  # they depend on what else the machine did
ALLOWED = 0.01  # largest relative difference of a cost that is not marked

MARK = " !"

BY_DESIGN = {"tokens": ("steps",), "flops": ("steps", "tokens"), "seconds": ("steps", "tokens")}
"""Costs that may differ where an experiment equalises something other than steps."""


def cost(record: Record, name: str) -> float:
    """Return one cost of a run; NaN where it did not end well or was not measured."""
    if name != "steps":
        return value(record, name)
    steps = record.get("steps") if record["status"] == "ok" else None
    return math.nan if steps is None else float(steps)


def cost_section(results: Records) -> Section:
    """Build the table of mean costs and their deviation from the baseline's; no columns but the arm without any."""
    measured = [name for name in COSTS if any(not math.isnan(_mean(results, arm, name)) for arm in results.arms)]
    rows = []
    for arm in results.arms:
        texts = [arm]
        for name in measured:
            texts.append(number(_mean(results, arm, name), COSTS[name][1]))
            share, marked = relative(results, arm, name)
            if arm != results.manifest["baseline"] and not math.isnan(share):
                texts[-1] += f" ({'same' if share == 0 else f'{100 * share:+z.1f} %'}{MARK if marked else ''})"
        rows.append(texts)
    return Section("Costs", ["arm", *(COSTS[name][0] for name in measured)], rows, cost_notes(results))


def _mean(results: Records, arm: str, name: str) -> float:
    measured = [number for number in (cost(record, name) for record in results.of(arm)) if math.isfinite(number)]
    return float(np.mean(measured)) if measured else math.nan


def relative(results: Records, arm: str, name: str) -> tuple[float, bool]:
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


def undeclared_costs(results: Records) -> dict[str, list[str]]:
    """Return the names of the costs of each arm that differ from the baseline's without being declared."""
    names_by_arm = {arm: [name for name in COSTS if relative(results, arm, name)[1]] for arm in results.arms[1:]}
    return {arm: names for arm, names in names_by_arm.items() if names}


def cost_notes(results: Records) -> list[str]:
    """Name the arms whose costs differ from the baseline's without being declared, where there are any."""
    if not (names_by_arm := undeclared_costs(results)):
        return []
    listed = "; ".join(f"{arm} in {', '.join(COSTS[name][0] for name in names)}" for arm, names in names_by_arm.items())
    every = {*itertools.chain(*names_by_arm.values())}
    explained = "All but seconds" if every & {*NOISY} else "They"
    explained = f"{explained} may explain the difference"
    if every <= {*NOISY}:
        explained = "Seconds depend on what else the machine did; no loss at a number of steps is explained by them"
    return [f"Undeclared costs over {100 * ALLOWED:zg} % off the baseline's (!): {listed}. {explained}."]


def made_under(results: Records) -> list[str]:
    """List for each arm the environments of its cells and their counts, a line an arm."""
    lines = []
    for arm in results.arms:
        counts = Counter(map(format_provenance, results.of(arm)))
        parts = [f"{count} cell{'s' * (count != 1)} on {words}" for words, count in counts.items()]
        lines.append(f"{arm}: {'; '.join(parts) or 'no cell yet'}")
    return lines


def unlike_pairs(results: Records) -> list[str]:
    """Warn of cells that differ from the baseline's of the same seed in device, precision or packages."""
    lines = []
    for arm in results.arms[1:]:
        seeds_by_field: dict[str, list[int]] = {}
        for seed, (own, base) in results.pairs(arm).items():
            for name in provenance_diff(own, base):
                seeds_by_field.setdefault(name, []).append(seed)
        for name, seeds in seeds_by_field.items():
            lines.append(f"Warning: {arm} and the baseline differ in {name} on {list_seeds(seeds)}.")
    return lines
