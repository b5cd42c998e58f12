"""A ladder's results: its rungs' experiments, the baseline's law, and what each arm is worth with more compute."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pandas as pd

from lm.analysis.compare import compare, health_text, lost_runs_suffix, reason_not_comparable
from lm.analysis.results import Records, load, value
from lm.analysis.texts import LOSS_OF, generalises, texts
from lm.config.plain import shown
from lm.config.tree import InputError, path_name
from lm.stats.compute_gain import Gain, LadderDraws, ScalePoint, ScalingFit, fit_scaling, misfit
from lm.stats.scaling import MIN_RUNGS, Law, interval
from lm.stats.size_length import AxisGains, FittedLaw, SizeLengthDraws
from lm.stats.tests import ALPHA, seeds_needed
from lm.stats.trend import Estimate
from lm.stats.two_way import TwoWay
from lm.store.files import read_json, require_own
from lm.store.formats import LADDER
from lm.store.record import LadderManifest, RungOf
from lm.store.validation import check_shape

FILE = "ladder.json"

MOST_TOKENS = 1e30
MOST_FLOPS = 1e60  # A run that took more compute than this was none
LEAST_MARGIN = {"difference": 0.0, "gain": 1.0}  # lower bound of a margin, by its kind


@dataclass(frozen=True)
class ArmAt:
    """Results of an arm at a rung: verdict, noise over seeds and text, sides whose rates are `not_bracketed`, gain."""

    rung: str
    pairs: int
    noise: TwoWay | None
    verdict: str
    bold: bool
    ill: str
    not_bracketed: list[str]
    difference: Estimate = field(default_factory=Estimate)  # over seeds and text where both are known
    gain: Gain | None = None  # None without a law


@dataclass(frozen=True)
class ArmOf:
    """An arm over all rungs on which it has a pair."""

    name: str
    at: list[ArmAt]
    scaling: ScalingFit | None  # trends, law and forecast, over seeds alone; None where no rung has a pair
    withheld: str  # why no trend may be called anything; empty where one may
    # whether trends of the difference and of the gain may be bold: enough seeds, all of them healthy
    bold: tuple[bool, bool]
    explored: bool  # whether it is none of the confirmatory arms, so that nothing is claimed of it
    lost_runs: dict[str, str]  # outcomes and health of each rung without a pair, in words
    health: dict[str, str] = field(default_factory=dict)

    @property
    def unhealthy(self) -> str:
        """Names of the rungs on which the arm or the baseline is unhealthy."""
        return ", ".join(at.rung for at in self.at if at.ill)


@dataclass(frozen=True)
class LawOf:
    """The baseline's law, and how sure its numbers are; `misses` as `lm.stats.compute_gain.misfit` has it."""

    law: Law
    floor: Estimate
    exponent: Estimate
    misses: tuple[float, float]


@dataclass(frozen=True)
class Line:
    """Rungs in rising order, by place, that differ in size at one ratio of tokens to parameters, or in length alone."""

    along: Literal["", "size", "length"]  # empty for a ladder that has one length a size
    at: str  # what the rungs share: "10 tokens a parameter", or the name of a size
    rungs: list[int]


@dataclass(frozen=True)
class SizeLength:
    """Laws of size and length by arm, and the gains of an arm at a rung; text explains what is missing."""

    laws: dict[str, FittedLaw | str]
    gains: dict[tuple[str, str], AxisGains]


@dataclass(frozen=True)
class LadderResults:
    """Results of a ladder: rungs, arms but the baseline, and its law, or `no_law`, why there is none.

    Law and arms are those of the main line, the first of `lines`, whose rungs rise in compute: all rungs, unless sizes
    are trained at several lengths. `others` are the arms on each line after it.
    """

    manifest: LadderManifest
    rungs: list[Records]
    tables: list[pd.DataFrame]  # comparisons of each rung
    law: LawOf | None
    no_law: str
    arms: list[ArmOf]
    lines: list[Line]
    others: list[list[ArmOf]]
    apart: SizeLength | None  # None where every size has one length

    @property
    def by_ratio(self) -> list[tuple[Line, list[ArmOf]]]:
        """The lines along size, which have each rung once, with their arms."""
        every = zip(self.lines, [self.arms, *self.others], strict=True)
        return [(line, arms) for line, arms in every if line.along != "length"]

    @property
    def every_arm(self) -> list[ArmOf]:
        """The arms of all lines along size."""
        return [arm for _, arms in self.by_ratio for arm in arms]

    @functools.cached_property
    def at_rung(self) -> dict[tuple[str, str], ArmAt]:
        """Verdict, difference and gain of each arm at each rung on which it has a pair, by names of rung and arm."""
        return {(at.rung, arm.name): at for arm in self.every_arm for at in arm.at}

    @property
    def dearest(self) -> int:
        """Place of the rung of the most compute."""
        computes = [rung["compute"][self.manifest["baseline"]] for rung in self.manifest["rungs"]]
        return max(range(len(computes)), key=lambda place: (computes[place], place))

    @property
    def names(self) -> list[str]:
        """All arms, the baseline first."""
        base = self.manifest["baseline"]
        return [base, *(arm for arm in self.manifest["arms"] if arm != base)]


