"""Tables in LaTeX, with the rules of the package booktabs."""

import re
import unicodedata
from collections.abc import Sequence

import pandas as pd

from lm.report.paper_table import PaperTable

HEAD = "% Needs \\usepackage{booktabs} in the preamble."
MOST_IN_A_COLUMN = 4
"""Largest number of columns of a table in one column of a page; wider tables span the page."""

MINUS = "\u2212"

SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    "[": "{[}",  # after a line break it would be taken for an option
    "]": "{]}",
    "*": "{*}",
    "±": r"$\pm$",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    "∞": r"$\infty$",
    MINUS: "$-$",
}
KNOWN = frozenset("\u2013\u2014\u2018\u2019\u201c\u201d…ßæÆøØœŒłŁı")
ACCENTS = frozenset("\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327")
"""Characters beyond ASCII in pdfLaTeX's OT1 encoding, and accents that it can put on a Latin letter."""

NUMBER = re.compile(r"(?<![\w.])-(?=[\d∞])")


def escape(text: str) -> str:
    """Escape `text` for LaTeX; a letter that pdfLaTeX lacks becomes its code, such as [U+4E2D].

    A hyphen before a number becomes a minus sign.
    """
    plain = unicodedata.normalize("NFC", " ".join(text.split()))
    return "".join(map(_letter, NUMBER.sub(MINUS, plain))).replace("--", "-{}-").replace("--", "-{}-")


def _letter(letter: str) -> str:
    if letter in SPECIAL:
        return SPECIAL[letter]
    base, *accents = list(unicodedata.normalize("NFD", letter))
    latin = letter < "\u0180" and base.isascii() and base.isprintable() and ACCENTS.issuperset(accents)
    return letter if latin or letter in KNOWN else f"{{[}}U+{ord(letter):04X}{{]}}"


def label(name: str) -> str:
    """Return the label of a table: `tab:` and the experiment's name."""
    return "tab:" + re.sub(r"[^A-Za-z0-9.+-]+", "-", name)


def latex(sheets: Sequence[PaperTable]) -> str:
    """Format tables as text to `\\input`, each under its own heading where there are several."""
    lines = [HEAD]
    for table in sheets:
        heading = [f"\\subsection*{{{escape(table.title)}}}"] if len(sheets) > 1 else []
        lines += ["", *heading, _table(table)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _table(table: PaperTable) -> str:
    """Format one table with its caption, label and footnotes."""
    texts = table.frame.map(escape) + table.marks.map(_raised)
    texts.columns = pd.MultiIndex.from_tuples([(escape(top), escape(below)) for top, below in table.frame.columns])
    bold = table.bold.map(lambda strong: "textbf:--rwrap;" if strong else "")
    bold.columns = texts.columns
    environment = "table" if texts.shape[1] <= MOST_IN_A_COLUMN else "table*"
    written = (
        texts.style.hide(axis="index")
        .apply(lambda _: bold, axis=None)
        .to_latex(
            hrules=True,
            caption=escape(table.title),
            label=label(table.name),
            position="tbp",
            position_float="centering",
            column_format="l" + "r" * (texts.shape[1] - 1),
            environment=environment,
            multicol_align="c",
        )
    )
    written = written.replace("\\begin{tabular}", "\\small\n\\setlength{\\tabcolsep}{4pt}\n\\begin{tabular}", 1)
    end = f"\\end{{{environment}}}"
    body, _, _ = written.rpartition(end)
    below = " \\par\n".join(_footnote(line) for line in table.footnotes)
    notes = " ".join(escape(line) for line in table.notes)
    text_below = " \\par\n".join(part for part in (below, notes) if part)
    return (
        f"{body}\\par\\smallskip\n\\begin{{minipage}}{{\\linewidth}}\\footnotesize\n{text_below}\n"
        f"\\end{{minipage}}\n{end}\n"
    )


def _raised(marks: str) -> str:
    return f"\\textsuperscript{{{escape(marks)}}}" if marks else ""


def _footnote(line: str) -> str:
    mark, _, text = line.partition(" ")
    return f"{_raised(mark)} {escape(text)}"
