"""Arms at learning rates of their own put to the test: the choice of a rate on few seeds must make no difference."""

from collections.abc import Iterator, Mapping

import numpy as np

from lm.analysis.rates import BEHIND, RateCurve, misses
from lm.stats.tests import ALPHA, sign_flip_p
from lm.stats.verdicts import DIRECTIONS, Comparison, confirm, cover_choice, hold_too
from statistics_audit.finding import Array, Finding, Noise

SEARCHED, SEEDS = 2, 8
"""Seeds that rank the rates, and seeds that confirm."""

FEWEST, MOST = 3, 7
"""Rates that every arm gets at least and at most, as `tune: rates` has it."""

CURVATURES = (0.25, 1.0, 2.0)
"""What a step from the best rate to the next costs, in the noise of a run: hard, harder and easy to rank."""

SHIFTS = (0, 1)
"""Steps between the best rates of the two arms."""

BETWEEN, STEEP = 0.5, (2.0, 8.0)
"""The best rate of the second arm lies half a step off, and what a step costs then."""

BREAKS_DOWN = 100.0
"""Above its best rate an arm that breaks down is so much worse a step, and so much noisier. It is tried where rates are
easy to rank, which errs most."""


def audit_rates(random: np.random.Generator, experiments: int, noises: Mapping[str, Noise]) -> Iterator[Finding]:
    """How often arms that are equal at their best rates are called different at those that were chosen.

    Loss is a parabola over the rates, or has a wall: the second arm breaks down at rates above its best. Experiments in
    which a choice stays at an end claim nothing. The rates that may be as good as a chosen one are trained on the seeds
    that confirm; in the rows that say so they are not, as in reports of earlier versions. A best rate between two that
    are tried makes the arms differ at those, so there the claims count that are not said to be open between the rates.

    Args:
        random: of the simulation.
        experiments: of each row.
        noises: of mean zero, by name.
    """
    for name, noise in noises.items():
        for curvature in CURVATURES:
            for shift in SHIFTS if name == "normal" or curvature > CURVATURES[0] else SHIFTS[1:]:
                for wall in (0.0, BREAKS_DOWN) if curvature == CURVATURES[-1] else (0.0,):
                    title = f"{name} noise, a step costs {curvature:z.3g}, best rates {shift} apart"
                    title += ", one breaks down above" if wall else ""
                    for untrained in (False, True) if wall and name == "normal" else (False,):
                        claims = sum(
                            _claims(random, noise, curvature, shift, wall, untrained) for _ in range(experiments)
                        )
                        of_rivals = ", no rival trained" if untrained else ""
                        yield Finding(
                            f"false claims at chosen rates, {title}{of_rivals}", claims, experiments, 0.0, ALPHA
                        )

    for curvature in STEEP:
        claims = sum(_claims(random, noises["normal"], curvature, BETWEEN, 0.0, False) for _ in range(experiments))
        title = f"normal noise, a step costs {curvature:z.3g}, best rates half a step apart"
        yield Finding(f"false claims not said to be open between the rates, {title}", claims, experiments, 0.0, ALPHA)


def _claims(
    random: np.random.Generator, noise: Noise, curvature: float, shift: float, wall: float, untrained: bool
) -> bool:
    steps_r = np.arange(-MOST, MOST + 1)
    truth_ar = curvature * (steps_r - np.array([[0], [shift]])) ** 2
    beyond_ar = np.array([np.zeros_like(steps_r), np.maximum(steps_r - shift, 0)])
    scale_ar = np.where(wall * beyond_ar > 0, wall, 1.0)
    truth_ar = truth_ar + wall * beyond_ar
    searched_ars = truth_ar[:, :, None] + scale_ar[:, :, None] * noise(random, (2, len(steps_r), SEARCHED))
    first, last = MOST - FEWEST // 2, MOST + FEWEST // 2
    while ends := {curve.edge for curve in _curves(searched_ars, first, last).values()} - {""}:
        if last - first + 1 == MOST:
            return False
        first, last = first - ("low" in ends), last + ("high" in ends and "low" not in ends)
    curves = _curves(searched_ars, first, last)
    confirmed_ars = truth_ar[:, :, None] + scale_ar[:, :, None] * noise(random, (2, len(steps_r), SEEDS))
    best = [first + (curve.best or 0) for curve in curves.values()]

    def compared(arm_place: int, base_place: int) -> Comparison:
        """Arm "1" against baseline "0" at these rates, on the seeds that confirm."""
        return judged((confirmed_ars[1, arm_place] - confirmed_ars[0, base_place]).tolist())

    comparison, (of_baseline, of_arm) = compared(best[1], best[0]), misses(curves).values()
    if untrained:
        cover_choice(comparison, max(of_arm.values(), default=0.0), max(of_baseline.values(), default=0.0))
    else:
        for rate in of_arm:
            hold_too(comparison, compared(first + curves["1"].rates.index(rate), best[0]), True)
        for rate in of_baseline:
            hold_too(comparison, compared(best[1], first + curves["0"].rates.index(rate)), False)
    if shift == BETWEEN:
        base_gain, arm_gain = (curve.between[1] for curve in curves.values())
        low, high = comparison.low - arm_gain, comparison.high + base_gain
        return comparison.verdict.kind in DIRECTIONS and not low <= 0 <= high
    return comparison.verdict.kind in DIRECTIONS


def _curves(searched_ars: Array, first: int, last: int) -> dict[str, RateCurve]:
    return {str(arm): curve_of(values_rs[first : last + 1]) for arm, values_rs in enumerate(searched_ars)}


def curve_of(values_rs: Array) -> RateCurve:
    """The curve of an arm with these losses, rates x seeds."""
    rates = tuple(2.0**step for step in range(len(values_rs)))
    return RateCurve(rates, values_rs, (0,) * len(rates), np.zeros(values_rs.shape[1]), True, np.inf)


def regrets(curves: Mapping[str, RateCurve], alpha: float = BEHIND) -> dict[str, float]:
    """By how much the choice of each arm may miss the best of its rates."""
    return {arm: max(bounds.values(), default=0.0) for arm, bounds in misses(curves, alpha).items()}


def judged(differences: list[float]) -> Comparison:
    """A comparison as `compare` judges it at the chosen rates."""
    comparison = Comparison(differences, "lower", p=sign_flip_p(differences))
    confirm([comparison])
    return comparison
