"""Sections below the first table: how soon an arm is as good as the baseline, and what the factors of a design do."""

from collections.abc import Sequence

from lm.analysis.effects import Effects, FactorEffect
from lm.analysis.pace import UNITS, StepsToBaselineLoss, mean_share
from lm.analysis.results import Results
from lm.analysis.verdict_text import format_seeds
from lm.report.tables import heading, number, signed
from lm.stats.tests import t_interval
from lm.store.quantities import describe

TRAINING = "Training needed to be as good as the baseline"
EFFECTS = ("effect", "contrast", "estimate [95 % interval]", "F", "q", "shared with")


def pace_columns(paces: Sequence[StepsToBaselineLoss]) -> list[str]:
    """The headings of the shares, in units that were counted."""
    return ["arm", *(f"{unit} [95 % interval]" for unit in _units(paces)), "steps by seed", "not reached"]


def _units(paces: Sequence[StepsToBaselineLoss]) -> list[str]:
    return [unit for unit in UNITS if unit == "steps" or any(unit in one.shares for one in paces)]


def pace_rows(paces: Sequence[StepsToBaselineLoss]) -> list[list[str]]:
    """For each arm the mean share in each unit with its interval; those of some seeds only say so."""
    rows = []
    for one in paces:
        reached = f"{one.seeds - len(one.missed)} of {format_seeds(one.seeds)}"
        partly = f" (on {reached})" if one.missed else ""
        means = [_share(one.shares.get(unit, []), partly) for unit in _units(paces)]
        by_seed = ", ".join(f"{share:z.2f}" for share in one.shares.get("steps", [])) or "-"
        missed = f"on {len(one.missed)} of {format_seeds(one.seeds)}" if one.missed else "-"
        rows.append([one.arm, *means, by_seed, missed])
    return rows


def _share(shares: Sequence[float], partly: str) -> str:
    if not shares:
        return "-"
    low, high = t_interval(shares)
    return f"{mean_share(shares):z.3f}" + (f" [{low:z.3f}, {high:z.3f}]" if len(shares) > 1 else "") + partly


def pace_notes(paces: Sequence[StepsToBaselineLoss]) -> list[str]:
    """How the shares are to be read."""
    found = [
        "Shares of what the baseline took to its final validation loss of the same seed, until the arm has that loss; "
        "below 1 the arm is faster. Read from the learning curves, on lines between their points. A run planned to be "
        "that short would have lowered its learning rate sooner, so the shares are rather too high. Intervals are "
        "Student's, each by itself; no verdict comes from them."
    ]
    if any(one.missed and one.shares for one in paces):
        found.append("Where an arm does not reach the loss on every seed, the mean of the others is too kind to it.")
    return found


def effect_rows(results: Results, found: Effects) -> list[list[str]]:
    """For each effect its contrast in the unit of the headline, its F test and its q."""
    digits = describe(results.headline).digits
    return [
        [
            one.name,
            _contrast(one, digits),
            signed(one.estimate, one.low, one.high, digits),
            f"{one.f:z.2f} ({one.freedom[0]}, {one.freedom[1]})",
            f"{one.q:z.2g}",
            ", ".join(one.aliases) or "-",
        ]
        for one in found.effects
    ]


def _contrast(one: FactorEffect, digits: int) -> str:
    if not one.means:
        return one.contrast
    return "means " + ", ".join(f"{level} {number(mean, digits)}" for level, mean in one.means.items())


def effect_notes(results: Results, found: Effects) -> list[str]:
    """What the effects are effects on, and which the design cannot tell apart."""
    lines = [
        f"Effects on {heading(results.headline)}, exploratory: least squares over {found.cells} cells with a mean for "
        "each seed, factors and pairs of factors; q by Benjamini and Hochberg over all effects, for other seeds, not "
        "other text. An interaction is how much more the first factor does at the second level of the other than "
        "at its first. Intervals and F tests ask "
        "for normal noise of one size in all cells; no verdict comes from them."
    ]
    if found.left_out:
        lines.append(f"Not estimable, or one with an effect above: {', '.join(found.left_out)}.")
    return lines
