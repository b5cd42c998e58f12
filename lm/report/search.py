"""The report of a search, rebuilt from its study.json."""

import sys
from pathlib import Path

from rich.console import Console

from lm.report.figures import as_files
from lm.report.report_diff import publish
from lm.report.study import FEWEST, Importance, Study, importance_lines, importances, load_study, markdown, terminal
from lm.report.study_figures import draw_study
from lm.report.tables import as_csv
from lm.report.web.library import MISSING, library
from lm.report.web.search import search_html
from lm.store.files import write_atomic


def importance_of(study: Study) -> dict[str, list[Importance]] | str:
    """Return the importances of a search's parameters by objective, or why there are none."""
    if len(study.complete) < FEWEST:
        return f"{len(study.complete)} complete trials are too few; it takes {FEWEST}."
    return importances(study.complete, list(study.objectives), study.space)


def write_page(folder: Path, into: Path) -> None:
    """Write report.html alone. Raises InputError where no readable search exists."""
    study = load_study(folder)
    write_atomic(into / "report.html", search_html(study, importance_of(study)))
    if not library():
        print(f"lm: {into / 'report.html'}: {MISSING}", file=sys.stderr)


def write_study(folder: Path, console: Console, into: Path | None = None, replace: bool = True) -> Study:
    """Print the table, and write trials.csv, report.html, the figures and table.md.

    Args:
        folder: folder of the search.
        console: console to print on.
        into: folder for the files instead of `folder`.
        replace: True to overwrite a report with more content, with a warning on standard error.

    Raises:
        InputError: if there is no search that this version can read.
        LessError: if the existing report has more content and `replace` is False; nothing is written then.
    """
    study, into = load_study(folder), into or folder
    importance = importance_of(study)
    lines, figures = importance_lines(importance), draw_study(study)
    files: dict[str, str | bytes] = {
        "trials.csv": as_csv(study.trials),
        "report.html": search_html(study, importance),
        **as_files(figures),
        "table.md": markdown(study, lines, list(figures)),
    }
    why = f"its study.json holds {len(study.trials)} trials"
    publish(into, files, lambda: terminal(study, lines, console), lambda: why, replace)
    return study
