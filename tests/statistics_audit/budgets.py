"""Arms compared over the budget put to the test: how often a lead is claimed after shares of the training without one.

The noise of a cell after a share is in part that of its seed, alike after all shares, and in part that of the training.
All arms meet one baseline. Lower is better, and a lead is what an arm is lower by.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lm.analysis.budgets import AtBudget, judge_together, verdict_over_budget
from lm.stats.power import CHANCE, detectable
from lm.stats.tests import ALPHA, sign_flip_p
from lm.stats.two_way import TwoWay, two_way
from lm.stats.verdicts import Comparison
from statistics_audit.finding import Array, Finding, Noise
from statistics_audit.texts import lengths, scattered

PERCENTS = (25, 50, 100)

DESIGNS = ((1, 8), (3, 10))
"""Arms and seeds. An arm can be found ahead on 7 seeds, and one of three arms on 9."""

TOO_FEW = ((1, 4), (1, 6), (3, 8))
"""Arms and seeds with which nothing can be claimed, right or wrong: 3 or 9 differences share the 5 %."""

CORRELATIONS = (0.0, 0.5, 0.95)
"""Between the noise of a cell after one share and after another."""

LEAD = 4.0
"""A clear lead, in the standard deviation of normal noise of a cell."""

NEVER, LATE, FADING, ALWAYS = ((0.0, 0.0, 0.0), (0.0, 0.0, LEAD), (LEAD, LEAD / 2, 0.0), (LEAD, LEAD, LEAD))
"""The lead of every arm after each share."""

TEXT_RATIOS = {"half": 0.5, "twice": 2.0}
"""The standard error over texts, in that over seeds."""

OPEN, AT_THE_END, EVERYWHERE = "open", "better from 100 % of the training on", "better at every budget"


@dataclass
class Counts:
    """Of how many experiments something is true."""

    claims: int = 0
    covered: int = 0
    early: int = 0
    kept: int = 0


def audit_budgets(
    random: np.random.Generator,
    experiments: int,
    noises: Mapping[str, Noise],
    correlations: Sequence[float] = CORRELATIONS,
) -> Iterator[Finding]:
    """How often arms are said to lead after shares of the training where they do not, and intervals cover together.

    The verdict over the budget is false where it names a share before the first lead, or a lost lead at the end.

    Args:
        random: of the simulation.
        experiments: of each row.
        noises: of a cell, of mean zero, by name.
        correlations: between the noise of a cell after one share and after another.
    """
    for name, noise in noises.items():
        for arms, n in DESIGNS:
            for correlation in correlations:
                counts = counted(drawn(random, noise, arms, n, correlation) for _ in range(experiments))
                of = f"over the budget, {name} noise, {designed(arms, n)}, correlation {correlation:z.3g}"
                yield Finding(f"false claims {of}", counts.claims, experiments, 0.0, ALPHA)
                yield Finding(f"joint intervals cover {of}", counts.covered, experiments, 1 - ALPHA, 1.0)
                yield Finding(f"a lead at the end is dated earlier {of}", counts.early, experiments, 0.0, ALPHA)
                yield Finding(f"a lead that fades is claimed at the end {of}", counts.kept, experiments, 0.0, ALPHA)


def audit_budget_texts(random: np.random.Generator, experiments: int) -> Iterator[Finding]:
    """The same for claims about other text, of whose noise all shares have half in common."""
    for name, ratio in TEXT_RATIOS.items():
        for arms, n in DESIGNS:
            claims = covered = 0
            for _ in range(experiments):
                difference_absd, tokens_d = drawn_on_text(random, ratio, arms, n)
                by_seed_abs = difference_absd.sum(axis=-1) / tokens_d.sum()
                noises = [two_way(sd, tokens_d) for of_arm in difference_absd for sd in of_arm]
                claims += claims_any(judged(by_seed_abs, noises))
                covered += covers_all(judged(by_seed_abs - np.array(LATE)[:, None], noises), LATE)
            of = f"over the budget on other text, whose noise is {name} that of seeds, {designed(arms, n)}"
            yield Finding(f"false claims {of}", claims, experiments, 0.0, ALPHA)
            yield Finding(f"joint intervals cover {of}", covered, experiments, 1 - ALPHA, 1.0)


def audit_budget_power(random: np.random.Generator, experiments: int, noise: Noise) -> Iterator[Finding]:
    """How often a clear lead is found and dated, and one that as many other seeds call detectable.

    Args:
        random: of the simulation.
        experiments: of each row.
        noise: of a cell, normal.
    """
    for arms, n in TOO_FEW:
        claims = sum(claims_any(judged(led(drawn(random, noise, arms, n, 0.5), ALWAYS))) for _ in range(experiments))
        yield Finding(f"claims over the budget on too few seeds, {designed(arms, n)}", claims, experiments, 0.0, 0.0)
    for arms, n in DESIGNS:
        said, detected = dict.fromkeys((ALWAYS, LATE, FADING), 0), 0
        for _ in range(experiments):
            before, sample = (drawn(random, noise, arms, n, 0.5) for _ in range(2))
            lead = float(before[0, -1].std(ddof=1)) * detectable(n, 1.0, ALPHA / (arms * len(PERCENTS)))
            detected += bool(judged(led(sample, (lead, lead, lead)))[0][-1].direction)
            for leads, words in ((ALWAYS, (EVERYWHERE,)), (LATE, (AT_THE_END,)), (FADING, faded(25, 50))):
                said[leads] += verdict_over_budget(judged(led(sample, leads))[0]) in words
        of = f"over the budget, {designed(arms, n)}"
        title = f"finds at the end a lead that as many other seeds call detectable {of}"
        yield Finding(title, detected, experiments, CHANCE - 0.02, CHANCE + 0.02)
        for leads, where in ((ALWAYS, "at every share"), (LATE, "at the end alone"), (FADING, "that fades as such")):
            yield Finding(f"finds a clear lead {where} {of}", said[leads], experiments, CHANCE, 1.0)


def designed(arms: int, n: int) -> str:
    """An experiment in words."""
    return f"{arms} arm{'s' * (arms > 1)}, {n} seeds"


def faded(*percents: int) -> tuple[str, ...]:
    """The verdicts on an arm that was found ahead after some of these shares, and is open at the end."""
    some = [chosen for count in range(1, len(percents) + 1) for chosen in itertools.combinations(percents, count)]
    return tuple(f"better at {' and '.join(map(str, chosen))} %, open at the end" for chosen in some)


def mixed(shared: Array, alone: Array, correlation: float) -> Array:
    """Noise of which part is shared between values."""
    return math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * alone


def drawn(random: np.random.Generator, noise: Noise, arms: int, n: int, correlation: float) -> Array:
    """Paired differences of arms that change nothing, arms x shares x seeds."""
    shape = (arms + 1, len(PERCENTS), n)
    cells = mixed(noise(random, (arms + 1, 1, n)), noise(random, shape), correlation)
    return cells[1:] - cells[0]


def drawn_on_text(random: np.random.Generator, ratio: float, arms: int, n: int) -> tuple[Array, Array]:
    """Sums over documents of arms that change nothing, arms x shares x seeds x documents, and tokens of documents."""
    tokens_d = lengths(random)

    def draw() -> Array:
        return scattered(random, ratio, tokens_d, n)

    difference_absd = []
    for _ in range(arms):
        shared_sd = draw()
        difference_absd.append([mixed(shared_sd, draw(), 0.5) for _ in PERCENTS])
    return np.array(difference_absd), tokens_d


def led(difference_abs: Array, leads: Sequence[float]) -> Array:
    """Differences of arms with a lead after each share."""
    return difference_abs - np.array(leads)[:, None]


def judged(difference_abs: Array, noises: Sequence[TwoWay] | None = None) -> list[list[AtBudget]]:
    """The comparisons of every arm over the budget as the report judges them.

    Args:
        difference_abs: arms x shares x seeds.
        noises: over seeds and text, of each difference, the shares of an arm side by side; None for seeds alone.
    """
    family = [
        Comparison(sample, "lower", p=sign_flip_p(sample)) for of_arm in difference_abs.tolist() for sample in of_arm
    ]
    judge_together(family, noises or [None] * len(family))
    shares = len(PERCENTS)
    arms = [family[start : start + shares] for start in range(0, len(family), shares)]
    return [[AtBudget(*at, "") for at in zip(PERCENTS, of_arm, strict=True)] for of_arm in arms]


def counted(samples: Iterable[Array]) -> Counts:
    """Count what is claimed of arms that change nothing, lead at the end alone, or lose a lead.

    An interval leaves out the truth where the test of the same noise without a lead is wrong, if they agree.
    """
    counts = Counts()
    for sample in samples:
        never, late, fading = (judged(led(sample, leads)) for leads in (NEVER, LATE, FADING))
        counts.claims += claims_any(never)
        counts.covered += covers_all(late, LATE)
        counts.early += any(verdict_over_budget(of_arm) not in (OPEN, AT_THE_END) for of_arm in late)
        counts.kept += any(verdict_over_budget(of_arm) not in (OPEN, *faded(25, 50)) for of_arm in fading)
    return counts


def claims_any(arms: list[list[AtBudget]]) -> bool:
    """Whether any difference was found."""
    return any(at.direction for of_arm in arms for at in of_arm)


def covers_all(arms: list[list[AtBudget]], leads: Sequence[float]) -> bool:
    """Whether all intervals hold the truth."""
    return all(
        at.comparison.low <= -lead <= at.comparison.high
        for of_arm in arms
        for at, lead in zip(of_arm, leads, strict=True)
    )
