"""A ladder's results: its rungs' experiments, the baseline's law, and what each arm is worth with more compute."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from lm.analysis.compare import compare, health_text, lost_runs_suffix, reason_not_comparable
from lm.analysis.results import Results, load, value
from lm.analysis.texts import LOSS_OF, generalises, texts
from lm.config.plain import shown
from lm.config.tree import InputError, path_name
from lm.stats.compute_gain import LadderDraws, ScalePoint, ScalingFit, fit_scaling, misfit
from lm.stats.scaling import MIN_RUNGS, Law, interval
from lm.stats.tests import ALPHA, seeds_needed
from lm.stats.trend import Estimate, Trend
from lm.stats.two_way import TwoWay
from lm.store.files import read_json, require_own
from lm.store.formats import LADDER
from lm.store.record import LadderManifest, RungOf
from lm.store.validation import check_shape

FILE = "ladder.json"

MOST_FLOPS = 1e60
"""A run that took more compute than this was none."""

LEAST_MARGIN = {"difference": 0.0, "gain": 1.0}
"""Lower bound of a margin, by its kind."""


@dataclass(frozen=True)
class ArmAt:
    """Verdict of an arm's own report at a rung, and its noise over seeds and text where known.

    `not_bracketed` are those of the arm and the baseline whose learning rate no curve has as its best one there.
    """

    rung: str
    pairs: int
    noise: TwoWay | None
    verdict: str
    bold: bool
    ill: str
    not_bracketed: list[str]


@dataclass(frozen=True)
class ArmOf:
    """An arm over all rungs on which it has a pair.

    Args:
        name: of the arm.
        at: of each of these rungs what its report says.
        scaling: differences (over seeds and text where both are known), gains, trends; None where no rung has a pair.
        withheld: why no trend may be called anything; empty where one may.
        bold: whether trends of the difference and of the gain may be bold: enough seeds, all of them healthy.
        explored: whether it is none of the confirmatory arms, so that nothing is claimed of it.
        lost_runs: outcomes of the lost cells of each rung without a pair, for its row.
        health: of the arm on each rung without a pair, in words.
    """

    name: str
    at: list[ArmAt]
    scaling: ScalingFit | None
    withheld: str
    bold: tuple[bool, bool]
    explored: bool
    lost_runs: dict[str, str]
    health: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LawOf:
    """The baseline's law, and how sure its numbers are; `misses` as `lm.stats.compute_gain.misfit` has it."""

    law: Law
    floor: Estimate
    exponent: Estimate
    misses: tuple[float, float]


@dataclass(frozen=True)
class LadderResults:
    """Results of a ladder that its report is made from.

    Args:
        manifest: `ladder.json`.
        rungs: the results of each, from the least compute to the most.
        law: the baseline's; None where there is none, and `no_law` says why.
        arms: all but the baseline.
    """

    manifest: LadderManifest
    rungs: list[Results]
    law: LawOf | None
    no_law: str
    arms: list[ArmOf]

    @property
    def damaged(self) -> bool:
        """True if a record or a curve is damaged."""
        return any(rung.harmed for rung in self.rungs)


def read_ladder(folder: Path) -> LadderManifest:
    """Read the manifest of a ladder's folder.

    Raises:
        InputError: where this version cannot read it.
    """
    path = folder / FILE
    if not path.is_file():
        raise InputError(f"{folder}: holds no {FILE}; expected a folder that `lm ablate` made of a ladder")
    manifest: Any = LADDER.read(read_json(path), path)
    check_shape(manifest, LadderManifest, path, "run `lm ablate` again")
    if what := _damage(manifest, path):
        raise InputError(f"{path}: is damaged, {what}; run `lm ablate` again")
    for rung in manifest["rungs"]:
        rung["compute"] = {arm: float(compute) for arm, compute in rung["compute"].items()}
    return cast(LadderManifest, manifest)


