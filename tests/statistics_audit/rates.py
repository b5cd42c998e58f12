"""Arms at learning rates of their own put to the test: the choice of a rate on few seeds must make no difference."""

from collections.abc import Iterator, Mapping

import numpy as np

from lm.analysis.rates import RateCurve, regrets
from lm.stats.tests import ALPHA, sign_flip_p
from lm.stats.verdicts import DIRECTIONS, Comparison, confirm, cover_choice
from statistics_audit.finding import Array, Finding, Noise

SEARCHED, SEEDS = 2, 8
"""Seeds that rank the rates, and seeds that confirm."""

FEWEST, MOST = 3, 7
"""Rates that every arm gets at least and at most, as `tune: rates` has it."""

CURVATURES = (0.25, 1.0, 2.0)
"""What a step from the best rate to the next costs, in the noise of a run: hard, harder and easy to rank."""

SHIFTS = (0, 1)
"""Steps between the best rates of the two arms."""

BREAKS_DOWN = 100.0
"""Above its best rate an arm that breaks down is so much worse a step, and so much noisier. It is tried where rates are
easy to rank, which errs most."""


def audit_rates(random: np.random.Generator, experiments: int, noises: Mapping[str, Noise]) -> Iterator[Finding]:
    """How often arms that are equal at their best rates are called different at those that were chosen.

    Loss is a parabola over the rates, or has a wall: the second arm breaks down at rates above its best. Experiments in
    which a choice stays at an end claim nothing.

    Args:
        random: of the simulation.
        experiments: of each row.
        noises: of mean zero, by name.
    """
    for name, noise in noises.items():
        for curvature in CURVATURES:
            for shift in SHIFTS:
                for wall in (0.0, BREAKS_DOWN) if curvature == CURVATURES[-1] else (0.0,):
                    claims = sum(_claims(random, noise, curvature, shift, wall) for _ in range(experiments))
                    title = f"{name} noise, a step costs {curvature:z.3g}, best rates {shift} apart"
                    title += ", one breaks down above" if wall else ""
                    yield Finding(f"false claims at chosen rates, {title}", claims, experiments, 0.0, ALPHA)


def _claims(random: np.random.Generator, noise: Noise, curvature: float, shift: int, wall: float) -> bool:
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
    best = [first + curve.best for curve in curves.values() if curve.best is not None]
    base_s, arm_s = (
        truth_ar[arm, place] + scale_ar[arm, place] * noise(random, (SEEDS,)) for arm, place in enumerate(best)
    )
    return judged((arm_s - base_s).tolist(), regrets(curves)).verdict.kind in DIRECTIONS


def _curves(searched_ars: Array, first: int, last: int) -> dict[str, RateCurve]:
    return {str(arm): curve_of(values_rs[first : last + 1]) for arm, values_rs in enumerate(searched_ars)}


def curve_of(values_rs: Array) -> RateCurve:
    """The curve of an arm with these losses, rates x seeds."""
    rates = tuple(2.0**step for step in range(len(values_rs)))
    return RateCurve(rates, values_rs, (0,) * len(rates), np.zeros(values_rs.shape[1]), True, np.inf)


def judged(differences: list[float], regret_of: Mapping[str, float]) -> Comparison:
    """The comparison of arm "1" with baseline "0" as `compare` judges it."""
    comparison = Comparison(differences, "lower", p=sign_flip_p(differences))
    confirm([comparison])
    cover_choice(comparison, regret_of["1"], regret_of["0"])
    return comparison
