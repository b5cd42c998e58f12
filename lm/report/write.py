"""Everything an experiment's folder shows, rebuilt from its records."""

from pathlib import Path

from rich.console import Console

from lm.analysis import Results, compare, load
from lm.report.figures import draw
from lm.report.tables import markdown, terminal
from lm.results import write_atomic


def write_report(folder: Path, console: Console) -> Results:
    """Prints the table, and writes table.csv, the figures and table.md into `folder`."""
    results = load(folder)
    table = compare(results)
    write_atomic(folder / "table.csv", table.to_csv(index=False, lineterminator="\n"))
    write_atomic(folder / "table.md", markdown(results, table, draw(results, folder)))
    terminal(results, table, console)
    return results