def lines_of(rungs: Sequence[tuple[str, float | None]]) -> list[Line]:
    """Return the lines of rungs, each of a size and a ratio of tokens to parameters; the main line first.

    The main line has the most sizes, of several such the longest training. Rungs without a size are one line.
    """
    if not all(size and ratio for size, ratio in rungs):
        return [Line("", "", list(range(len(rungs))))]
    of_ratio, of_size = dict[float, list[int]](), dict[str, list[int]]()
    for place, (size, ratio) in enumerate(rungs):
        of_ratio.setdefault(ratio or 0.0, []).append(place)
        of_size.setdefault(size, []).append(place)
    ratios = sorted(of_ratio, key=lambda ratio: (-len(of_ratio[ratio]), -ratio))
    lines = [Line("size", f"{ratio:zg} tokens a parameter", of_ratio[ratio]) for ratio in ratios]
    return lines + [Line("length", size, places) for size, places in of_size.items() if len(places) > 1]


def read_ladder(folder: Path) -> LadderManifest:
    """Read the manifest of a ladder's folder. Raises InputError where this version cannot read it."""
    path = folder / FILE
    if not path.is_file():
        raise InputError(f"{folder}: holds no {FILE}; expected a folder that `lm ablate` made of a ladder")
    manifest: Any = LADDER.read(read_json(path), path)
    check_shape(manifest, LadderManifest, path, "run `lm ablate` again")
    problems = [] if manifest["rungs"] else ["it has no rungs"]
    problems += [] if manifest["baseline"] in manifest["arms"] else ["the baseline is no arm"]
    for rung in manifest["rungs"]:
        path_name(rung["name"], f"{path}: rungs")
        path_name(rung["experiment"], f"{path}: rungs")
        for arm in manifest["arms"]:
            compute = rung["compute"].get(arm)
            if compute is None or not 0 < compute < MOST_FLOPS:
                problems.append(f"rung {rung['name']}: the compute of {shown(arm)} is {shown(compute)}")
        problems += _wrong_lengths(rung, manifest)
    for kind, least in LEAST_MARGIN.items():
        if not least < (margin := manifest["margin"].get(kind, 2.0)) < math.inf:
            problems.append(f"the margin of the {kind} is {shown(margin)}, expected above {least:z.0f}")
    if problems:
        raise InputError(f"{path}: is damaged, {problems[0]}; run `lm ablate` again")
    for rung in manifest["rungs"]:
        rung["compute"] = {arm: float(compute) for arm, compute in rung["compute"].items()}
    return cast(LadderManifest, manifest)


def _wrong_lengths(rung: RungOf, manifest: LadderManifest) -> list[str]:
    """Return what is wrong with size and length of a rung; they are of all rungs or of none."""
    parts = [key for key in ("size", "tokens_per_parameter", "sizes") if key in rung]
    if not parts:
        return ["some rungs have a length"] if any("size" in other for other in manifest["rungs"]) else []
    counts = [rung["sizes"].get(arm) for arm in manifest["arms"]] if len(parts) == 3 else [None]
    numbers = [number for count in counts if count for number in count.values()] + [rung.get("tokens_per_parameter", 0)]
    sound = all(counts) and all(isinstance(number, int | float) and 0 < number < MOST_TOKENS for number in numbers)
    return [] if sound else [f"rung {rung['name']}: its size or length"]


