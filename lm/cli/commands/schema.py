"""`lm schema`: what files may say, as JSON Schema."""

import argparse
from pathlib import Path
from typing import Any

from lm.cli.options import Parser
from lm.config.tree import require_place

HELP = "print the JSON Schema of experiments, configurations or sweeps"
EXAMPLES = ("lm schema experiment", "lm schema --write schema")


def add_options(command: Parser) -> None:
    command.add_argument(
        "kind",
        nargs="?",
        default="experiment",
        choices=("experiment", "configuration", "sweep"),
        help="which (default: experiment)",
    )
    command.add_argument("--write", type=Path, metavar="DIR", help="write all three into this folder instead")


def run(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from lm.cli.schema import KINDS, schema
    from lm.store.files import to_json, write_atomic

    if options.write is None:
        print(to_json(schema(options.kind)), end="")
        return 0
    require_place(options.write, "--write", folder=True)
    for kind in KINDS:
        write_atomic(options.write / f"{kind}.json", to_json(schema(kind)))
    return 0
