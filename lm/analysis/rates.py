"""Loss over learning rates: what each arm comes to at each rate, its best one, and how much it minds a wrong one.

Legend: r rates, s seeds.
"""

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from lm.analysis.results import HEADLINE, Records, value
from lm.stats.tests import ALPHA, t_interval
from lm.store.metrics import describe
from lm.store.record import Record

MOST_PAIRINGS = 256  # of rates of the arms of a weighted sum
NOISIER = 0.01  # level at which the noise of a rate stands out from that of all others
BEHIND = ALPHA / 2  # one-sided level at which a rate is behind the best, shared by the arms


@dataclass(frozen=True)
class RateCurve:
    """Losses of an arm over the learning rates, which rise."""

    rates: tuple[float, ...]
    values_rs: NDArray[np.float64]  # the headline quantity at each rate and seed; NaN where the cell did not end well
    lost_r: tuple[int, ...]  # for each rate the cells that diverged or failed
    sensitivity_s: NDArray[np.float64]  # of each seed; NaN for one that lacks a cell, or has one that failed
    lower: bool  # whether less is better
    untrained: float  # the loss of a guess that knows nothing, ln(vocabulary)

    @property
    def best(self) -> int | None:
        """Index of the best rate of those at which every seed ended well; None without one."""
        mean_r = self.values_rs.mean(axis=1) * (1 if self.lower else -1)
        return int(np.nanargmin(mean_r)) if np.isfinite(mean_r).any() else None

    @property
    def edge(self) -> str:
        """`low` or `high` where the best rate is that end of the grid; else empty."""
        return {0: "low", len(self.rates) - 1: "high"}.get(-1 if self.best is None else self.best, "")

    @property
    def between(self) -> tuple[float, float]:
        """Rate at which a parabola through the best one and its neighbours is best, and by how much better it is there.

        Over the logarithm of the rates. NaN where the best is an end, or where a run at a neighbour was lost.
        """
        if self.best is None or self.edge:
            return math.nan, math.nan
        near = slice(self.best - 1, self.best + 2)
        log_r = np.log(self.rates[near]) - math.log(self.rates[self.best])
        mean_r = self.values_rs[near].mean(axis=1) * (1 if self.lower else -1)
        if not np.isfinite(mean_r).all():
            return math.nan, math.nan
        bend, slope, _ = np.polyfit(log_r, mean_r, 2)
        if bend <= 0:  # the three are level
            return self.rates[self.best], 0.0
        return self.rates[self.best] * math.exp(-slope / (2 * bend)), float(slope**2 / (4 * bend))


def without_best_rate(results: Records, arms: Iterable[str]) -> str:
    """Name the arms that were to be compared at their best learning rates and have none; empty where all have one."""
    rates, lines = results.manifest.get("rates", {}), list[str]()
    for arm in arms:
        if arm in rates and rates[arm]["best"] is None:
            lines.append(f"runs of {arm} were lost at every learning rate")
        elif arm in rates and rates[arm]["end"]:
            lines.append(f"the best learning rate of {arm} is the {rates[arm]['end']} tried")
    return "; ".join(lines)


def misses(curves: Mapping[str, RateCurve], alpha: float = BEHIND) -> dict[str, dict[float, float]]:
    """Bound by how much the best rate of each arm may be worse than its others, at a one-sided level.

    Returns the bound for each rival, which is a rate that the seeds do not tell from the best: a subset selection, as
    in Gupta 1965 (Technometrics 7:225), at the level of one pair of rates.

    The seeds of a curve rank its rates with noise. A rate whose mean is little worse may be the better one in truth, by
    no more than t times the standard error of the two means minus what it is worse by. The variance is what neither
    rate nor seed explains, pooled over the arms without rates that are far noisier than the others: an arm that breaks
    down on some seeds at a high rate says nothing about the noise near the best ones. Where such rates are left out,
    the level is halved, and for the arm's choice against them the variance of all rates holds. A rate at which a run
    was lost is no rival.
    """
    ended = {arm: np.flatnonzero(np.isfinite(c.values_rs).all(axis=1)).tolist() for arm, c in curves.items()}
    usual = _without_noisy(curves, ended)
    widest = reach = _reach(*_unexplained(curves, ended), alpha)
    if usual != ended:
        reach = _reach(*_unexplained(curves, usual), alpha / 2)
    missed: dict[str, dict[float, float]] = {arm: {} for arm in curves}
    for arm, curve in curves.items():
        mean_r, root = curve.values_rs.mean(axis=1), math.sqrt(curve.values_rs.shape[1])
        for rate in ended[arm]:
            if curve.best is not None and rate != curve.best:
                own = reach if {rate, curve.best} <= {*usual[arm]} else widest
                bound = own / root - float(abs(mean_r[rate] - mean_r[curve.best]))
                missed[arm] |= {curve.rates[rate]: bound} if bound > 0 else {}
    return missed


