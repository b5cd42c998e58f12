"""Everything an experiment's folder shows, rebuilt from its records."""

from pathlib import Path

from rich.console import Console

from lm.analysis.compare import compare
from lm.analysis.results import Results, load
from lm.report.claims import answers, markdown_claims, show_claims
from lm.report.figures import draw
from lm.report.page import markdown, terminal
from lm.report.tables import as_csv
from lm.report.tuning import draw_tuning, markdown_tuning, show_tuning, tuning_of
from lm.store.files import write_atomic


def write_report(folder: Path, console: Console) -> Results:
    """Prints the table, and writes table.csv, the figures and table.md into `folder`."""
    results = load(folder)
    table = compare(results)
    write_atomic(folder / "table.csv", as_csv(table))
    claims = [(results.manifest["name"], one) for one in answers(results)]
    page = markdown(results, table, draw(results, folder))
    if claims:
        page += "\n".join(["", "## Claims", "", *markdown_claims(claims), ""])
    tuning = tuning_of(results, folder)
    if tuning:
        page += "\n".join(["", *markdown_tuning(results, *tuning, draw_tuning(results, tuning[2], folder))])
    write_atomic(folder / "table.md", page)
    terminal(results, table, console)
    if claims:
        show_claims(claims, console)
    if tuning:
        show_tuning(results, *tuning, console)
    return results
