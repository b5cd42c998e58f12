"""Laws of size and length put to the test: ladders of a known law with the noise of `statistics_audit.ladder`."""

import math
from collections.abc import Iterator

import numpy as np

from lm.stats.compute_gain import ScalePoint
from lm.stats.size_length import Size, SizeLengthDraws, SizeLengthLaw
from statistics_audit.finding import Finding
from statistics_audit.ladder import PROMISED, SHARED, SPREAD

SIZES = (5e4, 1.2e5, 2.6e5, 5.6e5, 1.1e6)
RATIOS = (10, 20, 40)
"""Tokens a parameter."""

DESIGNS: dict[str, tuple[list[Size], int]] = {
    "3 sizes at 3 lengths, 6 seeds": ([(n, ratio * n) for n in SIZES[:3] for ratio in RATIOS], 6),
    "5 sizes, 2 of them at 3 lengths, 3 seeds": (
        [(n, ratio * n) for n in SIZES for ratio in (RATIOS if n in SIZES[:2] else RATIOS[:1])],
        3,
    ),
}
"""Sizes and lengths of a ladder, and its seeds."""

_NUMBERS = np.array(1.0), np.array(0.35), np.array(0.35), np.array(0.4), np.array(0.35)
LAW = SizeLengthLaw(*_NUMBERS, parameters=1.5e5, tokens=1.5e6)
DATA_GAIN = 1.3
"""What the arm is worth of the baseline's tokens, everywhere."""


def draw_ladder(random: np.random.Generator, sizes: list[Size], seeds: int) -> list[ScalePoint]:
    """The points of one ladder."""
    points = []
    for n, d in sizes:
        parts = random.normal(size=(3, seeds))
        own = [math.sqrt(SHARED) * parts[0] + math.sqrt(1 - SHARED) * parts[which] for which in (1, 2)]
        means = LAW.loss(n, d), LAW.loss(n, DATA_GAIN * d)
        base, arm = (mean * (1 + SPREAD * noise) for mean, noise in zip(means, own, strict=True))
        points.append(ScalePoint(6 * n * d, 6 * n * d, base, arm))
    return points


def true_gains(n: float, d: float) -> dict[str, float]:
    """The logarithm of what the arm is worth at a point, by axis."""
    loss = LAW.loss(n, DATA_GAIN * d)
    return {
        "compute": 2 * float(LAW.log_growth(loss, n, d)),
        "data": math.log(DATA_GAIN),
        "parameters": float(LAW.log_parameters(loss, d)) - math.log(n),
    }


def audit_lengths(random: np.random.Generator, ladders: int, draws: int) -> Iterator[Finding]:
    """How often intervals of exponents and of gains hold the truth, among ladders that have a law.

    Args:
        random: of the simulation.
        ladders: of each design.
        draws: of each ladder's bootstrap.
    """
    for name, (sizes, seeds) in DESIGNS.items():
        middle, fitted = len(sizes) // 2, 0
        gains = true_gains(*sizes[middle])
        covered = dict.fromkeys(("alpha", "beta", *(f"the gain in {axis}" for axis in gains)), 0)
        for _ in range(ladders):
            ladder = SizeLengthDraws(draw_ladder(random, sizes, seeds), sizes, sizes, draws)
            law = ladder.fit("base")
            if isinstance(law, str):
                continue
            fitted += 1
            found = ladder.gains(law, middle)
            covered["alpha"] += law.alpha.low <= float(LAW.alpha) <= law.alpha.high
            covered["beta"] += law.beta.low <= float(LAW.beta) <= law.beta.high
            for axis, true in gains.items():
                log = getattr(found, axis).log
                covered[f"the gain in {axis}"] += log.low <= true <= log.high
        for quantity, events in covered.items():
            yield Finding(f"intervals of {quantity} cover, {name}", events, fitted, *PROMISED)
        yield Finding(f"a law is found, {name}", fitted, ladders, 0.9, 1.0, binding=False)
