"""Arms at learning rates of their own put to the test: the choice of a rate on few seeds must make no difference."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from lm.analysis.rates import RateCurve, regrets
from lm.stats.tests import ALPHA, sign_flip_p
from lm.stats.verdicts import Comparison, confirm, cover_choice
from statistics_audit.finding import Finding

RATES, SEEDS = 5, 8
"""Rates of a curve, and seeds that confirm."""

SEARCHED = (2, 4)
"""Seeds that rank the rates."""

CURVATURES = (0.25, 1.0, 2.0)
"""What a step to the next rate costs at the best one, in the noise of a run: hard, harder and easy to rank."""

SHIFT = 1
"""Steps between the best rates of the two arms, in the last rows of each curvature."""

Array = NDArray[np.float64]
Noise = Callable[[np.random.Generator, tuple[int, ...]], Array]


def audit_rates(random: np.random.Generator, experiments: int, noises: Mapping[str, Noise]) -> Iterator[Finding]:
    """How often arms that are equal at their best rates are called different at those that were chosen.

    Loss is a parabola over the rates. Experiments in which a choice lies at an end claim nothing.

    Args:
        random: of the simulation.
        experiments: of each row.
        noises: of mean zero, by name.
    """
    for name, noise in noises.items():
        for searched in SEARCHED:
            for curvature in CURVATURES:
                for shift in (0, SHIFT):
                    claims = sum(_claims(random, noise, searched, curvature, shift) for _ in range(experiments))
                    title = f"{name} noise, {searched} seeds rank {RATES} rates, {curvature:z.3g} a step, {shift} apart"
                    yield Finding(f"false claims at chosen rates, {title}", claims, experiments, 0.0, ALPHA)


def _claims(random: np.random.Generator, noise: Noise, searched: int, curvature: float, shift: int) -> bool:
    steps_r = np.arange(RATES) - RATES // 2
    truth_ar = curvature * (steps_r - np.array([[0], [shift]])) ** 2
    searched_ars = truth_ar[:, :, None] + noise(random, (2, RATES, searched))
    curves = {str(arm): curve_of(values_rs) for arm, values_rs in enumerate(searched_ars)}
    best = [curve.best for curve in curves.values()]
    if None in best or any(curve.edge for curve in curves.values()):
        return False
    base_s, arm_s = (truth_ar[arm, best[arm]] + noise(random, (SEEDS,)) for arm in range(2))
    comparison = judged((arm_s - base_s).tolist(), regrets(curves))
    return comparison.verdict.kind in ("better", "worse")


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
