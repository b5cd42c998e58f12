"""The law of loss against compute, what is read off it, and how sure that is."""

import math

import numpy as np
import pytest
from messages import Refused
from scipy import optimize, stats

from lm.stats.compute_gain import LadderDraws, ScalePoint, fit_scaling, misfit
from lm.stats.scaling import Law, draw_means, fit, freedom, interval, quantiles
from lm.stats.trend import Estimate, estimate_from_means, judge_trend, trend_of_means, trend_weights

COMPUTE = np.array([1e12, 8e12, 6e13, 4e14])
LAWS = [(1.2, 0.55, 0.16), (0.0, 2.0, 0.1), (1.6, 0.3, 0.5), (0.5, 1.4, 0.05)]


def law(floor: float, scale: float, exponent: float, reference: float = 1e13) -> Law:
    return Law(np.array(floor), np.array(scale), np.array(exponent), reference)


@pytest.mark.parametrize(("floor", "scale", "exponent"), LAWS)
@pytest.mark.parametrize("rungs", [3, 4])
def test_a_known_law_is_found_again(floor: float, scale: float, exponent: float, rungs: int) -> None:
    compute = COMPUTE[:rungs]
    found = fit(compute, law(floor, scale, exponent).loss(compute))
    assert float(found.floor) == pytest.approx(floor, abs=1e-5)
    assert float(found.exponent) == pytest.approx(exponent, rel=1e-5)
    beyond = law(floor, scale, exponent).loss(1e16)
    assert float(found.loss(1e16)) == pytest.approx(float(beyond), rel=1e-6)


def test_noisy_losses_have_the_law_that_an_independent_fit_finds() -> None:
    compute = np.geomspace(1e12, 1e15, 6)
    noise = np.random.default_rng(0).normal(size=6)
    loss = law(1.5, 0.7, 0.25).loss(compute) * np.exp(0.003 * noise)
    wide = fit(compute, loss, delta=1.0)  # Huber's loss is a square here
    ours = wide.reference

    def in_log(c: np.ndarray, floor: float, scale: float, exponent: float) -> np.ndarray:
        found: np.ndarray = np.log(floor + scale * (c / ours) ** -exponent)
        return found

    theirs, _ = optimize.curve_fit(in_log, compute, np.log(loss), p0=[1.0, 1.0, 0.3])
    assert [float(wide.floor), float(wide.scale), float(wide.exponent)] == pytest.approx(theirs.tolist(), rel=1e-3)


def test_the_robust_fit_is_where_hubers_loss_is_least() -> None:
    compute = np.geomspace(1e12, 1e15, 7)
    loss = law(1.5, 0.7, 0.25).loss(compute)
    loss[3] *= 1.05  # one rung went astray
    delta = 1e-3
    found = fit(compute, loss, delta)

    def missed(parameters: np.ndarray) -> float:
        floor, scale, exponent = parameters
        predicted = np.maximum(floor + scale * (compute / found.reference) ** -exponent, 1e-9)
        return float(_huber(np.log(loss / predicted), delta).sum())

    start = np.array([float(found.floor), float(found.scale), float(found.exponent)])
    best = optimize.minimize(missed, start, method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-14})
    assert missed(start) <= best.fun * 1.02 + 1e-12
    assert float(found.exponent) == pytest.approx(0.25, abs=0.01)
    assert float(fit(compute, loss, delta=1.0).exponent) != pytest.approx(0.25, abs=0.01)


def _huber(residual: np.ndarray, delta: float) -> np.ndarray:
    size = np.abs(residual)
    return np.where(size <= delta, 0.5 * size**2, delta * (size - 0.5 * delta))


def test_a_law_without_a_floor_is_a_line_in_logarithms() -> None:
    concave = np.array([3.0, 2.8, 2.2, 1.2])
    pure = fit(COMPUTE, concave, delta=10.0)
    assert float(pure.floor) == 0.0
    assert float(pure.exponent) == pytest.approx(-stats.linregress(np.log(COMPUTE), np.log(concave)).slope, rel=1e-4)


@pytest.mark.parametrize("unit", [1e-9, 3.0, 1e15])
def test_the_unit_of_compute_is_of_no_matter(unit: float) -> None:
    loss = law(1.2, 0.55, 0.16).loss(COMPUTE) * np.array([1.002, 0.998, 1.001, 0.999])
    one, other = fit(COMPUTE, loss), fit(COMPUTE * unit, loss)
    assert float(other.exponent) == pytest.approx(float(one.exponent), rel=1e-6)
    assert float(other.loss(1e16 * unit)) == pytest.approx(float(one.loss(1e16)), rel=1e-6)


