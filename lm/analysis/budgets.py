"""Arms compared over the budget: the differences after shares of the training, tested together.

Each share is a training of its own, whose schedule ends with it: a validation on the way of a longer one is not what
a run of that length would have come to.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lm.analysis.compare import NO_RUN, noise_of_arms, reason_not_comparable
from lm.analysis.rates import regret_bounds
from lm.analysis.results import Records, is_part, load, paired
from lm.config.tree import path_name
from lm.stats.sequential import left_after
from lm.stats.two_way import TwoWay, cover_texts, set_p_over_texts
from lm.stats.verdicts import DIRECTIONS, Comparison, confirm, cover_choice, measure
from lm.store.archive import BUDGET
from lm.store.metrics import describe


def budget_ending(percent: int) -> str:
    """Return the end of the name of an experiment with a share of the training."""
    return f"{BUDGET}{percent}"


@dataclass(frozen=True)
class AtBudget:
    """An arm's difference to the baseline after a share of the training, and why no verdict may rest on it."""

    percent: int
    comparison: Comparison
    unfit: str

    @property
    def direction(self) -> str:
        """`better`, `worse`, `higher` or `lower` where the tests over all arms and budgets found it; else empty."""
        kind = self.comparison.verdict.kind
        return kind if kind in DIRECTIONS and not self.unfit else ""


def over_budget(results: Records) -> dict[str, list[AtBudget]]:
    """Compare every arm with the baseline after each share of the training, the whole last; empty without shares.

    All arms and declared shares are one family: each is tested, and has its interval, at its share of 5 % (Bonferroni).
    A share that was not trained yet counts too, or a report before it would test at more than its share. Raises
    InputError for a damaged folder.
    """
    part_by_percent, percents = {100: results}, [*results.manifest.get("budgets", ()), 100]
    for percent in percents[:-1]:
        folder = results.store.out / path_name(f"{results.manifest['name']}{budget_ending(percent)}", "experiment")
        if is_part(results, folder):
            part_by_percent[percent] = load(folder)
    if len(part_by_percent) == 1:
        return {}
    by_arm = {arm: list[AtBudget]() for arm in results.arms[1:]}
    family, noises = list[Comparison](), list[TwoWay | None]()
    for percent in percents:
        part = part_by_percent.get(percent)
        noise_by_arm = {} if part is None else noise_of_arms(part)
        for arm, of_arm in by_arm.items():
            if part is None or arm not in part.arms[1:]:
                of_arm.append(AtBudget(percent, Comparison([]), NO_RUN))
            else:
                of_arm.append(_measured(part, arm, percent))
            family.append(of_arm[-1].comparison)
            noises.append(noise_by_arm.get(arm))
    judge_together(family, noises, results.first_look().pairs)
    for arm, of_arm in by_arm.items():
        for at in of_arm:
            cover_choice(at.comparison, *regret_bounds(results, {arm: 1.0, results.arms[0]: -1.0}))
    return by_arm


def _measured(part: Records, arm: str, percent: int) -> AtBudget:
    """Describe the differences of an arm after a share of the training, not judged yet."""
    differences = [x - y for x, y in paired(part, arm, part.headline)]
    sides = ((arm, arm), (part.arms[0], "baseline"))
    ill = [f"{name} unhealthy: {part.health[side]}" for side, name in sides if part.health[side]]
    unfit = "; ".join(filter(None, [*ill, reason_not_comparable(part, arm, part.headline)]))
    return AtBudget(percent, measure(differences, describe(part.headline).better), unfit)


def judge_together(family: Sequence[Comparison], noises: Sequence[TwoWay | None], look: int = 0) -> None:
    """Test the differences of all arms and shares together, and widen the intervals of those whose noise is given.

    Args:
        family: all that share the 5 %, measured.
        noises: over seeds and text, of each; None where its verdict is over seeds alone.
        look: seeds at a first look, before others were asked for; 0 for none.
    """
    with_noise = [(comparison, noise) for comparison, noise in zip(family, noises, strict=True) if noise is not None]
    for comparison, noise in with_noise:
        set_p_over_texts(comparison, noise)
    confirm(family, look)
    for comparison, noise in with_noise:
        cover_texts(comparison, noise, left_after(look, len(family)) / len(family))


def verdict_over_budget(of_arm: list[AtBudget]) -> str:
    """Say from which share of the training on an arm is ahead or behind, and what holds at others; or it is open."""
    last, since = of_arm[-1], len(of_arm)
    while last.direction and since and of_arm[since - 1].direction == last.direction:
        since -= 1
    if since == 0:
        return f"{last.direction} at every budget"
    percents_by_direction: dict[str, list[str]] = {}
    for at in of_arm[:since]:
        if at.direction:
            percents_by_direction.setdefault(at.direction, []).append(str(at.percent))
    before = f"at {' and '.join(same)} % and " if (same := percents_by_direction.pop(last.direction, [])) else ""
    parts = [f"{direction} at {' and '.join(at)} %" for direction, at in percents_by_direction.items()]
    if last.direction:
        return ", ".join([*parts, f"{last.direction} {before}from {of_arm[since].percent} % of the training on"])
    return ", ".join([*parts, "open at the end"]) if parts else "open"
