"""The method put to the test on simulated cells: how often it is wrong, what its intervals cover, what it can find.

A cell is its arm's mean plus noise; what cells of one seed share is left out, for it cancels in every difference. The
truth is known. Audited are the functions that judge real experiments, not formulas about them.
"""

import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from lm.analysis.results import Records, value
from lm.stats.power import CHANCE, detectable
from lm.stats.sequential import plan_looks, repeated_interval, sequential
from lm.stats.tests import (
    ALPHA,
    TIE,
    bonferroni,
    bootstrap_interval,
    equivalence_p,
    sign_flip_p,
    smallest_p,
    t_interval,
)
from lm.stats.verdicts import Comparison, confirm, verdict
from statistics_audit.budgets import CORRELATIONS, audit_budget_power, audit_budget_texts, audit_budgets
from statistics_audit.components import audit_components
from statistics_audit.experiments import audit_experiments
from statistics_audit.finding import Array, Finding, Noise
from statistics_audit.ladder import audit_ladders
from statistics_audit.lengths import audit_lengths
from statistics_audit.looks import audit_added_seeds, audit_claims_of_added_seeds
from statistics_audit.rates import audit_rates
from statistics_audit.texts import audit_discoveries, audit_text_claims, audit_text_power, audit_texts
from statistics_audit.unpaired import audit_unpaired

SEEDS = (6, 10)
DESIGNS = ((1, 6), (3, 10))
"""Arms and seeds: with more arms, 6 seeds can claim nothing, right or wrong."""

FAMILIES = ((1, 6), (3, 8), (7, 10))
"""Arms and seeds whose intervals are to cover the truth together."""

ARMS = 3
MOST_PAIRS = 12
"""Pairs of real cells that are tested at once, as every pattern of signs is multiplied out."""

COVERAGE = (0.93, 0.97)
"""Within which an interval that promises 0.95 should cover."""


NOISES: dict[str, Noise] = {
    "normal": lambda random, shape: random.normal(size=shape),
    "heavy-tailed": lambda random, shape: random.standard_t(3, shape),
    "skewed": lambda random, shape: random.lognormal(size=shape) - math.exp(0.5),
}
"""Noise of mean zero: standard normal, Student's t with 3 degrees of freedom, lognormal."""


@dataclass(frozen=True)
class Size:
    """Simulated experiments for each row, by what is simulated."""

    tests: int
    intervals: int
    bootstraps: int
    sequences: int
    ladders: int
    draws: int


SMALL = Size(tests=2_000, intervals=500, bootstraps=100, sequences=300, ladders=20, draws=200)
FULL = Size(tests=20_000, intervals=10_000, bootstraps=2_000, sequences=4_000, ladders=2_000, draws=400)


def audit(full: bool = False) -> list[Finding]:
    """Every row of the audit, the same on every call; `full` simulates more and plans up to 24 seeds too."""
    size = FULL if full else SMALL
    if not full:
        return [finding for part in PARTS for finding in part(size)]
    with ProcessPoolExecutor() as pool:
        return [finding for findings in pool.map(_listed, range(len(PARTS))) for finding in findings]


def _listed(part: int) -> list[Finding]:
    return list(PARTS[part](FULL))


def _of_ladders(size: Size) -> Iterator[Finding]:
    yield from audit_ladders(np.random.default_rng(0), size.ladders, size.draws)


def _of_seeds(size: Size) -> Iterator[Finding]:
    random = np.random.default_rng(0)
    yield from audit_null(random, size.tests)
    yield from audit_sequential(random, size.sequences, (12, 24) if size is FULL else (12,))
    yield from audit_equivalence(random, size.intervals)
    yield from audit_joint(random, size.intervals)
    yield from audit_coverage(random, size.intervals, size.bootstraps)
    yield from audit_power(random, size.tests)
    for rows in (audit_texts, audit_text_claims, audit_discoveries, audit_text_power):
        yield from rows(np.random.default_rng(0), size.intervals)


def _of_lengths(size: Size) -> Iterator[Finding]:
    yield from audit_lengths(np.random.default_rng(0), size.ladders, size.draws)


def _of_experiments(size: Size) -> Iterator[Finding]:
    yield from audit_unpaired(np.random.default_rng(0), size.sequences, NOISES)
    yield from audit_experiments(np.random.default_rng(0), size.bootstraps, paired_noises())
    yield from audit_rates(np.random.default_rng(0), size.bootstraps, NOISES)
    yield from audit_added_seeds(np.random.default_rng(0), size.bootstraps, NOISES)
    yield from audit_claims_of_added_seeds(np.random.default_rng(0), size.bootstraps, NOISES)
    yield from audit_components(np.random.default_rng(0), size.bootstraps)
    noises = {name: NOISES[name] for name in ("normal", "heavy-tailed")}
    correlations = CORRELATIONS if size is FULL else CORRELATIONS[1:2]
    yield from audit_budgets(np.random.default_rng(0), size.bootstraps, noises, correlations)
    yield from audit_budget_texts(np.random.default_rng(0), size.bootstraps)
    yield from audit_budget_power(np.random.default_rng(0), size.bootstraps, NOISES["normal"])


