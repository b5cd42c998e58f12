"""What may lie between the learning rates that were tried: by a parabola, and said beside the verdicts it threatens."""

import math
from pathlib import Path

import numpy as np
import pytest

from lm.analysis.compare import compare
from lm.analysis.rates import RateCurve
from lm.analysis.results import load
from lm.report.pack import open_results
from lm.report.tuning import OPEN_BETWEEN, claims_of, open_between, rates_of, rates_section

REFERENCE = Path(__file__).parents[2] / "results" / "reference"


def curve(rates: tuple[float, ...], values_rs: np.ndarray, lower: bool = True) -> RateCurve:
    """A curve of two seeds."""
    return RateCurve(rates, values_rs, (0,) * len(rates), np.zeros(2), lower, math.inf)


@pytest.mark.parametrize("lower", [True, False])
def test_a_parabola_over_the_logarithm_is_found_again(lower: bool) -> None:
    rates = (0.001, 0.003, 0.004, 0.02)
    loss_r = 0.3 * (np.log(rates) - math.log(0.0036)) ** 2
    values_rs = (1 if lower else -1) * (2 + loss_r[:, None] + np.array([0.1, -0.1]))
    rate, gain = curve(rates, values_rs, lower).between
    assert rate == pytest.approx(0.0036)
    assert gain == pytest.approx(loss_r.min())


def test_without_two_neighbours_nothing_is_known() -> None:
    rising = np.array([[1.0, 1.1], [1.2, 1.3], [1.4, 1.5]])
    assert all(map(math.isnan, curve((0.1, 0.2, 0.4), rising).between))
    lost = np.array([[1.2, 1.1], [1.0, 1.0], [1.4, math.nan]])
    assert all(map(math.isnan, curve((0.1, 0.2, 0.4), lost).between))
    assert all(map(math.isnan, curve((0.1, 0.2, 0.4), np.full((3, 2), math.nan)).between))
    level = curve((0.1, 0.2, 0.4, 0.8), np.array([[1.0, 1.0], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]))
    assert level.between[1] > 0  # the first of three level rates, with a worse one beside it
    assert curve((0.1, 0.2, 0.4), np.ones((3, 2))).edge == "low"


def test_it_is_said_beside_the_verdicts_that_it_may_undo() -> None:
    """Of the claims of `glu`, those about losses: by the value of a parabola through three evenly spaced points."""
    with open_results(REFERENCE / "glu.lmpack") as opened:
        results = load(opened.folder)
        rates = rates_of(results, opened.folder)
        assert rates is not None
        gains = {}
        for arm, of_arm in rates.curves.items():
            means = of_arm.values_rs.mean(axis=1)
            below, best, above = means[means.argmin() - 1 : means.argmin() + 2]
            gains[arm] = (below - above) ** 2 / (8 * (below + above - 2 * best))
            assert gains[arm] == pytest.approx(of_arm.between[1])
        answers = claims_of(results, rates)
        for answer in answers:
            claim, weights = answer.claim, answer.claim.contrast
            low = answer.low - sum(weight * gains[arm] for arm, weight in weights.items() if weight > 0)
            high = answer.high - sum(weight * gains[arm] for arm, weight in weights.items() if weight < 0)
            least, most = {
                "less": (-math.inf, claim.margin),
                "greater": (claim.margin, math.inf),
                "equivalent": (-claim.margin, claim.margin),
                "range": (claim.low, claim.high),
            }[claim.relation]
            inside, outside = least <= low <= high <= most, high < least or low > most
            stands = {"reproduced": inside, "not reproduced": outside}.get(answer.verdict, True)
            is_open = claim.metric == "nll" and not stands
            assert answer.note.startswith(OPEN_BETWEEN) == is_open, claim.claim
        assert 0 < sum(OPEN_BETWEEN in answer.note for answer in answers) < len(answers) / 2
        assert open_between(results, rates, compare(results)) == []
        (line,) = [note for note in rates_section(results, rates).notes if "parabola" in note]
        assert all(f"{arm} {gain:.4f} at" in line for arm, gain in gains.items() if gain >= 0.0005)


def test_arms_whose_verdict_it_may_undo_are_named() -> None:
    with open_results(REFERENCE / "norm_placement.lmpack") as opened:
        results = load(opened.folder)
        rates = rates_of(results, opened.folder)
        assert rates is not None
        table = compare(results)
        (line,) = open_between(results, rates, table)
        threatened = []
        for row in table[(table.metric == "nll") & (table.verdict.isin(["better", "worse"]))].itertuples():
            gain, of_baseline = rates.curves[str(row.arm)].between[1], rates.curves[results.arms[0]].between[1]
            if row.low - gain <= 0 <= row.high + of_baseline:
                threatened.append(f"{row.arm} {row.verdict}")
        assert f": {', '.join(threatened)}. " in line
        assert threatened
