"""The report of a search, rebuilt from its study.json."""

import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from lm.report.figures.picture import as_files
from lm.report.figures.searches import draw_search
from lm.report.study import FEWEST, Importance, Study, importance_lines, importances, load_study, markdown, terminal
from lm.report.tables import as_csv
from lm.report.web.gallery import MISSING, library
from lm.report.web.search import search_html
from lm.report.write import publish
from lm.store.files import write_atomic


def load_ranked(folder: Path) -> tuple[Study, dict[str, list[Importance]] | str]:
    """Load a search, and its parameters' importances or why there are none. Raises InputError where unreadable."""
    study = load_study(folder)
    if len(study.complete) < FEWEST:
        return study, f"{len(study.complete)} complete trials are too few; it takes {FEWEST}."
    importance = importances(study.complete, list(study.objectives), study.space)
    if isinstance(importance, str):
        return study, importance
    ranked = tuple(row.name for row in next(iter(importance.values())))
    return replace(study, ranked=ranked), importance


def write_page(folder: Path, into: Path) -> None:
    """Write report.html alone. Raises InputError where no readable search exists."""
    write_atomic(into / "report.html", search_html(*load_ranked(folder)))
    if not library():
        print(f"lm: {into / 'report.html'}: {MISSING}", file=sys.stderr)


def write_study(folder: Path, console: Console, into: Path | None = None, every_figure: bool = False) -> Study:
    """Print the table, and write trials.csv, report.html, the usual figures or all, and table.md. Raises InputError."""
    (study, importance), into = load_ranked(folder), into or folder
    lines, figures = importance_lines(importance), draw_search(study, every_figure)
    files: dict[str, str | bytes] = {
        "trials.csv": as_csv(study.trials),
        "report.html": search_html(study, importance),
        **as_files(figures),
        "table.md": markdown(study, lines, list(figures)),
    }
    publish(into, files, lambda: terminal(study, lines, console))
    return study