def test_what_has_no_law_has_none(refused: Refused) -> None:
    with refused(ValueError):
        fit([1.0, 2.0], [2.0, 1.0])
    with refused(ValueError):
        fit([1.0, 2.0, 3.0], [2.0, 1.0, -1.0])
    assert not fit(COMPUTE, [1.0, 1.1, 1.2, 1.3]).falls


def test_a_law_read_backwards_is_the_law() -> None:
    found = law(1.2, 0.55, 0.16)
    assert found.log_compute(found.loss(COMPUTE)) == pytest.approx(np.log(COMPUTE))
    assert math.isinf(float(found.log_compute(1.2)))
    step = 1e-4
    rise = (found.loss(1e13 * math.exp(step)) - found.loss(1e13 * math.exp(-step))) / (2 * step)
    assert float(found.steepness(1e13)) == pytest.approx(-float(rise), rel=1e-6)


def test_draws_of_means_scatter_by_their_standard_error() -> None:
    values = np.array([1.0, 2.0, np.nan, 4.0])
    drawn = draw_means(values, np.random.default_rng(0).normal(size=(20_000, 4)))
    there = values[np.isfinite(values)]
    assert drawn.mean() == pytest.approx(there.mean(), abs=0.02)
    assert drawn.std() == pytest.approx(float(stats.sem(there)), rel=0.03)
    assert set(draw_means(np.array([np.nan, 3.0]), np.zeros((4, 2)))) == {3.0}


def test_the_interval_of_one_mean_is_students() -> None:
    values = np.array([1.0, 1.2, 0.9, 1.4, 1.05])
    drawn = draw_means(values, np.random.default_rng(0).normal(size=(40_000, 5)))
    ends = stats.t.interval(0.95, 4, values.mean(), stats.sem(values))
    assert interval(float(values.mean()), drawn, [drawn], [4]) == pytest.approx(ends, rel=0.02)


def test_degrees_of_freedom_are_satterthwaites() -> None:
    random = np.random.default_rng(0)
    sources = [random.normal(0, 1.0, 20_000), random.normal(0, 2.0, 20_000)]
    found = freedom(sources[0] + sources[1], sources, [2, 5])
    assert found == pytest.approx((1 + 4) ** 2 / (1 / 2 + 16 / 5), rel=0.05)


def test_draws_that_are_no_number_count_as_far_out() -> None:
    drawn = np.concatenate([np.linspace(0, 1, 90), np.full(10, np.nan)])
    assert quantiles(drawn) == (-math.inf, math.inf)
    assert quantiles(np.concatenate([np.linspace(0, 1, 95), np.full(5, np.inf)]))[1] == math.inf


def rungs(gain: float, seeds: int = 4, spread: float = 0.0, share: float = 1.0) -> list[ScalePoint]:
    """Of an arm that is worth `gain` everywhere and costs `share` of the baseline's compute."""
    truth, random = law(1.2, 0.55, 0.16), np.random.default_rng(0)
    found = []
    for compute in COMPUTE:
        noise = spread * random.normal(size=(2, seeds))
        base = truth.loss(compute) + noise[0]
        found.append(ScalePoint(float(compute), float(compute) * share, base, truth.loss(compute * gain) + noise[1]))
    return found


@pytest.mark.parametrize(("gain", "share"), [(1.2, 1.0), (0.8, 1.0), (1.5, 2.0)])
def test_a_known_gain_is_found_at_every_rung(gain: float, share: float) -> None:
    found = fit_scaling(rungs(gain, share=share), True, (math.nan, math.nan))
    assert found.gains is not None
    for one in found.gains:
        assert math.exp(one.log.value) == pytest.approx(gain / share, rel=1e-4)
    beyond = ["", "", "", "above"] if gain > 1 else ["below", "", "", ""]
    assert [one.beyond for one in found.gains] == beyond
    assert found.forecast is not None
    assert found.forecast.baseline.value == pytest.approx(float(law(1.2, 0.55, 0.16).loss(COMPUTE[-1])), rel=1e-5)


def test_identical_arms_have_a_gain_of_exactly_one() -> None:
    base = [np.array([3.0, 3.1, 2.9]), np.array([2.4, 2.5, 2.6]), np.array([2.45, 2.2, 2.3]), np.array([1.5, 1.6, 1.9])]
    same = [ScalePoint(float(compute), float(compute), one, one) for compute, one in zip(COMPUTE, base, strict=True)]
    found = fit_scaling(same, True, (0.01, 0.1))
    assert found.gains is not None
    for one in found.gains:
        assert (one.log.value, one.log.low, one.log.high) == pytest.approx((0.0, 0.0, 0.0), abs=1e-9)
    assert (found.of_difference.kind, found.of_difference.slope.value) == ("holds", 0.0)


