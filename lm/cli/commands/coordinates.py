"""`lm coordinates`: whether the activations of a configuration stay where they are at another width."""

import argparse
import json
from pathlib import Path
from typing import Any

from lm.cli.options import Parser, add_settable, settings_of
from lm.config.reading import load_config
from lm.config.tree import InputError, override, require_place

HELP = "how activations after a few steps go with the width, as configured and with muP"
EXAMPLES = (
    "lm coordinates char_tiny",
    "lm coordinates char_tiny --widths 32,64,128 --steps 1,10 --out check.json model.mlp=SwiGLU",
)
SETTABLE = True
MOST = 100_000


def add_options(command: Parser) -> None:
    command.add_argument("config", type=Path, help="a YAML file, or the name of a shipped one such as char_tiny")
    command.add_argument("--widths", default="32,64,128,256", metavar="N,...", help="of the models")
    command.add_argument("--steps", default="1,3,10", metavar="N,...", help="after which activations are measured")
    command.add_argument("--out", type=Path, metavar="FILE", help="write FILE.json, and a figure beside it")
    add_settable(command)


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    widths, steps = _numbers(options.widths, "--widths", 2), _numbers(options.steps, "--steps", 1)
    if options.out is not None:
        if options.out.suffix != ".json":
            raise InputError(f"--out {options.out}: expected a name that ends in .json")
        require_place(options.out, "--out")
        require_place(options.out.with_suffix(".png"), "--out")
    tree = override(load_config(options.config), settings_of(options, overrides))
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from lm.inference.coordinates import coordinates, draw_coordinates, exponents, parametrization_name
    from lm.store.files import write_atomic

    found = coordinates(tree, widths, steps)
    title = f"Mean |activation| over widths {', '.join(map(str, widths))}: the power of the width it goes with"
    table = Table(title=title, title_justify="left")
    for column in ("parametrization", "layer", *(f"after {step}" for step in steps)):
        table.add_column(column)
    powers: dict[tuple[str, str], list[str]] = {}
    for name, _, layer, power in exponents(found):
        powers.setdefault((parametrization_name(name, found), layer), []).append(f"{power:+z.2f}")
    for (name, layer), values in powers.items():
        table.add_row(*map(Text, (name, layer, *values)))
    Console().print(table)
    if options.out is not None:
        write_atomic(options.out, json.dumps(found, indent=1) + "\n")
        write_atomic(options.out.with_suffix(".png"), draw_coordinates(found))
    return 0


def _numbers(text: str, where: str, least: int) -> list[int]:
    """Whole numbers in rising order. Raises InputError naming `where` they were given."""
    parts = [part.strip() for part in text.split(",")]
    good = all(part.isascii() and part.isdecimal() and len(part) < 7 and 1 <= int(part) <= MOST for part in parts)
    found = sorted({int(part) for part in parts}) if good else []
    if len(found) < least:
        raise InputError(f"{where} {text}: expected {least} or more whole numbers from 1, such as 32,64,128")
    return found
