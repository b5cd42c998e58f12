"""`lm count` and `lm coordinates`: commands that examine a configuration without training it to its end."""

import argparse
import json
from pathlib import Path
from typing import Any

from lm.cli.options import CONFIG, JSON, SET, Command, bounded, console, option, print_result, whole_numbers
from lm.config.reading import load_config
from lm.config.tree import InputError, override, require_place


def count(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Print the parameters, FLOPs and memory of a configuration."""
    tree = override(load_config(options.config), overrides)
    from lm.inference.count import count as count_costs
    from lm.report.run import show_count

    costs = count_costs(tree, options.context, options.batch)
    print_result(options.json, lambda: costs, lambda console: show_count(costs, console))
    return 0


def check_coordinates(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Measure activations at several widths, and print or write the table."""
    if len(options.widths) < 2:
        raise InputError(f"--widths: expected 2 or more, such as 32,64,128, found {options.widths[0]} alone")
    if options.out is not None:
        if options.out.suffix != ".json":
            raise InputError(f"--out {options.out}: expected a name that ends in .json")
        require_place(options.out, "--out")
        require_place(options.out.with_suffix(".png"), "--out")
    tree = override(load_config(options.config), overrides)
    from rich.table import Table
    from rich.text import Text

    from lm.inference.coordinates import coordinates, draw_coordinates, exponents, parametrization_name
    from lm.store.files import write_atomic

    activations = coordinates(tree, options.widths, options.steps)
    title = f"Mean |activation| over widths {', '.join(map(str, options.widths))}: its exponent of the width"
    table = Table("parametrization", "layer", *(f"after {step}" for step in options.steps), title=title)
    table.title_justify = "left"
    powers: dict[tuple[str, str], list[str]] = {}
    for name, _, layer, power in exponents(activations):
        powers.setdefault((parametrization_name(name, activations), layer), []).append(f"{power:+z.2f}")
    for (name, layer), values in powers.items():
        table.add_row(*map(Text, (name, layer, *values)))
    console().print(table)
    if options.out is not None:
        write_atomic(options.out, json.dumps(activations, indent=1) + "\n")
        write_atomic(options.out.with_suffix(".png"), draw_coordinates(activations))
    return 0


COMMANDS = {
    "count": Command(
        "count parameters, FLOPs a token, cache and activation memory of a configuration",
        ("lm count char_tiny", "lm count char_tiny --context 256 model.width=128 --json"),
        count,
        CONFIG,
        option("--context", "tokens in a row (default: the data's)", bounded(int, 1), "N"),
        option("--batch", "rows in a batch (default: the data's)", bounded(int, 1), "B"),
        JSON,
        SET,
        settable=True,
    ),
    "coordinates": Command(
        "measure how activations after a few steps scale with the width, as configured and with muP",
        (
            "lm coordinates char_tiny",
            "lm coordinates char_tiny --widths 32,64,128 --steps 1,10 --out check.json model.mlp=SwiGLU",
        ),
        check_coordinates,
        CONFIG,
        option("--widths", "widths of the models", whole_numbers, "N,...", default=[32, 64, 128, 256]),
        option("--steps", "steps after which activations are measured", whole_numbers, "N,...", default=[1, 3, 10]),
        option("--out", "write FILE.json, and a figure beside it", Path, "FILE"),
        SET,
        settable=True,
    ),
}
