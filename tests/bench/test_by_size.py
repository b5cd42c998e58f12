"""The arithmetic of the benchmark over sizes."""

from dataclasses import replace

import pytest

from benchmarks import by_size
from benchmarks.asked import Asked
from benchmarks.rows import row


@pytest.mark.parametrize("value", [None, 0.8])
def test_growth_is_the_exponent_between_neighbours(value: float | None) -> None:
    before = row("width 128", "lm fit", 0.1, more={"gflop": 1.0})
    one = row("width 256", "lm fit", value, more={"gflop": 4.0, "growth": None, "growth_of_flops": None})
    by_size._compare(one, before, 2.0)
    found = one["more"]["growth"], one["more"]["growth_of_flops"]
    assert found == ((None, None) if value is None else (pytest.approx(3), pytest.approx(2)))


def test_sizes_have_as_many_tokens_and_heads_of_one_width() -> None:
    for axis, values in by_size.AXES.items():
        for value in values:
            size = replace(by_size.Point(), **{axis: value}).size({})
            assert size.tokens == max(by_size.TOKENS, size.context)
            assert size.width // size.heads == 32


def test_a_process_that_ran_out_of_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> float:
        raise RuntimeError("ended with code -9")

    monkeypatch.setattr(by_size, "in_child", killed)
    assert by_size._memory(by_size.LONGEST, {}, by_size.OURS, Asked()) == (None, "ended with code -9")


def test_the_longest_rows_fit_into_every_split() -> None:
    size = by_size.LONGEST.size({})
    built = size.cell().open()
    assert size.context == max(by_size.AXES["context"])
    assert next(iter(built.data.training_batches(0, 1))).inputs[0].shape == (1, size.context)
