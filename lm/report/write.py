"""Everything an experiment's folder shows, rebuilt from its records."""

import sys
from pathlib import Path

from rich.console import Console

from lm.analysis.compare import compare
from lm.analysis.results import Results, load
from lm.report.claims import answers, markdown_claims, show_claims
from lm.report.figures import as_files, draw
from lm.report.less import lost, lost_of_csv, present, put, wanting
from lm.report.page import markdown, terminal
from lm.report.tables import as_csv
from lm.report.tuning import draw_tuning, markdown_tuning, show_tuning, tuning_of
from lm.report.web.library import MISSING, library
from lm.report.web.page import html


def write_report(folder: Path, console: Console, into: Path | None = None, replace: bool = True) -> Results:
    """Prints the table, and writes table.csv, the figures, report.html and table.md.

    Args:
        folder: of the experiment.
        console: to print on.
        into: another folder for what is written.
        replace: whether it may take the place of a report that says more; it is told on standard error where it does.

    Raises:
        InputError: where there is no experiment that this version reads.
        LessError: where the report that is there says more and `replace` is not given; the table is printed then, and
            nothing written.
    """
    results, into = load(folder), into or folder
    table, claims = compare(results), [(results.manifest["name"], one) for one in answers(results)]
    figures = draw(results)
    page = markdown(results, table, list(figures))
    if claims:
        page += "\n".join(["", "## Claims", "", *markdown_claims(claims), ""])
    tuning = tuning_of(results, folder)
    if tuning:
        of_tuning = draw_tuning(results, tuning[2])
        page += "\n".join(["", *markdown_tuning(results, *tuning, next(iter(of_tuning), None))])
        figures |= of_tuning
    comparisons = as_csv(table)
    less = lost(present(into / "table.md"), page)
    less = less or lost_of_csv(present(into / "table.csv"), comparisons, "table.csv")
    files: dict[str, str | bytes] = {"table.csv": comparisons, **as_files(figures)}
    files |= {"report.html": html(results, table, claims, tuning), "table.md": page}
    try:
        terminal(results, table, console)
        if claims:
            show_claims(claims, console)
        if tuning:
            show_tuning(results, *tuning, console)
    finally:  # also where nobody reads the terminal to its end
        line = put(into, files, less, wanting(results), replace)
    if line:
        print(f"lm: {line}", file=sys.stderr)
    if not library():
        print(f"lm: {into / 'report.html'}: {MISSING}", file=sys.stderr)
    return results
