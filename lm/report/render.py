"""A table with its heading and notes, and its four renderers: terminal, Markdown, HTML and LaTeX."""

import html
import itertools
import re
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from rich.box import HEAVY_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lm.report.web.elements import Html, joined, listed, table, tag


class TableCell(str):
    """Text of a table's cell in no markup: bold if significant, with a mark of footnotes a character, and a style."""

    bold: bool
    marks: str
    style: str

    def __new__(cls, text: str, bold: bool = False, marks: str = "", style: str = "") -> Self:
        """Create the text with its emphasis."""
        cell = super().__new__(cls, text)
        cell.bold, cell.marks, cell.style = bold, marks, style
        return cell


@dataclass(frozen=True)
class Section:
    """A table with its heading and notes; each renderer writes the same content."""

    title: str = ""  # heading of the section
    columns: Sequence[str] = ()  # headings of the columns
    rows: Sequence[Sequence[str]] = ()  # texts, some of which may be a `TableCell`
    notes: Sequence[str] = ()  # lines below the table
    footnotes: Sequence[str] = ()  # meanings of the marks, each beginning with its mark
    groups: Sequence[str] = ()  # a heading above each column, such as a quantity above its mean and difference
    name: str = ""  # name of what the table is about, for its label in LaTeX
    text: str = ""  # a paragraph above the table

    @property
    def headings(self) -> list[str]:
        """Headings of the columns, each after that of its group."""
        groups = self.groups or [""] * len(self.columns)
        return [f"{group} {column}".strip() for group, column in zip(groups, self.columns, strict=True)]


def is_bold(row: Sequence[str]) -> bool:
    """Return True if any cell of a row is bold."""
    return any(emphasis(text).bold for text in row)


def emphasis(text: str) -> TableCell:
    """Return a text as a cell, with no emphasis where it has none."""
    return text if isinstance(text, TableCell) else TableCell(text)


# the terminal --------------------------------------------------------------------------------------------------------

LEAST, SHORT, NAME = 6, 10, 12  # smallest width of a column, and lengths of words that are broken one after the other
MOST = 24  # length from which a word, such as a path or an id, may be broken
NUMBER = re.compile(r"[-+]?[\d∞.]|-$|$")  # beginning of a text that is aligned at the right, if all of its column are

_VALUE = r"[-+]?[\d.,∞]+(?:e[-+]?\d+)?"
_INTERVAL = rf"\[{_VALUE}, {_VALUE}\]\S*|\S+"
UNIT, SPLIT, WORD = (
    re.compile(part) for part in (rf"{_VALUE} ± {_VALUE}|(?:{_VALUE} )?{_INTERVAL}", _INTERVAL, r"\S+")
)
"""Patterns of what stays on a line: a mean with its spread or interval; where space is short an interval; a word."""


def print_section(section: Section, console: Console) -> None:
    """Print the paragraph, the table, if it has rows, and the notes below it."""
    if section.text:
        console.print(Text(section.text, style="bold"))
    if section.rows:
        print_table(section.title, section.headings, section.rows, console)
    for line in (*section.footnotes, *section.notes):
        console.print(line, highlight=False, markup=False)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    """Print a table that fits the console, columns of numbers aligned at the right.

    No text is cut off, and no number or interval is broken. Where short words would be, each row is a paragraph.
    """
    heading, room = Text(title) if title else None, console.width - 3 * len(columns) - 1
    if sum(_least_widths(columns, rows, SHORT)) > room:
        _print_paragraphs(heading, columns, rows, console)
        return
    grid = Table(title=heading, title_justify="left", title_style="bold", highlight=False, box=HEAVY_HEAD)
    column_widths = widths(columns, rows, room)
    for index, (column, width) in enumerate(zip(columns, column_widths, strict=True)):
        numeric = index > 0 and all(NUMBER.match(row[index]) for row in rows)
        grid.add_column(Text(column), justify="right" if numeric else "left", overflow="fold", width=width)
    for row in rows:
        cells = (
            Text(_wrapped(cell + cell.marks, width), style=cell.style)
            for cell, width in zip(map(emphasis, row), column_widths, strict=True)
        )
        grid.add_row(*cells, style="bold" if is_bold(row) else None)
    console.print(grid)