def load_ladder(folder: Path) -> LadderResults:
    """Load the results of a ladder's folder. Raises InputError where there are none that this version reads."""
    manifest, whole = read_ladder(folder), folder.resolve()
    names = [rung["experiment"] for rung in manifest["rungs"]]
    require_own(whole.parent, [whole.name, *names, "cells"])
    rungs = [load(whole.parent / name) for name in names]
    for rung in rungs:
        if set(rung.manifest["arms"]) != set(manifest["arms"]):
            name = rung.manifest["name"]
            raise InputError(f"{folder / FILE}: rung {name} has other arms than the ladder; run `lm ablate` again")
    lines = lines_of([(rung.get("size", ""), rung.get("tokens_per_parameter")) for rung in manifest["rungs"]])
    law, no_law = _law(manifest, [(manifest["rungs"][place], rungs[place]) for place in lines[0].rungs])
    with_text = [generalises(rung) and rung.headline in LOSS_OF for rung in rungs]
    noises = [
        texts(rung, rung.headline).noise if covered else {} for rung, covered in zip(rungs, with_text, strict=True)
    ]
    tables = [compare(rung) for rung in rungs]
    of_rungs = list(zip(manifest["rungs"], rungs, tables, noises, strict=True))
    others = [arm for arm in manifest["arms"] if arm != manifest["baseline"]]
    arms = [
        [_arm(arm, manifest, [of_rungs[place] for place in line.rungs], line is lines[0]) for arm in others]
        for line in lines
    ]
    apart = _size_length(manifest, rungs) if lines[0].along else None
    return LadderResults(manifest, rungs, tables, law, no_law, arms[0], lines, arms[1:], apart)


def _size_length(manifest: LadderManifest, rungs: Sequence[Records]) -> SizeLength:
    """Fit a law of size and length to each arm, over the rungs on which it has a pair, and read the gains off it."""
    base, laws, gains = manifest["baseline"], dict[str, FittedLaw | str](), dict[tuple[str, str], AxisGains]()
    of_baseline: dict[tuple[str, ...], FittedLaw | str] = {}  # of the same rungs it is the same
    for arm in sorted(manifest["arms"], key=lambda name: name != base):
        points = [
            (rung, _point(manifest, rung, results, arm)) for rung, results in zip(manifest["rungs"], rungs, strict=True)
        ]
        points = [(rung, point) for rung, point in points if len(point.pairs)]
        names = tuple(rung["name"] for rung, _ in points)
        if not points:
            laws[arm] = "no rung has a pair"
            continue
        of_base, of_arm = (
            [(float(rung["sizes"][name]["parameters"]), float(rung["sizes"][name]["tokens"])) for rung, _ in points]
            for name in (base, arm)
        )
        draws = SizeLengthDraws([point for _, point in points], of_base, of_arm)
        if names not in of_baseline:
            of_baseline[names] = draws.fit("base")
        fitted = of_baseline[names]
        laws[arm] = fitted if arm == base else draws.fit("arm")
        if arm != base and isinstance(fitted, FittedLaw):
            gains |= {(arm, name): draws.gains(fitted, place) for place, name in enumerate(names)}
    return SizeLength(laws, gains)


def losses(results: Records, arm: str) -> np.ndarray:
    """Return the headline value of each seed, NaN where a cell has none."""
    records = [results.records[arm, seed] for seed in results.manifest["seeds"]]
    numbers = [math.nan if record is None else value(record, results.headline) for record in records]
    return np.array(numbers, dtype=float)


def _point(manifest: LadderManifest, rung: RungOf, results: Records, arm: str) -> ScalePoint:
    base = manifest["baseline"]
    return ScalePoint(rung["compute"][base], rung["compute"][arm], losses(results, base), losses(results, arm))


