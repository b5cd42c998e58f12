"""Distributions and the bootstrap are those of `scipy.stats`, which reports do not import."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from lm.stats.power import spread_ratios
from lm.stats.quantiles import bootstrap_bca, f_tail, normal_quantile, normal_tail, t_quantile
from lm.stats.tests import rate_interval, t_interval

SHARES = (1e-9, 0.01, 0.025, 0.5, 0.8, 0.975, 1 - 1e-9)
FREEDOMS = (1, 2, 3.7, 11, 250.5)


def test_quantiles_and_tails_are_those_of_scipy_stats() -> None:
    for share in SHARES:
        assert normal_quantile(share) == pytest.approx(stats.norm.ppf(share), rel=1e-13)
        assert normal_tail(4 * share) == pytest.approx(stats.norm.sf(4 * share), rel=1e-13)
        for freedom in FREEDOMS:
            assert t_quantile(share, freedom) == pytest.approx(stats.t.ppf(share, freedom), rel=1e-12)
            assert f_tail(4 * share, 3, freedom) == pytest.approx(stats.f.sf(4 * share, 3, freedom), rel=1e-12)
    for freedom in FREEDOMS:
        shares = (np.arange(101) + 0.5) / 101
        assert spread_ratios(freedom) == pytest.approx(np.sqrt(stats.chi2.ppf(shares, freedom) / freedom), rel=1e-12)


def test_intervals_are_those_of_scipy_stats() -> None:
    sample = [0.3, -1.2, 0.8, 2.5, 0.1]
    expected = stats.t.interval(0.9, 4, loc=np.mean(sample), scale=stats.sem(sample))
    assert t_interval(sample, 0.9) == pytest.approx(expected, rel=1e-12)
    for trials in range(1, 8):
        for events in range(trials + 1):
            exact = stats.binomtest(events, trials).proportion_ci(0.9)
            assert rate_interval(events, trials, 0.9) == pytest.approx((exact.low, exact.high), abs=1e-9)


@pytest.mark.parametrize("sizes", [(2,), (5,), (12,), (3, 6)])
def test_the_bootstrap_is_that_of_scipy_stats(sizes: tuple[int, ...]) -> None:
    random = np.random.default_rng(4)
    samples = [random.lognormal(size=size).tolist() for size in sizes]
    mean = lambda *groups, axis: groups[0].mean(axis) - sum(group.mean(axis) for group in groups[1:])  # noqa: E731
    expected = stats.bootstrap(samples, mean, confidence_level=0.9, method="BCa", rng=0).confidence_interval
    assert bootstrap_bca(samples, mean, 0.9) == pytest.approx((expected.low, expected.high), rel=1e-9)


@pytest.mark.slow
def test_a_report_imports_neither_scipy_stats_nor_torch(tmp_path: object) -> None:
    code = (
        "import sys; from lm.cli import main; "
        f"assert main(['report', 'results/reference/quickstart.lmpack', '--out', {str(tmp_path)!r}]) == 0; "
        "print('imported', *({'torch', 'lightning', 'scipy.stats', 'sqlalchemy', 'optuna'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "imported"
