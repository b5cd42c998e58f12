"""A terminal table of any width that cuts off nothing and breaks no number while there is room."""

from collections.abc import Iterator, Sequence

from rich.box import HEAVY_HEAD, SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

FRAMED, BARE = 3, 2
"""Characters of a column beside its text, with lines between columns and without."""

LEAST = 6
"""Smallest width of a column whose words have to be broken."""

MOST = 24
"""Length from which a word, such as a path or an id, may be broken."""


def show_grid(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    console: Console,
    left: Sequence[str] | None = None,
    styles: Sequence[str | None] = (),
) -> None:
    """Print a table that fits the console, without lines between columns where space is short.

    `left` names the left-aligned columns: None for all. `styles` has a style for each row.
    """
    plain = [[str(cell) for cell in row] for row in rows]
    column_widths = widths(columns, plain, console.width - FRAMED * len(columns) - 1)
    framed = all(has >= word for has, word in zip(column_widths, _words(columns, plain), strict=True))
    if not framed:
        column_widths = widths(columns, plain, console.width - BARE * len(columns))
    table = Table(
        title=Text(title) if title else None,
        title_justify="left",
        title_style="bold",
        highlight=False,
        box=HEAVY_HEAD if framed else SIMPLE_HEAD,
        show_edge=framed,
        padding=(0, 1) if framed else (0, BARE - 1, 0, 0),
    )
    for column, width in zip(columns, column_widths, strict=True):
        at_left = left is None or column in left
        table.add_column(Text(column), justify="left" if at_left else "right", overflow="fold", width=width)
    for row, style in zip(rows, styles or [None] * len(rows), strict=True):
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row), style=style)
    console.print(table)


def widths(columns: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return the text width of each column, at most `room` together; the widest shrink first.

    No column is narrower than its longest word while these fit. The result exceeds `room` only below LEAST a column.
    """
    column_widths = [max(cell_len(text) for text in of_it) for of_it in _by_column(columns, rows)]
    for least in (_words(columns, rows), [LEAST] * len(column_widths)):
        while sum(column_widths) > room and (
            wide := [index for index, width in enumerate(column_widths) if width > least[index]]
        ):
            column_widths[max(wide, key=lambda index: column_widths[index])] -= 1
    return column_widths


def _by_column(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """Yield the lines of text in each column, its heading's included."""
    for index, column in enumerate(columns):
        yield [line for text in (column, *(row[index] for row in rows)) for line in (text.splitlines() or [""])]


def _words(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the length of the longest unbreakable word of each column."""
    word_lengths = ([cell_len(word) for text in of_it for word in text.split()] for of_it in _by_column(columns, rows))
    return [min(MOST, max(lengths, default=0)) for lengths in word_lengths]
