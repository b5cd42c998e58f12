"""A report of any kind: what it prints, the files that it writes, and its page."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

import pandas as pd
from rich.console import Console

from lm.report.figures.chart import Chart
from lm.report.figures.picture import render_all
from lm.report.render import Section, markdown_page, print_section
from lm.report.tables import as_csv
from lm.report.web.page import Body

Files = dict[str, str | bytes]


class Report(ABC):
    """A report, whose content is computed when a format needs it."""

    kind: ClassVar[tuple[str, str]]  # what it is of, in the singular and in the plural
    usual: ClassVar[int | None] = None  # number of figures that are written unless all are requested; None for all

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of what it is of."""

    @property
    def damaged(self) -> bool:
        """True if a record, a curve or losses by document were changed since training wrote them."""
        return False

    @abstractmethod
    def printed(self, width: int, everything: bool) -> Sequence[Section]:
        """Return the tables for a terminal of so many characters, the first under the title of the report."""

    @abstractmethod
    def sections(self) -> Sequence[Section]:
        """Return the sections of the page of Markdown, the first under the title of the report."""

    @abstractmethod
    def figures(self) -> Mapping[str, Callable[[], Chart | None]]:
        """Return functions that compute each figure, those first that matter most; None for one without data."""

    @abstractmethod
    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the tables of numbers by the name of their file."""

    @abstractmethod
    def body(self) -> Body:
        """Return the content of its page."""

    def charts(self) -> Iterator[tuple[str, Chart | None]]:
        """Yield each figure with its name, computed when it is reached; None for one without data."""
        return ((name, make()) for name, make in self.figures().items())

    def show(self, console: Console, everything: bool = False) -> None:
        """Print the first table with a few lines of notes below it, or all tables with all their notes."""
        first, *others = self.printed(console.width, everything)
        print_section(first, console)
        for section in others:
            console.print()
            print_section(section, console)

    def files(self, every_figure: bool = False) -> Files:
        """Return the page of Markdown, its tables of numbers and its figures by name."""
        figures = render_all(self.charts(), None if every_figure else self.usual)
        tables = {name: as_csv(table) for name, table in self.tables().items()}
        pictures = {f"{name}.{suffix}": file for name, files in figures.items() for suffix, file in files.items()}
        return {**tables, **pictures, "table.md": markdown_page(self.sections(), list(figures))}