def test_an_arm_below_the_floor_is_said_to_be() -> None:
    low = [
        ScalePoint(one.compute, one.compute, one.baseline_s, one.baseline_s - 1.0) for one in rungs(1.0, spread=0.01)
    ]
    found = fit_scaling(low, False, (math.nan, math.nan))
    assert found.gains is not None
    assert found.gains[-1].beyond == "floor"
    assert found.gains[-1].log.high == math.inf
    assert not math.isnan(found.gains[-1].log.low)
    assert found.of_gain.kind == "none"


def test_too_few_rungs_or_seeds_have_differences_and_no_law() -> None:
    for few in (rungs(1.2, spread=0.01)[:2], rungs(1.2, seeds=1)):
        found = fit_scaling(few, True, (math.nan, math.nan))
        assert (found.gains, found.law, found.forecast) == (None, None, None)
        assert len(found.differences) == len(few)
        assert (found.of_difference.kind == "too few") is (len(few) == 4)
    assert fit_scaling(rungs(1.2, spread=0.01)[:3], True, (math.nan, math.nan)).forecast is None


def test_a_misfit_beyond_noise_is_noticed() -> None:
    right, wrong = LadderDraws(rungs(1.0, spread=0.002)), rungs(1.0, spread=0.002)
    wrong[2] = ScalePoint(wrong[2].compute, wrong[2].compute, wrong[2].baseline_s + 0.1, wrong[2].arm_s)
    for ladder, noticed in ((right, False), (LadderDraws(wrong), True)):
        p = misfit(ladder, ladder.laws(ladder.base_k, ladder.base_dk, 4)[0].loss(ladder.compute_k))[1]
        assert (p < 0.01) is noticed


def test_the_line_through_heights_is_that_of_weighted_least_squares() -> None:
    variance = np.array([1.0, 4.0, 0.5, 2.0])
    heights = np.array([0.3, 0.1, -0.2, 0.4])
    rise, middle = trend_weights(COMPUTE, variance)
    slope, _ = np.polyfit(np.log10(COMPUTE), heights, 1, w=1 / np.sqrt(variance))
    assert float(rise @ heights) == pytest.approx(float(slope))
    assert float(middle @ heights) == pytest.approx(float(np.average(heights, weights=1 / variance)))


def test_the_interval_of_two_means_is_welchs() -> None:
    left, right = np.array([1.0, 1.3, 0.8]), np.array([2.0, 2.9, 1.1, 2.4, 2.2])
    found = estimate_from_means([left, right], np.array([1.0, -1.0]), 0.95)
    ends = stats.ttest_ind(left, right, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((ends.low, ends.high))


@pytest.mark.parametrize(
    ("slope", "middle", "margin", "pairs", "kind"),
    [
        ((0.2, 0.1, 0.3), (1.0, 0.5, 1.5), math.nan, 6, "grows"),
        ((-0.2, -0.3, -0.1), (-1.0, -1.5, -0.5), math.nan, 6, "grows"),
        ((0.2, 0.1, 0.3), (-1.0, -1.5, -0.5), math.nan, 6, "fades"),
        ((0.2, 0.1, 0.3), (0.1, -0.5, 0.5), math.nan, 6, "turns"),
        ((0.2, 0.1, 0.3), (1.0, 0.5, 1.5), 0.4, 6, "holds"),
        ((0.2, -0.1, 0.5), (1.0, 0.5, 1.5), 0.4, 6, "inconclusive"),
        ((0.2, 0.1, 0.3), (1.0, 0.5, 1.5), 0.4, 2, "too few"),
        ((math.nan,) * 3, (1.0, 0.5, 1.5), 0.4, 6, "none"),
    ],
)
def test_what_a_trend_is_called(
    slope: tuple[float, ...], middle: tuple[float, ...], margin: float, pairs: int, kind: str
) -> None:
    found = Estimate(*slope)
    assert judge_trend(found, found, Estimate(*middle), pairs, margin).kind == kind


def test_a_trend_that_is_there_is_found() -> None:
    random = np.random.default_rng(0)
    values = [0.1 * place + 0.01 * random.normal(size=5) for place in range(1, 5)]
    assert trend_of_means(COMPUTE, values, math.nan, 0.95).kind == "grows"
    assert trend_of_means(COMPUTE, values[::-1], math.nan, 0.95).kind == "fades"
    middle = trend_of_means(COMPUTE, values, math.nan, 0.95).middle.value
    assert trend_of_means(COMPUTE, [one - middle for one in values], math.nan, 0.95).kind == "turns"
    flat = [0.1 + 0.01 * random.normal(size=5) for _ in range(4)]
    assert trend_of_means(COMPUTE, flat, 0.1, 0.95).kind == "holds"
