"""The worked examples: all are there, all verify, and a wrong figure or a broken library is found."""

import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Capture, Patch
from messages import CheckMessage, RefusedCommand

from lm.model.position import alibi_slopes
from worked_examples import attention, judge, optimisation, positions, softmax, training
from worked_examples.__main__ import main
from worked_examples.compute import FUNCTIONS, compute, verify
from worked_examples.judge import Finding
from worked_examples.rows import Row, load_rows, select

TEXT = Path(__file__).resolve().parents[3] / "shared" / "reference" / "worked-examples.md"
ROWS = {row.id: row for row in load_rows()}
NUMERIC = [name for name, row in ROWS.items() if row.computed]


@cache
def found(name: str) -> dict[str, Any]:
    """What the library computes for a row."""
    return compute(ROWS[name])


def verdict(row: Row) -> str:
    """The verdict on a row that may have been changed, of what the library computes for the row as it is."""
    return judge.judge(row, found(row.id)).verdict


def one_off(printed: Any) -> Iterator[Any]:
    """The figure with each of its numbers in turn one unit higher, then lower, in its last printed digit."""
    if isinstance(printed, list):
        for place, item in enumerate(printed):
            for changed in one_off(item):
                yield [*printed[:place], changed, *printed[place + 1 :]]
    else:
        exponent = Decimal(printed).as_tuple().exponent
        assert isinstance(exponent, int), "a figure is finite"
        unit = Decimal(1).scaleb(exponent)
        yield from (printed + unit, printed - unit)


# the rows ------------------------------------------------------------------------------------------------------------


def test_every_worked_example_of_the_text_is_a_row() -> None:
    if not TEXT.is_file():
        pytest.skip(f"needs {TEXT}")
    ids = re.findall(r"^\| ([a-z][a-z0-9-]*) \|", TEXT.read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name in ids if name != "id"] == list(ROWS)


def test_ids_are_unique_and_every_function_is_used() -> None:
    assert len(ROWS) == len(load_rows())
    assert {row.compute for row in load_rows()} == set(FUNCTIONS)


@pytest.mark.parametrize("row", load_rows(), ids=lambda row: row.id)
def test_a_row_checks_something_and_keeps_the_printed_digits(row: Row) -> None:
    assert row.quantities
    assert len(row.quantities) == len(set(row.quantities))
    assert set(row.differently_stated) <= set(row.computed)
    assert (row.stated is None) <= (not row.computed or row.id == "warmup-cosine")
    assert row.erratum is None or row.differently_stated or row.at_least
    for figure in [*row.computed.values(), *row.differently_stated.values(), *row.at_most.values()]:
        assert all(isinstance(number, (Decimal, int)) for number in leaves(figure))


def leaves(figure: Any) -> Iterator[Any]:
    if isinstance(figure, list):
        for item in figure:
            yield from leaves(item)
    else:
        yield figure


# verdicts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
def test_the_library_agrees_with_every_row(name: str) -> None:
    row = ROWS[name]
    finding = judge.judge(row, found(name))
    assert finding.reasons == ()
    expected = "erratum in the source" if row.erratum else "agrees" if row.computed else "holds"
    assert finding.verdict == expected


@pytest.mark.parametrize("name", NUMERIC)
def test_a_figure_changed_in_its_last_digit_is_off(name: str) -> None:
    row = ROWS[name]
    for figure, printed in row.computed.items():
        for changed in one_off(printed):
            assert verdict(replace(row, computed={**row.computed, figure: changed})) == "OFF", (figure, changed)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.at_least or row.at_most])
def test_a_property_outside_its_bound_is_off(name: str) -> None:
    row = ROWS[name]
    for quantity, bound in row.at_most.items():
        for wrong in (float(bound) * 1.01 + 1e-300, float("nan"), float("inf")):
            assert judge.judge(row, {**found(name), quantity: wrong}).verdict == "OFF"
    for quantity, bound in row.at_least.items():
        for wrong in (float(bound) * 0.99, float("nan")):
            assert judge.judge(row, {**found(name), quantity: wrong}).verdict == "OFF"


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.erratum and row.differently_stated])
def test_an_erratum_that_is_none_is_off(name: str) -> None:
    row = ROWS[name]
    for figure in row.differently_stated:
        assert verdict(replace(row, stated={figure: row.computed[figure]})) == "OFF"


def test_a_source_that_differs_without_an_erratum_is_off() -> None:
    assert verdict(replace(ROWS["gpt-mix"], erratum=None)) == "OFF"


@pytest.mark.parametrize(
    "ours", [float("nan"), float("inf"), [0.5], [[0.545, 0.442]], [0.545], [0.545, 0.442, 0.0], [float("nan"), 0.442]]
)
def test_figures_of_another_shape_or_not_finite_are_off(ours: Any) -> None:
    assert judge.judge(ROWS["gpt-mix"], {"output": ours}).verdict == "OFF"


def test_a_figure_that_was_not_computed_is_off(check_message: CheckMessage) -> None:
    finding = judge.judge(ROWS["attn-2x3"], {"weights": found("attn-2x3")["weights"]})
    assert finding.verdict == "OFF"
    check_message([*finding.reasons])


