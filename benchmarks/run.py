"""`make bench`: the cases asked for, one after the other, as tables, a file and a figure."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.asked import Asked
from benchmarks.cases import Case
from benchmarks.figure import drawn
from benchmarks.machine import describe_machine
from benchmarks.rows import FORMAT, Result, read_result
from benchmarks.scale import OVER
from benchmarks.show import machine_line, show, show_case
from lm import __version__
from lm.store.files import finite, to_json, write_atomic


def bench(cases: Iterable[Case], asked: Asked, out: Path | None, to: Console) -> int:
    """Measures and shows each case; returns 1 where a limit was overrun.

    The file, and the figure beside it, are written anew after each case, so that one that fails costs no other.
    """
    result: Result = {
        "format": FORMAT,
        "lm": __version__,
        "quick": asked.quick,
        "machine": describe_machine(asked.threads),
        "cases": {},
    }
    to.print(machine_line(result), highlight=False, markup=False, soft_wrap=True)
    for case in cases:
        measured = case.measured(asked)
        result["cases"][case.name] = measured
        show_case(case.name, measured, to)
        if out is not None:
            write(result, out)
    over = any(row["note"] == OVER for case in result["cases"].values() for row in case["rows"])
    return 1 if over and not asked.quick else 0


def write(result: Result, out: Path) -> None:
    """Writes the file, and beside it the figure of its ratios, if there are any."""
    write_atomic(out, to_json(finite(result)))
    figure = drawn(result)
    if figure is not None:
        write_atomic(out.with_suffix(".png"), figure)


def show_again(path: Path, names: Sequence[str], to: Console) -> None:
    """Shows cases that an earlier run has written, all where none is named, and draws its figure again.

    Raises:
        InputError: where the file is none of a run's.
    """
    result = read_result(path)
    shown = {name: case for name, case in result["cases"].items() if not names or name in names}
    show({**result, "cases": shown}, to)
    figure = drawn(result)
    if figure is not None:
        write_atomic(path.with_suffix(".png"), figure)