PARTS = (_of_ladders, _of_seeds, _of_lengths, _of_experiments)
"""The parts of the audit, of which the full one takes one in each process; the longest first."""


def paired_noises() -> dict[str, Noise]:
    """The noise of a difference of two cells, by that of a cell."""
    return {
        name: lambda random, shape, noise=noise: noise(random, shape) - noise(random, shape)  # type: ignore[misc]
        for name, noise in NOISES.items()
    }


def differences(random: np.random.Generator, arm: Noise, baseline: Noise, shape: tuple[int, int, int]) -> Array:
    """Paired differences of arms with the baseline's mean: experiments x arms x seeds, one baseline for all arms."""
    return arm(random, shape) - baseline(random, (shape[0], 1, shape[2]))


def sign_flip_ps(samples: Array) -> Array:
    """`sign_flip_p` of many samples at once, a row each; for few seeds, as every pattern is multiplied out."""
    n = samples.shape[1]
    patterns = (np.arange(2 ** (n - 1))[:, None] >> np.arange(n) & 1) * 2.0 - 1.0
    found = np.empty(len(samples))
    for start in range(0, len(samples), 4096):
        part = samples[start : start + 4096]
        seen = np.abs(part.sum(axis=1)) - TIE * np.abs(part).sum(axis=1)
        found[start : start + 4096] = np.mean(np.abs(part @ patterns.T) >= seen[:, None], axis=1)
    return found


def audit_null(random: np.random.Generator, experiments: int) -> Iterator[Finding]:
    """How often experiments whose arms change nothing claim anything: sign-flip test, correction, verdict.

    The last rows are of arms with the baseline's mean and other noise, of which the test promises nothing.
    """
    cases = [(name, noise, noise) for name, noise in NOISES.items()]
    for name, arm, baseline in (*cases, ("skewed against normal", NOISES["skewed"], NOISES["normal"])):
        for arms, n in DESIGNS:
            sample = differences(random, arm, baseline, (experiments, arms, n))
            p = sign_flip_ps(sample.reshape(-1, n)).reshape(experiments, arms)
            claims = sum(map(_claims, sample, p))
            title = f"false claims, {name} noise, {arms} arm{'s' * (arms > 1)}, {n} seeds"
            yield Finding(title, claims, experiments, 0.0, ALPHA, binding=arm is baseline)


def _claims(sample: Array, p: Array) -> bool:
    arms = zip(sample.tolist(), bonferroni(p.tolist()), strict=True)
    family = [Comparison(pairs, "lower", p_adjusted=adjusted) for pairs, adjusted in arms]
    return any(verdict(comparison, len(family)).kind in ("better", "worse") for comparison in family)


def audit_sequential(random: np.random.Generator, experiments: int, maxima: tuple[int, ...]) -> Iterator[Finding]:
    """The same with seeds added in stages, and how often the intervals of all looks cover the truth together."""
    for maximum in maxima:
        planned = plan_looks(min(SEEDS), maximum, 3, ALPHA / ARMS)
        title = f"{ARMS} arms, looks at {', '.join(map(str, planned))} seeds"
        for name, noise in NOISES.items():
            sample = differences(random, noise, noise, (experiments, ARMS, maximum)).tolist()
            found = [[sequential(arm, planned, maximum, ALPHA / ARMS) for arm in arms] for arms in sample]
            claims = sum(any(look is not None and look.rejected for look in arms) for arms in found)
            yield Finding(f"false claims, {name} noise, {title}", claims, experiments, 0.0, ALPHA)
        sample = differences(random, NOISES["normal"], NOISES["normal"], (experiments, 1, maximum)).tolist()
        planned = plan_looks(min(SEEDS), maximum, 3)
        covered = sum(
            all(_covers(repeated_interval(arm[:n], planned, maximum), 0.0) for n in planned) for (arm,) in sample
        )
        title = f"all intervals cover, normal noise, looks at {', '.join(map(str, planned))} seeds"
        yield Finding(title, covered, experiments, 1 - ALPHA, 1.0)


