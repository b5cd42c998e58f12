"""Thin learning curves: what they keep of a whole one, and how damage to them is found."""

import json
from pathlib import Path
from typing import Any

import pytest
from messages import CheckMessage

from lm.analysis.curve import curve_table
from lm.config.tree import InputError
from lm.store.thin_curves import THIN_NAME, read_thin_curve, thin_curve
from lm.store.validation import curve_checksum, validate_curve

WHOLE = (
    "step,attention_entropy,tokens,train_loss,gradient_norm,gradient_norm/blocks.0,validation_nll\n"
    "0,0.87,,,,,\n"
    "10,,640,3.123456789,0.000123456789,0.1,\n"
    "20,,1280,nan,inf,0.2,2.0123456789012345\n"
)
RECORD: dict[str, Any] = {"curve": curve_checksum(WHOLE), "steps": 20}


@pytest.fixture
def thin(tmp_path: Path) -> Path:
    path = tmp_path / THIN_NAME
    path.write_bytes(thin_curve(WHOLE))
    return path


def test_it_keeps_five_digits_and_validations_exactly(thin: Path) -> None:
    assert read_thin_curve(thin)["columns"] == {
        "step": [10, 20],
        "tokens": [640, 1280],
        "train_loss": [3.1235, None],
        "gradient_norm": [0.00012346, None],
        "validation_nll": [None, float("2.0123456789012345")],
    }


def test_tables_read_it_as_a_whole_curve(thin: Path, tmp_path: Path) -> None:
    whole = tmp_path / "history.csv"
    whole.write_text(WHOLE)
    read, expected = curve_table(thin)["validation_nll"].dropna(), curve_table(whole)["validation_nll"].dropna()
    assert list(read.index) == list(expected.index) == [20]
    assert read.tolist() == pytest.approx(expected.tolist(), rel=1e-15)
    assert validate_curve(thin, RECORD) == ""


@pytest.mark.parametrize(
    ("edit", "record"),
    [
        (lambda thin: thin["columns"]["train_loss"].__setitem__(0, 3.0), RECORD),
        (lambda thin: thin.update(format=99), RECORD),
        (lambda thin: None, RECORD | {"steps": 30}),
        (lambda thin: None, RECORD | {"curve": curve_checksum(WHOLE + "30,,,,,,1\n")}),
    ],
    ids=["edited", "newer", "short", "of another"],
)
def test_an_edited_or_foreign_one_is_refused(
    thin: Path, check_message: CheckMessage, edit: Any, record: dict[str, Any]
) -> None:
    content = json.loads(thin.read_text())
    edit(content)
    thin.write_text(json.dumps(content))
    check_message(validate_curve(thin, record))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 1}'])
def test_what_is_no_thin_curve_is_refused(thin: Path, text: str) -> None:
    thin.write_text(text)
    assert validate_curve(thin, RECORD)
    with pytest.raises(InputError, match=THIN_NAME):
        read_thin_curve(thin)
