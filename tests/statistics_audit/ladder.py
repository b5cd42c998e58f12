"""Ladders put to the test: families of known laws with seeds' noise as it was observed at this size.

The baseline follows a law, and so does the arm with another compute: its gain is known at every rung, as is each mean.
Cells scatter by .8 % of their loss, of which a third is shared by the cells of a seed (results/reference: standard
deviations of .007 to .029 at a loss of 1.7, of paired differences .009 to .024).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lm.stats.compute_gain import DRAWS, ScalePoint, ScalingFit, fit_scaling
from lm.stats.scaling import Law
from lm.stats.tests import ALPHA
from statistics_audit.finding import Finding

SPREAD, SHARED = 0.008, 0.35
COMPUTE = 1e12 * np.geomspace(1, 400, 4)
"""Of four rungs from about 50k to 1M parameters at as many tokens a parameter each."""

LAW = Law(np.array(1.2), np.array(0.55), np.array(0.16), 2e13)
SEEDS = ((6, 6, 6, 6), (6, 6, 4, 3), (3, 3, 3, 3))
MARGIN = 0.1
"""Of the logarithm of the gain, and a hundredth of it of the loss, per decade of compute."""

PROMISED = (0.94, 0.98)
"""Between which shares intervals that promise 95 % are to cover."""


@dataclass(frozen=True)
class Family:
    """Ladders of one truth: the gain in the middle, by how much its logarithm rises a decade, and the noise by rung.

    `off_rate` is the share by which the arm's losses are larger at each rung, as its learning rate is not the best one;
    `off_law` that by which all losses are, as they follow no such law.
    """

    name: str
    gain: float = 1.2
    rise: float = 0.0
    skewed: bool = False
    spreads: tuple[float, ...] = (SPREAD,) * len(COMPUTE)
    off_rate: tuple[float, ...] = (0.0,) * len(COMPUTE)
    off_law: tuple[float, ...] = (0.0,) * len(COMPUTE)

    def log_gain(self) -> np.ndarray:
        """Of each rung."""
        decades = np.log10(COMPUTE)
        found: np.ndarray = math.log(self.gain) + self.rise * (decades - decades.mean())
        return found

    def draw(self, random: np.random.Generator, seeds: tuple[int, ...]) -> list[ScalePoint]:
        """The rungs of one ladder, with as many seeds each."""
        rungs = []
        of_rungs = zip(COMPUTE, self.log_gain(), seeds, self.spreads, self.off_rate, self.off_law, strict=True)
        for compute, log, count, spread, off_rate, off_law in of_rungs:
            means = LAW.loss(compute) * (1 + off_law), LAW.loss(compute * math.exp(log)) * (1 + off_law + off_rate)
            parts = self._noise(random, (3, count))
            own = [math.sqrt(SHARED) * parts[0] + math.sqrt(1 - SHARED) * parts[which] for which in (1, 2)]
            base, arm = (mean * (1 + spread * noise) for mean, noise in zip(means, own, strict=True))
            rungs.append(ScalePoint(float(compute), float(compute), base, arm))
        return rungs

    def _noise(self, random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        """Of mean zero and spread one."""
        if not self.skewed:
            return random.normal(size=shape)
        spread = math.sqrt((math.exp(0.36) - 1) * math.exp(0.36))
        return (random.lognormal(0.0, 0.6, shape) - math.exp(0.18)) / spread


LEFT_BEHIND = (0.0, 0.002, 0.006, 0.012)
"""By how much the losses of an arm at one rate are larger than at its best one, which halves twice on the way up."""

OFF_LAW = (0.0, 0.0, 0.0, 0.02)

FAMILIES = (
    Family("a gain of 1.2"),
    Family("no gain", gain=1.0),
    Family("a gain of 1.2, skewed noise", skewed=True),
    Family("a gain of 1.2, noise that halves", spreads=(0.011, 0.009, 0.007, 0.0055)),
)


def audit_ladders(random: np.random.Generator, ladders: int, draws: int = DRAWS) -> Iterator[Finding]:
    """How often intervals of gains and forecasts hold the truth, and how often trends are called what they are not.

    Args:
        random: of the simulation.
        ladders: of each family and number of seeds.
        draws: of each ladder's bootstrap.
    """
    for family in FAMILIES:
        for seeds in SEEDS if family is FAMILIES[0] else SEEDS[1:2]:
            drawn = [family.draw(random, seeds) for _ in range(ladders)]
            found = [(rungs, fit_scaling(rungs, True, (math.nan, math.nan), draws=draws)) for rungs in drawn]
            of = f"{family.name}, {' '.join(map(str, seeds))} seeds"
            yield from _covered(family, found, of)
            for kind in ("of_difference", "of_gain"):
                if kind == "of_gain" or family.gain == 1.0:  # a gain that stays makes a difference that does not
                    said = sum(getattr(one, kind).kind in ("grows", "fades", "turns") for _, one in found)
                    yield Finding(f"false trends {_words(kind)}, {of}", said, ladders, 0.0, ALPHA)
    for seeds in SEEDS[:2]:
        edge = Family("the gain rises by the margin", rise=MARGIN)
        drawn = [edge.draw(random, seeds) for _ in range(ladders)]
        held = sum(fit_scaling(one, False, (math.nan, MARGIN), draws=draws).of_gain.kind == "holds" for one in drawn)
        name = f"false holds of the gain, {edge.name}, {' '.join(map(str, seeds))} seeds"
        yield Finding(name, held, ladders, 0.0, ALPHA)

    yield from _left_behind(random, ladders, draws)
    yield from _without_law(random, ladders, draws)


def _left_behind(random: np.random.Generator, ladders: int, draws: int) -> Iterator[Finding]:
    """What a ladder would say of an arm at one rate whose best one moves with size: why such rungs have no verdict."""
    family = Family("a gain of 1.2, the arm at one rate", off_rate=LEFT_BEHIND)
    truth = family.log_gain()[-1]
    found = [
        fit_scaling(family.draw(random, SEEDS[0]), False, (math.nan, math.nan), draws=draws) for _ in range(ladders)
    ]
    tops = [ladder.gains[-1].log for ladder in found if ladder.gains]
    covered = sum(top.low <= truth <= top.high for top in tops)
    title = f"which moves with size, {' '.join(map(str, SEEDS[0]))} seeds"
    yield Finding(
        f"intervals of the top gain cover, {family.name}, {title}", covered, len(tops), *PROMISED, binding=False
    )
    trends = sum(ladder.of_gain.kind in ("grows", "fades", "turns") for ladder in found)
    yield Finding(f"false trends, {family.name}, {title}", trends, ladders, 0.0, ALPHA, binding=False)


def _without_law(random: np.random.Generator, ladders: int, draws: int) -> Iterator[Finding]:
    """How often a forecast holds what is trained where the top rung follows another law than those below."""
    family = Family("the top rung off the law by 2 %", off_law=OFF_LAW)
    drawn = [family.draw(random, SEEDS[0]) for _ in range(ladders)]
    told = [(rungs[-1], fit_scaling(rungs, True, (math.nan, math.nan), draws=draws).forecast) for rungs in drawn]
    hits = [one.baseline.low <= float(top.base.mean()) <= one.baseline.high for top, one in told if one]
    name = f"forecasts of the baseline cover, {family.name}, {' '.join(map(str, SEEDS[0]))} seeds"
    yield Finding(name, sum(hits), len(hits), *PROMISED, binding=False)


def _words(kind: str) -> str:
    return kind.replace("_", " the ")


def _covered(family: Family, found: list[tuple[list[ScalePoint], ScalingFit]], of: str) -> Iterator[Finding]:
    """The rows on intervals: of the gains of all rungs one by one, of the slope of gains, of the three forecasts."""
    truth = family.log_gain()
    gains = [
        one.log.low <= true <= one.log.high
        for _, done in found
        if done.gains
        for one, true in zip(done.gains, truth, strict=True)
    ]
    yield Finding(f"intervals of gains cover, {of}", sum(gains), len(gains), *PROMISED, each=len(COMPUTE))
    slopes = [done.of_gain.slope.low <= family.rise <= done.of_gain.slope.high for _, done in found if done.gains]
    yield Finding(f"intervals of the gain's slope cover, {of}", sum(slopes), len(slopes), *PROMISED)
    told = [(rungs[-1], done.forecast) for rungs, done in found if done.forecast]
    for name in ("baseline", "difference"):
        trained = [float(top.base.mean() if name == "baseline" else top.pairs.mean()) for top, _ in told]
        ends = [getattr(one, name) for _, one in told]
        hits = [one.low <= mean <= one.high for one, mean in zip(ends, trained, strict=True)]
        yield Finding(f"forecasts of the {name} cover, {of}", sum(hits), len(hits), *PROMISED)