def _unexplained(curves: Mapping[str, RateCurve], rates: Mapping[str, Sequence[int]]) -> tuple[float, int]:
    """Return the sum of squares that neither rate nor seed explains at these rates of each arm, and its degrees."""
    squares, degrees = 0.0, 0
    for arm, curve in curves.items():
        values_rs = curve.values_rs[list(rates[arm])]
        if len(values_rs) > 1:
            by_rate, by_seed = values_rs.mean(axis=1, keepdims=True), values_rs.mean(axis=0, keepdims=True)
            squares += float(((values_rs - by_rate - by_seed + values_rs.mean()) ** 2).sum())
            degrees += (values_rs.shape[0] - 1) * (values_rs.shape[1] - 1)
    return squares, degrees


def _reach(squares: float, degrees: int, alpha: float) -> float:
    """Return how far the difference of two rates on one seed may be off, at a one-sided level."""
    return math.sqrt(2 * squares / degrees) * float(stats.t.ppf(1 - alpha, degrees)) if degrees else 0.0


def _without_noisy(curves: Mapping[str, RateCurve], ended: Mapping[str, list[int]]) -> Mapping[str, list[int]]:
    """Leave out rates of far more noise, one by one: an F test of what each adds, the level shared by all of them.

    Two rates of an arm stay.
    """
    squares, degrees = _unexplained(curves, ended)
    others = [
        {**ended, arm: [r for r in ended[arm] if r != rate]}
        for arm in ended
        for rate in ended[arm]
        if len(ended[arm]) > 2
    ]
    if not others:
        return ended
    rest = min(others, key=lambda rates: _unexplained(curves, rates)[0])
    rest_squares, rest_degrees = _unexplained(curves, rest)
    added = degrees - rest_degrees
    if not rest_squares or not added:
        return ended
    ratio = (squares - rest_squares) / added / (rest_squares / rest_degrees)
    noisier = ratio > stats.f.ppf(1 - NOISIER / len(others), added, rest_degrees)
    return _without_noisy(curves, rest) if noisier else ended


def regret_bounds(results: Records, weights: Mapping[str, float], but: Collection[str] = ()) -> tuple[float, float]:
    """Return by how much a weighted sum of arms may lie lower, and higher, had each arm `but` some its best rate.

    Both are 0 unless arms are compared at learning rates of their own.
    """
    regret_of = {
        arm: rate.get("regret", 0.0) for arm, rate in results.manifest.get("rates", {}).items() if arm not in but
    }
    return shifted(results, weights, regret_of)


def shifted(results: Records, weights: Mapping[str, float], gains: Mapping[str, float]) -> tuple[float, float]:
    """Return by how much a weighted sum of arms may lie lower, and higher, were each arm better by up to its gain."""
    shifts = [_improved(results, weight) * gains.get(arm, 0.0) for arm, weight in weights.items()]
    return -sum(min(0.0, shift) for shift in shifts), sum(max(0.0, shift) for shift in shifts)


def _improved(results: Records, weight: float) -> float:
    """Return how a sum changes where an arm of this weight in it improves by 1."""
    return weight if describe(results.headline).better == "higher" else -weight


def at_rivals(results: Records, weights: Mapping[str, float]) -> tuple[list[Records], list[Records]] | None:
    """Return the results with arms at rivals of their rates: those that may lower a weighted sum of them, and raise it.

    With each arm at the best of its own rate and the rivals, the sum lies between the lowest of the first and the
    highest of the others, or as it is. None where these are more than `MOST_PAIRINGS`.
    """
    ends = []
    for end in (-1, 1):
        sides = [results.rivals.get(arm, {}) for arm, w in weights.items() if _improved(results, w) * end > 0]
        if math.prod(1 + len(rivals) for rivals in sides) > MOST_PAIRINGS:
            return None
        choices = itertools.product(*([{}, *rivals.values()] for rivals in sides))
        ends.append([with_records(results, choice) for choice in choices if any(choice)])
    return ends[0], ends[1]


def at_all_rivals(results: Records, arms: Iterable[str]) -> list[Records] | None:
    """Return the results with arms at rivals of their rates, each pairing but the own rates; None for too many."""
    sides = [[{}, *results.rivals.get(arm, {}).values()] for arm in arms]
    if math.prod(map(len, sides)) > MOST_PAIRINGS:
        return None
    return [with_records(results, choice) for choice in itertools.product(*sides) if any(choice)]