def test_the_tolerance_is_half_a_unit_in_the_last_digit() -> None:
    assert judge.tolerance(Decimal("0.4170")) == Decimal("0.00005")
    assert judge.tolerance(Decimal("10.5")) == Decimal("0.05")
    assert judge.tolerance(35) == Decimal("0.5")
    assert judge.tolerance(Decimal("0.5"), places=4) == Decimal("0.00005")
    assert judge.tolerance(Decimal("0.12345"), places=2) == Decimal("0.000005")
    assert judge.meets(Decimal("0.25"), 0.2549)
    assert not judge.meets(Decimal("0.25"), 0.2551)


# a broken library ----------------------------------------------------------------------------------------------------


def broken(function: Any) -> Any:
    """The function with a result a thousandth too large."""
    return lambda *args, **kwargs: function(*args, **kwargs) * 1.001


@pytest.mark.parametrize(
    ("module", "function", "ids"),
    [
        (positions, "alibi_slopes", ["alibi-slopes"]),
        (positions, "sinusoids", ["sinusoid-d4", "sinusoid-shift"]),
        (attention, "attention_weights", ["attn-3x4", "attn-2x3", "gpt-mix"]),
        (attention, "scale_factor", ["attn-3x4", "attn-2x3", "attn-2x3-back"]),
        (attention, "scaled_dot_product_attention", ["attn-3x4", "attn-2x3", "attn-2x3-back"]),
        (softmax, "softmax", ["softmax-3", "softmax-descent", "softmax-jacobian"]),
        (softmax, "perplexity", ["ppl-batch"]),
        (optimisation, "warmup_cosine", ["warmup-cosine"]),
        (optimisation, "noam", ["noam"]),
        (optimisation, "gradient_norm", ["clip-global"]),
    ],
    ids=lambda value: getattr(value, "__name__", value) if not isinstance(value, list) else "",
)
def test_a_broken_function_makes_its_rows_off(monkeypatch: Patch, module: Any, function: str, ids: list[str]) -> None:
    monkeypatch.setattr(module, function, broken(getattr(module, function)))
    assert {finding.row.id: finding.verdict for finding in verify(select(ids))} == dict.fromkeys(ids, "OFF")


@pytest.mark.parametrize(
    ("module", "layer", "ids"),
    [
        (softmax, "CrossEntropy", ["ce-batch", "ce-single", "ce-grad", "ce-grad-4", "label-smoothing", "ignore-index"]),
        (attention, "MultiHead", ["qkv-project", "mha-concat", "decoder-attn", "mha-params", "kv-cache-size"]),
        (attention, "LayerNorm", ["layernorm", "ffn-relu"]),
        (attention, "ReLU", ["ffn-relu"]),
        (positions, "Rope", ["rope-relative"]),
        (positions, "Alibi", ["alibi-slopes"]),
        (training, "RMSNorm", ["rmsnorm"]),
        (training, "LayerNorm", ["layernorm-basic"]),
        (training, "PreNorm", ["dropout"]),
    ],
)
def test_a_layer_that_raises_makes_its_rows_off(monkeypatch: Patch, module: Any, layer: str, ids: list[str]) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(module, layer, fail)
    for finding in verify(select(ids)):
        assert finding.verdict == "OFF"
        assert finding.reasons == ("RuntimeError: broken on purpose",)


def test_computing_leaves_the_default_type_and_the_random_stream_alone() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    verify(select(["rope-relative", "dropout"]))
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(torch.get_rng_state(), state)


# the command ---------------------------------------------------------------------------------------------------------


def test_the_command_shows_figures_verdicts_and_errata(capsys: Capture, check_message: CheckMessage) -> None:
    assert main(["gpt-mix", "attn-2x3", "rmsnorm"]) == 0
    shown = capsys.readouterr().out
    for words in ("attn-2x3: agrees: softmax(Q K^T / sqrt(d_k)) V", "rmsnorm: holds", "gpt-mix: erratum in the source"):
        assert words in shown
    assert "0.155" in shown
    check_message(shown.splitlines()[-1])


def test_a_figure_that_is_off_is_exit_code_1(monkeypatch: Patch, capsys: Capture, check_message: CheckMessage) -> None:
    monkeypatch.setattr(positions, "alibi_slopes", broken(alibi_slopes))
    monkeypatch.setitem(FUNCTIONS, "mix", lambda given: {"output": torch.tensor([torch.nan, torch.inf])})
    assert main(["alibi-slopes", "gpt-mix"]) == 1
    shown = capsys.readouterr()
    assert "OFF: 2" in shown.out
    check_message([line for line in shown.out.splitlines() if "[nan, inf]" in line])
    assert shown.err == ""


def test_an_unknown_id_is_one_line_with_the_nearest(refused_command: RefusedCommand) -> None:
    refused_command(["ce-batch", "aliby-slopes"], main)


def test_a_finding_of_a_failed_row_has_no_numbers() -> None:
    assert judge.failed(ROWS["xor-relu"], ValueError("no")) == Finding(ROWS["xor-relu"], {}, "OFF", ("ValueError: no",))
