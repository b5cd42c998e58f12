"""One run's record in the terminal."""

from rich.console import Console
from rich.table import Table

from lm.results import QUANTITIES, Store


def show_run(store: Store, cell: str, console: Console) -> str:
    """Prints what a finished cell measured and where it lies; returns its status."""
    record = store.record(cell)
    console.print(f"{record['status']}: {store.directory(cell)}", highlight=False, markup=False, soft_wrap=True)
    if record["status"] != "ok":
        console.print(record["error"], highlight=False, markup=False, soft_wrap=True)
    measured = {**record["metrics"], **record["cost"]}
    table = Table(show_header=False, highlight=False)
    for name, meaning in QUANTITIES.items():
        if measured.get(name) is not None:
            table.add_row(meaning.label, f"{measured[name]:,.{meaning.digits}f} {meaning.unit}".rstrip())
    if table.row_count:
        console.print(table)
    return str(record["status"])
