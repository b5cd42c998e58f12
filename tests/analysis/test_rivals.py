"""What is said of arms at learning rates of their own holds at every rate that may be as good, and only what does."""

import copy
import itertools
import math
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_experiment
from records import BASE, BETTER

from lm.analysis.answers import NOT_HELD, _steepness, answer_claim
from lm.analysis.claims import Claim, by_seed
from lm.analysis.compare import compare
from lm.analysis.rates import with_records
from lm.analysis.results import Cells, Records, load, value
from lm.stats.tests import ALPHA
from lm.store.metrics import METRICS

NEAR = [2.001, 2.099, 1.902, 2.049, 2.2, 1.949]
LOSSES = {"base": BASE, "better": BETTER, "near": NEAR}


@pytest.fixture(scope="module")
def alone() -> Iterator[Records]:
    """The results of three arms, which no test changes."""
    with tempfile.TemporaryDirectory() as folder:
        yield load(make_experiment(Path(folder), LOSSES))


def at(results: Records, arm: str, losses: list[float], quantity: str = "nll") -> Cells:
    """The cells of an arm with other losses, or with another quantity."""
    cells: dict[tuple[str, int], Any] = {}
    for seed, loss in zip(results.manifest["seeds"], losses, strict=True):
        cells[arm, seed] = copy.deepcopy(results.records[arm, seed])
        cells[arm, seed]["metrics"][quantity] = loss
    return cells


Ends = tuple[list[Records], list[Records]]


def with_rivals(results: Records, seed: int, noise: float, weights: dict[str, float]) -> tuple[Records, Ends]:
    """The results with two random rivals for every arm, and alone as they are with each choice that may move a sum.

    Losses: an arm at a better rate lowers the sum where its weight is positive. The first of each list is as it was.
    """
    draw, rivals = np.random.default_rng(seed), dict[str, dict[float, Cells]]()
    for arm, losses in LOSSES.items():
        of_arm = [np.add(losses, draw.normal(0, noise) + draw.normal(0, noise / 3, len(losses))) for _ in range(2)]
        rivals[arm] = {float(rate): at(results, arm, loss.tolist()) for rate, loss in enumerate(of_arm)}
    ends = []
    for sign in (1, -1):
        sides = [[{}, *rivals[arm].values()] for arm, weight in weights.items() if weight * sign > 0]
        ends.append([with_records(results, choice) for choice in itertools.product(*sides)])
    return replace(results, rivals=rivals), (ends[0], ends[1])


CLAIMS = [
    Claim("x", "nll", "less", {"better": 1.0, "base": -1.0}),
    Claim("x", "nll", "greater", {"base": 1.0, "better": -1.0}, margin=0.05),
    Claim("x", "nll", "less", {"near": 2.0, "better": -1.0, "base": -1.0}, margin=0.25),
    Claim("x", "nll", "greater", {"better": 1.0, "base": -1.0}),
    Claim("x", "nll", "equivalent", {"near": 1.0, "base": -1.0}, margin=0.08),
    Claim("x", "nll", "equivalent", {"better": 1.0, "base": -1.0}, margin=0.08),
    Claim("x", "nll", "range", {"better": 1.0}, high=1.95),
    Claim("x", "nll", "range", {"better": 1.0}, low=1.95),
    Claim("x", "nll", "slope", {}, low=-math.inf, high=0.02, over={"base": 1.0, "better": 2.0, "near": 4.0}),
]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.relation} {claim.margin:z.3g}")
def test_an_answer_stands_where_it_does_at_every_choice_of_rates(alone: Records, claim: Claim) -> None:
    own, decided = answer_claim(alone, claim), []
    middle = float(np.mean(np.log([*claim.over.values()]))) if claim.over else 0.0
    weights = claim.contrast or {arm: math.log(number) - middle for arm, number in claim.over.items()}
    above = (claim.relation == "less") == (own.verdict == "reproduced")  # where a claim of a direction can fail
    for seed in range(16):
        results, ends = with_rivals(alone, seed, 0.03 if seed % 2 else 0.5, weights)
        found, (down, up) = answer_claim(results, claim), ([answer_claim(one, claim) for one in end] for end in ends)
        against, beyond = up if above else down, set[bool]()
        if claim.relation not in ("less", "greater"):
            low, high = (-claim.margin, claim.margin) if claim.relation == "equivalent" else (claim.low, claim.high)
            against = down if own.estimate > high else up  # beyond both ends is no answer
            beyond = {one.estimate > high for one in against if one.verdict == own.verdict == "not reproduced"}
            if own.verdict == "reproduced":  # a lower sum must not be too low, and a higher one not too high
                one_sided = {0: (low, math.inf), 1: (-math.inf, high)}
                against = [
                    answer_claim(one, replace(claim, relation="range", margin=0.0, low=bounds[0], high=bounds[1]))
                    for side, bounds in one_sided.items()
                    if math.isfinite(bounds[side])
                    for one in ends[side]
                ]
        kept = {one.verdict for one in against} == {own.verdict} and len(beyond) < 2
        if own.verdict != "inconclusive":
            assert found.verdict == (own.verdict if kept else "inconclusive")
            assert found.p == max(one.p for one in [own, *against]) if kept else found.p > ALPHA
        assert found.low == min(one.low for one in down)
        assert found.high == max(one.high for one in up)
        decided.append(kept)
    assert own.verdict == "inconclusive" or {*decided} == {True, len(against) < 2}


