"""One run's record in the terminal."""

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lm.report.failure import whereabouts
from lm.store.metrics import AT_LENGTH, METRICS, Metric, describe
from lm.store.store import Store


def show_run(store: Store, cell: str, console: Console) -> str:
    """Print metrics, flags and folder of a finished cell; return its status."""
    record = store.record(cell)
    _line(console, f"{record['status']}: {store.directory(cell)}")
    if record["status"] != "ok":
        _line(console, f"{record['error']}{whereabouts(store, record)}")
    for flag in record["flags"]:
        _line(console, f"flag: {flag}")
    measured = {**record["metrics"], **record["cost"]}
    table = Table(show_header=False, highlight=False)
    own = (name for name in record["metrics"] if name not in METRICS)  # at a length, or known to no table
    for name in (*METRICS, *own):
        if (number := measured.get(name)) is not None:
            table.add_row(describe(name).label, shown(describe(name), number))
    if table.row_count:
        console.print(table)
    return str(record["status"])


def show_evaluations(evaluations: dict[str, dict[str, Any]], console: Console) -> None:
    """Print the evaluations of a finished run: a table a split, and one of lengths."""
    for name, evaluation in evaluations.items():
        if name == "lengths":
            console.print(_length_table(evaluation, "validation"))
            continue
        console.print(_split_table(name, evaluation))
        if "lengths" in evaluation:
            console.print(_length_table(evaluation["lengths"], name))


def shown(meaning: Metric, value: float) -> str:
    """Format a value with its digits and unit."""
    return f"{value:z,.{meaning.digits}f} {meaning.unit}".rstrip()


def _line(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _split_table(name: str, evaluation: dict[str, Any]) -> Table:
    scaled = evaluation["scaled"] or {}
    table = Table(title=Text(name), title_justify="left", highlight=False)
    for column in ("", "as trained", *(("scaled",) if scaled else ())):
        table.add_column(column)
    for quantity, meaning in METRICS.items():
        if evaluation.get(quantity) is not None:
            after = [shown(meaning, scaled[quantity])] if quantity in scaled else []
            table.add_row(meaning.label.removeprefix("validation "), shown(meaning, evaluation[quantity]), *after)
    if scaled:
        nll, (before, after_fit) = METRICS["nll"], scaled["validation_nll"]
        table.add_row(nll.label, shown(nll, before), shown(nll, after_fit))
        table.add_row(METRICS["temperature"].label, "1", shown(METRICS["temperature"], scaled["temperature"]))
        table.add_row(METRICS["argmax_changed"].label, "", f"{scaled['argmax_changed']:,}")
    if "text" in evaluation:
        table.add_row("unknown tokens", f"{evaluation['text']['unknown_share']:z.2%}")
    return table


def _length_table(by_length: dict[str, Any], split: str) -> Table:
    table = Table(title=Text(f"{split}, by tokens of context"), title_justify="left", highlight=False)
    for column in ("context", "blocks", "sliding window", "tokens"):
        table.add_column(column, justify="right")
    for length, at in by_length.items():
        if "error" in at:
            table.add_row(length, Text(at["error"]))
        else:
            nll = [shown(AT_LENGTH[name], at[name]) for name in ("nll", "sliding_nll")]
            table.add_row(length, *nll, f"{at['tokens']:,}")
    return table