def _print_paragraphs(
    heading: Text | None, columns: Sequence[str], rows: Sequence[Sequence[str]], console: Console
) -> None:
    """Print the longest text of each row, then its other cells with their headings."""
    if heading:
        console.print(heading, style="bold")
    lengths = _one_line([""] * len(columns), rows)
    leading = lengths.index(max(lengths))
    for row in rows:
        cells = [*map(emphasis, row)]
        named = [
            Text.assemble(f"{column}: ", (cell + cell.marks, cell.style))
            for index, (column, cell) in enumerate(zip(columns, cells, strict=True))
            if index != leading and cell
        ]
        style = "bold" if is_bold(row) else ""
        console.print(Text(cells[leading] + cells[leading].marks, style=style or cells[leading].style))
        console.print(Padding(Text("; ", style=style).join(named), (0, 0, 0, 2)))
    console.print()


def fits(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> bool:
    """Return True if each row of a table has a line to itself in so many characters."""
    return sum(_one_line(columns, rows)) + 3 * len(columns) + 1 <= width


def widths(columns: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return the text width of each column, at most `room` together; the widest shrink first, names before numbers."""
    one_line = _one_line(columns, rows)
    column_widths = [max(cell_len(column), width) for column, width in zip(columns, one_line, strict=True)]
    names = (_least_widths(columns, rows, longest) for longest in (NAME, SHORT, LEAST))
    for least in (one_line, _longest(columns, rows, UNIT), *names, [LEAST] * len(column_widths)):
        while sum(column_widths) > room and (
            wide := [index for index, width in enumerate(column_widths) if width > least[index]]
        ):
            column_widths[max(wide, key=lambda index: column_widths[index])] -= 1
    return column_widths


def _least_widths(columns: Sequence[str], rows: Sequence[Sequence[str]], longest: int) -> list[int]:
    """Return the smallest width of each column that breaks no interval, and no word of up to `longest` characters."""
    units, words = (_longest(columns, rows, part) for part in (UNIT, WORD))
    return [unit if unit > word else min(unit, longest) for unit, word in zip(units, words, strict=True)]


def _one_line(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column in which no cell wraps, and its heading between words."""
    words = _longest(columns, [], WORD)
    cells = [[cell_len(line) for row in rows for line in row[index].splitlines()] for index in range(len(columns))]
    return [max(word, *lengths, 0) for word, lengths in zip(words, cells, strict=True)]


def _longest(columns: Sequence[str], rows: Sequence[Sequence[str]], part: re.Pattern[str]) -> list[int]:
    """Return the length of the longest unbreakable part of each column, of single words at most MOST."""
    lengths = []
    for index, column in enumerate(columns):
        parts = [match for text in (column, *(row[index] for row in rows)) for match in part.findall(text)]
        lengths.append(max((cell_len(text) if " " in text else min(MOST, cell_len(text)) for text in parts), default=0))
    return lengths


def _wrapped(text: str, width: int) -> str:
    """Break a text into lines of this width, between units while there is room and between words otherwise."""
    lines = []
    for line in text.splitlines():
        parts = [line]
        for pattern in (UNIT, SPLIT, WORD):
            pieces = [[part] if cell_len(part) <= width else pattern.findall(part) for part in parts]
            parts = [piece for of_part in pieces for piece in of_part]
        lines.append("")
        for part in parts:
            together = f"{lines[-1]} {part}" if lines[-1] else part
            if cell_len(together) > width and lines[-1]:
                lines.append(part)
            else:
                lines[-1] = together
    return "\n".join(lines)


# Markdown ------------------------------------------------------------------------------------------------------------

INTERVAL = re.compile(r"(?<= )\\\[([-+∞\d., eCI%]*[\d∞][-+∞\d., eCI%]*)\\\](?![(\[:])")
"""Pattern of an escaped interval such as [+0.1, +0.2], which no renderer mistakes for a link."""


def escape(text: str) -> str:
    """Escape `text` so that Markdown shows it letter for letter; intervals, arrows and inner underscores stay."""
    escaped = re.sub(r"([\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", text)
    return html.escape(INTERVAL.sub(r"[\1]", escaped), quote=False).replace("-&gt;", "->").replace("\n", " ")


def markdown_section(section: Section) -> list[str]:
    """Format the section as lines of Markdown that end in an empty one."""
    lines = [f"## {escape(section.title)}", ""] if section.title else []
    lines += [escape(section.text), ""] if section.text else []
    if section.rows:
        lines += [*markdown_table(section.headings, section.rows), ""]
    return [*lines, *markdown_list(section.footnotes), *markdown_list(section.notes)]


def markdown_page(sections: Sequence[Section], figures: Sequence[str] = ()) -> str:
    """Format a page of sections, whose first has the title of the page, and of the files of figures."""
    first, *others = sections
    lines = [f"# {escape(first.title)}", "", *markdown_section(replace(first, title=""))]
    for section in others:
        lines += markdown_section(section)
    if figures:
        lines += ["## Figures", "", *(f"![{name.replace('_', ' ')}]({name}.png)" for name in figures)]
    return "\n".join(lines).rstrip("\n") + "\n"


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format the lines of a Markdown table of any text."""
    lines = [" | ".join(map(escape, columns)), " | ".join(["---"] * len(columns))]
    for row in rows:
        texts = [f"**{escape(cell)}**" if cell.bold else escape(cell) for cell in map(emphasis, row)]
        marks = [f"<sup>{escape(cell.marks)}</sup>" if cell.marks else "" for cell in map(emphasis, row)]
        lines.append(" | ".join(map(str.__add__, texts, marks)))
    return [f"| {line} |" for line in lines]


def markdown_list(lines: Sequence[str]) -> list[str]:
    """Format lines as a Markdown list with an empty line after it; empty for none."""
    return [*(f"- {escape(line)}" for line in lines), ""] if lines else []


# HTML ----------------------------------------------------------------------------------------------------------------


def html_section(section: Section) -> Html:
    """Format the table and its notes, without a heading, as elements of a page."""
    rows: list[list[str]] = []
    for row in section.rows:
        cells = [(tag("strong", cell) if cell.bold else str(cell), cell.marks) for cell in map(emphasis, row)]
        rows.append([joined(content, tag("sup", marks)) if marks else content for content, marks in cells])
    content = table(section.headings, rows) if rows else ""
    above = tag("p", section.text) if section.text else ""
    return joined(above, content, listed(section.footnotes), listed(section.notes))


# LaTeX ---------------------------------------------------------------------------------------------------------------

HEAD = "% Needs \\usepackage{booktabs,tabularx,threeparttable} in the preamble."
MOST_IN_A_COLUMN = 4  # largest number of columns of a table in one column of a page; wider tables span the page

WRAPPING = r">{\raggedright\arraybackslash}X"
"""Type of the column of names, which takes the width that the others leave."""

LONG_NAME = 10  # length of a name from which a table in one column is in smaller type

MOST_OF_A_CAPTION = 96
"""Longest caption in characters, about two lines of a column; a longer title is in the notes as well."""

MINUS = "\u2212"

SPECIAL = {
    "\\": r"\textbackslash{}",
    **{letter: f"\\{letter}" for letter in "{}&%$#_"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    **{letter: f"{{{letter}}}" for letter in "[]*"},  # after a line break, [ and * would be taken for an option
    "±": r"$\pm$",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    "∞": r"$\infty$",
    MINUS: "$-$",
}
KNOWN = frozenset("\u2013\u2014\u2018\u2019\u201c\u201d…ßæÆøØœŒłŁı")
ACCENTS = frozenset("\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327")
"""Characters beyond ASCII in pdfLaTeX's OT1 encoding, and accents that it can put on a Latin letter."""

NEGATIVE = re.compile(r"(?<![\w.])-(?=[\d∞])")


def escape_latex(text: str) -> str:
    """Escape `text` for LaTeX; a letter that pdfLaTeX lacks becomes its code, such as [U+4E2D]."""
    plain = unicodedata.normalize("NFC", " ".join(text.split()))
    return "".join(map(_letter, NEGATIVE.sub(MINUS, plain))).replace("--", "-{}-").replace("--", "-{}-")


def _letter(letter: str) -> str:
    if letter in SPECIAL:
        return SPECIAL[letter]
    base, *accents = list(unicodedata.normalize("NFD", letter))
    latin = letter < "\u0180" and base.isascii() and base.isprintable() and ACCENTS.issuperset(accents)
    return letter if latin or letter in KNOWN else f"{{[}}U+{ord(letter):04X}{{]}}"


def latex(sections: Sequence[Section]) -> str:
    r"""Format tables as text to `\input`, each under its own heading where there are several."""
    lines = [HEAD]
    for section in sections:
        heading = [f"\\subsection*{{{escape_latex(section.title)}}}"] if len(sections) > 1 else []
        lines += ["", *heading, _latex_table(section)]
    return "\n".join(lines).rstrip("\n") + "\n"


def latex_figure(file: str, name: str, caption: str) -> str:
    r"""Format text to `\input` that includes a figure of an experiment, labelled `fig:NAME`; it needs graphicx."""
    lines = [r"\begin{figure}", r"\centering", rf"\includegraphics[width=\linewidth]{{{file}}}"]
    lines += [rf"\caption{{{escape_latex(caption)}}}", rf"\label{{fig:{_tex_label(name)}}}", r"\end{figure}"]
    return "\n".join(lines) + "\n"


def _tex_label(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", name)


def _latex_table(section: Section) -> str:
    """Format one table with caption, label, footnotes and notes; names of arms wrap, so that it fits its column."""
    rows = [[emphasis(text) for text in row] for row in section.rows]
    caption = textwrap.shorten(section.title, MOST_OF_A_CAPTION, placeholder="...")
    notes = [*[f"{section.title}."] * (caption != section.title), *section.notes]
    footnotes = ((mark, meaning) for mark, _, meaning in (line.partition(" ") for line in section.footnotes))
    items = [f"\\item[{escape_latex(mark)}] {escape_latex(meaning)}" for mark, meaning in footnotes]
    items += [f"\\item[] {' '.join(map(escape_latex, notes))}"] if notes else []
    wide = len(section.columns) > MOST_IN_A_COLUMN
    environment = "table*" if wide else "table"
    small = not wide and max((cell_len(row[0]) for row in rows), default=0) > LONG_NAME
    lines = [
        f"\\begin{{{environment}}}[tbp]",
        "\\centering",
        "\\begin{threeparttable}",
        f"\\caption{{{escape_latex(caption)}}}",
        f"\\label{{tab:{_tex_label(section.name)}}}",
        "\\footnotesize" if small else "\\small",
        f"\\setlength{{\\tabcolsep}}{{{6 if wide else 3}pt}}",
        f"\\begin{{tabularx}}{{\\linewidth}}{{@{{}}{WRAPPING}{'r' * (len(section.columns) - 1)}@{{}}}}",
        "\\toprule",
        *_latex_groups(section.groups),
        f"{' & '.join(map(escape_latex, section.columns))} \\\\",
        "\\midrule",
        *(f"{' & '.join(map(_latex_cell, row))} \\\\" for row in rows),
        "\\bottomrule",
        "\\end{tabularx}",
        *(["\\begin{tablenotes}[flushleft]\\footnotesize", *items, "\\end{tablenotes}"] if items else []),
        "\\end{threeparttable}",
        f"\\end{{{environment}}}",
    ]
    return "\n".join(lines) + "\n"


def _latex_groups(groups: Sequence[str]) -> list[str]:
    """Format the headings above several columns, with a rule below each; none without groups."""
    spans = [(group, len(list(members))) for group, members in itertools.groupby(groups)]
    heads = " & ".join(f"\\multicolumn{{{width}}}{{c}}{{{escape_latex(group)}}}" for group, width in spans)
    starts = itertools.accumulate((width for _, width in spans), initial=1)
    ends = [(start, start + width - 1) for (group, width), start in zip(spans, starts, strict=False) if group]
    rules = (f"\\cmidrule(lr){{{start}-{end}}}" for start, end in ends)
    return [f"{heads} \\\\", "".join(rules)] if groups else []


def _latex_cell(cell: TableCell) -> str:
    """Format a cell: a name may wrap, a spread is small, what follows a count or an interval has lines of its own."""
    lines = re.split(r"(?<=\],) |(?<=\d,) (?=\d+ [a-z])|(?<=[a-z],) (?=\d+ [a-z])", "--" if cell == "-" else cell)
    text = "\\\\".join(map(escape_latex, lines)).replace("\\_", "\\_\\allowbreak{}")
    text = f"\\shortstack[r]{{{text}}}" if len(lines) > 1 else text
    text = re.sub(r" (\$\\pm\$) (\S+)$", r"{\\scriptsize\\,\1\\,\2}", text)
    text += f"\\textsuperscript{{{escape_latex(cell.marks)}}}" if cell.marks else ""
    return f"\\textbf{{{text}}}" if cell.bold else text