def row(results: Records, arm: str, quantity: str = "nll") -> Any:
    table = compare(results)
    (of_arm,) = table[(table.arm == arm) & (table.metric == quantity)].itertuples()
    return of_arm


@pytest.mark.parametrize("confirmatory", [["better"], []])
@pytest.mark.parametrize("margin", [0.15, 0.4])
def test_a_verdict_stands_where_it_does_at_every_rate(alone: Records, confirmatory: list[str], margin: float) -> None:
    arms = {arm: alone.manifest["arms"][arm] for arm in ("base", "better")}
    manifest: Any = {**alone.manifest, "arms": arms, "confirmatory": confirmatory, "margin": {"nll": margin}}
    alone, decided = replace(alone, manifest=manifest), []
    own, said = row(alone, "better"), "better" if confirmatory else "lower"
    assert said in own.verdict
    for seed in range(12):
        results, ends = with_rivals(alone, seed, 0.1, {"better": 1.0, "base": -1.0})
        found, (down, up) = row(results, "better"), ([row(one, "better") for one in end] for end in ends)
        kept = all(said in one.verdict for one in up)
        inside = [*((one, one.low > -margin) for one in down), *((one, one.high < margin) for one in up)]
        within = kept and "within" in own.verdict and all(ok or "within" in one.verdict for one, ok in inside)
        assert (said in found.verdict, "within" in found.verdict) == (kept, within)
        assert found.significant == (own.significant and kept)
        assert (found.low, found.high) == (min(one.low for one in down), max(one.high for one in up))
        p = "p_adjusted" if confirmatory else "q"
        assert getattr(found, p) == max(getattr(one, p) for one in up)
        decided.append((kept, within))
    assert len({*decided}) >= 2


def test_a_quantity_that_should_be_high_is_held_at_the_other_end(
    alone: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METRICS, "nll", replace(METRICS["nll"], better="higher"))
    for seed in range(6):
        results, ends = with_rivals(alone, seed, 0.1, {"better": -1.0, "base": 1.0})
        found, (down, up) = row(results, "better"), ([row(one, "better") for one in end] for end in ends)
        assert found.low == pytest.approx(min(one.low for one in down), abs=1e-9)
        assert found.high == pytest.approx(max(one.high for one in up), abs=1e-9)
        assert ("worse" in found.verdict) == all("worse" in one.verdict for one in up)


def test_a_slope_moves_with_each_arm_as_its_steepness_says(alone: Records) -> None:
    over = {"base": 1.0, "better": 2.0, "near": 5.0}
    claim = Claim("x", "nll", "slope", {}, high=0.0, over=over)
    slope = np.mean([*by_seed(alone, claim).values()])
    for arm, steepness in _steepness(over).items():
        moved_cells = at(alone, arm, [1.01 * value(record, "nll") for record in alone.of(arm)])
        moved = np.mean([*by_seed(with_records(alone, [moved_cells]), claim).values()])
        logs = np.log([*over.values()])
        assert moved - slope == pytest.approx(np.log(1.01) * steepness / ((logs - logs.mean()) ** 2).sum())


