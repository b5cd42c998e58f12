"""`lm count` and `lm coordinates`: commands that examine a configuration without training it to its end."""

import argparse
import json
import re
from pathlib import Path
from typing import Any

from lm.cli.options import CONFIG, JSON, SET, Command, option, read_settings
from lm.config.reading import load_config
from lm.config.tree import InputError, override, require_place

MAX_NUMBER = 100_000
"""Largest width and largest step of the check of coordinates."""


def count(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Print the parameters, FLOPs and memory of a configuration."""
    for name in ("context", "batch"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InputError(f"--{name}: expected 1 or more, found {value}")
    tree = override(load_config(options.config), read_settings(options, overrides))
    from lm.inference.count import count as count_costs

    costs = count_costs(tree, options.context, options.batch)
    if options.json:
        print(json.dumps(costs, indent=2))
        return 0
    from rich.console import Console

    from lm.report.run import show_count

    show_count(costs, Console())
    return 0


def check_coordinates(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Measure activations at several widths, and print or write the table."""
    widths, steps = _parse_numbers(options.widths, "--widths", 2), _parse_numbers(options.steps, "--steps", 1)
    if options.out is not None:
        if options.out.suffix != ".json":
            raise InputError(f"--out {options.out}: expected a name that ends in .json")
        require_place(options.out, "--out")
        require_place(options.out.with_suffix(".png"), "--out")
    tree = override(load_config(options.config), read_settings(options, overrides))
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from lm.inference.coordinates import coordinates, draw_coordinates, exponents, parametrization_name
    from lm.store.files import write_atomic

    activations = coordinates(tree, widths, steps)
    title = f"Mean |activation| over widths {', '.join(map(str, widths))}: its exponent of the width"
    table = Table(title=title, title_justify="left")
    for column in ("parametrization", "layer", *(f"after {step}" for step in steps)):
        table.add_column(column)
    powers: dict[tuple[str, str], list[str]] = {}
    for name, _, layer, power in exponents(activations):
        powers.setdefault((parametrization_name(name, activations), layer), []).append(f"{power:+z.2f}")
    for (name, layer), values in powers.items():
        table.add_row(*map(Text, (name, layer, *values)))
    Console().print(table)
    if options.out is not None:
        write_atomic(options.out, json.dumps(activations, indent=1) + "\n")
        write_atomic(options.out.with_suffix(".png"), draw_coordinates(activations))
    return 0


def _parse_numbers(text: str, option: str, least: int) -> list[int]:
    """Parse whole numbers with commas, at least `least` different ones, and sort them. Raises InputError."""
    parts = [part.strip() for part in text.split(",")]
    valid = all(re.fullmatch("[0-9]{1,6}", part) and 1 <= int(part) <= MAX_NUMBER for part in parts)
    numbers = sorted({int(part) for part in parts}) if valid else []
    if len(numbers) < least:
        raise InputError(f"{option} {text}: expected {least} or more whole numbers from 1, such as 32,64,128")
    return numbers


COMMANDS = {
    "count": Command(
        "count parameters, FLOPs a token, cache and activation memory of a configuration",
        ("lm count char_tiny", "lm count char_tiny --context 256 model.width=128 --json"),
        count,
        CONFIG,
        option("--context", "tokens in a row (default: the data's)", type=int, metavar="N"),
        option("--batch", "rows in a batch (default: the data's)", type=int, metavar="B"),
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
        option("--widths", "widths of the models", default="32,64,128,256", metavar="N,..."),
        option("--steps", "steps after which activations are measured", default="1,3,10", metavar="N,..."),
        option("--out", "write FILE.json, and a figure beside it", type=Path, metavar="FILE"),
        SET,
        settable=True,
    ),
}