def _law(manifest: LadderManifest, rungs: Sequence[tuple[RungOf, Records]]) -> tuple[LawOf | None, str]:
    """Fit the baseline's law over rungs, or explain why there is none."""
    base = manifest["baseline"]
    points = [_point(manifest, *rung, base) for rung in rungs]
    points = [point for point in points if len(point.base)]
    if len(points) < MIN_RUNGS:
        rungs_are = f"{len(points)} rung{'s' * (len(points) != 1)} with runs of {base}"
        return None, f"No law: {rungs_are}, and a law of three parameters takes {MIN_RUNGS}."
    ladder = LadderDraws(points)
    law, drawn = ladder.laws(ladder.base_k, ladder.base_dk, len(points))
    if not law.falls:
        return None, f"No law: the loss of {base} does not fall with compute."
    misses = misfit(ladder, law.loss(ladder.compute_k))
    unknown = LawOf(law, Estimate(float(law.floor)), Estimate(float(law.exponent)), misses)
    if not ladder.repeated:
        return unknown, ""
    sources, of = ladder.sources(len(points)), list(map(int, ladder.of_k))
    estimates = []
    for number, draws in ((float(law.floor), drawn.floor), (float(law.exponent), drawn.exponent)):
        low, high = interval(number, draws, sources, of)
        estimates.append(Estimate(number, max(0.0, low), high))
    return replace(unknown, floor=estimates[0], exponent=estimates[1]), ""


def _arm(
    arm: str,
    manifest: LadderManifest,
    of_rungs: Sequence[tuple[RungOf, Records, Any, dict[str, TwoWay]]],
    main: bool,
) -> ArmOf:
    """Analyse an arm over a line of rungs, each with results, comparisons and noise.

    Confirmatory arms share the level; only the `main` line confirms anything.
    """
    confirmatory, explored = len(of_rungs[0][1].confirmatory), not main or arm in of_rungs[0][1].exploratory
    points, at, reasons = list[ScalePoint](), list[ArmAt](), list[str]()
    lost_runs, health, unknown_rates = dict[str, str](), dict[str, str](), dict[str, list[str]]()
    for rung, results, table, noise in of_rungs:
        name, point = rung["name"], _point(manifest, rung, results, arm)
        if not len(point.pairs):
            lost_runs[name], health[name] = lost_runs_suffix(results, arm), health_text(results, arm)
            reasons += [f"rung {name}: no pair to compare{lost_runs[name]}"] * bool(lost_runs[name])
            continue
        points.append(point)
        (row,) = table[(table.metric == results.headline) & (table.arm == arm)].itertuples()
        sides = ((arm, arm), (manifest["baseline"], "baseline"))
        ill = "; ".join(f"{label} {results.health[side]}" for side, label in sides if results.health[side])
        rates = rung.get("rates", {})
        not_bracketed = [side for side, _ in sides if side not in rates or not rates[side]["curve"]]
        for side in not_bracketed:
            unknown_rates.setdefault(side, []).append(name)
        verdict, bold = str(row.verdict), bool(row.bold)
        at.append(ArmAt(name, len(point.pairs), noise.get(arm), verdict, bold, ill, not_bracketed))
        if reason := reason_not_comparable(results, arm, results.headline):
            reasons.append(f"rung {name}: {reason}")
    if not points:
        return ArmOf(arm, at, None, "; ".join(reasons), (False, False), explored, lost_runs, health)
    if unknown_rates:
        parts = [f"of {side} on {', '.join(names)}" for side, names in unknown_rates.items()]
        reasons.append(f"no verdict: no curve of rates brackets that {' or '.join(parts)}")
    margin = manifest["margin"]
    margins = margin.get("difference", math.nan), math.log(margin["gain"]) if "gain" in margin else math.nan
    forecast = main and manifest["forecast"] and at[-1].rung == of_rungs[-1][0]["name"]
    scaling = fit_scaling(points, forecast, margins, ALPHA if explored else ALPHA / confirmatory)
    gains: Sequence[Gain | None] = scaling.gains or [None] * len(at)
    for place, (of_rung, estimate, gain) in enumerate(zip(at, scaling.differences, gains, strict=True)):
        low, high = estimate.low, estimate.high
        if of_rung.noise is not None:  # to hold the intervals over seeds and over seeds and text
            both = of_rung.noise.interval(estimate.value, ALPHA)
            low, high = min(low, both[0]), max(high, both[1])
        at[place] = replace(of_rung, difference=replace(estimate, low=low, high=high), gain=gain)
    sound = all(of_rung.pairs >= seeds_needed(confirmatory) and not of_rung.ill for of_rung in at)
    sound = sound and not (reasons or explored or lost_runs)
    called = [sound and trend.kind in ("grows", "holds", "fades") for trend in (scaling.of_difference, scaling.of_gain)]
    return ArmOf(arm, at, scaling, "; ".join(reasons), (called[0], called[1]), explored, lost_runs, health)