ELSEWHERE = "nll@64"  # measured beside the headline, and not of what rates are chosen by


def elsewhere(alone: Records, seed: int, noise: float) -> tuple[Records, list[Records]]:
    """The results with another quantity, as large as the loss, and rivals; and alone at each choice of rates."""
    draw = np.random.default_rng(seed)
    results = with_records(alone, [at(alone, arm, losses, ELSEWHERE) for arm, losses in LOSSES.items()])
    rivals: dict[str, dict[float, Cells]] = {}
    for count, (arm, losses) in enumerate(LOSSES.items(), 1):
        moved = [np.add(losses, draw.normal(0, noise) + draw.normal(0, noise / 3, 6)).tolist() for _ in range(count)]
        rivals[arm] = {float(rate): at(results, arm, loss, ELSEWHERE) for rate, loss in enumerate(moved)}
    choices = itertools.product(*([{}, *of.values()] for of in rivals.values()))
    return replace(results, rivals=rivals), [with_records(results, choice) for choice in choices]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.relation} {claim.margin:z.3g}")
def test_an_answer_about_another_quantity_stands_at_every_choice_of_rates(alone: Records, claim: Claim) -> None:
    claim, decided = replace(claim, metric=ELSEWHERE), set[bool]()
    own = answer_claim(with_records(alone, [at(alone, arm, loss, ELSEWHERE) for arm, loss in LOSSES.items()]), claim)
    low, high = (-claim.margin, claim.margin) if claim.relation == "equivalent" else (claim.low, claim.high)
    for seed in range(16):
        results, choices = elsewhere(alone, seed, 0.01 if seed % 2 else 0.5)
        found, at_each = answer_claim(results, claim), [answer_claim(one, claim) for one in choices]
        beyond = {one.estimate > high for one in at_each} if own.verdict == "not reproduced" else set[bool]()
        kept = {one.verdict for one in at_each} == {own.verdict} and len(beyond) < 2
        if own.verdict != "inconclusive":
            assert found.verdict == (own.verdict if kept else "inconclusive")
        assert (found.low, found.high) == (min(one.low for one in at_each), max(one.high for one in at_each))
        decided.add(kept)
    assert low < high
    assert own.verdict == "inconclusive" or decided == {True, False}


def test_a_claim_with_more_pairings_than_are_tried_is_inconclusive(alone: Records) -> None:
    results, _ = elsewhere(alone, 0, 0.0)
    claim = Claim("x", ELSEWHERE, "less", {"better": 1.0, "base": -1.0})
    assert answer_claim(results, claim).verdict == "reproduced"
    rivals = {arm: dict.fromkeys(map(float, range(16)), next(iter(of.values()))) for arm, of in results.rivals.items()}
    found = answer_claim(replace(results, rivals=rivals), claim)
    assert (found.verdict, found.note, found.p) == ("inconclusive", NOT_HELD, 1.0)
    undecided = replace(claim, contrast={"near": 1.0, "base": -1.0})
    assert answer_claim(replace(results, rivals=rivals), undecided).note != NOT_HELD


def test_a_quantity_judged_beside_the_headline_is_held_at_rates_of_both_sides(alone: Records) -> None:
    arms = {arm: alone.manifest["arms"][arm] for arm in ("base", "better")}
    manifest: Any = {**alone.manifest, "arms": arms, "confirmatory": [], "secondary": [ELSEWHERE]}
    decided = []
    for seed in range(12):
        results, choices = elsewhere(replace(alone, manifest=manifest), seed, 0.1)
        of_base = dict.fromkeys(id(one.records["base", 0]) for one in choices)
        found = row(results, "better", ELSEWHERE)
        at_each = [row(one, "better", ELSEWHERE) for one in choices]
        assert len(of_base) == 1 + len(results.rivals["base"])
        assert (found.low, found.high) == (min(one.low for one in at_each), max(one.high for one in at_each))
        kept = all("lower" in one.verdict for one in at_each)
        assert ("lower" in found.verdict) == kept
        assert found.q == max(one.q for one in at_each)
        decided.append(kept)
    assert {*decided} == {True, False}
