"""Two kinds of noise: against estimators written out by hand and by others, limits, and what a wider interval does."""

import math

import numpy as np
import pytest
from messages import Refused
from scipy import stats
from statistics_audit.texts import drawn
from statsmodels.regression.linear_model import OLS

from lm.stats.tests import ALPHA, sign_flip_p
from lm.stats.two_way import TwoWay, cover_texts, degrees, two_way
from lm.stats.verdicts import Comparison, Verdict, confirm

Array = np.ndarray


def judged(sample: list[float], margin: float = math.nan) -> Comparison:
    one = Comparison(sample, "lower", margin, p=sign_flip_p(sample))
    confirm([one])
    return one


def wide(error: float) -> TwoWay:
    return TwoWay(error, error, error, error, 10.0, 100, 100.0)


def test_each_error_is_that_of_its_own_kind_of_noise() -> None:
    sums, tokens = drawn(np.random.default_rng(0), 0.75)
    found = two_way(sums, tokens)
    assert found.seeds == pytest.approx(stats.sem(sums.sum(axis=1) / tokens.sum()))
    # A ratio is a weighted mean over documents; statsmodels leaves out one after the other of a regression (HC3).
    per_document, count = sums.mean(axis=0) / tokens, len(tokens)
    weighted = OLS(per_document * np.sqrt(tokens), np.sqrt(tokens)[:, None]).fit(cov_type="HC3")
    assert found.text == pytest.approx(float(weighted.bse[0]) * math.sqrt((count - 1) / count), rel=1e-9)
    assert found.documents == count
    assert found.effective == pytest.approx(tokens.sum() ** 2 / (tokens @ tokens))


def test_documents_of_equal_length_have_the_plain_error() -> None:
    sums, tokens = drawn(np.random.default_rng(0), 0.75)
    even = two_way(sums / tokens, np.ones(len(tokens)))
    assert even.text == pytest.approx(stats.sem((sums / tokens).mean(axis=0)))
    assert even.effective == pytest.approx(len(tokens))
    assert degrees(even.effective) == pytest.approx(len(tokens) - 1)
    assert degrees(1.2) == 1


def test_errors_are_unbiased_and_count_shared_noise_once() -> None:
    random = np.random.default_rng(1)
    tokens, n, m = np.ones(40), 6, 40
    means, errors = [], []
    for _ in range(400):
        sums = random.normal(size=(n, 1)) + random.normal(size=m) + 4 * random.normal(size=(n, m))
        means.append(sums.mean())
        errors.append(two_way(sums, tokens).both ** 2)
    truth = 1 / n + 1 / m + 16 / (n * m)
    assert np.var(means) == pytest.approx(truth, rel=0.3)
    assert np.mean(errors) == pytest.approx(truth, rel=0.1)


def test_empty_documents_and_absent_noise_are_handled(refused: Refused) -> None:
    sums, tokens = drawn(np.random.default_rng(2), 0.75)
    padded = two_way(np.hstack([sums, np.zeros((len(sums), 3))]), np.append(tokens, [0, 0, 0]))
    assert padded == two_way(sums, tokens)
    same = two_way(np.tile(sums[0], (5, 1)), tokens)
    assert same.seeds == pytest.approx(0, abs=1e-15)
    assert same.both == pytest.approx(same.text)
    even = two_way(np.arange(5.0)[:, None] * tokens, tokens)
    assert even.both == pytest.approx(even.seeds)
    assert even.freedom == pytest.approx(4)
    with refused(ValueError):
        two_way(sums[:1], tokens)


def test_unsupported_differences_over_text_are_withdrawn() -> None:
    sample = [-0.02, -0.05, -0.01, -0.03, -0.04, -0.02]
    one = judged(sample)
    narrow = (one.low, one.high)
    cover_texts(one, wide(1e-9), ALPHA)
    assert (one.low, one.high) == narrow
    assert (one.interval, one.verdict.kind, one.significant) == ("seeds-and-text", "better", True)
    cover_texts(one, wide(0.05), ALPHA)
    assert one.low < 0 < one.high
    assert (one.verdict.kind, one.significant) == ("seeds only", False)


def test_equivalence_needs_the_interval_over_both() -> None:
    sample = [0.001, -0.002, 0.0, 0.003, -0.001, 0.002]
    kept, taken = judged(sample, 0.01), judged(sample, 0.01)
    cover_texts(kept, wide(0.001), ALPHA)
    cover_texts(taken, wide(0.01), ALPHA)
    assert (kept.verdict.kind, taken.verdict.kind) == ("equivalent", "inconclusive")
    assert math.isnan(taken.verdict.within)


def test_identical_arms_and_arms_without_pairs_stay_what_they_are() -> None:
    same = judged([0.0] * 6)
    cover_texts(same, wide(0.1), ALPHA)
    assert (same.low, same.high, same.verdict.kind) == (0.0, 0.0, "identical")
    none = Comparison([], verdict=Verdict("no pair"))
    cover_texts(none, wide(0.1), ALPHA)
    assert math.isnan(none.low)


def test_p_and_interval_agree() -> None:
    noise = two_way(*drawn(np.random.default_rng(3), 0.75))
    for share in (0.05, 0.2):
        _, high = noise.interval(0.0, share)
        assert noise.p(high) == pytest.approx(share)
        assert (noise.p(high, "greater"), noise.p(high, "less")) == pytest.approx((share / 2, 1 - share / 2))
    assert (noise.p(math.inf, "greater"), noise.p(math.inf, "less")) == (0.0, 1.0)
    still = TwoWay(0.0, 0.0, 0.0, 0.0, math.inf, 40, 40.0)
    assert (still.p(0.1), still.p(0.0), still.p(-0.1, "greater"), still.p(-0.1, "less")) == (0.0, 1.0, 1.0, 0.0)


def test_the_floor_is_what_documents_leave_when_seeds_are_many() -> None:
    random = np.random.default_rng(4)
    tokens, of_document = np.ones(40), random.normal(size=40)
    few, many = (
        two_way(of_document + random.normal(size=(n, 1)) + 3 * random.normal(size=(n, 40)), tokens) for n in (6, 600)
    )
    assert many.floor == pytest.approx(many.text, rel=0.05)
    assert many.floor == pytest.approx(stats.sem(of_document), rel=0.1)
    assert few.floor < few.text
