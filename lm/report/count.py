"""Parameter, FLOP and memory counts of a configuration in the terminal."""

import itertools
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Column, Table

LABELS = {
    "linear": "linear maps, forward",
    "attention": "attention, forward, every query with every key",
    "useful": "  of these, with keys that the query sees",
    "forward": "forward",
    "backward": "backward, twice that",
    "total": "both",
}
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def grouped(parts: dict[str, dict[str, int]]) -> Iterator[tuple[str, dict[str, int]]]:
    """Merge consecutive blocks with equal counts into one entry: `blocks.0 to 5, each`."""
    for _, same in itertools.groupby(parts.items(), lambda item: (item[0].split(".")[0], item[1])):
        names = [name for name, _ in same]
        each = f" to {names[-1].split('.')[-1]}, each" if len(names) > 1 else ""
        yield names[0] + each, parts[names[0]]


def show_count(counts: dict[str, Any], console: Console) -> None:
    """Print the counts of `lm.count.count` as tables."""
    table = Table("", Column("parameters", justify="right"), highlight=False)
    for part, kinds in sorted(grouped(counts["parameters"]["parts"]), key=lambda item: item[0] != ""):
        if part:
            table.add_row(part, f"{sum(kinds.values()):,}")
        for kind, number in kinds.items():
            table.add_row(f"  {kind}" if part else kind, f"{number:,}" if number or kind != "head" else "tied")
    table.add_row("total, shared ones once", f"{counts['parameters']['total']:,}")
    console.print(table)
    context, batch, flops = counts["context"], counts["batch"], counts["flops_per_token"]
    table = Table(f"a token, context {context:,}", Column("FLOPs", justify="right"), highlight=False)
    for name, label in LABELS.items():
        table.add_row(label, scaled(flops[name], 1000, ("", "k", "M", "G", "T")))
    table.add_row("attention's share of forward", f"{flops['attention'] / flops['forward']:z.1%}")
    console.print(table)
    table = Table(f"memory, context {context:,}, batch {batch:,}", highlight=False)
    for dtype in counts["cache_bytes"]:
        table.add_column(dtype, justify="right")
    for label, name in (("keys and values", "cache_bytes"), ("activations in training, estimate", "activation_bytes")):
        sizes = (counts[name].get(dtype) for dtype in counts["cache_bytes"])
        table.add_row(label, *("" if size is None else scaled(size, 1024, UNITS) for size in sizes))
    console.print(table)


def scaled(number: float, step: int, units: tuple[str, ...]) -> str:
    """Format a number with four figures and the unit that fits."""
    power = 0
    while number >= step and power < len(units) - 1:
        number, power = number / step, power + 1
    return f"{number:z,.4g} {units[power]}".rstrip() if number < step else f"{number:z,.0f} {units[power]}"
