"""The report of a search, rebuilt from its study.json."""

import sys
from pathlib import Path

from rich.console import Console

from lm.report.figures.picture import as_files
from lm.report.figures.searches import draw_search
from lm.report.importance import FEWEST, Importance, importances
from lm.report.report_diff import missing_content, missing_csv_content, read_existing, write_unless_lossy
from lm.report.study import Study, importance_lines, load_study, markdown, terminal
from lm.report.tables import as_csv
from lm.report.web.gallery import MISSING, library
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


def write_study(
    folder: Path, console: Console, into: Path | None = None, replace: bool = True, every_figure: bool = False
) -> Study:
    """Print the table, and write trials.csv, report.html, the figures and table.md.

    Args:
        folder: folder of the search.
        console: console to print on.
        into: folder for the files instead of `folder`.
        replace: True to overwrite a report with more content, with a warning on standard error.
        every_figure: True to write all figures, and not the usual three.

    Raises:
        InputError: if there is no search that this version can read.
        LessError: if the existing report has more content and `replace` is False; nothing is written then.
    """
    study, into = load_study(folder), into or folder
    importance = importance_of(study)
    lines, figures, trials = importance_lines(importance), draw_search(study, every_figure), as_csv(study.trials)
    page = markdown(study, lines, list(figures))
    files: dict[str, str | bytes] = {
        "trials.csv": trials,
        "report.html": search_html(study, importance),
        **as_files(figures),
        "table.md": page,
    }
    missing = missing_content(read_existing(into / "table.md"), page, rows=False)
    missing = missing or missing_csv_content(read_existing(into / "trials.csv"), trials, "trials.csv")
    why = f"its study.json holds {len(study.trials)} trials"
    try:
        terminal(study, lines, console)
    finally:  # also if standard output is closed early
        line = write_unless_lossy(into, files, missing, why, replace)
    if line:
        print(f"lm: {line}", file=sys.stderr)
    return study
