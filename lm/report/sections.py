"""Sections below the first table: training needed to reach the baseline's loss, and effects of factors."""

from collections.abc import Sequence

from lm.analysis.effects import Effects, FactorEffect
from lm.analysis.pace import UNITS, StepsToBaselineLoss, mean_share
from lm.analysis.results import Results
from lm.analysis.verdict_text import format_seeds
from lm.report.tables import heading, number, signed
from lm.stats.tests import t_interval
from lm.store.metrics import describe

TRAINING = "Training needed to be as good as the baseline"
EFFECTS = ("effect", "contrast", "estimate [95 % interval]", "F", "q", "shared with")


def pace_columns(paces: Sequence[StepsToBaselineLoss]) -> list[str]:
    """Return the headings of the shares, in units that were counted."""
    return ["arm", *(f"{unit} [95 % interval]" for unit in _units(paces)), "steps by seed", "not reached"]


def _units(paces: Sequence[StepsToBaselineLoss]) -> list[str]:
    return [unit for unit in UNITS if unit == "steps" or any(unit in pace.shares for pace in paces)]


def pace_rows(paces: Sequence[StepsToBaselineLoss]) -> list[list[str]]:
    """Return for each arm the mean share in each unit with its interval, and the seeds behind it."""
    rows = []
    for pace in paces:
        reached = f"{pace.seeds - len(pace.missed)} of {format_seeds(pace.seeds)}"
        partly = f" (on {reached})" if pace.missed else ""
        means = [_share(pace.shares.get(unit, []), partly) for unit in _units(paces)]
        by_seed = ", ".join(f"{share:z.2f}" for share in pace.shares.get("steps", [])) or "-"
        missed = f"on {len(pace.missed)} of {format_seeds(pace.seeds)}" if pace.missed else "-"
        rows.append([pace.arm, *means, by_seed, missed])
    return rows


def _share(shares: Sequence[float], partly: str) -> str:
    if not shares:
        return "-"
    low, high = t_interval(shares)
    return f"{mean_share(shares):z.3f}" + (f" [{low:z.3f}, {high:z.3f}]" if len(shares) > 1 else "") + partly


def pace_notes(paces: Sequence[StepsToBaselineLoss]) -> list[str]:
    """Explain how to read the shares."""
    notes = [
        "Shares of what the baseline took to its final validation loss of the same seed, until the arm has that loss; "
        "below 1 the arm is faster. Read from the learning curves, on lines between their points. A run planned to be "
        "that short would have lowered its learning rate sooner, so the shares are rather too high. Intervals are "
        "Student's, each by itself; no verdict comes from them."
    ]
    if any(pace.missed and pace.shares for pace in paces):
        notes.append("Where an arm does not reach the loss on every seed, the mean of the others is too kind to it.")
    return notes


def effect_rows(results: Results, effects: Effects) -> list[list[str]]:
    """Return for each effect its contrast in the headline's unit, its F test and its q."""
    digits = describe(results.headline).digits
    return [
        [
            effect.name,
            _contrast(effect, digits),
            signed(effect.estimate, effect.low, effect.high, digits),
            f"{effect.f:z.2f} ({effect.freedom[0]}, {effect.freedom[1]})",
            f"{effect.q:z.2g}",
            ", ".join(effect.aliases) or "-",
        ]
        for effect in effects.effects
    ]


def _contrast(effect: FactorEffect, digits: int) -> str:
    if not effect.means:
        return effect.contrast
    return "means " + ", ".join(f"{level} {number(mean, digits)}" for level, mean in effect.means.items())


def effect_notes(results: Results, effects: Effects) -> list[str]:
    """Explain the effects, and name those that the design cannot separate."""
    lines = [
        f"Effects on {heading(results.headline)}, exploratory: least squares over {effects.cells} cells with a mean "
        "for each seed, factors and pairs of factors; q by Benjamini and Hochberg over all effects, for other seeds, "
        "not other text. An interaction is how much more the first factor does at the second level of the other than "
        "at its first. Intervals and F tests ask for normal noise of one size in all cells; no verdict comes from them."
    ]
    if effects.left_out:
        lines.append(f"Not estimable, or one with an effect above: {', '.join(effects.left_out)}.")
    return lines
