"""`make bench`: the cases asked for, one after the other, as tables, a file and a figure."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks.asked import Asked
from benchmarks.cases import CASES, Case
from benchmarks.figure import drawn
from benchmarks.machine import describe_machine
from benchmarks.rows import FORMAT, Measured, Result, read_result
from benchmarks.scale import OVER
from benchmarks.show import machine_line, show, show_case
from lm import __version__
from lm.config.tree import InputError
from lm.store.files import finite, to_json, write_atomic


def bench(cases: Iterable[Case], asked: Asked, out: Path | None, to: Console) -> int:
    """Measures and shows each case; returns 1 where a limit was overrun.

    The file, and the figure beside it, are written anew after each case, so that one that fails costs no other. Cases
    that it has of the same machine, with the same packages, stay until they are measured again.
    """
    result: Result = {
        "format": FORMAT,
        "lm": __version__,
        "quick": asked.quick,
        "machine": describe_machine(asked.threads),
        "cases": {},
    }
    if out is not None:
        result["cases"] = earlier_cases(result, out)
    over = False
    to.print(machine_line(result), highlight=False, markup=False, soft_wrap=True)
    for case in cases:
        measured = case.measured(asked)
        measured["date"] = f"{datetime.now(UTC):%Y-%m-%d}"
        over |= any(row["note"] == OVER for row in measured["rows"])
        result["cases"] = {
            name: result["cases"][name] if name != case.name else measured
            for name in CASES
            if name in result["cases"] or name == case.name
        }
        show_case(case.name, measured, to)
        if out is not None:
            write(result, out)
    return 1 if over and not asked.quick else 0


def earlier_cases(result: Result, out: Path) -> dict[str, Measured]:
    """Return the cases of a file that was measured as `result` is; none of another file."""
    try:
        earlier = read_result(out)
    except (InputError, OSError):
        return {}
    same = all(earlier.get(key) == result.get(key) for key in ("machine", "quick"))
    return earlier["cases"] if same else {}


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