def sides_at_rivals(results: Records) -> tuple[list[Records], list[Records]]:
    """Return the results with all arms at rivals of their rates, the n-th of each, and with the baseline at each."""
    rivals = {arm: list(results.rivals.get(arm, {}).values()) for arm in results.arms}
    of_baseline = rivals.pop(results.arms[0])
    most = max(map(len, rivals.values()), default=0)
    of_arms = [[of_arm[n] for of_arm in rivals.values() if n < len(of_arm)] for n in range(most)]
    return [with_records(results, cells) for cells in of_arms], [with_records(results, [of]) for of in of_baseline]


def both_sides_at_rivals(results: Records) -> list[Records]:
    """Return the results with the arms, the baseline or both at rivals of their rates."""
    of_arms, of_baseline = sides_at_rivals(results)
    cells = results.rivals.get(results.arms[0], {}).values()
    return [*of_arms, *of_baseline, *(with_records(of, [at_rival]) for of in of_arms for at_rival in cells)]


def with_records(results: Records, others: Iterable[Mapping[tuple[str, int], Record]]) -> Records:
    """Return the results with other records of some arms and seeds."""
    return replace(results, records={**results.records, **dict(itertools.chain(*(of.items() for of in others)))})


def choice_shifts(results: Records, weights: Mapping[str, float]) -> tuple[float, float]:
    """Return by how much the mean of a weighted sum of arms may lie lower, and higher, had each arm its best rate.

    By its means at rivals trained on the same seeds; where an arm has none of these, by what its choice may miss.
    """

    def mean(of: Records) -> float:
        """Return the mean over the seeds on which all arms ended well."""
        cells = [[(w, of.records[arm, seed]) for arm, w in weights.items()] for seed in of.manifest["seeds"]]
        sums = [sum(w * (math.nan if r is None else value(r, of.headline)) for w, r in of_seed) for of_seed in cells]
        return float(np.nanmean(sums)) if np.isfinite(sums).any() else math.nan

    if (ends := at_rivals(results, weights)) is None:
        return regret_bounds(results, weights)
    below, above = regret_bounds(results, weights, results.rivals)
    own, (lowest, highest) = mean(results), (list(map(mean, end)) for end in ends)
    return below + own - min([own, *lowest]), above + max([own, *highest]) - own


def rate_curve(grid: Records, names: Mapping[float, str]) -> RateCurve:
    """Build the rate curve of an arm from a grid, in which it has these names at its rates."""
    rates, seeds = tuple(sorted(names)), grid.manifest["seeds"]
    records = [[grid.records[names[rate], seed] for seed in seeds] for rate in rates]
    values = [[math.nan if record is None else value(record, grid.headline) for record in row] for row in records]
    lost_r = tuple(sum(record is not None and record["status"] != "ok" for record in row) for row in records)
    untrained = max(
        (math.log(record["data"]["vocabulary"]) for row in records for record in row if record), default=math.nan
    )
    sensitivity = [sensitivity_of(rates, list(map(_loss, column)), untrained) for column in zip(*records, strict=True)]
    lower = describe(grid.headline).better != "higher"
    return RateCurve(rates, np.array(values), lost_r, np.array(sensitivity), lower, untrained)


def _loss(record: Record | None) -> float:
    """Return the final loss of a cell; infinite if it diverged, NaN if it failed or is missing."""
    if record is None or record["status"] == "failed":
        return math.nan
    return math.inf if record["status"] == "diverged" else value(record, HEADLINE)


def sensitivity_of(rates: Sequence[float], losses: Sequence[float], untrained: float) -> float:
    """Average min(loss, untrained) over log-uniform rates, less the best loss.

    Wortsman et al. 2023, https://arxiv.org/abs/2309.14322, by the trapezoid rule: rates need not be evenly spaced. A
    run that diverged has an infinite loss; one that is missing makes it NaN.

    >>> sensitivity_of([0.1, 1.0, 10.0], [2.0, 1.0, math.inf], untrained=3.0)
    0.75
    """
    capped = np.minimum(np.asarray(losses, dtype=float), untrained)
    place = np.log(np.asarray(rates, dtype=float))
    mean = float((np.diff(place) * (capped[1:] + capped[:-1]) / 2).sum() / (place[-1] - place[0]))
    return mean - float(capped.min())


def sensitivity_difference(arm: RateCurve, baseline: RateCurve) -> tuple[float, float, float]:
    """Return the mean paired difference of two arms' sensitivities with Student's 95 % interval; NaN for no pair."""
    difference_s = arm.sensitivity_s - baseline.sensitivity_s
    pairs = [float(x) for x in difference_s[np.isfinite(difference_s)]]
    return (float(np.mean(pairs)) if pairs else math.nan, *t_interval(pairs))
