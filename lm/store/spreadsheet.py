"""Cells of CSV that a spreadsheet must not run as formulas: marked where written, unmarked where read.

A spreadsheet runs a cell that begins with =, +, -, @, a tab or an end of line. As OWASP advises ("CSV Injection"), such
a text gets a leading apostrophe, by which a spreadsheet shows it as the text that it is. Numbers stay as they are.
"""

import csv
import io
import re
from collections.abc import Iterable

MARK = "'"

_RUNS = re.compile(rf"{MARK}*[=+\-@\t\r\n＝＋－＠]")  # noqa: RUF001 - spreadsheets take wide signs too
_PLAIN = re.compile(r"-|[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf|nan)")
"""Numbers, and the dash by which tables say that there is none: a spreadsheet runs neither."""


def marked(text: str) -> str:
    """Return a text with a leading apostrophe where a spreadsheet would run it, and any other text as it is.

    A text that looks marked already is marked once more, so that `unmarked` gives back every text that was written.

    >>> marked("=1+1"), marked("-0.5"), marked("glu"), marked("'=1+1")
    ("'=1+1", '-0.5', 'glu', "''=1+1")
    """
    return MARK + text if _RUNS.match(text) and not _PLAIN.fullmatch(text) else text


def unmarked(text: str) -> str:
    """Return a text as it was before `marked`; one that has no mark is returned as it is.

    >>> unmarked("'=1+1"), unmarked("'quoted'")
    ('=1+1', "'quoted'")
    """
    return text[1:] if text.startswith(MARK) and _RUNS.match(text) else text


def marked_cell(cell: object) -> object:
    """Return a cell of any type: a text as `marked` writes it, anything else as it is."""
    return marked(cell) if isinstance(cell, str) else cell


def unmarked_rows(content: str | Iterable[str], delimiter: str = ",", strict: bool = False) -> list[list[str]]:
    """Return the rows of CSV, its texts as they were before they were marked.

    Args:
        content: a whole file, or its lines.
        delimiter: between two cells.
        strict: whether anything that is no CSV raises.

    Raises:
        csv.Error: for what is no CSV.
    """
    lines = io.StringIO(content) if isinstance(content, str) else content
    return [[unmarked(cell) for cell in row] for row in csv.reader(lines, delimiter=delimiter, strict=strict)]
