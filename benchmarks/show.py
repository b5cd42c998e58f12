"""The tables of a run of the benchmarks."""

import itertools

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.rows import Measured, Result, Row

WIDTH = 170
"""Columns where there is no terminal."""

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))

COLUMNS = {
    "tokens_per_second": ("tokens/s", 1.0, "z,.0f"),
    "matmul_peak_share": ("% of matrix peak", 100.0, "z.1f"),
    "mb_per_second": ("MB/s", 1.0, "z,.1f"),
    "peak_mib": ("peak MiB", 1.0, "z,.0f"),
    "added_mib": ("added MiB", 1.0, "+z,.1f"),
}
"""How further numbers are called and written; others as they are, in four figures."""


def console() -> Console:
    """The terminal, or a console wide enough for the tables."""
    found = Console()
    return found if found.is_terminal else Console(width=WIDTH)


def show(result: Result, to: Console) -> None:
    """All cases, and what they were measured on."""
    to.print(machine_line(result), highlight=False, markup=False, soft_wrap=True)
    for name, case in result["cases"].items():
        show_case(name, case, to)


def show_case(name: str, case: Measured, to: Console) -> None:
    """A table for each group of a case, and the notes of its rows."""
    date = f" ({case['date']})" if "date" in case else ""
    to.print(f"\n{name}{date}: {case.get('about')}", highlight=False, markup=False, soft_wrap=True)
    for group, members in itertools.groupby(case["rows"], key=lambda one: one["group"]):
        rows = list(members)
        to.print(_table(group, rows))
        for one in rows:
            if one["note"]:
                to.print(f"{one['way']}: {one['note']}", highlight=False, markup=False, soft_wrap=True)


def machine_line(result: Result) -> str:
    """What was measured on, and with what, in a line."""
    machine = result["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    has = " ".join(map(str, machine["flags"]))
    quick = "a quick look, whose figures mean nothing: " if result.get("quick") else ""
    return (
        f"{quick}{machine.get('processor')}, {machine.get('cores')} cores, threads: {machine.get('threads')}, "
        f"{machine.get('blas')}, {has or 'no vectors known'}; {packages}"
    )


def _table(group: str, rows: list[Row]) -> Table:
    further = list(dict.fromkeys(name for one in rows for name, value in one["more"].items() if value is not None))
    to = next((one["to"] for one in rows if one["to"]), None)
    table = Table(title=Text(group), title_justify="left", highlight=False)
    table.add_column("way", overflow="fold")
    repeated = any(one["ratio"] is not None and one["ratio"]["rounds"] > 1 for one in rows)
    over = f"over {to}" + (": median of ratios (quartiles)" if repeated else "")
    for header in ("median", *((over,) if to else ()), *map(_header, further)):
        table.add_column(header, justify="right", overflow="fold")
    for one in rows:
        ratio = (_ratio(one),) if to else ()
        table.add_row(*map(Text, (one["way"], _value(one), *ratio, *(_further(one, name) for name in further))))
    return table


def _value(one: Row) -> str:
    value = one["value"]
    if value is None:
        return "-"
    return in_seconds(value) if one["unit"] == "s" else f"{value:z.4g}"


def in_seconds(value: float) -> str:
    """A length of time to three figures, in a unit that suits it.

    >>> in_seconds(0.01234)
    '12.3 ms'
    """
    scale, unit = next(((scale, unit) for scale, unit in UNITS if abs(value) >= scale), UNITS[-1])
    return f"{value / scale:z.3g} {unit}"


def _ratio(one: Row) -> str:
    ratio = one["ratio"]
    if ratio is None:
        return "-"
    if one["way"] == one["to"]:
        return "1"
    if ratio["rounds"] == 1:
        return f"{ratio['median']:z.3f}"
    return f"{ratio['median']:z.3f} ({ratio['low']:z.3f} to {ratio['high']:z.3f})"


def _header(name: str) -> str:
    return COLUMNS[name][0] if name in COLUMNS else name.replace("_", " ")


def _further(one: Row, name: str) -> str:
    value = one["more"].get(name)
    if value is None:
        return "-"
    if name not in COLUMNS:
        return f"{value:z.4g}"
    _, factor, written = COLUMNS[name]
    return format(factor * value, written)