def _damage(manifest: Any, path: Path) -> str:
    """Return what no ladder can have been, in words; empty where the manifest is sound.

    Raises:
        InputError: for a rung whose name, or whose experiment's, cannot name a file.
    """
    if not manifest["rungs"]:
        return "it has no rungs"
    for rung in manifest["rungs"]:
        path_name(rung["name"], f"{path}: rungs")
        path_name(rung["experiment"], f"{path}: rungs")
        for arm in manifest["arms"]:
            compute = rung["compute"].get(arm)
            if compute is None:
                return f"rung {rung['name']}: no compute of {shown(arm)}"
            if not 0 < compute < MOST_FLOPS:
                return f"rung {rung['name']}: the compute of {shown(arm)} is {shown(compute)}"
    if manifest["baseline"] not in manifest["arms"]:
        return "the baseline is no arm"
    for kind, least in LEAST_MARGIN.items():
        margin = manifest["margin"].get(kind)
        if margin is not None and not least < margin < math.inf:
            return f"the margin of the {kind} is {shown(margin)}, expected above {least:z.0f}"
    return ""


def load_ladder(folder: Path) -> LadderResults:
    """Load the results of a ladder's folder.

    Raises:
        InputError: where there are none that this version reads.
    """
    manifest, whole = read_ladder(folder), folder.resolve()
    names = [rung["experiment"] for rung in manifest["rungs"]]
    require_own(whole.parent, [whole.name, *names, "cells"])
    rungs = [load(whole.parent / name) for name in names]
    for rung in rungs:
        if set(rung.manifest["arms"]) != set(manifest["arms"]):
            raise InputError(
                f"{folder / FILE}: rung {rung.manifest['name']} has other arms than the ladder; run `lm ablate` again"
            )
    law, no_law = _law(manifest, rungs)
    compared = [compare(rung) for rung in rungs]
    others = [arm for arm in manifest["arms"] if arm != manifest["baseline"]]
    noises = [_noises(rung) for rung in rungs]
    arms = [_arm(arm, manifest, rungs, compared, noises) for arm in others]
    return LadderResults(manifest, rungs, law, no_law, arms)


def losses(results: Results, arm: str) -> np.ndarray:
    """Return the headline value of each seed, NaN where a cell has none."""
    records = [results.records[arm, seed] for seed in results.manifest["seeds"]]
    return np.array(
        [math.nan if record is None else value(record, results.headline) for record in records], dtype=float
    )


def _rung(manifest: LadderManifest, rung: RungOf, results: Results, arm: str) -> ScalePoint:
    base = manifest["baseline"]
    return ScalePoint(rung["compute"][base], rung["compute"][arm], losses(results, base), losses(results, arm))


def _law(manifest: LadderManifest, rungs: Sequence[Results]) -> tuple[LawOf | None, str]:
    """Fit the baseline's law over all rungs, or explain why there is none."""
    base = manifest["baseline"]
    rungs_and_results = zip(manifest["rungs"], rungs, strict=True)
    all_points = [_rung(manifest, rung, results, base) for rung, results in rungs_and_results]
    points = [point for point in all_points if len(point.base)]
    if len(points) < MIN_RUNGS:
        return None, (
            f"No law: {len(points)} rung{'s' * (len(points) != 1)} with runs of {base}, and a law of three parameters "
            f"takes {MIN_RUNGS}."
        )
    ladder = LadderDraws(points)
    law, drawn = ladder.laws(ladder.base_k, ladder.base_dk, len(points))
    if not law.falls:
        return None, f"No law: the loss of {base} does not fall with compute."
    unknown = LawOf(law, Estimate(float(law.floor)), Estimate(float(law.exponent)), misfit(ladder, law))
    if not ladder.repeated:
        return unknown, ""
    sources, of = ladder.sources(len(points)), list(map(int, ladder.of_k))
    floor, exponent = (
        Estimate(float(number), *interval(float(number), draws, sources, of))
        for number, draws in ((law.floor, drawn.floor), (law.exponent, drawn.exponent))
    )
    bounded = replace(floor, low=max(0.0, floor.low)), replace(exponent, low=max(0.0, exponent.low))
    return replace(unknown, floor=bounded[0], exponent=bounded[1]), ""