def audit_equivalence(random: np.random.Generator, experiments: int) -> Iterator[Finding]:
    """How often what differs by the margin itself, in the median, is called equivalent.

    Differences of two cells of one noise lie evenly about it. A single arm against a number, and an arm with noise of
    its own, need not: of these are the last rows.
    """
    margin = 2.0
    cases: dict[str, Noise] = {
        name: lambda source, shape, noise=noise: differences(source, noise, noise, shape)  # type: ignore[misc]
        for name, noise in NOISES.items()
    }
    cases["skewed upwards"] = lambda source, shape: source.lognormal(size=shape) - 1
    cases["skewed downwards"] = lambda source, shape: 1 - source.lognormal(size=shape)
    for name, draw in cases.items():
        for n in SEEDS:
            sample = draw(random, (experiments, 1, n)) + margin
            claims = sum(equivalence_p(arm, margin) <= ALPHA for (arm,) in sample.tolist())
            yield Finding(f"false equivalence, {name} noise, {n} seeds", claims, experiments, 0.0, ALPHA)


def audit_joint(random: np.random.Generator, experiments: int) -> Iterator[Finding]:
    """How often the joint intervals of all arms cover the truth together; every other arm has an effect."""
    for name, noise in NOISES.items():
        for arms, n in FAMILIES:
            truth = [float(place % 2) for place in range(arms)]
            sample = differences(random, noise, noise, (experiments, arms, n)) + np.array(truth)[:, None]
            covered = 0
            for rows in sample.tolist():
                family = [Comparison(row, p=sign_flip_p(row)) for row in rows]
                confirm(family)
                covered += all(_covers((one.low, one.high), true) for one, true in zip(family, truth, strict=True))
            title = f"joint intervals cover, {name} noise, {arms} arm{'s' * (arms > 1)}, {n} seeds"
            yield Finding(title, covered, experiments, 1 - ALPHA, 1.0)


def audit_coverage(random: np.random.Generator, experiments: int, bootstraps: int) -> Iterator[Finding]:
    """How often 95 % intervals cover the truth.

    Student's is the plain interval and promises it for normal noise; for other noise it must not cover less.
    """
    for name, noise in NOISES.items():
        for n in SEEDS:
            at_most = COVERAGE[1] if name == "normal" else 1.0
            for kind, interval, count in (("t", t_interval, experiments), ("BCa", bootstrap_interval, bootstraps)):
                sample = differences(random, noise, noise, (count, 1, n))
                covered = sum(_covers(interval(arm), 0.0) for (arm,) in sample)
                title = f"the {kind} interval covers, {name} noise, {n} seeds"
                yield Finding(title, covered, count, COVERAGE[0], at_most, binding=kind == "t")


def audit_cells(results: Records, pairings: int = 10_000) -> Iterator[Finding]:
    """The same arm against itself on real cells: its seeds are paired at random, again and again, and each time tested.

    All pairings are of the same cells, so that their share of false claims is known no better than the cells are many:
    its interval is that of the pairings alone. Arms with fewer than 12 seeds can claim nothing and are left out.
    """
    random = np.random.default_rng(0)
    for arm in results.arms:
        values = np.array([value(record, results.headline) for record in results.of(arm)])
        values = values[np.isfinite(values)]
        n = min(len(values) // 2, MOST_PAIRS)
        if smallest_p(n) > ALPHA:
            continue
        shuffled = random.permuted(np.tile(values, (pairings, 1)), axis=1)
        claims = int((sign_flip_ps((shuffled[:, :n] - shuffled[:, n : 2 * n])) <= ALPHA).sum())
        yield Finding(f"claims, {arm} against itself, {n} pairs of real cells", claims, pairings, 0, ALPHA)


def audit_power(random: np.random.Generator, experiments: int) -> Iterator[Finding]:
    """How often seeds find an effect of which as many other seeds said that 80 in 100 experiments find it.

    What the first seeds call detectable rests on the noise that they showed, which is not the true one.
    """
    for arms, n in ((1, min(SEEDS)), (ARMS, 8), (1, max(SEEDS)), (ARMS, max(SEEDS))):
        normal = NOISES["normal"]
        first, second = (differences(random, normal, normal, (experiments, 1, n))[:, 0] for _ in range(2))
        effects = first.std(axis=1, ddof=1) * detectable(n, 1.0, ALPHA / arms)
        detected = int((sign_flip_ps(second + effects[:, None]) <= ALPHA / arms).sum())
        of = f", one of {arms} arms" if arms > 1 else ""
        title = f"finds an effect that as many other seeds call detectable, normal noise, {n} seeds{of}"
        yield Finding(title, detected, experiments, CHANCE - 0.02, CHANCE + 0.02)


def _covers(interval: tuple[float, float], truth: float) -> bool:
    return interval[0] <= truth <= interval[1]
