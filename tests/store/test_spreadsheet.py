"""Cells of CSV: no text that a spreadsheet would run as a formula, and each read as it was written."""

import csv
import io
import math

import pandas as pd
import pytest

from lm.report.tables import as_csv
from lm.store.files import escape_formula, read_csv_rows, unescape_formula

FORMULAS = ["=1+1", "@SUM(A1)", "+cmd|'/C calc'!A0", "-2+3", "-a", "+", "\t=1", "\r=1", "\n=1", "＝1+1"]  # noqa: RUF001
NUMBERS = ["-", "-0.5", "+3", "-1e-05", "0", "1.", ".5", "-inf", "nan"]
WORDS = ["glu", "'quoted'", "a=b", "", "'", "p -1", "lr=-1"]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_text_that_would_run_is_marked(text: str) -> None:
    assert escape_formula(text) == f"'{text}"


@pytest.mark.parametrize("text", [*NUMBERS, *WORDS])
def test_numbers_and_words_are_left_as_they_are(text: str) -> None:
    assert escape_formula(text) == text


@pytest.mark.parametrize("text", [*FORMULAS, *NUMBERS, *WORDS, "'=1+1", "''@SUM(A1)", "'-0.5"])
def test_every_text_is_read_as_it_was_written(text: str) -> None:
    assert unescape_formula(escape_formula(text)) == text


def test_a_table_marks_its_texts_and_its_heads_alone() -> None:
    table = pd.DataFrame({"=arm": ["=1+1", "plain", None], "any": ["-a", -0.5, 3], "value": [-0.5, math.inf, -9.0]})
    heads, *rows = csv.reader(io.StringIO(as_csv(table)))
    assert heads == ["'=arm", "any", "value"]
    assert rows == [["'=1+1", "'-a", "-0.5"], ["plain", "-0.5", "inf"], ["", "3", "-9.0"]]
    assert read_csv_rows(as_csv(table))[1] == ["=1+1", "-a", "-0.5"]