def _noises(rung: Results) -> dict[str, TwoWay]:
    """Return the noise of each arm's difference at a rung, where intervals are to cover text."""
    return texts(rung, rung.headline).noise if generalises(rung) and rung.headline in LOSS_OF else {}


def _over_both(estimate: Estimate, noise: TwoWay | None) -> Estimate:
    """Widen a difference's interval to hold those over seeds and over seeds and text."""
    if noise is None:
        return estimate
    low, high = noise.interval(estimate.value, ALPHA)
    return replace(estimate, low=min(estimate.low, low), high=max(estimate.high, high))


def _arm(
    arm: str,
    manifest: LadderManifest,
    rungs: Sequence[Results],
    compared: Sequence[Any],
    noises: Sequence[dict[str, TwoWay]],
) -> ArmOf:
    """Analyse an arm over its rungs; confirmatory arms share the level of their trends."""
    confirmatory = len(rungs[0].confirmatory)
    explored = arm in rungs[0].exploratory
    level = ALPHA if explored else ALPHA / confirmatory
    points, at, reasons = list[ScalePoint](), list[ArmAt](), list[str]()
    lost_runs, health = dict[str, str](), dict[str, str]()
    for rung, results, table, noise in zip(manifest["rungs"], rungs, compared, noises, strict=True):
        point = _rung(manifest, rung, results, arm)
        if not len(point.pairs):
            lost_runs[rung["name"]] = lost_runs_suffix(results, arm)
            health[rung["name"]] = health_text(results, arm)
            continue
        points.append(point)
        (row,) = table[(table.metric == results.headline) & (table.arm == arm)].itertuples()
        ill = "; ".join(
            f"{name} {results.health[side]}"
            for side, name in ((arm, arm), (manifest["baseline"], "baseline"))
            if results.health[side]
        )
        rates = rung.get("rates", {})
        not_bracketed = [name for name in (arm, manifest["baseline"]) if name not in rates or not rates[name]["curve"]]
        of_report = str(row.verdict), bool(row.bold)
        at.append(ArmAt(rung["name"], len(point.pairs), noise.get(arm), *of_report, ill, not_bracketed))
        if reason := reason_not_comparable(results, arm, results.headline):
            reasons.append(f"rung {rung['name']}: {reason}")
    if not points:
        return ArmOf(arm, at, None, "; ".join(reasons), (False, False), explored, lost_runs, health)
    reasons += _unknown_rates(at)
    margin = manifest["margin"]
    margins = margin.get("difference", math.nan), math.log(margin["gain"]) if "gain" in margin else math.nan
    forecast = manifest["forecast"] and at[-1].rung == manifest["rungs"][-1]["name"]
    scaling = fit_scaling(points, forecast, margins, level)
    covered = [_over_both(estimate, of_rung.noise) for estimate, of_rung in zip(scaling.differences, at, strict=True)]
    scaling = replace(scaling, differences=covered)
    needed = seeds_needed(confirmatory)
    sound = not (reasons or explored) and all(of_rung.pairs >= needed and not of_rung.ill for of_rung in at)
    bold = sound and _called(scaling.of_difference), sound and _called(scaling.of_gain)
    return ArmOf(arm, at, scaling, "; ".join(reasons), bold, explored, lost_runs, health)


def _unknown_rates(at: Sequence[ArmAt]) -> list[str]:
    """Name the arms and rungs whose learning rate no curve brackets, in a line; none if all are."""
    rungs_of: dict[str, list[str]] = {}
    for of_rung in at:
        for name in of_rung.not_bracketed:
            rungs_of.setdefault(name, []).append(of_rung.rung)
    if not rungs_of:
        return []
    parts = [f"of {name} on {', '.join(rungs)}" for name, rungs in rungs_of.items()]
    return [f"no verdict: no curve of rates brackets that {' or '.join(parts)}"]


def _called(trend: Trend) -> bool:
    return trend.kind in ("grows", "holds", "fades")
