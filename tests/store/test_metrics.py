"""What is declared of a quantity is all that tables, comparisons and searches know of it."""

import torch

from lm.metrics.tokens import TokenStatistics
from lm.store.metrics import AT_LENGTH, METRICS, VALIDATION_METRICS, describe


def test_metrics_in_tokens_are_declared_per_token() -> None:
    for name, quantity in (METRICS | AT_LENGTH).items():
        if "token" in quantity.unit or "token" in quantity.label:
            assert quantity.per_token, name
    assert describe("nll@512").per_token
    assert describe("of somebody's own").per_token, "nobody said that it may be compared"
    assert not describe("bits_per_byte").per_token


def test_every_evaluation_measures_the_validation_metrics() -> None:
    statistics = TokenStatistics(torch.ones(4, dtype=torch.int64))
    statistics.update(torch.zeros(6, 4), torch.arange(6) % 4)
    assert {*VALIDATION_METRICS} - {"nll_ema"} <= statistics.compute().keys()
